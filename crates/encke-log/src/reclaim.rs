//! Reclaiming: a compaction of history leaves out what is below its stream's floor.
//!
//! Only floors that are durable count here. One that is not may follow from a record that a crash undoes, and then what is
//! below it must still be there.

use crate::stored::{floor_of, of_record_key};
use crate::{Sequence, StreamNo};
use fjall::Keyspace;
use fjall::compaction::filter::{
    CompactionFilter, CompactionFilterResult, Context, Factory, ItemAccessor, Verdict,
};
use parking_lot::RwLock;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Where the compaction finds the durable floors, while history is open.
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
        // A panic elsewhere can't leave a keyspace half set.
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
    /// The stream of the last record and its floor: a compaction comes by all records of a stream in a row.
    last: Option<(StreamNo, Sequence)>,
}

impl Filter {
    fn floor(&mut self, stream: StreamNo) -> Sequence {
        match self.last {
            Some((last, floor)) if last == stream => floor,
            _ => {
                let floors = self.floors.as_ref();
                let floor = floors.and_then(|floors| floors.get(stream.to_be_bytes()).ok());
                // A floor that can't be read reclaims nothing; readers are told of it.
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
            // What lies deeper under the same key may come to light again. It is the same record, it is below the floor
            // too, and so nobody sees it before a later compaction leaves it out.
            Some((stream, sequence)) if sequence <= self.floor(stream) => Ok(Verdict::Destroy),
            _ => Ok(Verdict::Keep),
        }
    }
}
