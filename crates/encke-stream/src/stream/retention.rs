//! Retention: how much of a stream stays, and how much of it there is.
//!
//! Records are counted in buckets: each bucket has about an eighth of the records or bytes that stay. A stream without
//! limits costs nothing here. A stream with limits costs a few dozen bytes for each bucket while it is in memory, however
//! many records it has. A whole bucket is removed at a time, so that only few appends raise the floor.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use encke_clock::WallTime;
use encke_log::Sequence;
use serde::{Deserialize, Serialize};

/// How much of a stream is retained. Each limit applies by itself; without a limit everything stays.
///
/// A limit removes no more than it names: at least that many records and bytes stay, and each record for at least that
/// long. About an eighth more may stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Seconds for which a record stays, at least 1.
    pub age_s: Option<u64>,
    /// Bytes of data that stay, at least 1.
    pub bytes: Option<u64>,
    /// Records (appends with data) that stay, at least 1.
    pub records: Option<u64>,
}

impl Retention {
    /// Whether records are ever removed.
    pub fn is_limited(&self) -> bool {
        *self != Retention::default()
    }

    fn age(&self) -> Option<Duration> {
        self.age_s.map(Duration::from_secs)
    }
}

/// The form in requests and responses: `age=604800, bytes=67108864, records=1000`, or `none`.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [
            ("age", self.age_s),
            ("bytes", self.bytes),
            ("records", self.records),
        ];
        let mut first = true;
        for (name, limit) in named {
            if let Some(limit) = limit {
                let comma = if first { "" } else { ", " };
                write!(f, "{comma}{name}={limit}")?;
                first = false;
            }
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

/// The text is not a retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a retention is none, or a comma-separated list of age=SECONDS, bytes=BYTES and records=COUNT, each at most \
     once and with a whole number from 1 to {LIMIT_MAX}, such as age=604800,records=1000"
)]
pub struct BadRetention;

impl FromStr for Retention {
    type Err = BadRetention;

    fn from_str(text: &str) -> Result<Self, BadRetention> {
        let mut retention = Retention::default();
        if text.trim() == "none" {
            return Ok(retention);
        }
        for member in text.split(',') {
            let (name, number) = member.trim().split_once('=').ok_or(BadRetention)?;
            let limit = match name {
                "age" => &mut retention.age_s,
                "bytes" => &mut retention.bytes,
                "records" => &mut retention.records,
                _ => return Err(BadRetention),
            };
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            let number = number.parse().map_err(|_| BadRetention)?;
            if !digits || !(1..=LIMIT_MAX).contains(&number) || limit.is_some() {
                return Err(BadRetention);
            }
            *limit = Some(number);
        }
        Ok(retention)
    }
}

/// The largest whole number that structured fields have (RFC 9651, section 3.3.1).
const LIMIT_MAX: u64 = 999_999_999_999_999;

/// The records of a stream with a limited retention, oldest bucket first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Buckets(VecDeque<Bucket>);

/// Consecutive records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    /// The first and the last of them.
    pub(crate) first: Sequence,
    pub(crate) upto: Sequence,
    /// When the first and the last of them were stored.
    pub(crate) oldest: WallTime,
    pub(crate) newest: WallTime,
    /// How many there are, or less: records that are not counted stay a little longer. And the bytes of their data: less for the same
    /// reason, or more in the first bucket, where some were removed.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl Bucket {
    /// One record.
    pub(crate) fn record(sequence: Sequence, now: WallTime, bytes: usize) -> Bucket {
        Bucket {
            first: sequence,
            upto: sequence,
            oldest: now,
            newest: now,
            records: 1,
            bytes: bytes as u64,
        }
    }

    /// The records that a fork shares with its source. They are as old as the fork.
    pub(crate) fn inherited(upto: Sequence, now: WallTime) -> Bucket {
        Bucket {
            records: 0,
            ..Bucket::record(upto, now, 0)
        }
    }

    fn join(&mut self, next: Bucket) {
        self.upto = next.upto;
        self.newest = self.newest.max(next.newest);
        self.records += next.records;
        self.bytes += next.bytes;
    }

    /// The same bucket without the records up to a sequence, whose bytes are not known: the bucket keeps the bytes of all, so that the
    /// records that stay are paid for. That removes no record sooner, because it is the first bucket, and only what
    /// follows a bucket decides about it.
    fn cut(self, floor: Sequence) -> Bucket {
        match self.first > floor {
            true => self,
            false => Bucket {
                first: floor + 1,
                records: 0,
                ..self
            },
        }
    }

    /// Whether its records were not all counted, or are not all there: no others join it, so that it can be removed as a whole.
    fn is_partial(&self) -> bool {
        self.records == 0
    }

    /// The bucket without the records up to a sequence. How many of them were in the bucket is unknown.
    fn behind(self, sequence: Sequence) -> Bucket {
        if self.first > sequence {
            return self;
        }
        Bucket {
            first: sequence + 1,
            records: 0,
            bytes: 0,
            ..self
        }
    }
}

/// Undoes a change of the buckets.
#[derive(Debug)]
pub(crate) enum BucketsUndo {
    /// A bucket was added.
    Begun,
    /// The last bucket before a record joined it.
    Joined(Bucket),
    /// The removed buckets, and the bucket after them before it was cut.
    Cut(Vec<Bucket>, Option<Bucket>),
}

impl Buckets {
    /// Adds a record, or several, after all others.
    pub(crate) fn add(&mut self, next: Bucket, retention: &Retention) -> BucketsUndo {
        let eighth = |limit: Option<u64>| limit.map_or(u64::MAX, |limit| (limit / 8).max(1));
        let eighth_of_age = retention.age().map_or(Duration::MAX, |age| age / 8);
        if let Some(last) = self.0.back_mut()
            && !last.is_partial()
            && last.records < eighth(retention.records)
            && last.bytes < eighth(retention.bytes)
            && next.newest.since(last.oldest) < eighth_of_age
        {
            let before = *last;
            last.join(next);
            return BucketsUndo::Joined(before);
        }
        self.0.push_back(next);
        BucketsUndo::Begun
    }

    /// The last record of those that are past a limit.
    pub(crate) fn due(&self, retention: &Retention, now: WallTime) -> Option<Sequence> {
        let mut records: u64 = self.0.iter().map(|bucket| bucket.records).sum();
        let mut bytes: u64 = self.0.iter().map(|bucket| bucket.bytes).sum();
        let mut due = None;
        for bucket in &self.0 {
            records -= bucket.records;
            bytes -= bucket.bytes;
            let age = retention.age();
            let too_old = age.is_some_and(|age| bucket.newest.after(age) <= now);
            let too_many = retention.records.is_some_and(|max| records >= max);
            let too_much = retention.bytes.is_some_and(|max| bytes >= max);
            if !(too_old || too_many || too_much) {
                break;
            }
            due = Some(bucket.upto);
        }
        due
    }

    /// The bytes of the records that stay.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|bucket| bucket.bytes).sum()
    }

    /// When a record is next too old.
    pub(crate) fn next_due(&self, retention: &Retention) -> Option<WallTime> {
        let age = retention.age()?;
        self.0.front().map(|bucket| bucket.newest.after(age))
    }

    /// When the bucket that ends with `floor` is too old.
    pub(crate) fn too_old_at(&self, floor: Sequence, retention: &Retention) -> Option<WallTime> {
        let age = retention.age()?;
        let bucket = self.0.iter().find(|bucket| bucket.upto == floor)?;
        Some(bucket.newest.after(age))
    }

    /// Removes the records up to `floor`.
    pub(crate) fn cut(&mut self, floor: Sequence) -> BucketsUndo {
        let gone = self
            .0
            .iter()
            .take_while(|bucket| bucket.upto <= floor)
            .count();
        let gone = self.0.drain(..gone).collect();
        let before = self.0.front().copied();
        if let Some(bucket) = self.0.front_mut() {
            *bucket = bucket.cut(floor);
        }
        BucketsUndo::Cut(gone, before)
    }

    /// Whether there is exactly one bucket, which may be the first one, so that the stream needs a deadline.
    pub(crate) fn is_one(&self) -> bool {
        self.0.len() == 1
    }

    pub(crate) fn undo(&mut self, undo: BucketsUndo) {
        match undo {
            BucketsUndo::Begun => {
                self.0.pop_back();
            }
            BucketsUndo::Joined(before) => {
                if let Some(last) = self.0.back_mut() {
                    *last = before;
                }
            }
            BucketsUndo::Cut(gone, before) => {
                if let (Some(bucket), Some(before)) = (self.0.front_mut(), before) {
                    *bucket = before;
                }
                for bucket in gone.into_iter().rev() {
                    self.0.push_front(bucket);
                }
            }
        }
    }
}

/// The records of a stream that a replay finds, before the checkpoint's records and the retention are known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replayed(Vec<Bucket>);

impl Replayed {
    pub(crate) fn add(&mut self, record: Bucket) {
        if self.0.len() == REPLAYED_MAX {
            // Join pairs: coarser buckets, but not more of them.
            let pairs = self.0.chunks(2).map(|pair| {
                let mut both = pair[0];
                if let Some(second) = pair.get(1) {
                    both.join(*second);
                }
                both
            });
            self.0 = pairs.collect();
        }
        self.0.push(record);
    }

    /// Adds the records after those in the checkpoint.
    pub(crate) fn add_to(self, buckets: &mut Buckets, retention: &Retention) {
        let known = buckets.0.back().map_or(0, |last| last.upto);
        for bucket in self.0 {
            if bucket.upto > known {
                buckets.add(bucket.behind(known), retention);
            }
        }
    }
}

/// The most buckets in which a replay collects the records of one stream.
const REPLAYED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = Retention> {
        let limit = |max| proptest::option::of(1..max);
        (limit(20_u64), limit(500_u64), limit(40_u64)).prop_map(|(age_s, bytes, records)| {
            Retention {
                age_s,
                bytes,
                records,
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_said_reads_back(retention in limits()) {
            prop_assert_eq!(retention.to_string().parse(), Ok(retention));
        }

        #[test]
        fn whatever_is_sent_is_no_panic(text in "[agebytsrcod=0-9, ]{0,40}") {
            let _ = text.parse::<Retention>();
        }

        /// At least what the limits name stays, and about an eighth more at most. An undone change leaves no trace.
        #[test]
        fn what_is_kept_is_what_was_asked_for(
            retention in limits(),
            appends in prop::collection::vec((1_usize..60, 0_u64..3000, any::<bool>()), 1..200),
        ) {
            let mut buckets = Buckets::default();
            let mut all: Vec<Bucket> = Vec::new();
            let (mut floor, mut now) = (0, WallTime::default());
            for (index, (bytes, wait_ms, takes_back)) in appends.into_iter().enumerate() {
                now = now.after(Duration::from_millis(wait_ms));
                let record = Bucket::record(index as u64 + 1, now, bytes);
                let before = buckets.clone();
                let mut undo = vec![buckets.add(record, &retention)];
                let due = buckets.due(&retention, now);
                undo.extend(due.map(|due| buckets.cut(due)));
                if takes_back {
                    for undo in undo.into_iter().rev() {
                        buckets.undo(undo);
                    }
                    prop_assert_eq!(&buckets, &before);
                    continue;
                }
                all.push(record);
                floor = floor.max(due.unwrap_or(0));
                let (gone, kept): (Vec<&Bucket>, Vec<&Bucket>) = all.iter().partition(|one| one.upto <= floor);
                let bytes_kept: u64 = kept.iter().map(|one| one.bytes).sum();
                let too_old = |one: &Bucket| retention.age().is_some_and(|age| one.newest.after(age) <= now);
                for (number, one) in gone.iter().enumerate() {
                    // The later records were there when it was removed, or are there now.
                    let later = &all[number + 1..];
                    let bytes_later: u64 = later.iter().map(|one| one.bytes).sum();
                    prop_assert!(
                        too_old(one)
                            || retention.records.is_some_and(|max| later.len() as u64 >= max)
                            || retention.bytes.is_some_and(|max| bytes_later >= max)
                    );
                }
                if let Some(max) = retention.records {
                    prop_assert!(kept.len() as u64 <= max + (max / 8).max(1));
                }
                if let Some(max) = retention.bytes {
                    prop_assert!(bytes_kept <= max + max / 8 + 2 * 60);
                }
                prop_assert!(buckets.0.len() < 40, "{} buckets", buckets.0.len());
            }
        }
    }

    #[test]
    fn what_is_cut_is_paid_for_until_its_bucket_is_gone() {
        let retention = Retention {
            bytes: Some(1 << 40),
            ..Retention::default()
        };
        let record = |sequence| Bucket::record(sequence, WallTime::from_ms(0), 100);
        let mut buckets = Buckets::default();
        for sequence in 1..=10 {
            buckets.add(record(sequence), &retention);
        }
        let undo = buckets.cut(1);
        assert_eq!(buckets.bytes(), 1_000, "nine of ten records stay");
        buckets.undo(undo);
        buckets.cut(9);
        // What follows is in a bucket of its own, so that the cut one can go.
        buckets.add(record(11), &retention);
        buckets.add(record(12), &retention);
        assert_eq!(buckets.bytes(), 1_200);
        buckets.cut(10);
        assert_eq!(buckets.bytes(), 200);
        buckets.cut(12);
        assert_eq!(buckets.bytes(), 0);
    }

    #[test]
    fn what_is_no_retention_is_refused() {
        for text in [
            "",
            "age",
            "age=",
            "age=0",
            "age=+1",
            "age=1.5",
            "age=7d",
            "age=1,,bytes=2",
            "age=1, age=2",
            "AGE=1",
            "size=1",
            "none, age=1",
            "records=1000000000000000",
        ] {
            assert_eq!(text.parse::<Retention>(), Err(BadRetention), "{text}");
        }
        let spaced: Retention = " records=3 ,bytes=2".parse().unwrap();
        assert_eq!(spaced.to_string(), "bytes=2, records=3");
        assert_eq!("none".parse(), Ok(Retention::default()));
    }

    #[test]
    fn what_a_replay_finds_again_is_not_counted_twice() {
        let retention = Retention {
            records: Some(8),
            ..Retention::default()
        };
        let record = |sequence| Bucket::record(sequence, WallTime::from_ms(0), 1);
        let mut buckets = Buckets::default();
        for sequence in 1..=10 {
            buckets.add(record(sequence), &retention);
        }
        let mut replayed = Replayed::default();
        for sequence in 5..=14 {
            replayed.add(record(sequence));
        }
        replayed.add_to(&mut buckets, &retention);
        assert_eq!(
            buckets.0.iter().map(|bucket| bucket.records).sum::<u64>(),
            14
        );
        assert_eq!(buckets.due(&retention, WallTime::from_ms(0)), Some(6));
        // More records than a replay collects one by one: the count is never too high.
        let mut replayed = Replayed::default();
        for sequence in 1..=100 {
            replayed.add(record(sequence));
        }
        replayed.add_to(&mut buckets, &retention);
        let count: u64 = buckets.0.iter().map(|bucket| bucket.records).sum();
        assert!((14..=100).contains(&count), "{count}");
        assert_eq!(buckets.0.back().unwrap().upto, 100);
    }
}
