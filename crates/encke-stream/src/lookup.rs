//! What is known of a name: which stream has it, or that it is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Stream;

/// What is known of a name. As long as somebody holds it, it stays in memory.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// A stream has it, expired or kept for its forks though it may be.
    Stream(Arc<Stream>),
    /// It is free.
    Free(Arc<FreeName>),
}

// What a name costs in the table of its part of the view.
const _: () = assert!(size_of::<Lookup>() <= 16);

/// A name that no stream has.
#[derive(Debug)]
pub struct FreeName {
    name: Box<str>,
    used: AtomicBool,
    /// The store may still say that it is taken.
    pub(crate) dirty: AtomicBool,
    /// A stream had it since the start.
    pub(crate) freed: bool,
}

impl Lookup {
    /// A name that the store has not.
    pub(crate) fn free(name: &str) -> Lookup {
        Lookup::unused(name, false)
    }

    /// A name that the store may still have, because its stream has just ended.
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
        // Read first: most are marked already, and then nothing has to be written.
        if !self.used().load(Ordering::Relaxed) {
            self.used().store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was last asked.
    pub(crate) fn was_used(&self) -> bool {
        self.used().swap(false, Ordering::Relaxed)
    }
}
