//! Reclaiming: compaction of history drops records below their stream's floor.
//!
//! Only durable floors count. Another floor may follow from a record that a crash undoes, and then the records below it
//! must still be there.

use crate::history::floor::floor_of;
use crate::history::stored::of_record_key;
use crate::ids::{Sequence, StreamNo};
use fjall::Keyspace;
use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use parking_lot::RwLock;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// The durable floors, while history is open.
#[derive(Default)]
pub(crate) struct DurableFloors(RwLock<Option<Keyspace>>);

impl DurableFloors {
    pub(crate) fn set(&self, floors: Keyspace) {
        *self.0.write() = Some(floors);
    }

    fn keyspace(&self) -> Option<Keyspace> {
        self.0.read().clone()
    }

    pub(crate) fn clear(&self) {
        *self.0.write() = None;
    }
}

/// Makes a filter for each compaction.
pub(crate) struct Reclaim(AssertUnwindSafe<Arc<DurableFloors>>);

impl Reclaim {
    pub(crate) fn new(floors: Arc<DurableFloors>) -> Reclaim {
        // A panic elsewhere can't leave the floors in an inconsistent state.
        Reclaim(AssertUnwindSafe(floors))
    }
}

impl Factory for Reclaim {
    fn name(&self) -> &str {
        "floors"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Filter {
            floors: self.0.keyspace(),
            last: None,
        })
    }
}

struct Filter {
    floors: Option<Keyspace>,
    /// The last stream and its floor: a compaction visits the records of a stream in a row.
    last: Option<(StreamNo, Sequence)>,
}

impl Filter {
    fn floor(&mut self, stream: StreamNo) -> Sequence {
        match self.last {
            Some((last, floor)) if last == stream => floor,
            _ => {
                let floors = self.floors.as_ref();
                let floor = floors.and_then(|floors| floors.get(stream.to_be_bytes()).ok());
                // Without a readable floor nothing is reclaimed; readers get the error.
                let floor = floor.map_or(0, floor_of);
                self.last = Some((stream, floor));
                floor
            }
        }
    }
}

impl CompactionFilter for Filter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> CompactionFilterResult {
        match of_record_key(item.key()) {
            // An older version of the key may become visible. It is the same record, and below the floor too, so no
            // reader gets it, and a later compaction drops it.
            Some((stream, sequence)) if sequence <= self.floor(stream) => Ok(Verdict::Destroy),
            _ => Ok(Verdict::Keep),
        }
    }
}
