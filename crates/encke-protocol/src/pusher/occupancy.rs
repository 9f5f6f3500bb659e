//! Which channels of an app have subscriptions on this server, and how many.

use std::collections::HashMap;
use std::sync::Arc;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The channels of an app that have subscriptions.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    counts: Mutex<HashMap<Arc<str>, usize>>,
}

/// A subscription to a channel. It is counted until this is dropped.
#[derive(Debug)]
pub(super) struct Occupant {
    occupancy: Arc<Occupancy>,
    /// Shared by all subscriptions to the channel.
    channel: Arc<str>,
}

impl Occupancy {
    /// Counts a subscription.
    pub(super) fn enter(self: &Arc<Self>, channel: &str) -> Occupant {
        let mut counts = self.counts();
        let channel = match counts.get_key_value(channel) {
            Some((known, _)) => Arc::clone(known),
            None => channel.into(),
        };
        *counts.entry(Arc::clone(&channel)).or_default() += 1;
        Occupant {
            occupancy: Arc::clone(self),
            channel,
        }
    }

    /// The subscriptions to a channel.
    pub(super) fn count(&self, channel: &str) -> usize {
        self.counts().get(channel).copied().unwrap_or_default()
    }

    /// The channels whose names begin so, in the order of their names, each with its subscriptions.
    pub(super) fn channels(&self, prefix: &str) -> Vec<(Arc<str>, usize)> {
        let counts = self.counts();
        let named = counts.iter().filter(|(name, _)| name.starts_with(prefix));
        let mut channels: Vec<_> = named
            .map(|(name, count)| (Arc::clone(name), *count))
            .collect();
        drop(counts);
        channels.sort_unstable();
        channels
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        // No code that holds it can panic halfway through a change.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Occupant {
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }
}

impl Drop for Occupant {
    fn drop(&mut self) {
        let mut counts = self.occupancy.counts();
        if let Some(count) = counts.get_mut(&self.channel) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_occupied_until_its_last_subscription_ends() {
        let occupancy = Arc::new(Occupancy::default());
        let first = occupancy.enter("b");
        let (second, other) = (occupancy.enter("b"), occupancy.enter("a"));
        assert!(Arc::ptr_eq(&first.channel, &second.channel));
        let names = |prefix: &str| {
            let channels = occupancy.channels(prefix).into_iter();
            channels
                .map(|(name, count)| format!("{name}{count}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(""), ["a1", "b2"]);
        assert_eq!(names("b"), ["b2"]);
        drop(first);
        assert_eq!(occupancy.count("b"), 1);
        drop((second, other));
        assert_eq!(names(""), [""; 0]);
        assert_eq!(occupancy.count("b"), 0);
    }
}
