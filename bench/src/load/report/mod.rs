//! The reports of the load tools.

pub(crate) mod answers;
pub(crate) mod endurance;
pub(crate) mod flood;
pub(crate) mod hostile;
pub(crate) mod read;
pub(crate) mod spray;
pub(crate) mod verify;

use crate::load::beside::BesideReport;
use crate::load::storm::{Storm, StormReport};
use crate::report::template;
use answers::AnswersReport;
use flood::FloodReport;
use minijinja::{Value, context};
use read::ReadReport;
use spray::SprayReport;
use std::fmt;
use verify::VerifyReport;

/// Shows reports by their templates, with what follows from their fields.
macro_rules! shown {
    ($($report:ty, $template:literal, $derived:expr;)*) => {$(
        impl fmt::Display for $report {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let derived: fn(&$report) -> Value = $derived;
                f.write_str(&template::text($template, self, derived(self)))
            }
        }
    )*};
}

shown! {
    AnswersReport, "answers.txt", |_| context!();
    BesideReport, "beside.txt", |report| {
        let successes = |round: &[SprayReport; 2]| round.each_ref().map(SprayReport::is_success);
        context! {
            ratios => report.ratios(),
            successes => report.rounds.iter().map(successes).collect::<Vec<_>>(),
        }
    };
    FloodReport, "flood.txt", |report| {
        let endurance = &report.endurance;
        let complaints = endurance.judged.then(|| endurance.complaints());
        context! {
            complaints => complaints.unwrap_or_default(),
            is_success => report.is_success(),
        }
    };
    ReadReport, "read.txt", |report| context! { ratios => report.middle_ratios() };
    SprayReport, "spray.txt", |_| context!();
    StormReport, "storm.txt", |report| {
        context! { refused => report.storms.iter().map(Storm::refused).collect::<Vec<_>>() }
    };
    VerifyReport, "verify.txt", |report| context! { is_success => report.is_success() };
}
