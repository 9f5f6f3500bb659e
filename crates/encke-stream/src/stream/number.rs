//! Stream numbers: each holds the log and the record that created the stream.
//!
//! The index of a single log is 0, so the number is then a sequence. The highest byte is 0.

use encke_log::{LOGS_MAX, Sequence, StreamNo};

/// Stands for a log in the numbers of streams that are in memory only.
pub const MEMORY_LOG: usize = (1 << LOG_BITS) - 1;

const _: () = assert!(LOGS_MAX <= MEMORY_LOG);

/// The number of the stream that a record creates, in the log with that index.
pub(crate) fn number(log: usize, born: Sequence) -> StreamNo {
    debug_assert!(log <= MEMORY_LOG && born <= BORN_MAX, "no room in a number");
    (log as u64) << BORN_BITS | born
}

/// The number under which a shard keeps the subscribers of a pattern in that log, beside those of streams. `id` must be new in
/// the log.
pub(crate) fn pattern_number(log: usize, id: u64) -> StreamNo {
    PATTERN_BIT | (log as u64) << BORN_BITS | id & BORN_MAX
}

/// The number under which a shard keeps the subscribers of a name that no stream has yet, in the log that is its home. `id` must be new in
/// the log.
pub(crate) fn awaited_number(log: usize, id: u64) -> StreamNo {
    AWAITED_BIT | (log as u64) << BORN_BITS | id & BORN_MAX
}

/// Whether the number is that of an awaited name.
pub fn is_awaited(no: StreamNo) -> bool {
    no & AWAITED_BIT != 0
}

/// Whether the number is a pattern's.
pub fn is_pattern(no: StreamNo) -> bool {
    no & PATTERN_BIT != 0
}

/// The index of the log that holds a stream.
pub fn log_of(stream: StreamNo) -> usize {
    (stream >> BORN_BITS) as usize & MEMORY_LOG
}

/// The sequence of the record that created a stream, in its log.
pub fn born(stream: StreamNo) -> Sequence {
    stream & BORN_MAX
}

/// The home of a name: the log in which a stream of that name is created, unless it is a fork. It is the 64-bit FNV-1a
/// hash of the name's bytes, modulo the number of logs. The streams of pools share one order, so they are all in the
/// first log: names that begin with a control character, and those under `pool/`. The streams of the health probe name their logs.
pub fn home(name: &str, logs: usize) -> usize {
    if let Some(log) = name
        .strip_prefix(PROBE_PREFIX)
        .and_then(|log| log.parse::<usize>().ok())
    {
        return log % logs;
    }
    if logs == 1 || name.starts_with("pool/") || name.starts_with(char::is_control) {
        return 0;
    }
    let hash = name.bytes().fold(FNV_OFFSET, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME)
    });
    (hash % logs as u64) as usize
}

/// The name of a log's stream for the health probe. No client can use it.
pub fn probe_stream(log: usize) -> String {
    format!("{PROBE_PREFIX}{log}")
}

/// The index of a log, and the number of logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPlace {
    pub(crate) log: usize,
    pub(crate) logs: usize,
}

impl Default for LogPlace {
    fn default() -> Self {
        LogPlace { log: 0, logs: 1 }
    }
}

impl LogPlace {
    /// Whether the home of a name is another log.
    pub(crate) fn is_stray(self, name: &str) -> bool {
        home(name, self.logs) != self.log
    }
}

/// The last record of a log that can create a stream. A million records per second reach it after 35 years.
pub(crate) const BORN_MAX: Sequence = (1 << BORN_BITS) - 1;

/// No stream's number has this bit.
const PATTERN_BIT: u64 = 1 << 63;

/// Nor this one.
const AWAITED_BIT: u64 = 1 << 62;

pub(super) const PROBE_PREFIX: &str = "\u{1}health/";

const LOG_BITS: u32 = 6;

const BORN_BITS: u32 = 50;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_says_what_it_was_made_of(log in 0..=MEMORY_LOG, born in 0..=BORN_MAX) {
            let no = number(log, born);
            prop_assert_eq!((log_of(no), super::born(no)), (log, born));
        }
    }

    #[test]
    fn in_the_first_log_a_number_is_a_sequence() {
        assert_eq!(number(0, 7), 7);
        assert_eq!(number(MEMORY_LOG, BORN_MAX), (1 << 56) - 1);
    }

    /// The home of a name must never change: data directories depend on it.
    #[test]
    fn homes_are_what_they_have_always_been() {
        // FNV-1a of "" and "a", as its authors publish them.
        for (name, hash) in [
            ("", 0xcbf2_9ce4_8422_2325_u64),
            ("a", 0xaf63_dc4c_8601_ec8c),
        ] {
            for logs in 1..=64 {
                assert_eq!(home(name, logs), (hash % logs as u64) as usize);
            }
        }
        assert_eq!((home("pool/a/results", 64), home("\u{1}pools", 64)), (0, 0));
        for log in [0, 1, 63] {
            assert_eq!(home(&probe_stream(log), 64), log);
        }
        assert_eq!(home("\u{1}health/x", 64), 0);
    }

    #[test]
    fn homes_are_spread_evenly() {
        let mut counts = [0; 3];
        for number in 0..3_000 {
            counts[home(&format!("users/{number:x}"), 3)] += 1;
        }
        assert!(
            counts.iter().all(|count| (900..1_100).contains(count)),
            "{counts:?}"
        );
    }
}
