//! The streams for the events of wakes, and the events in them that were not reported yet.
//!
//! Many subscriptions can share one. Each event changes the stream, and nothing of that matters to them, unless it is another stream now.
//! So a change is looked up here once, and its subscriptions are visited only when they have to learn of it.

use std::collections::{BTreeSet, HashMap};

use encke_stream::StreamNo;

/// The streams for the events of wakes, by their names.
#[derive(Debug, Default)]
pub(super) struct EventStreams {
    streams: HashMap<Box<str>, EventStream>,
}

/// A stream for the events of wakes.
#[derive(Debug, Default)]
struct EventStream {
    /// The subscriptions whose events it takes.
    subscriptions: BTreeSet<u64>,
    /// The stream of that name, when all of the subscriptions know it.
    known: Option<StreamNo>,
    /// The events whose commits were not reported yet, by the numbers of their streams and their sequences. A subscription writes one
    /// at a time, and a commit is reported behind the outcomes of its commands, so that there are at most as many as subscriptions. The
    /// report of a later record of the stream removes them, and so does its end.
    unreported: BTreeSet<(StreamNo, u64)>,
}

impl EventStreams {
    /// Adds the stream of a subscription. True: it is the first of that name.
    pub(super) fn add(&mut self, name: &str, subscription: u64) -> bool {
        let stream = self.streams.entry(name.into()).or_default();
        let is_first = stream.subscriptions.is_empty();
        stream.subscriptions.insert(subscription);
        // The new one does not know it.
        stream.known = None;
        is_first
    }

    /// Removes the stream of a subscription. True: it was the last of that name.
    pub(super) fn remove(&mut self, name: &str, subscription: u64) -> bool {
        let Some(stream) = self.streams.get_mut(name) else {
            return false;
        };
        stream.subscriptions.remove(&subscription);
        let is_last = stream.subscriptions.is_empty();
        if is_last {
            self.streams.remove(name);
        }
        is_last
    }

    /// The subscriptions that have to learn that the stream of that name has this number.
    pub(super) fn changed(&mut self, name: &str, no: StreamNo) -> Vec<u64> {
        match self.streams.get_mut(name) {
            Some(stream) if stream.known != Some(no) => {
                stream.known = Some(no);
                stream.subscriptions.iter().copied().collect()
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// The subscriptions that have to learn that a stream has ended.
    pub(super) fn ended(&mut self, name: &str, no: StreamNo) -> Vec<u64> {
        let Some(stream) = self.streams.get_mut(name) else {
            return Vec::new();
        };
        if stream.known == Some(no) {
            stream.known = None;
        }
        stream.unreported.retain(|(stream, _)| *stream != no);
        stream.subscriptions.iter().copied().collect()
    }

    /// Notes an event that the machine has written: it makes no subscription pending, so that two that watch each other's events do not
    /// wake each other for ever.
    pub(super) fn written(&mut self, name: &str, no: StreamNo, sequence: u64) {
        if let Some(stream) = self.streams.get_mut(name) {
            stream.unreported.insert((no, sequence));
        }
    }

    /// Whether a commit is an event that the machine has written. Those before it in the stream were reported.
    pub(super) fn take_event(&mut self, name: &str, no: StreamNo, sequence: u64) -> bool {
        let Some(stream) = self.streams.get_mut(name) else {
            return false;
        };
        let is_event = stream.unreported.remove(&(no, sequence));
        while let Some(before) = stream.unreported.range((no, 0)..(no, sequence)).next() {
            let before = *before;
            stream.unreported.remove(&before);
        }
        is_event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_visits_subscriptions_once_for_each_stream() {
        let mut streams = EventStreams::default();
        for number in 0..1_000 {
            assert_eq!(streams.add("wakes", number), number == 0);
        }
        assert_eq!(streams.changed("wakes", 7).len(), 1_000);
        for _ in 0..10_000 {
            assert!(streams.changed("wakes", 7).is_empty());
        }
        assert!(streams.changed("other", 7).is_empty());
        // A new stream of the name, its end, and another subscription.
        assert_eq!(streams.changed("wakes", 8).len(), 1_000);
        assert_eq!(streams.ended("wakes", 8).len(), 1_000);
        assert_eq!(streams.changed("wakes", 9).len(), 1_000);
        assert!(!streams.add("wakes", 1_000));
        assert_eq!(streams.changed("wakes", 9).len(), 1_001);
        assert!(streams.changed("wakes", 9).is_empty());
        for number in 0..=1_000 {
            assert_eq!(streams.remove("wakes", number), number == 1_000);
        }
        assert!(streams.streams.is_empty());
    }

    #[test]
    fn events_are_known_until_they_are_reported() {
        let mut streams = EventStreams::default();
        streams.add("wakes", 1);
        // One commit can have an event of each subscription.
        for sequence in 0..10_000 {
            streams.written("wakes", 7, 2 * sequence);
        }
        streams.written("wakes", 8, 3);
        for sequence in 0..20_000 {
            assert_eq!(streams.take_event("wakes", 7, sequence), sequence % 2 == 0);
        }
        assert!(!streams.take_event("wakes", 7, 0), "once");
        assert_eq!(streams.streams["wakes"].unreported.len(), 1);
        // A later report and the end of a stream leave none of it.
        streams.written("wakes", 8, 4);
        assert!(!streams.take_event("wakes", 8, 5));
        streams.written("wakes", 8, 6);
        streams.ended("wakes", 8);
        assert!(streams.streams["wakes"].unreported.is_empty());
        // Without a subscription nothing would remove it.
        streams.remove("wakes", 1);
        streams.written("wakes", 7, 1);
        assert!(streams.streams.is_empty());
    }
}
