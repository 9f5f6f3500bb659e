//! Consecutive records that were read, with their data. Pieces of several readers can share them.

use std::ops::Range;
use std::sync::Arc;

use encke_clock::WallTime;
use encke_log::Sequence;

use super::large_records::RECORD_BYTES;
use crate::Offset;

/// Consecutive records that were read.
#[derive(Debug, Default)]
pub(super) struct RecordRun {
    /// The data of all records, one behind the other.
    pub(super) bytes: Vec<u8>,
    records: Vec<RunRecord>,
    /// The records that a reader gets only a part of, in ascending order.
    partial: Vec<PartialRecord>,
}

/// A record of a run. Its data begins where that of the record before it ends.
#[derive(Debug)]
struct RunRecord {
    sequence: Sequence,
    time: WallTime,
    /// See [`PIECE_BYTES_MAX`].
    data_end: u32,
    take: u32,
}

/// Which part of a record a reader gets.
#[derive(Debug)]
struct PartialRecord {
    /// The index of the record.
    record: usize,
    skip: u32,
    end: Offset,
    is_cut: bool,
}

/// The data of one record, as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The record's data, whole.
    pub data: &'a [u8],
    /// Units at its beginning that the reader already has.
    pub skip: u32,
    /// Units, counted from its beginning, after which the rest does not belong to the reader's stream.
    pub take: u32,
    /// The position after it.
    pub end: Offset,
    /// When its record was decided, by the time of day of the server that decided it.
    pub time: WallTime,
}

/// A record that is added to a run, without its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddedRecord {
    pub(super) sequence: Sequence,
    pub(super) time: WallTime,
    /// See [`Item`].
    pub(super) skip: u32,
    pub(super) take: u32,
    pub(super) end: Offset,
    /// The data is only the beginning of that of the record.
    pub(super) is_cut: bool,
}

impl<'a> Item<'a> {
    /// The reader's part of the data, of a record whose units are bytes.
    pub fn part(&self) -> &'a [u8] {
        let end = self.data.len().min(self.take as usize);
        &self.data[end.min(self.skip as usize)..end]
    }

    /// The position behind this many of the record's units, counted from its beginning.
    pub fn position(&self, units: u32) -> Offset {
        let sequence = match self.end.units {
            0 => self.end.sequence.saturating_sub(1),
            _ => self.end.sequence,
        };
        match units >= self.take {
            true => self.end,
            false => Offset { sequence, units },
        }
    }

    /// The position before the last units of the reader's part; at most before the first.
    pub fn position_before(&self, last: usize) -> Offset {
        let left = (self.take as usize).saturating_sub(last);
        self.position((left as u32).max(self.skip))
    }
}

/// The records of a piece: its own, or consecutive ones of a run that several pieces share.
#[derive(Debug, Default)]
pub(super) struct PieceRecords {
    /// The records that the piece was read with. It is empty if the piece shares those of a run.
    pub(super) own: RecordRun,
    shared: Option<(Arc<RecordRun>, Range<usize>)>,
}

impl PieceRecords {
    pub(super) fn shared(run: Arc<RecordRun>, range: Range<usize>) -> PieceRecords {
        PieceRecords {
            own: RecordRun::default(),
            shared: Some((run, range)),
        }
    }

    /// The records as a run that other pieces can share.
    pub(super) fn share(&mut self) -> Arc<RecordRun> {
        let mut run = std::mem::take(&mut self.own);
        run.bytes.shrink_to_fit();
        run.records.shrink_to_fit();
        let range = 0..run.len();
        let run = Arc::new(run);
        self.shared = Some((Arc::clone(&run), range));
        run
    }

    pub(super) fn len(&self) -> usize {
        self.range().len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.range().is_empty()
    }

    /// The data of all records, one behind the other.
    pub(super) fn data(&self) -> &[u8] {
        let (run, range) = (self.run(), self.range());
        &run.bytes[run.data_start(range.start)..run.data_start(range.end)]
    }

    /// The position behind the last record.
    pub(super) fn end(&self) -> Option<Offset> {
        self.items().last().map(|last| last.end)
    }

    /// Whether the reader gets each record whole.
    pub(super) fn are_whole(&self) -> bool {
        self.run().partial.is_empty()
    }

    /// Whether all kinds of reads give the same records: whole ones, of which none is read in parts.
    pub(super) fn are_plain(&self) -> bool {
        self.are_whole() && self.items().all(|item| item.data.len() < RECORD_BYTES)
    }

    /// Whether the last record is there with its beginning only.
    pub(super) fn ends_cut(&self) -> bool {
        let last = self.run().partial.last();
        last.is_some_and(|last| last.is_cut && last.record + 1 == self.range().end)
    }

    /// The records' data, in order.
    pub(super) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.beginnings().map(|(item, _)| item)
    }

    /// The records, each with whether its data is only the beginning of that of the record.
    pub(super) fn beginnings(&self) -> impl Iterator<Item = (Item<'_>, bool)> {
        let (run, range) = (self.run(), self.range());
        let mut start = run.data_start(range.start);
        // A run that is shared has no partial records.
        let mut partial = run.partial.iter().peekable();
        run.records[range]
            .iter()
            .enumerate()
            .map(move |(index, record)| {
                let data = &run.bytes[start..record.data_end as usize];
                start = record.data_end as usize;
                let mut item = Item {
                    data,
                    skip: 0,
                    take: record.take,
                    end: Offset::behind(record.sequence),
                    time: record.time,
                };
                let partial = partial.next_if(|partial| partial.record == index);
                if let Some(partial) = partial {
                    (item.skip, item.end) = (partial.skip, partial.end);
                }
                (item, partial.is_some_and(|partial| partial.is_cut))
            })
    }

    fn run(&self) -> &RecordRun {
        self.shared.as_ref().map_or(&self.own, |(run, _)| run)
    }

    fn range(&self) -> Range<usize> {
        match &self.shared {
            Some((_, range)) => range.clone(),
            None => 0..self.own.len(),
        }
    }
}

impl RecordRun {
    /// Adds a record, with this data.
    pub(super) fn push(&mut self, added: AddedRecord, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        if added.skip > 0 || added.is_cut || added.end != Offset::behind(added.sequence) {
            self.partial.push(PartialRecord {
                record: self.records.len(),
                skip: added.skip,
                end: added.end,
                is_cut: added.is_cut,
            });
        }
        self.records.push(RunRecord {
            sequence: added.sequence,
            time: added.time,
            data_end: self.bytes.len() as u32,
            take: added.take,
        });
    }

    /// Where the data of a record begins.
    fn data_start(&self, record: usize) -> usize {
        let before = record.checked_sub(1);
        before.map_or(0, |before| self.records[before].data_end as usize)
    }

    /// The indices of records with `after` < sequence <= `upto`: the first ones, with about `bytes_max` bytes of data, and at least one
    /// record. The second value is whether these are all records up to `upto`.
    pub(super) fn between(
        &self,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
    ) -> (Range<usize>, bool) {
        let begin = self
            .records
            .partition_point(|record| record.sequence <= after);
        let end = self
            .records
            .partition_point(|record| record.sequence <= upto);
        let wanted = &self.records[begin..end.max(begin)];
        let room = self.data_start(begin).saturating_add(bytes_max);
        let before_last = &wanted[..wanted.len().saturating_sub(1)];
        let taken = before_last.partition_point(|record| (record.data_end as usize) < room);
        let taken = wanted.len().min(taken + 1);
        (begin..begin + taken, taken == wanted.len())
    }

    /// The number of records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// The sequence of a record.
    pub(super) fn sequence(&self, record: usize) -> Sequence {
        self.records[record].sequence
    }

    /// The memory of its data and its records, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.records.capacity() * size_of::<RunRecord>()
    }

    /// Brings records that were taken newest first into their order.
    pub(super) fn reverse(&mut self) {
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for place in (0..self.records.len()).rev() {
            let data = self.data_start(place)..self.records[place].data_end as usize;
            bytes.extend_from_slice(&self.bytes[data]);
            self.records[place].data_end = bytes.len() as u32;
        }
        self.bytes = bytes;
        self.records.reverse();
        self.partial.reverse();
        for partial in &mut self.partial {
            partial.record = self.records.len() - 1 - partial.record;
        }
    }
}

/// A read ends when its piece has this much data. The last record may exceed it by less than 2 GiB, the size of a segment, so 32 bits hold
/// each position in the data of a piece.
pub(super) const PIECE_BYTES_MAX: usize = 1 << 30;
