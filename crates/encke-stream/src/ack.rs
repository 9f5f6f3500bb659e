//! How safe a record is when its append is acknowledged and when subscribers see it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How safe a record is when its append is acknowledged and when subscribers see it.
///
/// Each level holds what the ones before it promise. A stream has one, for its readers and for appends that ask for
/// none; a request may ask for another one for its own acknowledgement.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum AckLevel {
    /// Ordered, but in this process's memory only: a crash of the process may take it.
    Accepted,
    /// Written to the file: a crash of the process takes nothing, one of the system or a power cut may.
    Written,
    /// On the disk, by fdatasync: nothing short of the disk's loss takes it.
    #[default]
    Synced,
}

impl AckLevel {
    /// All levels, the weakest first.
    pub const ALL: [AckLevel; 3] = [AckLevel::Accepted, AckLevel::Written, AckLevel::Synced];

    /// The level's name in requests, answers and settings.
    pub fn name(self) -> &'static str {
        match self {
            AckLevel::Accepted => "accepted",
            AckLevel::Written => "written",
            AckLevel::Synced => "synced",
        }
    }
}

impl fmt::Display for AckLevel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for AckLevel {
    type Err = BadLevel;

    fn from_str(name: &str) -> Result<Self, BadLevel> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or(BadLevel)
    }
}

/// A text that names no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the levels of acknowledgement are synced, written and accepted")]
pub struct BadLevel;
