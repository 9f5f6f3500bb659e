//! The names that have subscribers on a shard and that no stream has yet.

use std::collections::HashMap;
use std::sync::Arc;

use encke_log::StreamNo;

/// An awaited name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedName {
    pub(crate) name: Arc<str>,
    /// For the count of such names.
    pub(crate) group: u64,
}

/// The awaited names of a shard, and the numbers under which their topics are kept.
#[derive(Debug, Default)]
pub(super) struct AwaitedTopics {
    /// Clients choose the names, so that their hashes must not be known.
    numbers: HashMap<Arc<str>, StreamNo, foldhash::quality::RandomState>,
    names: foldhash::HashMap<StreamNo, AwaitedName>,
    /// The numbers of names that are not awaited any longer, and whose streams were created before: their commits are under way.
    created: foldhash::HashSet<StreamNo>,
}

impl AwaitedTopics {
    pub(super) fn add(&mut self, name: AwaitedName, no: StreamNo) {
        self.numbers.insert(Arc::clone(&name.name), no);
        self.names.insert(no, name);
    }

    /// The number of a name.
    pub(super) fn number(&self, name: &str) -> Option<StreamNo> {
        self.numbers.get(name).copied()
    }

    /// The name with a number.
    pub(super) fn name(&self, no: StreamNo) -> Option<&AwaitedName> {
        self.names.get(&no)
    }

    /// A name is not awaited any longer.
    pub(super) fn remove(&mut self, no: StreamNo) {
        if let Some(name) = self.names.remove(&no) {
            self.numbers.remove(&name.name);
        }
    }

    /// The stream of a name that is not awaited any longer was created, and its commit is under way.
    pub(super) fn expect_commit(&mut self, no: StreamNo) {
        self.created.insert(no);
    }

    /// Whether the commit that has come was expected of a name that is not awaited any longer.
    pub(super) fn was_expected(&mut self, no: StreamNo) -> bool {
        self.created.remove(&no)
    }
}

#[cfg(test)]
mod tests {
    use encke_clock::{Now, WallTime};
    use encke_stream::{
        AwaitedStream, Batch, MediaKind, Offset, Record, Stream, View, Views, is_awaited,
    };

    use super::*;
    use crate::feed::slot::Slots;
    use crate::feed::topics::{Next, Topics};
    use crate::synthetic;

    struct Shard {
        view: Arc<View>,
        topics: Topics,
        slots: Slots,
    }

    impl Shard {
        fn new() -> Shard {
            let view = Arc::new(View::default());
            Shard {
                topics: Topics::new(1 << 20, 0, Views::one(Arc::clone(&view))),
                view,
                slots: Slots::default(),
            }
        }

        /// A subscriber of the name, when the log has four records.
        fn subscribe(&mut self, name: &str) -> (u32, u32) {
            let name = AwaitedName {
                name: name.into(),
                group: 1,
            };
            let topic = self.topics.intern_awaited(&name, 4);
            let slot = self.slots.add_member(0);
            self.slots[slot].cursor = 4;
            self.topics.link(&mut self.slots, topic, slot);
            (topic, slot)
        }

        fn leave(&mut self, slot: u32) {
            self.topics.unlink(&mut self.slots, slot, Now::default());
        }

        /// The stream of that name, created behind the record 4.
        fn create(&self, name: &str) -> Arc<Stream> {
            synthetic::create(&self.view, [name.to_owned()].into_iter(), 5);
            self.view.find(name).expect("it was created")
        }

        /// The commit of a creation, which the sequencer delivers to the shards that await the name.
        fn commit(&mut self, awaited: StreamNo, stream: &Arc<Stream>) -> Vec<u32> {
            self.view.watch(stream, 0);
            let record = Record {
                sequence: 5,
                time: WallTime::default(),
                stream: stream.no,
                data: b"1".to_vec(),
                tail: Offset::behind(5),
                units: 1,
                closes: false,
                end: None,
                asks_stop: false,
                deletes: false,
            };
            let batch = Batch::new(vec![record]);
            let awaited = AwaitedStream {
                awaited,
                no: stream.no,
                stream: Arc::downgrade(stream),
                kind: MediaKind::Json,
                shards: [0].into(),
            };
            batch.awaited.set([awaited].into()).unwrap();
            let mut touched = Vec::new();
            let batch = Arc::new(batch);
            self.topics.take(&batch, |_, topic| touched.push(topic));
            touched
        }

        fn is_watching(&self, stream: &Stream) -> bool {
            self.view.has_watchers(stream)
        }
    }

    #[test]
    fn the_topic_of_a_name_becomes_that_of_its_stream() {
        let mut shard = Shard::new();
        let (topic, slot) = shard.subscribe("a");
        assert_eq!(shard.subscribe("a").0, topic, "one for all subscribers");
        let awaited = shard.topics.no(topic);
        assert!(is_awaited(awaited));
        assert_eq!(shard.topics.name(topic), "a");
        assert_eq!(shard.topics.next(topic, 4), Next::Nothing);
        let stream = shard.create("a");
        // As if the sequencer had found it there.
        assert!(shard.view.leave_name(awaited, 0));
        assert_eq!(shard.commit(awaited, &stream), [topic]);
        assert_eq!(shard.topics.no(topic), stream.no);
        assert!(matches!(
            shard.topics.next(topic, shard.slots[slot].cursor),
            Next::Recent(_)
        ));
        assert_eq!(shard.topics.intern(&stream), topic);
    }

    #[test]
    fn a_subscriber_of_the_stream_brings_those_of_the_name_along() {
        let mut shard = Shard::new();
        let (topic, slot) = shard.subscribe("a");
        let awaited = shard.topics.no(topic);
        let stream = shard.create("a");
        assert!(shard.view.leave_name(awaited, 0));
        // The commit has not come yet: what it has is read.
        assert_eq!(shard.topics.intern(&stream), topic);
        assert_eq!(
            shard.topics.next(topic, shard.slots[slot].cursor),
            Next::Older
        );
        assert_eq!(shard.commit(awaited, &stream), [topic]);
        assert!(shard.is_watching(&stream));
        // One that comes too late for the name gets the same topic.
        assert_eq!(shard.subscribe("a").0, topic);
    }

    #[test]
    fn a_shard_without_subscribers_watches_nothing() {
        let mut shard = Shard::new();
        let (topic, slot) = shard.subscribe("a");
        let awaited = shard.topics.no(topic);
        shard.leave(slot);
        assert_eq!(shard.view.awaited_len(), 0);
        assert!(shard.topics.find(awaited).is_none());
        // It leaves while the commit is under way.
        let (topic, slot) = shard.subscribe("a");
        let awaited = shard.topics.no(topic);
        let stream = shard.create("a");
        assert!(shard.view.leave_name(awaited, 0));
        shard.leave(slot);
        assert!(shard.commit(awaited, &stream).is_empty());
        assert!(!shard.is_watching(&stream));
    }
}
