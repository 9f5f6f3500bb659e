//! The marks of a history from before there were superblocks: 0.1.0 kept them in the history itself.

use crate::floor::floor_of;
use crate::frame::u64_at;
use crate::generations::Times;
use crate::history::History;
use crate::history_error::HistoryError;
use crate::ids::Sequence;
use crate::statement::Marks;
use crate::tree::FORMAT;

/// The marks in a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnstatedMarks {
    pub(crate) marks: Marks,
    pub(crate) retention_floor: Sequence,
    pub(crate) times: Times,
}

impl UnstatedMarks {
    /// Reads the marks.
    pub(crate) fn read(history: &History) -> Result<UnstatedMarks, HistoryError> {
        history.with(|open| {
            let format = open.mark(FORMAT)?;
            if !matches!(format, 1 | 2) {
                return Err(HistoryError::from(format!(
                    "it has format {format} and no superblock states what it holds"
                )));
            }
            let mut unstated = UnstatedMarks {
                marks: Marks {
                    history_upto: open.mark("history_upto")?,
                    checkpoint_upto: open.mark("checkpoint_upto")?,
                },
                retention_floor: floor_of(open.marks.get(RETENTION_FLOOR)?),
                ..UnstatedMarks::default()
            };
            for pair in open.marks.prefix(TIMES) {
                let (key, value) = pair.into_inner()?;
                let name = std::str::from_utf8(&key[TIMES.len()..]).ok();
                if let (Some(name), 16) = (name, value.len()) {
                    let times = (u64_at(&value, 0), u64_at(&value, 8));
                    unstated.times.insert(name.to_owned(), times);
                }
            }
            Ok(unstated)
        })
    }
}

/// The key of the retention floor. The last byte was the number of a retention class.
const RETENTION_FLOOR: &[u8] = b"floor/\0";
/// Prefix of the keys of the times of generations; the name of the keyspace follows.
const TIMES: &str = "times/";
