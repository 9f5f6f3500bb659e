//! Content types that streams share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::stream::media::Media;

/// Content types by their names as creators wrote them.
#[derive(Debug, Default)]
pub(super) struct SharedMedia(RwLock<HashMap<Box<str>, Arc<Media>>>);

impl SharedMedia {
    /// The content type of that name, shared where possible.
    pub(super) fn get(&self, name: &str) -> Arc<Media> {
        if let Some(media) = self.0.read().get(name) {
            return Arc::clone(media);
        }
        let media = Arc::new(Media::new(name));
        let mut shared = self.0.write();
        if shared.len() < MEDIA_SHARED_MAX {
            return Arc::clone(shared.entry(name.into()).or_insert(media));
        }
        media
    }
}

/// The most types that streams share. With more types, each stream has its own.
const MEDIA_SHARED_MAX: usize = 1000;
