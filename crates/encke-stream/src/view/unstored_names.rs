//! The names of streams that the store does not have, in their order.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Stream;

/// The streams in memory that the store does not have, by name. A list of streams finds there what a read of the store does not.
#[derive(Debug, Default)]
pub(super) struct UnstoredNames(Mutex<BTreeSet<ByName>>);

/// A stream, for its name.
#[derive(Clone, Debug)]
struct ByName(Arc<Stream>);

impl UnstoredNames {
    /// Adds a stream, in place of another one of its name, unless the store has it.
    pub(super) fn add(&self, stream: &Arc<Stream>) {
        if !stream.is_stored() {
            self.0.lock().replace(ByName(Arc::clone(stream)));
        }
    }

    /// Removes the stream of a name.
    pub(super) fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Removes a stream that the store has.
    pub(super) fn stored(&self, stream: &Stream) {
        let mut streams = self.0.lock();
        if streams
            .get(&*stream.name)
            .is_some_and(|one| one.0.no == stream.no)
        {
            streams.remove(&*stream.name);
        }
    }

    /// Up to `count_max` names that begin with `prefix`, behind `behind`, in their order.
    pub(super) fn page(
        &self,
        prefix: &str,
        behind: Option<&str>,
        count_max: usize,
    ) -> Vec<Box<str>> {
        let from = match behind {
            Some(behind) if behind >= prefix => Bound::Excluded(behind),
            _ => Bound::Included(prefix),
        };
        let streams = self.0.lock();
        let from = streams.range::<str, _>((from, Bound::Unbounded));
        from.map(|one| &one.0.name)
            .take_while(|name| name.starts_with(prefix))
            .take(count_max)
            .cloned()
            .collect()
    }
}

impl std::borrow::Borrow<str> for ByName {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

impl PartialOrd for ByName {
    fn partial_cmp(&self, other: &ByName) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByName {
    fn cmp(&self, other: &ByName) -> std::cmp::Ordering {
        self.0.name.cmp(&other.0.name)
    }
}
