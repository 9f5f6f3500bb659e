//! Runs of records as bytes: what one send carries, made once for all subscribers at the same place.

use encke_log::Sequence;
use encke_protocol::{EncodedRun, EncoderId, Mark, Run, Variant};
use encke_stream::{Item, Offset};

use super::Shard;
use super::slow::weight;
use crate::slot::FeedEncoder;

/// A run as bytes, and what it was made of: whoever is at the same place gets the same bytes.
#[derive(Default)]
pub(super) struct Encoded {
    pub(super) made_of: Option<MadeOf>,
    pub(super) run: EncodedRun,
    pub(super) records: u64,
    /// What its records count for the lag of those who had not got them.
    pub(super) weight: u32,
    pub(super) end: Sequence,
    /// Nothing follows: the connection is closed behind it.
    pub(super) ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct MadeOf {
    pub(super) topic: u32,
    pub(super) from: Sequence,
    pub(super) last: Sequence,
    pub(super) encoder: EncoderId,
    pub(super) option: u64,
}

impl Shard {
    /// Writes the recent records from a position on, as many as one send should carry.
    pub(super) fn encode_recent(&self, encoded: &mut Encoded, made_of: MadeOf, at: u64) {
        let mut items = Vec::new();
        let gathered = self.gather(made_of.topic, at, &mut items);
        encoded.clear();
        // A deletion without data before it closes the connection without an event.
        if !items.is_empty() || gathered.closed {
            let variant = Variant {
                kind: self.topics[made_of.topic].kind,
                option: made_of.option,
            };
            let (run, now_ms) = (gathered.run(&items), self.clock.now_ms());
            let encoder = self.encoders.encoder(made_of.encoder);
            encoder.encode(variant, &run, now_ms, &mut encoded.run);
        }
        encoded.made_of = Some(made_of);
        encoded.count(&items);
        encoded.end = gathered.last;
        encoded.ended = gathered.closed || gathered.deleted;
    }

    /// Collects recent records for one send.
    pub(super) fn gather<'a>(&'a self, topic: u32, at: u64, items: &mut Vec<Item<'a>>) -> Gathered {
        let mut gathered = Gathered::default();
        let mut bytes = 0;
        for record in self.topics.records(topic, at) {
            gathered.last = record.sequence;
            gathered.deleted |= record.deletes;
            gathered.closed |= record.closes && !record.deletes;
            gathered.end = record.tail;
            if record.units > 0 {
                bytes += record.data.len();
                items.push(Item {
                    data: &record.data,
                    skip: 0,
                    take: record.units,
                    end: gathered.end,
                });
            }
            if gathered.deleted || bytes > RUN_BYTES {
                break;
            }
        }
        let topic = &self.topics[topic];
        gathered.at_tail = gathered.last >= topic.last;
        gathered
    }

    /// The encoder of a subscriber's records, and its option.
    pub(super) fn encoder(&self, index: u32) -> Option<(EncoderId, u64)> {
        match self.slots[index].encoder {
            FeedEncoder::Single(encoder) => {
                Some((encoder, self.busy.get(index).map_or(0, |busy| busy.option)))
            }
            _ => None,
        }
    }
}

impl Encoded {
    /// Makes room for what nobody else gets.
    pub(super) fn forget(&mut self) {
        self.clear();
        self.made_of = None;
        self.records = 0;
        self.weight = 0;
        self.ended = false;
    }

    /// Writes one record, behind which a subscriber may be left.
    pub(super) fn add(
        &mut self,
        item: Item<'_>,
        sequence: Sequence,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        self.add_part(item, write);
        self.run.marks.push(Mark {
            end: self.run.bytes.len(),
            at: Offset::behind(sequence),
        });
    }

    /// Writes one record that belongs together with the next.
    pub(super) fn add_part(&mut self, item: Item<'_>, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.run.bytes);
        self.records += 1;
        self.weight = self.weight.saturating_add(weight(item.data.len()));
    }

    pub(super) fn count(&mut self, items: &[Item<'_>]) {
        self.records = items.len() as u64;
        self.weight = items
            .iter()
            .fold(0, |sum, item| sum.saturating_add(weight(item.data.len())));
    }

    /// What so many of its bytes count for the lag.
    pub(super) fn share(&self, sent: usize) -> u32 {
        // No more than the weight, which fits.
        (u64::from(self.weight) * sent as u64 / self.run.bytes.len().max(1) as u64) as u32
    }

    pub(super) fn clear(&mut self) {
        self.run.bytes.clear();
        self.run.marks.clear();
        self.run.bytes.shrink_to(ENCODED_BYTES_KEPT);
    }
}

/// How far gathered records go.
#[derive(Default)]
pub(super) struct Gathered {
    /// The position behind the last data.
    end: Offset,
    /// The last record, with data or not.
    last: Sequence,
    at_tail: bool,
    closed: bool,
    pub(super) deleted: bool,
}

impl Gathered {
    pub(super) fn run<'a>(&self, items: &'a [Item<'a>]) -> Run<'a> {
        Run {
            items,
            end: self.end,
            at_tail: self.at_tail,
            closed: self.closed,
        }
    }
}

/// About how much data one send to a subscriber carries.
pub(super) const RUN_BYTES: usize = 64 << 10;

/// The shared encoding's buffer is not kept larger than this.
const ENCODED_BYTES_KEPT: usize = 1 << 20;
