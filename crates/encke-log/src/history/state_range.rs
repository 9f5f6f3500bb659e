//! Which entries of the state store are read, and what is done with them.

use std::ops::{Bound, ControlFlow};

/// What a reader of entries does with each, and whether it goes on.
pub type EachState<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A part of the state store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRange<'a> {
    /// What the keys begin with.
    pub prefix: &'a [u8],
    /// Only the keys behind this one.
    pub behind: Option<&'a [u8]>,
}

impl<'a> StateRange<'a> {
    /// All keys that begin with a prefix.
    pub fn of(prefix: &'a [u8]) -> Self {
        StateRange {
            prefix,
            behind: None,
        }
    }

    /// Where it begins; it ends before the first key that it does not have.
    pub(crate) fn bounds(&self) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
        let from = match self.behind {
            Some(behind) if behind >= self.prefix => Bound::Excluded(behind),
            _ => Bound::Included(self.prefix),
        };
        (from, Bound::Unbounded)
    }

    /// Whether it has a key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        key.starts_with(self.prefix) && self.behind.is_none_or(|behind| key > behind)
    }
}
