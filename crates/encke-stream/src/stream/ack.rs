//! Durability levels: when an append is acknowledged, and when subscribers see it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How durable a record is when its append is acknowledged and when subscribers see it.
///
/// Each level includes the guarantees of the levels before it. A stream has one level, for its readers and for appends
/// that name none. A request may name another level for its own acknowledgement.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum AckLevel {
    /// Ordered, in the memory of this process only: a crash of the process may lose it.
    Accepted,
    /// Written to the file: a crash of the process loses nothing, a crash of the system or a power cut may.
    Written,
    /// On the disk, by fdatasync: only the loss of the disk loses it.
    #[default]
    Synced,
}

impl AckLevel {
    /// All levels, the weakest first.
    pub const ALL: [AckLevel; 3] = [AckLevel::Accepted, AckLevel::Written, AckLevel::Synced];

    /// The level's name in requests, responses and settings.
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
#[error("the durability levels are synced, written and accepted")]
pub struct BadLevel;
