//! The catalog of the stored pieces, with the last verification of each: the object `catalog.json` beside the backups.
//!
//! Without it, all pieces that a backup uses are read again, and the clock decides which backup is the last one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::manifest::{BackupName, Hash};

/// The pieces and the backups that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Catalog {
    format: u32,
    /// The names of the backups in the order in which they were made. A list that is late may lack some.
    backups: Vec<String>,
    pub(crate) pieces: BTreeMap<Hash, Verification>,
}

/// The last time that a piece was read and compared with its hash, or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, i64, u64)", into = "(u64, i64, u64)")]
pub(crate) struct Verification {
    pub(crate) bytes: u64,
    /// Seconds since 1970.
    pub(crate) at_s: i64,
    /// The stamp of the object that was read.
    pub(crate) stamp: u64,
}

impl From<(u64, i64, u64)> for Verification {
    fn from((bytes, at_s, stamp): (u64, i64, u64)) -> Self {
        Verification { bytes, at_s, stamp }
    }
}

impl From<Verification> for (u64, i64, u64) {
    fn from(one: Verification) -> Self {
        (one.bytes, one.at_s, one.stamp)
    }
}

impl Catalog {
    /// An empty one for content that this version does not read.
    pub(crate) fn decode(text: &[u8]) -> Catalog {
        let decoded = serde_json::from_slice(text).unwrap_or_default();
        match decoded {
            Catalog { format: FORMAT, .. } => decoded,
            _ => Catalog::default(),
        }
    }

    pub(crate) fn encode(&mut self) -> serde_json::Result<Vec<u8>> {
        self.format = FORMAT;
        serde_json::to_vec(self)
    }

    pub(crate) fn backups(&self) -> impl Iterator<Item = BackupName> {
        self.backups.iter().filter_map(|name| name.parse().ok())
    }

    pub(crate) fn set_backups(&mut self, names: &[BackupName]) {
        self.backups = names.iter().map(BackupName::to_string).collect();
    }

    /// Sorts the names of backups by the order in which they were made.
    pub(crate) fn sort(&self, names: &mut [BackupName]) {
        BackupName::sort(names, self.backups(), Timestamp::now());
    }

    /// The pieces to read again, each after half of `within_s` at least and all of it at most. The hash decides, so that no backup reads all.
    pub(crate) fn due(&self, now: Timestamp, within_s: u64) -> Vec<(Hash, u64)> {
        let is_due = |hash: &Hash, verified: &Verification| {
            let [first, second, ..] = hash.0;
            let part = u64::from(u16::from_be_bytes([first, second]));
            let half_s = within_s / 2;
            let period_s = half_s + (u128::from(half_s) * u128::from(part) / 65_536) as u64;
            let age_s = now.as_second().saturating_sub(verified.at_s);
            // A clock that was ahead must not put it off.
            age_s < -AHEAD_S || age_s.max(0) as u64 >= period_s
        };
        let pieces = self.pieces.iter();
        let due = pieces.filter(|(hash, verified)| is_due(hash, verified));
        due.map(|(hash, verified)| (*hash, verified.bytes))
            .collect()
    }
}

const FORMAT: u32 = 1;
/// How far clocks of machines that make backups may differ.
const AHEAD_S: i64 = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_are_due_in_the_time_and_not_all_at_once() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let mut catalog = Catalog::default();
        for piece in 0..200u8 {
            let of = Verification {
                bytes: 10,
                at_s: 10_000,
                stamp: u64::from(piece),
            };
            catalog.pieces.insert(Hash::of(&[piece]), of);
        }
        let text = catalog.encode().expect("it is JSON");
        let catalog = Catalog::decode(&text);
        let due = |second| catalog.due(at(second), 1_000).len();
        assert_eq!([10_000, 10_499].map(due), [0, 0]);
        let mut before = 0;
        for tenth in 6..=10 {
            let more = due(10_000 + 100 * tenth) - before;
            assert!((20..60).contains(&more), "{more} at {tenth}");
            before += more;
        }
        assert_eq!(before, 200);
        // Without a time all are due, and with a verification that lies ahead.
        assert_eq!(catalog.due(at(10_000), 0).len(), 200);
        assert_eq!(due(9_000), 200);
    }

    #[test]
    fn a_catalog_of_another_format_is_empty() {
        let mut catalog = Catalog::default();
        let text = catalog.encode().expect("it is JSON");
        let text = String::from_utf8(text).expect("text");
        for wrong in ["", "{}", &text.replace("\"format\":1", "\"format\":2")] {
            assert_eq!(Catalog::decode(wrong.as_bytes()), Catalog::default());
        }
        assert_eq!(Catalog::decode(text.as_bytes()), catalog);
    }
}
