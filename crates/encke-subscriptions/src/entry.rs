//! The entries of the journal: decisions on subscriptions.

use encke_clock::{Now, SteadyTime, WallTime};
use encke_stream::{Offset, StreamNo};
use serde::{Deserialize, Serialize};

use crate::config::{ConfigDigest, SubscriptionConfig};

/// A decision on a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SubscriptionEntry {
    /// It is created. It counts from [`SubscriptionEntry::Opened`] on.
    Created {
        no: u64,
        id: Box<str>,
        config: Box<SubscriptionConfig>,
        digest: ConfigDigest,
        created: WallTime,
        root: Box<str>,
    },
    /// It is complete, and has had so many wakes.
    Opened { no: u64, generation: u64 },
    /// It follows these streams, or they have changed.
    Links { no: u64, links: Vec<StoredLink> },
    /// It does not follow these streams any more.
    Unlinked { no: u64, links: Vec<u32> },
    /// Streams are done up to these positions.
    Cursors { no: u64, cursors: Vec<LinkPosition> },
    /// A part of what the next wake has found.
    Snapshot {
        no: u64,
        /// It is the first part.
        begins: bool,
        /// Links with this number or a greater one are followed since.
        links_below: u32,
        /// Where the streams with new records end, by the numbers of their links.
        tails: Vec<LinkPosition>,
    },
    /// A wake begins.
    Woken {
        no: u64,
        generation: u64,
        /// The stream that has its event, if one was written with it.
        announced: Option<StreamNo>,
    },
    /// The event of the wake is written.
    Announced {
        no: u64,
        /// The stream that has it.
        stream: StreamNo,
    },
    /// A worker has the wake, or the receiver of a call.
    Leased {
        no: u64,
        worker: Option<Box<str>>,
        until: StoredTime,
    },
    /// So many calls in a row have failed; the next one waits. 0: the last one has not failed.
    Retry {
        no: u64,
        failures: u32,
        at: StoredTime,
    },
    /// The wake is over.
    Ended { no: u64 },
    /// It is deleted.
    Deleted { no: u64 },
}

/// A stream that a subscription follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredLink {
    /// The number of the link in its subscription.
    pub(crate) link: u32,
    pub(crate) path: Box<str>,
    pub(crate) explicit: bool,
    pub(crate) stream: Option<StreamNo>,
    pub(crate) acked: Offset,
}

/// A position in a stream that a subscription follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinkPosition {
    /// The number of the link in its subscription.
    pub(crate) link: u32,
    /// The stream: a later one of its name has other positions.
    pub(crate) stream: StreamNo,
    pub(crate) at: Offset,
}

/// An instant of the steady clock, which is stored as a time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredTime {
    wall: WallTime,
    /// In the run that has decided it, so that a step of the time of day until it is in the log does not move it.
    #[serde(skip)]
    steady: Option<SteadyTime>,
}

impl StoredTime {
    pub(crate) fn of(now: Now, steady: SteadyTime) -> StoredTime {
        StoredTime {
            wall: now.wall_at(steady),
            steady: Some(steady),
        }
    }

    pub(crate) fn steady(self, now: Now) -> SteadyTime {
        self.steady.unwrap_or_else(|| now.steady_at(self.wall))
    }
}

impl SubscriptionEntry {
    /// The number of the subscription.
    pub(crate) fn no(&self) -> u64 {
        match self {
            SubscriptionEntry::Created { no, .. }
            | SubscriptionEntry::Opened { no, .. }
            | SubscriptionEntry::Links { no, .. }
            | SubscriptionEntry::Unlinked { no, .. }
            | SubscriptionEntry::Cursors { no, .. }
            | SubscriptionEntry::Snapshot { no, .. }
            | SubscriptionEntry::Woken { no, .. }
            | SubscriptionEntry::Announced { no, .. }
            | SubscriptionEntry::Leased { no, .. }
            | SubscriptionEntry::Retry { no, .. }
            | SubscriptionEntry::Ended { no }
            | SubscriptionEntry::Deleted { no } => *no,
        }
    }

    /// Streams that a subscription follows, in entries that each fit a record.
    pub(crate) fn links(no: u64, links: Vec<StoredLink>, record_bytes: usize) -> Vec<Self> {
        let mut entries = Vec::new();
        let mut part = Vec::new();
        let mut bytes = 0;
        for link in links {
            let weight = link.weight_bytes();
            if bytes + weight > part_bytes(record_bytes) && !part.is_empty() {
                let links = std::mem::take(&mut part);
                entries.push(SubscriptionEntry::Links { no, links });
                bytes = 0;
            }
            bytes += weight;
            part.push(link);
        }
        if !part.is_empty() {
            entries.push(SubscriptionEntry::Links { no, links: part });
        }
        entries
    }

    /// Streams that a subscription does not follow any more, in entries that each fit a record.
    pub(crate) fn unlinked(no: u64, links: &[u32], record_bytes: usize) -> Vec<Self> {
        let parts = links.chunks((part_bytes(record_bytes) / LINK_NO_BYTES).max(1));
        parts
            .map(|links| SubscriptionEntry::Unlinked {
                no,
                links: links.to_vec(),
            })
            .collect()
    }

    /// Positions up to which streams are done, in entries that each fit a record.
    pub(crate) fn cursors(no: u64, cursors: &[LinkPosition], record_bytes: usize) -> Vec<Self> {
        positions(cursors, record_bytes)
            .map(|cursors| SubscriptionEntry::Cursors { no, cursors })
            .collect()
    }

    /// What a wake has found, in entries that each fit a record. At least one.
    pub(crate) fn snapshot(
        no: u64,
        links_below: u32,
        tails: &[LinkPosition],
        record_bytes: usize,
    ) -> Vec<Self> {
        let mut parts: Vec<_> = positions(tails, record_bytes).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let parts = parts.into_iter().enumerate();
        let entry = |(part, tails)| SubscriptionEntry::Snapshot {
            no,
            begins: part == 0,
            links_below,
            tails,
        };
        parts.map(entry).collect()
    }

    /// At least as many bytes as the entry takes in a record.
    pub(crate) fn weight_bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                SubscriptionEntry::Created {
                    id, config, root, ..
                } => id.len() + root.len() + config.weight_bytes(),
                SubscriptionEntry::Links { links, .. } => {
                    links.iter().map(StoredLink::weight_bytes).sum()
                }
                SubscriptionEntry::Unlinked { links, .. } => links.len() * LINK_NO_BYTES,
                SubscriptionEntry::Cursors {
                    cursors: positions, ..
                }
                | SubscriptionEntry::Snapshot {
                    tails: positions, ..
                } => positions.len() * POSITION_BYTES,
                SubscriptionEntry::Leased { worker, .. } => {
                    worker.as_ref().map_or(0, |worker| worker.len())
                }
                _ => 0,
            }
    }
}

impl StoredLink {
    fn weight_bytes(&self) -> usize {
        self.path.len() + LINK_BYTES
    }
}

/// Positions in parts that each fit an entry.
fn positions(
    positions: &[LinkPosition],
    record_bytes: usize,
) -> impl Iterator<Item = Vec<LinkPosition>> + '_ {
    let parts = positions.chunks((part_bytes(record_bytes) / POSITION_BYTES).max(1));
    parts.map(<[LinkPosition]>::to_vec)
}

/// The bytes of the list in an entry that fits a record.
fn part_bytes(record_bytes: usize) -> usize {
    record_bytes.saturating_sub(RECORD_HEAD_BYTES + ENTRY_BYTES)
}

/// A record without its entries: the kind, and their number.
pub(crate) const RECORD_HEAD_BYTES: usize = 16;

/// At least as many bytes as an entry takes without its texts and lists.
const ENTRY_BYTES: usize = 128;

/// At least as many bytes as a link takes without its path.
const LINK_BYTES: usize = 48;

/// At least as many bytes as a position takes.
const POSITION_BYTES: usize = 32;

/// At least as many bytes as the number of a link takes.
const LINK_NO_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use encke_stream::Viewer;

    use super::*;
    use crate::record::SubscriptionRecord;

    fn encode(value: &impl Serialize) -> Vec<u8> {
        postcard::to_allocvec(value).unwrap()
    }

    const MOST: Offset = Offset {
        sequence: u64::MAX,
        units: u32::MAX,
    };

    fn position(link: u32) -> LinkPosition {
        LinkPosition {
            link,
            stream: u64::MAX,
            at: MOST,
        }
    }

    fn time() -> StoredTime {
        StoredTime {
            wall: WallTime::from_ms(u64::MAX),
            steady: None,
        }
    }

    fn every_entry(record_bytes: usize) -> Vec<SubscriptionEntry> {
        let no = u64::MAX;
        let generation = u64::MAX;
        let config = SubscriptionConfig {
            pattern: Some("a/**/b".parse().unwrap()),
            streams: vec!["s".repeat(9).into()],
            description: Some("d".repeat(99).into()),
            viewer: Viewer::Of(Some("v".repeat(99).into())),
            ..SubscriptionConfig::webhook(&"u".repeat(300))
        };
        let link = |link| StoredLink {
            link,
            path: "p".repeat(50).into(),
            explicit: true,
            stream: Some(u64::MAX),
            acked: MOST,
        };
        let numbers: Vec<u32> = (u32::MAX - 500..u32::MAX).collect();
        let positions: Vec<_> = numbers.iter().copied().map(position).collect();
        let mut entries = vec![SubscriptionEntry::Created {
            no,
            id: "i".repeat(99).into(),
            digest: config.digest(),
            config: config.into(),
            created: WallTime::from_ms(u64::MAX),
            root: "r".repeat(99).into(),
        }];
        let links = numbers.iter().copied().map(link).collect();
        entries.extend(SubscriptionEntry::links(no, links, record_bytes));
        entries.extend(SubscriptionEntry::unlinked(no, &numbers, record_bytes));
        entries.extend(SubscriptionEntry::cursors(no, &positions, record_bytes));
        let below = u32::MAX;
        entries.extend(SubscriptionEntry::snapshot(
            no,
            below,
            &positions,
            record_bytes,
        ));
        entries.extend([
            SubscriptionEntry::Opened { no, generation },
            SubscriptionEntry::Woken {
                no,
                generation,
                announced: Some(u64::MAX),
            },
            SubscriptionEntry::Announced {
                no,
                stream: u64::MAX,
            },
            SubscriptionEntry::Leased {
                no,
                worker: Some("w".repeat(200).into()),
                until: time(),
            },
            SubscriptionEntry::Retry {
                no,
                failures: u32::MAX,
                at: time(),
            },
            SubscriptionEntry::Ended { no },
            SubscriptionEntry::Deleted { no },
        ]);
        entries
    }

    #[test]
    fn entries_fit_their_records_and_read_back() {
        let record_bytes = 2_000;
        let entries = every_entry(record_bytes);
        for entry in &entries {
            assert!(encode(entry).len() <= entry.weight_bytes(), "{entry:?}");
            assert_eq!(entry.no(), u64::MAX);
        }
        let records = SubscriptionRecord::of_entries(entries.clone(), record_bytes);
        assert!(records.len() > 10);
        let mut found = Vec::new();
        for record in records {
            assert!(record.len() <= record_bytes, "{}", record.len());
            match SubscriptionRecord::decode(&record).unwrap() {
                SubscriptionRecord::Entries(entries) => found.extend(entries),
                record => panic!("{record:?}"),
            }
        }
        assert_eq!(found, entries);
    }

    #[test]
    fn a_wake_without_new_records_has_a_snapshot_too() {
        let entries = SubscriptionEntry::snapshot(1, 3, &[], 100);
        assert!(
            matches!(&entries[..], [SubscriptionEntry::Snapshot { tails, .. }] if tails.is_empty())
        );
    }

    #[test]
    fn the_time_of_day_may_be_set_before_a_time_is_stored() {
        let now = Now::from_ms(1_000_000);
        let at = SteadyTime::from_ms(1_005_000);
        let stored = StoredTime::of(now, at);
        let set = Now {
            wall: WallTime::from_ms(5_000_000),
            ..now
        };
        assert_eq!(stored.steady(set), at);
        // A later run has the time of day only.
        let read: StoredTime = postcard::from_bytes(&encode(&stored)).unwrap();
        assert_eq!(read.steady(now), at);
        assert_eq!(read.steady(set), SteadyTime::from_ms(0));
    }
}
