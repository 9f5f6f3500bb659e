//! The reader of a log.

use crate::copies::snapshot::{LogSnapshot, SnapshotError};
use crate::disk::Disk;
use crate::disk::files::Files;
use crate::error::ReadError;
use crate::health::Health;
use crate::history::state_range::{EachState, StateRange};
use crate::ids::{Sequence, StreamNo};
use crate::read::backwards::{BackwardBounds, stream_back};
use crate::read::failed_read::{Wanted, watch};
use crate::read::forwards::stream;
use crate::read::large::{GivenRecord, StreamRead};
use crate::read::order::order;
use crate::read::progress::ReadEnd;
use crate::segments::frame::FrameView;
use crate::shared::Shared;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Reads published records. Cheap to clone; each thread may have its own.
#[derive(Debug)]
pub struct Reader<D: Disk = Files> {
    shared: Arc<Shared<D>>,
}

impl<D: Disk> Reader<D> {
    pub(crate) fn new(shared: Arc<Shared<D>>) -> Reader<D> {
        Reader { shared }
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared<D>> {
        &self.shared
    }

    /// The last published record; 0 when there is none.
    pub fn published(&self) -> Sequence {
        self.shared.index.read().published
    }

    /// The health of the log.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// The records of a stream up to this one are removed: 0 when none are, [`FORGOTTEN`](crate::FORGOTTEN) when all are and none will follow. When
    /// no record of a forgotten stream is left, its floor may be dropped too; then this is 0.
    ///
    /// # Errors
    /// The floors could not be read, or are damaged.
    pub fn floor(&self, stream: StreamNo) -> Result<Sequence, ReadError> {
        let floor = self.shared.read_floor(stream);
        watch(&self.shared, floor, || Wanted::Floor(stream))
    }

    /// A number that grows when records of a stream are removed: what was read before is still there while it has not grown.
    pub fn removals(&self, stream: StreamNo) -> u64 {
        // Neither of them ever sinks, so their sum grows when one of them does.
        self.shared.floors.raises(stream) + self.shared.retention_floor.get()
    }

    /// The floor of the whole log: age and bytes have removed the records of all streams up to this one.
    pub fn retention_floor(&self) -> Sequence {
        self.shared.retention_floor.get()
    }

    /// The first record that the global order has: [`Reader::read_all`] can begin at any record from this one on.
    pub fn order_begins_at(&self) -> Sequence {
        self.shared.index.read().oldest()
    }

    /// Why no record after `published` will ever be published; `None` while the log may publish more.
    pub fn given_up(&self, published: Sequence) -> Option<Arc<str>> {
        let reason = self.shared.vitals.poisoned()?;
        // Read after the reason, because records may have been published just before the log failed.
        (self.published() == published).then_some(reason)
    }

    /// Gives `each` the records of a stream with `after` < sequence <= `upto`, in order, until about `bytes_max` bytes
    /// were given, but at least one record.
    ///
    /// # Errors
    /// Something could not be read, or is damaged. The records given before are correct; later ones may exist.
    pub fn read(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let wanted = StreamRead {
            verified_since: None,
            stream,
            after,
            upto,
            bytes_max,
            large_min: None,
            large_together: 0,
        };
        self.read_parts(&wanted, &mut |given| {
            if let GivenRecord::Whole(frame) = given {
                each(frame);
            }
        })
    }

    /// As [`Reader::read`], but large records stay in their files, as far as a segment has them. Each of those is verified and given
    /// alone.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read_parts(
        &self,
        wanted: &StreamRead,
        each: &mut dyn FnMut(GivenRecord<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let read = stream(&self.shared, wanted, each);
        watch(&self.shared, read, || Wanted::Stream(*wanted))
    }

    /// Gives `each` the last records of a stream with `after` < sequence <= `upto`, newest first, within the bounds, but at
    /// least one record. Records that are removed are left out. Returns the sequence up to which requested records may be left;
    /// `None` if all were given.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read_back(
        &self,
        stream: StreamNo,
        after: Sequence,
        upto: Sequence,
        bounds: BackwardBounds,
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<Option<Sequence>, ReadError> {
        let read = stream_back(&self.shared, stream, (after, upto), bounds, each);
        watch(&self.shared, read, || Wanted::Back {
            stream,
            after,
            upto,
            bounds,
        })
    }

    /// Gives `each` all records with `after` < sequence <= `upto`, in order, until about `bytes_max` bytes were given,
    /// but at least one record. Records that are removed from their streams are given to `removed` instead, with the floor
    /// of the first stream, [`FORGOTTEN`](crate::FORGOTTEN) for one that is gone.
    ///
    /// # Errors
    /// As [`Reader::read`], and [`ReadError::NoLongerKept`] when records after `after` are removed from the global
    /// order.
    pub fn read_all(
        &self,
        after: Sequence,
        upto: Sequence,
        bytes_max: usize,
        removed: &mut dyn FnMut(FrameView<'_>, Sequence),
        each: &mut dyn FnMut(FrameView<'_>),
    ) -> Result<ReadEnd, ReadError> {
        let read = order(&self.shared, after, upto, bytes_max, removed, each);
        watch(&self.shared, read, || Wanted::Order {
            after,
            upto,
            bytes_max,
        })
    }

    /// A snapshot of the log with all published records, from which a copy can be made while the log goes on.
    ///
    /// # Errors
    /// The log could not be read, or is damaged.
    pub fn snapshot(&self) -> Result<LogSnapshot<D>, SnapshotError> {
        LogSnapshot::take(&self.shared)
    }

    /// As [`Log::states`](crate::Log::states).
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn states(
        &self,
        prefix: &[u8],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), ReadError> {
        self.states_in(StateRange::of(prefix), &mut |key, value| {
            each(key, value);
            ControlFlow::Continue(())
        })
    }

    /// Gives `each` the entries of the state store that are in a range, in the order of their keys, until it breaks.
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn states_in(
        &self,
        range: StateRange<'_>,
        each: &mut EachState<'_>,
    ) -> Result<(), ReadError> {
        let read = self.shared.read_states(range, each);
        watch(&self.shared, read, || Wanted::States(range.prefix.to_vec()))
    }

    /// As [`Log::state`](crate::Log::state).
    ///
    /// # Errors
    /// The store could not be read, or is damaged.
    pub fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let read = self.shared.read_state(key);
        watch(&self.shared, read, || Wanted::State(key.to_vec()))
    }
}

impl<D: Disk> Clone for Reader<D> {
    fn clone(&self) -> Self {
        Reader {
            shared: self.shared.clone(),
        }
    }
}
