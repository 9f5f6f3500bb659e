//! Encoded records: the bytes of one send, shared by all subscribers at the same position.

use encke_log::Sequence;
use encke_protocol::{EncodedRun, EncoderId, Mark, Run};
use encke_stream::{Item, Offset};

use super::weight::weight;
use crate::http::framing::ResponseFraming;

/// An encoded run and its key: subscribers with the same key get the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Encoding {
    pub(crate) key: Option<EncodingKey>,
    pub(crate) run: EncodedRun,
    /// Memory for framing.
    framed: Vec<u8>,
    pub(crate) records: u64,
    /// What its records add to the lag of a subscriber that has not got them.
    pub(crate) weight: u32,
    pub(crate) end: Sequence,
    /// Nothing follows; the connection is closed behind it.
    pub(crate) ended: bool,
}

/// What an encoding depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodingKey {
    pub(crate) topic: u32,
    pub(crate) from: Offset,
    pub(crate) last: Sequence,
    pub(crate) encoder: EncoderId,
    pub(crate) option: u64,
    pub(crate) framing: ResponseFraming,
}

impl Encoding {
    /// Begins an encoding that is not shared.
    pub(crate) fn begin(&mut self) {
        self.clear();
        self.key = None;
        self.records = 0;
        self.weight = 0;
        self.ended = false;
    }

    /// Writes one record, behind which a subscriber may be left.
    pub(crate) fn add(
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
    pub(crate) fn add_part(&mut self, item: Item<'_>, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.run.bytes);
        self.records += 1;
        self.weight = self.weight.saturating_add(weight(item.data.len()));
    }

    /// Counts the records of the run.
    pub(crate) fn count(&mut self, items: &[Item<'_>]) {
        self.records = items.len() as u64;
        self.weight = items
            .iter()
            .fold(0, |sum, item| sum.saturating_add(weight(item.data.len())));
    }

    /// Frames the bytes up to each mark on their own, because a subscriber may be left there, and the end of a body behind which
    /// nothing follows.
    pub(crate) fn frame(&mut self, framing: ResponseFraming) {
        if framing != ResponseFraming::Chunks {
            return;
        }
        let EncodedRun { bytes, marks, .. } = &mut self.run;
        self.framed.clear();
        let mut start = 0;
        for mark in &mut *marks {
            framing.part(&bytes[start..mark.end], &mut self.framed);
            start = mark.end;
            mark.end = self.framed.len();
        }
        if self.ended {
            framing.end(&mut self.framed);
            let end = self.framed.len();
            match marks.last_mut() {
                Some(mark) => mark.end = end,
                None => marks.push(Mark {
                    end,
                    at: Offset::behind(self.end),
                }),
            }
        }
        std::mem::swap(bytes, &mut self.framed);
    }

    /// The position of a subscriber that has all of it.
    pub(crate) fn reached(&self) -> Offset {
        self.run.withheld_at.unwrap_or(Offset::behind(self.end))
    }

    /// What its first `sent` bytes count for the lag.
    pub(crate) fn share(&self, sent: usize) -> u32 {
        // No more than the weight, which fits.
        (u64::from(self.weight) * sent as u64 / self.run.bytes.len().max(1) as u64) as u32
    }

    /// Makes room for another run.
    pub(crate) fn clear(&mut self) {
        self.run.bytes.clear();
        self.run.marks.clear();
        self.run.withheld_at = None;
        self.run.bytes.shrink_to(ENCODED_BYTES_KEPT);
        self.framed.shrink_to(ENCODED_BYTES_KEPT);
    }
}

/// How far gathered records go.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The position behind the last data.
    pub(crate) end: Offset,
    /// The last record, with data or not.
    pub(crate) last: Sequence,
    pub(crate) at_tail: bool,
    pub(crate) closed: bool,
    pub(crate) deleted: bool,
}

impl Gathered {
    pub(crate) fn run<'a>(&self, items: &'a [Item<'a>]) -> Run<'a> {
        Run {
            items,
            end: self.end,
            at_tail: self.at_tail,
            closed: self.closed,
        }
    }
}

/// Bytes of data that one send to a subscriber carries, approximately.
pub(crate) const RUN_BYTES: usize = 64 << 10;

/// The largest buffer that is kept for the next encoding.
const ENCODED_BYTES_KEPT: usize = 1 << 20;
