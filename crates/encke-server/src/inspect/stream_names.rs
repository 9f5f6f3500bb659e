//! The names of streams that are at rest: their subscribers know their numbers only.

use std::collections::HashMap;

use encke_log::StreamNo;

use crate::archive::Archive;

/// Names that were looked up before. A number has one name for good.
#[derive(Debug, Default)]
pub(super) struct StreamNames(HashMap<StreamNo, Box<str>>);

impl StreamNames {
    /// The name of a stream, from memory or from the store. `None`: it has ended, or the store can't be read.
    pub(super) fn of(&mut self, no: StreamNo, archive: &Archive) -> Option<Box<str>> {
        if let Some(name) = self.0.get(&no) {
            return Some(name.clone());
        }
        let stream = archive.loaders.load_number(no).ok()??;
        if self.0.len() >= NAMES_MAX {
            self.0.clear();
        }
        self.0.insert(no, stream.name.clone());
        Some(stream.name.clone())
    }
}

/// Names that are kept: some hundred bytes each at most.
const NAMES_MAX: usize = 4_096;
