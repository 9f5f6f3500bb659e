//! The streams that a subscription follows, and up to where they are done.
//!
//! They change by requests (`requests.rs`), by commits of streams (`streams.rs`) and by acknowledgements; `journal.rs` is how they are
//! stored.

mod journal;
mod link;
mod requests;
mod streams;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_stream::{Offset, StreamNo};

use self::link::{Link, LinkRequest};
use crate::bounds::link_weight;
use crate::entry::LinkPosition;
use crate::index::SubscriptionIndex;
use crate::response::LinkStatus;

/// What the links of all subscriptions share.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkRegistry {
    /// It has the names of explicit links.
    pub(crate) index: Arc<SubscriptionIndex>,
    /// How much all links count.
    pub(crate) weight: Arc<AtomicUsize>,
}

/// The streams that a subscription follows.
#[derive(Debug)]
pub(crate) struct Links {
    subscription: u64,
    registry: LinkRegistry,
    links: BTreeMap<u32, Link>,
    by_path: BTreeMap<Arc<str>, u32>,
    /// How much they count.
    weight: usize,
    /// The number of the next link. No number is used twice.
    next: u32,
    /// Those with records beyond what is done.
    pending: BTreeSet<u32>,
    /// Those that have changed since they were written to the journal.
    unwritten: BTreeSet<u32>,
    /// Those that are gone, and still in the journal.
    removed: Vec<u32>,
}

impl Links {
    pub(crate) fn new(subscription: u64, registry: LinkRegistry) -> Links {
        Links {
            subscription,
            registry,
            links: BTreeMap::new(),
            by_path: BTreeMap::new(),
            weight: 0,
            next: 0,
            pending: BTreeSet::new(),
            unwritten: BTreeSet::new(),
            removed: Vec::new(),
        }
    }

    /// How much they count against the limits.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    /// The links whose streams exist, and the numbers of these.
    pub(crate) fn streams(&self) -> Vec<(Arc<str>, StreamNo)> {
        let links = self.links.values();
        let links = links.filter_map(|link| Some((Arc::clone(&link.path), link.stream?)));
        links.collect()
    }

    /// The number of the next link: those that there are have smaller ones.
    pub(crate) fn below(&self) -> u32 {
        self.next
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Link> {
        self.links.get(self.by_path.get(path)?)
    }

    pub(crate) fn number(&self, path: &str) -> Option<u32> {
        self.by_path.get(path).copied()
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.links.keys().copied().collect()
    }

    pub(crate) fn numbered(&self, link: u32) -> Option<&Link> {
        self.links.get(&link)
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Where the streams end that have records beyond what is done, once these cursors count.
    pub(crate) fn pending_behind(&self, cursors: &[LinkPosition]) -> Vec<LinkPosition> {
        let mut done: HashMap<u32, Offset> = HashMap::new();
        for cursor in cursors {
            let at = done.entry(cursor.link).or_default();
            *at = cursor.at.max(*at);
        }
        let pending = self.pending.iter().filter_map(|no| {
            let link = self.links.get(no)?;
            let is_done = done.get(no).is_some_and(|at| *at >= link.tail);
            (!is_done).then_some(LinkPosition {
                link: *no,
                stream: link.stream?,
                at: link.tail,
            })
        });
        pending.collect()
    }

    /// All links, by their names.
    pub(crate) fn status(&self) -> Vec<LinkStatus> {
        let links = self.by_path.values().filter_map(|no| self.links.get(no));
        let links = links.map(|link| LinkStatus {
            stream: Arc::clone(&link.path),
            explicit: link.explicit,
            acked: link.acked,
            tail: link.tail,
            has_pending: link.is_pending(),
        });
        links.collect()
    }

    /// The position that an acknowledgement names; `None` if it cannot count, as far as the machine knows the stream.
    pub(crate) fn judge(&self, path: &str, offset: Offset) -> Option<LinkPosition> {
        let number = *self.by_path.get(path)?;
        let link = self.links.get(&number)?;
        let stream = link.stream?;
        (link.takes(stream, offset) && offset <= link.tail).then_some(LinkPosition {
            link: number,
            stream,
            at: offset,
        })
    }

    /// The link that a position names, if it still exists and still has the stream of the position.
    pub(crate) fn of_position(&self, position: &LinkPosition) -> Option<&Link> {
        let link = self.links.get(&position.link);
        link.filter(|link| link.stream == Some(position.stream))
    }

    /// Whether the link of a position still has its stream, and has not acknowledged the position.
    pub(crate) fn is_behind(&self, position: &LinkPosition) -> bool {
        let link = self.of_position(position);
        link.is_some_and(|link| link.acked < position.at)
    }

    /// Acknowledges a position. False: nothing changes, because it is acknowledged already, or its link is gone or has another stream.
    pub(crate) fn ack(&mut self, position: LinkPosition) -> bool {
        let moves = self.is_behind(&position);
        if moves {
            self.update(position.link, |link| link.acked = position.at);
        }
        moves
    }

    pub(crate) fn remove(&mut self, number: u32) {
        let Some(link) = self.links.remove(&number) else {
            return;
        };
        self.by_path.remove(&link.path);
        self.pending.remove(&number);
        let weight = link_weight(&link.path);
        self.weight -= weight;
        self.registry.weight.fetch_sub(weight, Ordering::Relaxed);
        if link.explicit {
            let index = &self.registry.index;
            index.remove_name(&link.path, self.subscription);
        }
    }

    pub(crate) fn set_explicit(&mut self, number: u32, explicit: bool) {
        let Some(link) = self.links.get_mut(&number) else {
            return;
        };
        if link.explicit != explicit {
            link.explicit = explicit;
            let index = &self.registry.index;
            match explicit {
                true => index.add_name(&link.path, self.subscription),
                false => index.remove_name(&link.path, self.subscription),
            }
        }
    }

    /// Removes all links.
    pub(crate) fn close(&mut self) {
        for number in self.numbers() {
            self.remove(number);
        }
    }

    fn insert(&mut self, link: Link) -> u32 {
        let number = self.next;
        self.next += 1;
        if link.request != LinkRequest::Link {
            self.unwritten.insert(number);
        }
        self.put(number, link);
        number
    }

    fn put(&mut self, number: u32, link: Link) {
        self.by_path.insert(Arc::clone(&link.path), number);
        let weight = link_weight(&link.path);
        self.weight += weight;
        self.registry.weight.fetch_add(weight, Ordering::Relaxed);
        if link.explicit {
            let index = &self.registry.index;
            index.add_name(&link.path, self.subscription);
        }
        self.links.insert(number, link);
    }

    fn update(&mut self, number: u32, update: impl FnOnce(&mut Link)) {
        if let Some(link) = self.links.get_mut(&number) {
            update(link);
            match link.is_pending() {
                true => self.pending.insert(number),
                false => self.pending.remove(&number),
            };
        }
    }

    /// Like [`Links::update`]. True: what has changed must be written.
    fn unwritten_if(&mut self, number: u32, update: impl FnOnce(&mut Link) -> bool) {
        let mut is_unwritten = false;
        self.update(number, |link| is_unwritten = update(link));
        if is_unwritten {
            self.unwritten.insert(number);
        }
    }
}
