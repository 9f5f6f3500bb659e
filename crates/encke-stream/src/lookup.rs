//! The result of looking up a name: the stream that has it, or that it is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Stream;

/// The result of looking up a name. It stays in memory as long as it is held.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// A stream has the name. It may be expired, or exist for its forks only.
    Stream(Arc<Stream>),
    /// The name is free.
    Free(Arc<FreeName>),
}

// The size of a name in the table of its part of the view.
const _: () = assert!(size_of::<Lookup>() <= 16);

/// A name that no stream has.
#[derive(Debug)]
pub struct FreeName {
    name: Box<str>,
    used: AtomicBool,
    /// The store may still have a stream of this name.
    pub(crate) dirty: AtomicBool,
    /// A stream has had the name since the start.
    pub(crate) freed: bool,
}

impl Lookup {
    /// A name that the store does not have.
    pub(crate) fn free(name: &str) -> Lookup {
        Lookup::unused(name, false)
    }

    /// A name whose stream has just ended, so that the store may still have it.
    pub(crate) fn freed(name: &str) -> Lookup {
        Lookup::unused(name, true)
    }

    fn unused(name: &str, freed: bool) -> Lookup {
        Lookup::Free(Arc::new(FreeName {
            name: name.into(),
            used: AtomicBool::new(true),
            dirty: AtomicBool::new(freed),
            freed,
        }))
    }

    /// The stream that has the name.
    pub fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            Lookup::Stream(stream) => Some(stream),
            Lookup::Free(_) => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Lookup::Stream(stream) => &stream.name,
            Lookup::Free(free) => &free.name,
        }
    }

    fn used(&self) -> &AtomicBool {
        match self {
            Lookup::Stream(stream) => &stream.used,
            Lookup::Free(free) => &free.used,
        }
    }

    pub(crate) fn mark_used(&self) {
        // Most names are marked already, and a read is cheaper than a write.
        if !self.used().load(Ordering::Relaxed) {
            self.used().store(true, Ordering::Relaxed);
        }
    }

    /// Whether the name was used since the last call.
    pub(crate) fn was_used(&self) -> bool {
        self.used().swap(false, Ordering::Relaxed)
    }
}
