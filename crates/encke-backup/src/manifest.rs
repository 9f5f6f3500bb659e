//! What a backup consists of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use encke_clock::{NotRfc3339, WallTime};
use encke_log::LOGS_MAX;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::BackupError;

/// A backup: the pieces of each file of each log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this format.
    pub(crate) format: u32,
    /// The start of the server that it was made of.
    pub(crate) start: u64,
    /// The logs, by index.
    pub(crate) logs: Vec<SavedLog>,
}

/// A log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedLog {
    pub(crate) log_id: u64,
    /// Its last record.
    pub(crate) upto: u64,
    /// Outer ones first.
    pub(crate) directories: Vec<String>,
    pub(crate) files: Vec<SavedFile>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// See [`FileListed`](crate::wire::FileListed).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) written_ns: Option<u128>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) grows: bool,
    /// The hashes of its pieces, each of [`PIECE_BYTES`], but for the last one.
    pub(crate) pieces: Vec<Hash>,
}

/// The SHA-256 of a piece.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hash(pub(crate) [u8; 32]);

/// The name of a backup: when it was begun, in UTC, such as `2026-11-26T16:15:48.123Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupName(Timestamp);

impl Manifest {
    /// The last record of each log.
    pub fn upto(&self) -> impl Iterator<Item = u64> {
        self.logs.iter().map(|log| log.upto)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    /// Whether it is of a server with one of these logs.
    pub(crate) fn is_of_server(&self, log_ids: &[u64]) -> bool {
        self.logs.iter().any(|log| log_ids.contains(&log.log_id))
    }

    pub(crate) fn log_ids(&self) -> Vec<u64> {
        self.logs.iter().map(|log| log.log_id).collect()
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &SavedFile> {
        self.logs.iter().flat_map(|log| &log.files)
    }

    pub(crate) fn decode(text: &[u8]) -> Result<Manifest, BackupError> {
        let damaged = |why: String| BackupError::Damaged(format!("its list of files: {why}"));
        let manifest: Manifest =
            serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(BackupError::OtherFormat {
                format: manifest.format,
                known: FORMAT,
            });
        }
        if !(1..=LOGS_MAX).contains(&manifest.logs.len()) {
            let logs = manifest.logs.len();
            return Err(damaged(format!(
                "{logs} logs, a server has 1 to {LOGS_MAX}"
            )));
        }
        let ids: BTreeSet<u64> = manifest.log_ids().into_iter().collect();
        if ids.len() < manifest.logs.len() {
            return Err(damaged("a log is there twice".to_owned()));
        }
        for log in &manifest.logs {
            let names: BTreeSet<&str> = log.files.iter().map(|file| &*file.name).collect();
            if names.is_empty() || names.len() < log.files.len() {
                let id = log.log_id;
                return Err(damaged(format!("log {id} has no files, or one twice")));
            }
        }
        for file in manifest.files() {
            if file.pieces.len() as u64 != file.bytes.div_ceil(PIECE_BYTES) {
                return Err(damaged(format!("{} lacks pieces", file.name)));
            }
        }
        Ok(manifest)
    }
}

impl SavedFile {
    /// Each piece with its size.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Hash, usize)> {
        let last = self.bytes % PIECE_BYTES;
        let whole = self.bytes / PIECE_BYTES;
        (self.pieces.iter().zip(0..)).map(move |(hash, at)| match at < whole {
            true => (*hash, PIECE_BYTES as usize),
            false => (*hash, last as usize),
        })
    }
}

impl Hash {
    pub(crate) fn of(bytes: &[u8]) -> Hash {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        let mut hash = [0; 32];
        hash.copy_from_slice(digest.as_ref());
        Hash(hash)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Hash {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Hash, Self::Err> {
        let wrong = "a hash has 64 hexadecimal digits";
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong);
        }
        let mut hash = [0; 32];
        for (at, byte) in hash.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or(wrong)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong)?;
        }
        Ok(Hash(hash))
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'d> Deserialize<'d> for Hash {
    fn deserialize<D: serde::Deserializer<'d>>(deserializer: D) -> Result<Hash, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl BackupName {
    /// The name of a backup that begins now: later than all names of `all` that are not ahead of the clock.
    pub(crate) fn behind(all: &[BackupName], now: Timestamp) -> BackupName {
        let mut ms = now.as_millisecond();
        if let Some(last) = all.iter().filter(|name| !name.is_ahead(now)).max() {
            ms = ms.max(last.0.as_millisecond() + 1);
        }
        BackupName(Timestamp::from_millisecond(ms).unwrap_or(now))
    }

    /// Sorts names, the oldest first. `made` has the order in which backups were made, whatever the clock was. A name that it lacks comes
    /// last if it is later than all of `made`, and not ahead of the clock by more than clocks of machines differ; otherwise it comes first.
    pub(crate) fn sort(
        names: &mut [BackupName],
        made: impl Iterator<Item = BackupName>,
        now: Timestamp,
    ) {
        let places: BTreeMap<BackupName, usize> = made.zip(0..).collect();
        let last = places
            .keys()
            .filter(|name| !name.is_ahead(now))
            .max()
            .copied();
        names.sort_by_key(|name| {
            let is_later = last.is_none_or(|last| *name > last) && !name.is_ahead(now);
            match places.get(name) {
                Some(place) => (Part::Known, *place, *name),
                None if is_later => (Part::Later, 0, *name),
                None => (Part::Earlier, 0, *name),
            }
        });
    }

    fn is_ahead(self, now: Timestamp) -> bool {
        self.0.as_millisecond() > now.as_millisecond() + AHEAD_MS
    }

    /// Whether it was begun then or before.
    pub(crate) fn is_by(self, time: WallTime) -> bool {
        i64::try_from(time.as_ms()).is_ok_and(|ms| self.0.as_millisecond() <= ms)
    }

    /// When it was begun.
    pub fn time(&self) -> Timestamp {
        self.0
    }
}

impl fmt::Display for BackupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.strftime("%Y-%m-%dT%H:%M:%S.%3fZ"))
    }
}

impl FromStr for BackupName {
    type Err = NotRfc3339;

    fn from_str(text: &str) -> Result<BackupName, NotRfc3339> {
        let ms = WallTime::from_rfc3339(text)?.as_ms();
        let ms = i64::try_from(ms).map_err(|_| NotRfc3339)?;
        let time = Timestamp::from_millisecond(ms);
        time.map(BackupName).map_err(|_| NotRfc3339)
    }
}

/// The parts of a sorted list of backups.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Earlier,
    Known,
    Later,
}

/// How far the clock of a machine that makes backups may be ahead of another one's.
const AHEAD_MS: i64 = 60_000;

/// The version of the format of manifests.
pub(crate) const FORMAT: u32 = 1;
/// The size of pieces.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(bytes: u64, pieces: usize) -> Manifest {
        let file = SavedFile {
            name: "superblock-0".to_owned(),
            bytes,
            written_ns: Some(7),
            grows: false,
            pieces: vec![Hash::of(b"piece"); pieces],
        };
        Manifest {
            format: FORMAT,
            start: u64::MAX,
            logs: vec![SavedLog {
                log_id: 1,
                upto: 2,
                directories: vec!["history".to_owned()],
                files: vec![file],
            }],
        }
    }

    #[test]
    fn a_manifest_has_the_pieces_of_its_files() {
        for (bytes, pieces) in [(0, 0), (1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2)] {
            let manifest = manifest(bytes, pieces);
            let text = serde_json::to_vec(&manifest).expect("it is JSON");
            let decoded = Manifest::decode(&text).expect("it is sound");
            assert_eq!(decoded, manifest);
            let sizes = decoded.files().flat_map(SavedFile::pieces);
            assert_eq!(sizes.map(|(_, bytes)| bytes as u64).sum::<u64>(), bytes);
        }
        for (bytes, pieces) in [(0, 1), (1, 0), (PIECE_BYTES + 1, 1)] {
            let text = serde_json::to_vec(&manifest(bytes, pieces)).expect("it is JSON");
            assert!(Manifest::decode(&text).is_err());
        }
        let spoil: [fn(&mut Manifest); 3] = [
            |manifest| manifest.logs[0].files.clear(),
            |manifest| manifest.logs[0].files = [&manifest.logs[0].files[..]; 2].concat(),
            |manifest| manifest.logs = [&manifest.logs[..]; 2].concat(),
        ];
        for spoil in spoil {
            let mut spoiled = manifest(1, 1);
            spoil(&mut spoiled);
            let text = serde_json::to_vec(&spoiled).expect("it is JSON");
            assert!(Manifest::decode(&text).is_err(), "{spoiled:?}");
        }
        let mut other = manifest(1, 1);
        other.format = 2;
        let text = serde_json::to_vec(&other).expect("it is JSON");
        let error = Manifest::decode(&text).expect_err("another format");
        assert!(error.to_string().contains("format 2"), "{error}");
    }

    #[test]
    fn names_are_times_in_their_order() {
        let names = ["2026-11-26T16:15:48.123Z", "2026-11-26T16:15:49.000Z"];
        let [first, second] = names.map(|name| name.parse::<BackupName>().expect("a time"));
        assert!(first < second);
        assert_eq!([first, second].map(|name| name.to_string()), names);
        assert!("yesterday".parse::<BackupName>().is_err());
        // The second was made by a machine whose clock is a little ahead, the last one by a clock that was wrong.
        let ahead: BackupName = "2999-01-01T00:00:00.999Z".parse().expect("a time");
        let mut names = [first, second, ahead];
        let now = first.time();
        BackupName::sort(&mut names, std::iter::empty(), now);
        assert_eq!(names, [ahead, first, second]);
        BackupName::sort(&mut names, [second, ahead].into_iter(), now);
        assert_eq!(names, [first, second, ahead]);
        BackupName::sort(&mut names, [ahead, first].into_iter(), now);
        assert_eq!(names, [ahead, first, second]);
        let next = BackupName::behind(&names, now);
        assert_eq!(next.to_string(), "2026-11-26T16:15:49.001Z");
    }
}
