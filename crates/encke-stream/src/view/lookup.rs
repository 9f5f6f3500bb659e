//! The result of looking up a name: the stream that has it, or that it is free.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// The free names in memory: how many, and what they count for.
///
/// Clients choose names and may ask for any number that no stream has, so that long names count as several.
#[derive(Debug, Default)]
pub(crate) struct FreeNames {
    count: AtomicUsize,
    weight: AtomicUsize,
}

impl FreeNames {
    pub(crate) fn add(&self, name: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.weight.fetch_add(weight(name), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.weight.fetch_sub(weight(name), Ordering::Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// As how many streams they count.
    pub(crate) fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }
}

fn weight(name: &str) -> usize {
    1 + name.len() / FREE_NAME_BYTES
}

/// Bytes of a free name that count as one stream in memory; a stream takes more.
const FREE_NAME_BYTES: usize = 128;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_count_as_several() {
        let names = FreeNames::default();
        let long = "x".repeat(1_024);
        names.add("short");
        names.add(&long);
        assert_eq!((names.len(), names.weight()), (2, 1 + 9));
        names.remove(&long);
        names.remove("short");
        assert_eq!((names.len(), names.weight()), (0, 0));
    }
}
