//! The subscriptions of a channel: their names, and the keys of their feeds.

use super::reply::Subject;
use crate::misspelled::shown;
use crate::problem::error;
use crate::response::Response;

/// The subscriptions of a channel.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    held: Vec<HeldSubscription>,
    last_key: u32,
}

/// A subscription whose feed has not ended.
#[derive(Debug)]
pub(super) struct HeldSubscription {
    /// The key of its feed, unique on the channel.
    pub(super) key: u32,
    /// What it delivers.
    pub(super) subject: Subject,
}

impl Subscriptions {
    /// Refuses a further subscription, if there is one of the same name, or if all together would name more than `max` streams.
    pub(super) fn check_new(&self, subject: &Subject, max: usize) -> Result<(), Response> {
        if self.find(subject).is_some() {
            let why = format!(
                "the channel subscribes to {} already; unsubscribe first",
                shown(&subject.label())
            );
            return Err(error(409, "already_subscribed", why));
        }
        let held: usize = self.held.iter().map(|one| one.subject.names().len()).sum();
        let named = held + subject.names().len();
        if named > max {
            let why = format!(
                "the subscriptions of the channel would name {named} streams, at most {max} are allowed"
            );
            return Err(error(400, "too_many_streams", why));
        }
        let all = self.held.iter().map(|one| &one.subject);
        let names = all.chain([subject]).flat_map(Subject::names);
        let bytes: usize = names.map(|name| name.len()).sum();
        match bytes > NAMES_BYTES_MAX {
            false => Ok(()),
            true => Err(error(
                400,
                "too_many_streams",
                format!(
                    "the names of the channel's subscriptions would have {bytes} bytes, at most {NAMES_BYTES_MAX} are allowed"
                ),
            )),
        }
    }

    /// Adds a subscription, and returns the key of its feed.
    pub(super) fn add(&mut self, subject: Subject) -> u32 {
        loop {
            self.last_key = self.last_key.wrapping_add(1);
            let is_free = |one: &HeldSubscription| one.key != self.last_key;
            if self.last_key != 0 && self.held.iter().all(is_free) {
                break;
            }
        }
        let key = self.last_key;
        self.held.push(HeldSubscription { key, subject });
        key
    }

    /// Removes a subscription by its name, and returns the key of its feed.
    pub(super) fn remove(&mut self, subject: &Subject) -> Option<u32> {
        let at = self.find(subject)?;
        Some(self.held.remove(at).key)
    }

    /// Removes a subscription by the key of its feed.
    pub(super) fn remove_key(&mut self, key: u32) {
        self.held.retain(|one| one.key != key);
    }

    /// Removes those that `refusal` refuses, and returns each with the refusal.
    pub(super) fn remove_refused(
        &mut self,
        mut refusal: impl FnMut(&Subject) -> Result<(), Response>,
    ) -> Vec<(HeldSubscription, Response)> {
        let mut removed = Vec::new();
        for one in std::mem::take(&mut self.held) {
            match refusal(&one.subject) {
                Ok(()) => self.held.push(one),
                Err(response) => removed.push((one, response)),
            }
        }
        removed
    }

    fn find(&self, subject: &Subject) -> Option<usize> {
        let label = subject.label();
        let mut held = self.held.iter();
        held.position(|one| one.subject.label() == label)
    }
}

/// Bytes of all names of the subscriptions of a channel, at most: as many as a URL has room for. A channel at rest keeps them.
const NAMES_BYTES_MAX: usize = 16 << 10;
