//! The marks of the background work as 0.1.0 kept them: in history itself, because there were no superblocks.

use crate::error::OpenError;

use encke_clock::WallTime;

use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::floor::floor_of;
use crate::history::generations::Times;
use crate::history::tree::FORMAT;
use crate::history::verify::inspect;
use crate::history::verify::private_copy::{HistoryCopy, private_directory};
use crate::ids::Sequence;
use crate::segments::frame::u64_at;
use crate::superblock::statement::Marks;
use std::path::Path;

/// The marks in a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct OldMarks {
    pub(crate) marks: Marks,
    pub(crate) retention_floor: Sequence,
    pub(crate) times: Times,
}

impl OldMarks {
    /// Reads the marks.
    pub(crate) fn read(history: &History) -> Result<OldMarks, HistoryError> {
        history.with(|open| {
            let format = open.mark(FORMAT)?;
            if !matches!(format, 1 | 2) {
                return Err(HistoryError::from(format!(
                    "it has format {format} and no superblock states what it holds"
                )));
            }
            let mut old = OldMarks {
                marks: Marks {
                    history_upto: open.mark("history_upto")?,
                    checkpoint_upto: open.mark("checkpoint_upto")?,
                },
                retention_floor: floor_of(open.marks.get(RETENTION_FLOOR)?),
                ..OldMarks::default()
            };
            for pair in open.marks.prefix(TIMES) {
                let (key, value) = pair.into_inner()?;
                let name = std::str::from_utf8(&key[TIMES.len()..]).ok();
                if let (Some(name), 16) = (name, value.len()) {
                    let time = |at| WallTime::from_ms(u64_at(&value, at));
                    let times = (time(0), time(8));
                    old.times.insert(name.to_owned(), times);
                }
            }
            Ok(old)
        })
    }
}

/// Whether a version without superblocks wrote a history, and the number of its format did not change since. A history that
/// can't be read is not taken for one.
///
/// # Errors
/// There is no room for a private copy.
pub(crate) fn is_of_older_version(history: &Path) -> Result<bool, OpenError> {
    let directory = private_directory()?;
    let read = inspect::verify_without_statement(history)
        .and_then(|()| HistoryCopy::of_whole(directory, history))
        .and_then(|copy| OldMarks::read(&copy.history));
    Ok(read.is_ok())
}

/// The key of the retention floor. The last byte was the number of a retention class.
const RETENTION_FLOOR: &[u8] = b"floor/\0";
/// Prefix of the keys of the times of generations; the name of the keyspace follows.
const TIMES: &str = "times/";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::files::{FileAccess, Files};
    use crate::start::log_directory::LogDirectory;
    use std::path::PathBuf;
    use std::process::Command;

    /// Retention by age needs the times of generations.
    #[test]
    fn times_of_generations_survive_a_repair() {
        let root = tempfile::tempdir().unwrap();
        let archive = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/system/data-0.1.0.tar.gz"
        );
        let mut tar = Command::new("tar");
        tar.args(["-xzf", archive, "-C"]).arg(root.path());
        assert!(tar.status().unwrap().success());
        for name in ["clean", "killed"] {
            let directory = root.path().join(name);
            let history = directory.join("history");
            let copy = HistoryCopy::of_whole(private_directory().unwrap(), &history).unwrap();
            let times = OldMarks::read(&copy.history).unwrap().times;
            assert!(!times.is_empty(), "{name}");
            drop(copy);
            damage_a_table(&history);
            let repaired = crate::repair(&directory, &mut |_| true).unwrap();
            assert!(repaired.done, "{name}: {repaired:?}");
            let disk = Files::lock_existing(&directory, FileAccess::Read).unwrap();
            let stated = LogDirectory::of(&disk).unwrap().statement.unwrap();
            assert_eq!(stated.history.unwrap().times(), times, "{name}");
        }
    }

    /// Flips a bit in the middle of the largest table.
    fn damage_a_table(history: &Path) {
        let paths = |directory: PathBuf| {
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            entries.map(|entry| entry.unwrap().path())
        };
        let keyspaces = paths(history.join("keyspaces"));
        let tables = keyspaces.flat_map(|keyspace| paths(keyspace.join("tables")));
        let largest = tables.max_by_key(|table| table.metadata().unwrap().len());
        let largest = largest.unwrap();
        let mut content = std::fs::read(&largest).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        std::fs::write(&largest, content).unwrap();
    }
}
