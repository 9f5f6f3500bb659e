//! The reports of the load tools.

pub(crate) mod answers;
pub(crate) mod endurance;
pub(crate) mod flood;
pub(crate) mod hostile;
pub(crate) mod read;
pub(crate) mod spray;
pub(crate) mod verify;

use std::fmt;

/// Reports of load tools show their tables.
macro_rules! shown {
    ($($report:ty),*) => {$(
        impl fmt::Display for $report {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.tables().iter().try_for_each(|table| table.fmt(f))
            }
        }
    )*};
}

shown!(
    answers::AnswersReport,
    flood::FloodReport,
    read::ReadReport,
    spray::SprayReport,
    verify::VerifyReport,
    super::StormReport,
    super::BesideReport
);
