//! The links in the journal.

use encke_stream::Offset;

use super::Links;
use super::link::{Link, LinkRequest};
use crate::entry::StoredLink;

impl Links {
    /// A link as the journal has it.
    pub(crate) fn stored(&self, path: &str) -> Option<StoredLink> {
        let number = *self.by_path.get(path)?;
        Some(self.links.get(&number)?.stored(number))
    }

    /// The links for a new segment of the journal.
    pub(crate) fn all_stored(&self) -> Vec<StoredLink> {
        let links = self.links.iter();
        let links = links.filter(|(_, link)| link.request != LinkRequest::Link);
        links.map(|(no, link)| link.stored(*no)).collect()
    }

    /// Brings a link to the state that the journal has.
    pub(crate) fn restore(&mut self, stored: &StoredLink) {
        self.remove(stored.link);
        if let Some(other) = self.by_path.get(&*stored.path) {
            self.remove(*other);
        }
        self.next = self.next.max(stored.link + 1);
        self.put(
            stored.link,
            Link {
                path: (&*stored.path).into(),
                explicit: stored.explicit,
                stream: stored.stream,
                begin: Offset::START,
                acked: stored.acked,
                tail: stored.acked,
                request: LinkRequest::None,
            },
        );
    }

    /// Takes what has changed since it was written: links, and the numbers of those that are gone.
    pub(crate) fn take_unwritten(&mut self) -> (Vec<StoredLink>, Vec<u32>) {
        let mut links = Vec::new();
        self.unwritten.retain(|no| match self.links.get(no) {
            // It is written with its request, and what has changed meanwhile behind it.
            Some(link) if link.request == LinkRequest::Link => true,
            Some(link) => {
                links.push(link.stored(*no));
                false
            }
            None => false,
        });
        (links, std::mem::take(&mut self.removed))
    }

    /// The log has refused what was taken.
    pub(crate) fn not_written(&mut self, links: &[StoredLink], removed: Vec<u32>) {
        let there = links.iter().map(|link| link.link);
        let there = there.filter(|no| self.links.contains_key(no));
        self.unwritten.extend(there);
        self.removed.extend(removed);
    }

    /// Whether something has changed since it was written.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty() || !self.removed.is_empty()
    }
}
