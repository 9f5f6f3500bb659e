//! A long record on its way to one subscriber: its state, and the data that is at hand.

use std::sync::Arc;

use encke_log::{Sequence, StreamNo};
use encke_protocol::EncoderId;
use encke_protocol::long_record::LongRecord;
use encke_stream::{Fetch, LargeData, Piece, Stream};

use super::merged_long::MergedLong;
use super::topics::{Next, Topics};

/// A long record on its way to one subscriber.
#[derive(Debug)]
pub(crate) struct LongDelivery {
    pub(super) record: LongRecord,
    pub(super) sequence: Sequence,
    /// The stream in whose order the record is.
    pub(super) no: StreamNo,
    /// The topic among whose recent records it may be.
    pub(super) topic: u32,
    /// The record, if it cannot be read again because it exists in memory only.
    pub(super) held: Option<Arc<Piece>>,
    /// A part that was read, from this byte on.
    pub(super) part: Option<(u64, Arc<Piece>)>,
    /// A part of it was sent.
    pub(super) has_begun: bool,
    /// The subscriber was behind before, and its lag includes the record.
    pub(super) is_in_lag: bool,
    pub(super) feed: LongFeed,
}

/// How a long record is encoded.
#[derive(Debug)]
pub(super) enum LongFeed {
    /// For a subscriber of its stream.
    Single {
        stream: Arc<Stream>,
        encoder: EncoderId,
        option: u64,
        /// The beginning of the data.
        beginning: Vec<u8>,
        /// The subscriber learns behind the record that the producer is asked to stop.
        stop_asked: bool,
    },
    /// For a subscriber of several streams.
    Merged(Box<MergedLong>),
}

/// The data of a record from a byte on.
pub(super) struct RecordData<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) is_end: bool,
}

impl LongDelivery {
    pub(super) fn new(
        record: LongRecord,
        (no, sequence): (StreamNo, Sequence),
        topic: u32,
        feed: LongFeed,
    ) -> Self {
        LongDelivery {
            record,
            sequence,
            no,
            topic,
            held: None,
            part: None,
            has_begun: false,
            is_in_lag: false,
            feed,
        }
    }

    /// Takes a part of the record that was read.
    pub(super) fn take_part(&mut self, piece: &Arc<Piece>) {
        let from = match piece.large.is_empty() {
            true => 0,
            false => self.record.next_byte(),
        };
        self.part = Some((from, Arc::clone(piece)));
    }

    /// The unused rest of the part that was read.
    pub(super) fn part(&self) -> Option<RecordData<'_>> {
        let (from, piece) = self.part.as_ref()?;
        let RecordData { bytes, is_end } = part_of(piece)?;
        let used = self.record.next_byte().checked_sub(*from)?;
        let bytes = bytes.get(used as usize..)?;
        (is_end || !bytes.is_empty()).then_some(RecordData { bytes, is_end })
    }

    /// The record's data as far as it is in memory.
    pub(super) fn data<'a>(&'a self, topics: &'a Topics) -> Option<RecordData<'a>> {
        let had = self.record.next_byte();
        let part = self.part();
        if part.is_some() {
            return part;
        }
        let bytes = match &self.held {
            Some(piece) => piece.items().next()?.data,
            None => recent(topics, self.topic, self.sequence)?,
        };
        Some(RecordData {
            bytes: bytes.get(had as usize..)?,
            is_end: true,
        })
    }

    /// Bytes of the record that are kept for the subscriber.
    pub(super) fn bytes(&self) -> usize {
        let part = self.part.as_ref().map(|(_, piece)| piece);
        let pieces = part.into_iter().chain(&self.held);
        pieces.map(|piece| piece.bytes()).sum()
    }
}

impl LongDelivery {
    /// The part of the record that is read next.
    pub(super) fn rest(&self) -> Fetch {
        Fetch::rest_of_record(self.no, self.sequence, self.record.next_byte(), PART_BYTES)
    }
}

/// The data of a record in a piece that was read for it.
fn part_of(piece: &Piece) -> Option<RecordData<'_>> {
    match piece.large.first().map(|part| &part.data) {
        Some(LargeData::Bytes(bytes)) => Some(RecordData {
            bytes,
            is_end: piece.cut == 0,
        }),
        Some(LargeData::File(_)) => None,
        // A short record is read whole.
        None => Some(RecordData {
            bytes: piece.items().next()?.data,
            is_end: true,
        }),
    }
}

/// The data of a recent record.
fn recent(topics: &Topics, topic: u32, sequence: Sequence) -> Option<&[u8]> {
    match topics.next(topic, sequence.checked_sub(1)?) {
        Next::Recent(at) => {
            let (record, _) = topics.record(topic, at);
            (record.sequence == sequence).then_some(&*record.data)
        }
        Next::Nothing | Next::Older => None,
    }
}

/// Bytes of a long record that are read at a time. A record of which nothing but its copy in history is left is read whole for each part.
const PART_BYTES: usize = 128 << 10;
