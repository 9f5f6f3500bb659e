//! Streams in the state store of the log.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::{SteadyTime, WallTime};
use encke_log::{DataFormat, Sequence, StateEntry, StreamNo};
use serde::{Deserialize, Serialize};

use crate::machine::deadlines::DueTimes;
use crate::replicated::Chain;
use crate::stream::account::{Account, AccountId, StorageUse};
use crate::stream::charge::cost;
use crate::stream::count::{ByteCount, MessageCount};
use crate::stream::producers::ProducerState;
use crate::stream::record::{BadRecord, EndReason, Fork, Lifetime};
use crate::stream::retention::Buckets;
use crate::stream::writers::Writers;
use crate::stream::{Life, Stream};
use crate::{AckLevel, Offset, Retention};

/// The store's entries for the committed state of a stream. `free`: no other stream has the name of an ended stream. Returns its account if
/// what it was charged with was not what these entries say.
pub(crate) fn entries(
    stream: &Stream,
    free: bool,
    entries: &mut Vec<StateEntry>,
) -> Option<Arc<Account>> {
    let mut state = stream.state();
    let facts = state.committed;
    let new = state.stored.is_none();
    if facts.life == Life::Ended {
        if !new {
            forget(stream.no, stream.is_timed(), entries);
        }
        if free {
            entries.push((name_key(&stream.name), None));
        }
        return None;
    }
    let touched = stream.touched();
    state.stored = Some(touched);
    let metadata = state.metadata.as_ref();
    let metadata = metadata.and_then(|metadata| metadata.committed.clone());
    let empty = Writers::default();
    let writers = state.writers.as_deref().unwrap_or(&empty);
    let stored = StoredStream {
        name: &stream.name,
        content_type: &stream.media.name,
        lifetime: stream.lifetime,
        ack: stream.ack,
        retention: stream.retention(),
        touched,
        fork: stream.source.as_ref().map(|source| Fork {
            source: source.stream.no,
            at: source.at,
        }),
        tail: facts.tail,
        forks: facts.forks,
        floor: facts.floor,
        buckets: state.buckets.as_deref().cloned().unwrap_or_default(),
        closed: facts.closed,
        deleted: facts.life != Life::Live,
        producers: writers
            .producers
            .iter()
            .map(|(id, state)| (&**id, *state))
            .collect(),
        writer_seq: writers.seq.as_deref(),
        closer: writers.closer.as_ref().map(|(id, state)| (&**id, *state)),
        extras: StoredExtras {
            owner: stream.owner(),
            producer_timeout_s: stream.producer_timeout_s(),
            last_append: stream.last_append(),
            metadata: metadata.as_deref(),
            end: facts.end,
            stop_asked: facts.stop_asked,
        },
        counted: facts.counted,
        appended: facts.appended,
        account: stream.account(),
    };
    let charged = stream.charge(&state);
    entries.push((key(stream.no), Some(stored.encode())));
    if new {
        entries.push((name_key(&stream.name), Some(stream.no.to_be_bytes().into())));
    }
    if stream.is_timed() {
        let ends = StreamEnds::of(stream, &stored);
        let ends = ends.filter(|_| facts.life == Life::Live);
        entries.push((ends_key(stream.no), ends.map(StreamEnds::encode)));
    }
    charged
}

/// Makes the store forget a stream, but not its name.
pub(crate) fn forget(no: StreamNo, timed: bool, entries: &mut Vec<StateEntry>) {
    entries.push((key(no), None));
    if timed {
        entries.push((ends_key(no), None));
    }
}

/// The version and extent of the whole store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreMeta {
    /// The version of all entries.
    pub(crate) format: u32,
    /// The store has the state after this record.
    pub(crate) upto: Sequence,
    /// How many names are taken.
    pub(crate) total: u64,
}

impl StoreMeta {
    pub(crate) fn entry(self) -> StateEntry {
        (KEY_META.to_vec(), Some(encode(&self)))
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, BadRecord> {
        whole(value)
    }
}

/// Marks that there are, or were, streams here whose names have other homes.
pub(crate) fn strays_entry() -> StateEntry {
    (KEY_STRAYS.to_vec(), Some(Vec::new()))
}

/// When a stream ends by itself or removes records. It has an index of its own, so that a start does not read all
/// streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamEnds {
    /// When it ends, in milliseconds since 1970: a sliding lifetime by the steady clock, another by the time of day.
    ends_ms: Option<u64>,
    /// The window of a sliding lifetime, in seconds.
    ttl_s: Option<u64>,
    /// When its oldest records are too old.
    trims: Option<WallTime>,
    /// When it is closed, because nothing was appended for too long. It follows the others if there is one.
    #[serde(skip)]
    silence: Option<ProducerSilence>,
}

/// When the producer of a stream has been silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProducerSilence {
    /// When something was appended last. A start counts as an append.
    appended: SteadyTime,
    timeout_s: u32,
}

impl StreamEnds {
    fn of(stream: &Stream, stored: &StoredStream<'_>) -> Option<StreamEnds> {
        let lifetime = stored.lifetime;
        let slides_until = lifetime.slides_until(stored.touched);
        let ends = StreamEnds {
            ends_ms: slides_until
                .map(SteadyTime::as_ms)
                .or(lifetime.until().map(WallTime::as_ms)),
            ttl_s: match lifetime {
                Lifetime::Sliding { ttl_s } => Some(ttl_s),
                Lifetime::Unbounded | Lifetime::Until { .. } => None,
            },
            trims: stored.buckets.next_due(&stream.retention()),
            silence: match (stored.extras.producer_timeout_s, stored.closed) {
                (Some(timeout_s), false) => Some(ProducerSilence {
                    appended: stored.extras.last_append,
                    timeout_s,
                }),
                _ => None,
            },
        };
        let is_due = ends.ends_ms.is_some() || ends.trims.is_some() || ends.silence.is_some();
        is_due.then_some(ends)
    }

    fn encode(self) -> Vec<u8> {
        let value = encode(&self);
        match &self.silence {
            None => value,
            Some(silence) => postcard::to_extend(silence, value).expect(GROWING),
        }
    }

    /// When something is due. The start of the process at `started` counts as a read.
    pub(crate) fn due(self, started: Option<SteadyTime>) -> DueTimes {
        let abandoned_at = self.silence.map(|silence| {
            let timeout = Duration::from_secs(silence.timeout_s.into());
            started
                .map_or(silence.appended, |started| started.max(silence.appended))
                .after(timeout)
        });
        let Some(ttl_s) = self.ttl_s else {
            let ends = self.ends_ms.map(WallTime::from_ms);
            return DueTimes::new(abandoned_at, ends.into_iter().chain(self.trims).min());
        };
        let lifetime = Lifetime::Sliding { ttl_s };
        let slides_until = started.and_then(|started| lifetime.slides_until(started));
        let ends = self.ends_ms.map(SteadyTime::from_ms);
        let steady = ends.max(slides_until).into_iter().chain(abandoned_at).min();
        DueTimes::new(steady, self.trims)
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Self, BadRecord> {
        let (ends, rest): (StreamEnds, _) =
            postcard::take_from_bytes(value).map_err(|_| BadRecord)?;
        let silence = match rest {
            [] => None,
            rest => Some(whole(rest)?),
        };
        Ok(StreamEnds { silence, ..ends })
    }
}

/// The number of the stream in the value of a name's key.
pub(crate) fn named(value: &[u8]) -> Result<StreamNo, BadRecord> {
    value
        .try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| BadRecord)
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect(GROWING)
}

fn whole<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, BadRecord> {
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Ok(value),
        _ => Err(BadRecord),
    }
}

const GROWING: &str = "growing a vector is all that writes here";

/// The version of the entries. The first version has no [`StoreMeta`], no names and no forks, the second no durability
/// levels, the third no retention, the fourth no [`StoredExtras`], the fifth no [`MessageCount`], the sixth no [`ByteCount`], the
/// seventh no [`AccountId`].
///
/// With the feature `next-format` this is a build as a later release may be, for tests.
pub(crate) const FORMAT: u32 = if cfg!(feature = "next-format") { 9 } else { 8 };

/// The earliest version that can be read: its entries are also those of the present one.
pub(crate) const EARLIEST_FORMAT: u32 = 4;

/// The formats of the data of streams: those of their logs, and the one of the entries here.
pub fn data_formats() -> Vec<DataFormat> {
    let states = DataFormat {
        kind: "states of streams",
        reads_from: EARLIEST_FORMAT,
        writes: FORMAT,
    };
    let of_log = encke_log::data_formats().into_iter();
    of_log.chain([states]).collect()
}

/// The key of [`StoreMeta`].
pub(crate) const KEY_META: &[u8] = b"m";

/// How far a node of a fleet has followed the order.
pub(crate) fn chain_entry(chain: &Chain) -> StateEntry {
    (KEY_CHAIN.to_vec(), Some(encode(chain)))
}

pub(crate) fn chain(value: &[u8]) -> Result<Chain, BadRecord> {
    whole(value)
}

/// The key of [`chain_entry`].
pub(crate) const KEY_CHAIN: &[u8] = b"c";

/// What an account uses. `None` if it uses nothing.
pub(crate) fn account_entry(account: AccountId, used: StorageUse) -> StateEntry {
    let key = [KEY_ACCOUNT, &account.to_bytes()].concat();
    let is_used = used != StorageUse::default();
    (key, is_used.then(|| encode(&used)))
}

/// An account and what it uses, of its entry.
pub(crate) fn account(key: &[u8], value: &[u8]) -> Result<(AccountId, StorageUse), BadRecord> {
    let id = key.strip_prefix(KEY_ACCOUNT).ok_or(BadRecord)?;
    let id = id.try_into().map_err(|_| BadRecord)?;
    Ok((AccountId::from_bytes(id), whole(value)?))
}

/// The prefix of the keys of [`account_entry`]. The account follows.
pub(crate) const KEY_ACCOUNT: &[u8] = b"q";

/// The key of [`strays_entry`].
pub(crate) const KEY_STRAYS: &[u8] = b"a";

/// The prefix of the keys of names. The name follows; the value is the number of its stream.
const KEY_NAME: &[u8] = b"n";

/// The prefix of the keys of [`StreamEnds`]. The stream's number follows, big-endian.
pub(crate) const KEY_ENDS: &[u8] = b"e";

/// The key of a name.
pub(crate) fn name_key(name: &str) -> Vec<u8> {
    [KEY_NAME, name.as_bytes()].concat()
}

/// The name in its key.
pub(crate) fn name_of(key: &[u8]) -> Result<&str, BadRecord> {
    let name = key.strip_prefix(KEY_NAME).ok_or(BadRecord)?;
    std::str::from_utf8(name).map_err(|_| BadRecord)
}

fn ends_key(no: StreamNo) -> Vec<u8> {
    [KEY_ENDS, &no.to_be_bytes()].concat()
}

/// The prefix of the keys of streams. The stream's number follows, big-endian.
pub(crate) const KEY_STREAM: &[u8] = b"s";

/// The key of a stream.
pub(crate) fn key(no: StreamNo) -> Vec<u8> {
    [KEY_STREAM, &no.to_be_bytes()].concat()
}

/// The stream's number in a key with this prefix.
pub(crate) fn number(prefix: &[u8], key: &[u8]) -> Result<StreamNo, BadRecord> {
    key.strip_prefix(prefix)
        .and_then(|no| no.try_into().ok())
        .map(u64::from_be_bytes)
        .ok_or(BadRecord)
}

/// The value of a stream's key.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoredStream<'a> {
    pub(crate) name: &'a str,
    pub(crate) content_type: &'a str,
    pub(crate) lifetime: Lifetime,
    pub(crate) ack: AckLevel,
    pub(crate) retention: Retention,
    /// When it was last read or written. A start counts as a read.
    pub(crate) touched: SteadyTime,
    pub(crate) fork: Option<Fork>,
    pub(crate) tail: Offset,
    pub(crate) forks: u32,
    pub(crate) floor: Sequence,
    pub(crate) buckets: Buckets,
    pub(crate) closed: bool,
    /// It exists for its forks only.
    pub(crate) deleted: bool,
    #[serde(borrow)]
    pub(crate) producers: Vec<(&'a str, ProducerState)>,
    pub(crate) writer_seq: Option<&'a str>,
    #[serde(borrow)]
    pub(crate) closer: Option<(&'a str, ProducerState)>,
    /// What few streams have. It follows the others; entries of earlier versions have none if it is the default.
    #[serde(skip)]
    pub(crate) extras: StoredExtras<'a>,
    /// It follows what few have, which comes then whatever it is. Entries of earlier versions have none.
    #[serde(skip, default = "messages_unknown")]
    pub(crate) counted: MessageCount,
    /// It follows the messages. Entries of earlier versions have none.
    #[serde(skip, default = "bytes_unknown")]
    pub(crate) appended: ByteCount,
    /// Who pays for it. It follows the bytes if there is one.
    #[serde(skip)]
    pub(crate) account: Option<AccountId>,
}

fn messages_unknown() -> MessageCount {
    MessageCount::UNKNOWN
}

fn bytes_unknown() -> ByteCount {
    ByteCount::UNKNOWN
}

/// What few streams have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredExtras<'a> {
    pub(crate) owner: Option<&'a str>,
    pub(crate) producer_timeout_s: Option<u32>,
    /// When something was appended last. Only kept with a timeout.
    pub(crate) last_append: SteadyTime,
    pub(crate) metadata: Option<&'a str>,
    pub(crate) end: Option<EndReason>,
    pub(crate) stop_asked: bool,
}

impl<'a> StoredStream<'a> {
    pub(crate) fn decode(value: &'a [u8]) -> Result<Self, BadRecord> {
        let (stored, rest): (StoredStream<'_>, _) =
            postcard::take_from_bytes(value).map_err(|_| BadRecord)?;
        let (extras, rest) = match rest {
            [] => return Ok(stored),
            rest => postcard::take_from_bytes(rest).map_err(|_| BadRecord)?,
        };
        let (counted, rest) = match rest {
            [] => (MessageCount::UNKNOWN, rest),
            rest => postcard::take_from_bytes(rest).map_err(|_| BadRecord)?,
        };
        let (appended, rest) = match rest {
            [] => (ByteCount::UNKNOWN, rest),
            rest => postcard::take_from_bytes(rest).map_err(|_| BadRecord)?,
        };
        let account = match rest {
            [] => None,
            rest => Some(whole(rest)?),
        };
        Ok(StoredStream {
            extras,
            counted,
            appended,
            account,
            ..stored
        })
    }

    fn encode(&self) -> Vec<u8> {
        let value = encode(self);
        let value = postcard::to_extend(&self.extras, value).expect(GROWING);
        let value = postcard::to_extend(&self.counted, value).expect(GROWING);
        let value = postcard::to_extend(&self.appended, value).expect(GROWING);
        match &self.account {
            None => value,
            Some(account) => postcard::to_extend(account, value).expect(GROWING),
        }
    }

    /// What its account was charged with for it.
    pub(crate) fn cost(&self) -> StorageUse {
        let is_limited = self.retention.is_limited();
        cost(
            !self.deleted,
            is_limited.then_some(&self.buckets),
            self.appended,
            self.extras.metadata,
        )
    }

    pub(crate) fn writers(&self) -> Option<Box<Writers>> {
        if self.producers.is_empty() && self.writer_seq.is_none() {
            return None;
        }
        Some(Box::new(Writers {
            producers: self
                .producers
                .iter()
                .map(|(id, state)| ((*id).into(), *state))
                .collect(),
            seq: self.writer_seq.map(Into::into),
            closer: self.closer.map(|(id, state)| (id.into(), state)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option::of;
    use proptest::prelude::*;

    use super::*;
    use crate::MediaKind;
    use crate::stream::retention::Bucket;

    fn producer() -> impl Strategy<Value = (String, ProducerState)> {
        ("\\PC{0,9}", any::<(u64, u64, u64)>()).prop_map(|(id, (epoch, seq, last))| {
            let state = ProducerState { epoch, seq, last };
            (id, state)
        })
    }

    proptest! {
        #[test]
        fn an_entry_reads_back(
            name in "\\PC{0,40}",
            (tail, fork) in any::<((u64, u32), Option<(u64, u64, u32)>)>(),
            (closed, deleted) in any::<(bool, bool)>(),
            producers in vec(producer(), 0..4),
            writer_seq in of("\\PC{0,9}"),
            closer in of(producer()),
            sequences in vec(any::<u64>(), 0..4),
            extras in (of("\\PC{0,9}"), of(any::<u32>()), of("\\PC{0,9}"), any::<bool>()),
            messages in of(any::<u32>()),
            appended in of(vec(any::<u8>(), 0..300)),
            account in of(any::<[u64; 2]>()),
        ) {
            let counted = messages.map_or(MessageCount::UNKNOWN, |messages| {
                MessageCount::default().with(messages, MediaKind::Json)
            });
            let mut buckets = Buckets::default();
            for sequence in sequences {
                buckets.add(Bucket::record(sequence, WallTime::from_ms(tail.0), 3), &Retention::default());
            }
            let stored = StoredStream {
                name: &name,
                content_type: "text/plain",
                lifetime: Lifetime::Until { at: WallTime::from_ms(5) },
                ack: AckLevel::Written,
                retention: Retention { age_s: Some(tail.0), ..Retention::default() },
                touched: SteadyTime::from_ms(tail.0),
                forks: tail.1,
                fork: fork.map(|(source, sequence, units)| Fork {
                    source,
                    at: Offset { sequence, units },
                }),
                tail: Offset { sequence: tail.0, units: tail.1 },
                floor: tail.0,
                buckets: buckets.clone(),
                closed,
                deleted,
                producers: producers.iter().map(|(id, state)| (&**id, *state)).collect(),
                writer_seq: writer_seq.as_deref(),
                closer: closer.as_ref().map(|(id, state)| (&**id, *state)),
                extras: StoredExtras {
                    owner: extras.0.as_deref(),
                    producer_timeout_s: extras.1,
                    last_append: SteadyTime::from_ms(u64::from(extras.1.unwrap_or_default())),
                    metadata: extras.2.as_deref(),
                    end: extras.3.then_some(EndReason::Stopped),
                    stop_asked: extras.3,
                },
                counted,
                appended: appended.map_or(ByteCount::UNKNOWN, |data| ByteCount::of(&data)),
                account: account.map(AccountId),
            };
            let value = stored.encode();
            prop_assert_eq!(StoredStream::decode(&value), Ok(stored));
            // An entry with more or fewer bytes is invalid, but for one without the last count.
            if let Ok(fewer) = StoredStream::decode(&value[..value.len() - 1]) {
                prop_assert_eq!(fewer.counted, counted);
                prop_assert_eq!((fewer.appended, fewer.account), (ByteCount::UNKNOWN, None));
            }
            prop_assert!(StoredStream::decode(&[&value[..], &[0]].concat()).is_err());
        }

        #[test]
        fn an_account_reads_back(id: [u64; 2], streams: u64, bytes in 1_u64..) {
            let (id, used) = (AccountId(id), StorageUse { streams, bytes });
            let (key, value) = account_entry(id, used);
            prop_assert_eq!(account(&key, &value.unwrap()), Ok((id, used)));
            prop_assert_eq!(account_entry(id, StorageUse::default()), (key, None));
        }

        #[test]
        fn no_value_makes_decoding_panic(value in vec(any::<u8>(), 0..200)) {
            let _ = StoredStream::decode(&value).map(|stored| stored.writers());
        }

        #[test]
        fn only_keys_of_streams_have_numbers(no: u64, key in vec(any::<u8>(), 0..12)) {
            prop_assert_eq!(number(KEY_STREAM, &super::key(no)), Ok(no));
            if let Ok(no) = number(KEY_STREAM, &key) {
                prop_assert_eq!(super::key(no), key);
            }
        }
    }
}
