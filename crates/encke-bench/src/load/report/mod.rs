//! What a run has found out: for people (`Display`) and for programs (`Serialize`).

pub(crate) mod endurance;
pub(crate) mod flood;
pub(crate) mod hostile;
pub(crate) mod spray;
pub mod units;
pub(crate) mod verify;
