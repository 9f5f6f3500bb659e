//! The statement of what a log's directory must hold, which is the content of the superblock.
//!
//! The numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | magic |
//! | 2 | version of the format |
//! | 2 | 1 when the log has a history |
//! | 4 | length of the whole statement |
//! | 8 | generation: counts the statements of this log |
//! | 8 | identity of the log |
//! | 8 | number of the first segment whose head has that identity |
//! | 24 | last segment: number (0 for none), first sequence, length of the file |
//! | 8 | the last record that was durable |
//! | 8 | identity of the history |
//! | 8, 8 | `history_upto`, `checkpoint_upto` |
//! | 2 | number of retention floors, 0 or 1 |
//! | 9 | the floor, if there is one: zero (1) and the floor (8) |
//! | 4 | number of keyspaces; each is described at [`StatedKeyspace`] |
//! | 4 | CRC32C of all before |

use encke_clock::WallTime;

use crate::history::generations::Times;
use crate::ids::Sequence;
use crate::segments::frame::{u32_at, u64_at};
use crate::segments::segment::Segment;

/// What the directory of a log must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statement {
    /// A random number that the heads of segments and the history repeat.
    pub(crate) log_id: u64,
    /// Segments with smaller numbers come from a version that wrote no identity.
    pub(crate) identified_from: u64,
    /// The newest segment. Later ones may exist: each is stated after it is durable.
    pub(crate) last: Option<LastSegment>,
    /// Every record up to this one was durable.
    pub(crate) durable_upto: Sequence,
    /// `None` when the log has no history.
    pub(crate) history: Option<StatedHistory>,
}

/// The newest segment, as it was stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastSegment {
    pub(crate) number: u64,
    pub(crate) first: Sequence,
    /// The file is at least this long.
    pub(crate) bytes: u64,
}

/// The durable progress of the background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Every record up to this one is in history.
    pub(crate) history_upto: Sequence,
    /// The state store is that after this record.
    pub(crate) checkpoint_upto: Sequence,
}

impl Marks {
    /// The stated marks; zero without a history.
    pub(crate) fn stated(history: Option<&StatedHistory>) -> Marks {
        history.map_or_else(Marks::default, |history| Marks {
            history_upto: history.history_upto,
            checkpoint_upto: history.checkpoint_upto,
        })
    }
}

/// What a history must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatedHistory {
    /// A random number that each keyspace's directory repeats.
    pub(crate) id: u64,
    /// Every record up to this one is in history.
    pub(crate) history_upto: Sequence,
    /// The state store is that after this record.
    pub(crate) checkpoint_upto: Sequence,
    /// The records up to this one are removed.
    pub(crate) retention_floor: Sequence,
    pub(crate) keyspaces: Vec<StatedKeyspace>,
}

/// A keyspace of history: number of its directory (8 bytes), version (8) and checksum (16) of its list of tables, a flag (1)
/// and the times of its first and its newest record (16), length of its name (2) and the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatedKeyspace {
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Version of the list of tables. Compaction only makes newer ones.
    pub(crate) version: u64,
    /// Checksum of the list with this version.
    pub(crate) checksum: u128,
    /// Times of the first and the newest record of a generation that has any.
    pub(crate) times: Option<(WallTime, WallTime)>,
}

impl StatedHistory {
    /// The times of generations.
    pub(crate) fn times(&self) -> Times {
        let keyspaces = self.keyspaces.iter();
        let times = keyspaces.filter_map(|one| Some((one.name.clone(), one.times?)));
        times.collect()
    }

    /// Raises the retention floor.
    pub(crate) fn raise_floor(&mut self, floor: Sequence) {
        self.retention_floor = self.retention_floor.max(floor);
    }
}

impl Statement {
    /// Whether a segment is of this log.
    pub(crate) fn is_of<F>(&self, segment: &Segment<F>) -> bool {
        let unidentified = segment.log_id == 0 && segment.number < self.identified_from;
        segment.log_id == self.log_id || unidentified
    }

    /// Notes that everything up to this record is durable.
    pub(crate) fn note_durable(&mut self, durable_upto: Sequence) {
        self.durable_upto = self.durable_upto.max(durable_upto);
    }

    /// The bytes of the statement with this generation.
    pub(crate) fn encode(&self, generation: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(u16::from(self.history.is_some()).to_le_bytes());
        out.extend([0; 4]);
        let last = self.last.unwrap_or_default();
        let history = self.history.clone().unwrap_or_default();
        for number in [
            generation,
            self.log_id,
            self.identified_from,
            last.number,
            last.first,
            last.bytes,
            self.durable_upto,
            history.id,
            history.history_upto,
            history.checkpoint_upto,
        ] {
            out.extend(number.to_le_bytes());
        }
        let has_floor = history.retention_floor > 0;
        out.extend(u16::from(has_floor).to_le_bytes());
        if has_floor {
            out.push(0);
            out.extend(history.retention_floor.to_le_bytes());
        }
        out.extend((history.keyspaces.len() as u32).to_le_bytes());
        for keyspace in &history.keyspaces {
            let (from, upto) = keyspace.times.unwrap_or_default();
            out.extend(keyspace.id.to_le_bytes());
            out.extend(keyspace.version.to_le_bytes());
            out.extend(keyspace.checksum.to_le_bytes());
            out.push(u8::from(keyspace.times.is_some()));
            out.extend(from.as_ms().to_le_bytes());
            out.extend(upto.as_ms().to_le_bytes());
            out.extend((keyspace.name.len() as u16).to_le_bytes());
            out.extend(keyspace.name.as_bytes());
        }
        let bytes = (out.len() + 4) as u32;
        out[12..16].copy_from_slice(&bytes.to_le_bytes());
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        out
    }

    /// Decodes the generation and the statement at the beginning of `bytes`. The bytes after it are ignored: they are
    /// left from a longer statement.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(u64, Statement), &'static str> {
        const UNSOUND: &str = "its checksum does not match";
        if bytes.len() < FIXED_BYTES {
            return Err("it is cut off");
        }
        if bytes[..8] != MAGIC {
            return Err("it does not begin as a superblock");
        }
        let whole = u32_at(bytes, 12) as usize;
        if whole < FIXED_BYTES || whole > bytes.len() {
            return Err("it is cut off");
        }
        let (content, checksum) = bytes[..whole].split_at(whole - 4);
        if crc32c::crc32c(content) != u32_at(checksum, 0) {
            return Err(UNSOUND);
        }
        if u16::from_le_bytes([bytes[8], bytes[9]]) != VERSION {
            return Err(
                "it was written by another version of Encke, in a format that this one does not read",
            );
        }
        let mut reader = Fields(&content[16..]);
        reader.statement(bytes[10] != 0).ok_or(UNSOUND)
    }
}

/// Parses the fields of a statement, in order.
struct Fields<'b>(&'b [u8]);

impl Fields<'_> {
    fn statement(&mut self, has_history: bool) -> Option<(u64, Statement)> {
        let generation = self.u64()?;
        let (log_id, identified_from) = (self.u64()?, self.u64()?);
        let last = LastSegment {
            number: self.u64()?,
            first: self.u64()?,
            bytes: self.u64()?,
        };
        let durable_upto = self.u64()?;
        let mut history = StatedHistory {
            id: self.u64()?,
            history_upto: self.u64()?,
            checkpoint_upto: self.u64()?,
            ..StatedHistory::default()
        };
        for _ in 0..u16::from_le_bytes(*self.take()?) {
            let [class] = *self.take()?;
            let floor = self.u64()?;
            // Only class 0 was ever in use.
            if class == 0 {
                history.raise_floor(floor);
            }
        }
        for _ in 0..u32::from_le_bytes(*self.take()?) {
            history.keyspaces.push(self.keyspace()?);
        }
        let statement = Statement {
            log_id,
            identified_from,
            last: (last.number > 0).then_some(last),
            durable_upto,
            history: has_history.then_some(history),
        };
        Some((generation, statement))
    }

    fn keyspace(&mut self) -> Option<StatedKeyspace> {
        let (id, version) = (self.u64()?, self.u64()?);
        let checksum = u128::from_le_bytes(*self.take()?);
        let [has_times] = *self.take()?;
        let times = (
            WallTime::from_ms(self.u64()?),
            WallTime::from_ms(self.u64()?),
        );
        let name_bytes = usize::from(u16::from_le_bytes(*self.take()?));
        let (name, rest) = self.0.split_at_checked(name_bytes)?;
        self.0 = rest;
        Some(StatedKeyspace {
            id,
            name: std::str::from_utf8(name).ok()?.to_owned(),
            version,
            checksum,
            times: (has_times != 0).then_some(times),
        })
    }

    fn take<const N: usize>(&mut self) -> Option<&[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64_at(self.take::<8>()?, 0))
    }
}

const MAGIC: [u8; 8] = *b"ENCKESUP";
pub(crate) const VERSION: u16 = 1;
/// The length of a statement without a retention floor and keyspaces.
const FIXED_BYTES: usize = 16 + 10 * 8 + 2 + 4 + 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keyspace() -> impl Strategy<Value = StatedKeyspace> {
        let time = any::<u64>().prop_map(WallTime::from_ms);
        let times = prop::option::of((time.clone(), time));
        (any::<(u64, u64, u128)>(), "[a-z0-9-]{0,40}", times).prop_map(
            |((id, version, checksum), name, times)| StatedKeyspace {
                id,
                name,
                version,
                checksum,
                times,
            },
        )
    }

    fn history() -> impl Strategy<Value = StatedHistory> {
        let floor = prop_oneof![Just(0), any::<Sequence>()];
        let keyspaces = prop::collection::vec(keyspace(), 0..9);
        (any::<(u64, u64, u64)>(), floor, keyspaces).prop_map(
            |((id, history_upto, checkpoint_upto), retention_floor, keyspaces)| StatedHistory {
                id,
                history_upto,
                checkpoint_upto,
                retention_floor,
                keyspaces,
            },
        )
    }

    fn statement() -> impl Strategy<Value = Statement> {
        let last = prop::option::of((1_u64.., any::<u64>(), any::<u64>()));
        (any::<(u64, u64, u64)>(), last, prop::option::of(history())).prop_map(
            |((log_id, identified_from, durable_upto), last, history)| Statement {
                log_id,
                identified_from,
                last: last.map(|(number, first, bytes)| LastSegment {
                    number,
                    first,
                    bytes,
                }),
                durable_upto,
                history,
            },
        )
    }

    proptest! {
        #[test]
        fn a_statement_is_read_back_whatever_follows_it(
            statement in statement(),
            generation in any::<u64>(),
            rest in prop::collection::vec(any::<u8>(), 0..99),
        ) {
            let mut bytes = statement.encode(generation);
            bytes.extend(rest);
            prop_assert_eq!(Statement::decode(&bytes), Ok((generation, statement)));
        }

        #[test]
        fn a_changed_or_cut_statement_is_refused(
            statement in statement(),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let bytes = statement.encode(7);
            let at = at.index(bytes.len());
            prop_assert!(Statement::decode(&bytes[..at]).is_err());
            let mut changed = bytes;
            changed[at] ^= 1 << bit;
            prop_assert!(Statement::decode(&changed).is_err());
        }

        #[test]
        fn a_retention_floor_is_stated_as_that_of_class_0(floor in 1_u64..) {
            let history = StatedHistory { retention_floor: floor, ..StatedHistory::default() };
            let statement = Statement { history: Some(history), ..Statement::default() };
            let bytes = statement.encode(1);
            let expected = [&[1, 0, 0], &floor.to_le_bytes()[..], &[0; 4]].concat();
            prop_assert_eq!(&bytes[96..bytes.len() - 4], &expected);
        }

        #[test]
        fn any_bytes_can_be_looked_at(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Statement::decode(&bytes);
        }
    }
}
