//! Ephemeral messages on their way to the subscribers of a shard.
//!
//! A message waits until the records before it are here, then for a round of its topic. The round serves each subscriber its records, and
//! then the messages if it has all of these. A message that a subscriber does not get in the round is lost to it.

use std::sync::Arc;

use encke_log::{Sequence, StreamNo};
use encke_stream::{Views, log_of};
use hashbrown::HashMap;

use super::encoding::RUN_BYTES;
use crate::broadcast_message::{BroadcastMessage, QueuedMessage};

/// The messages of a shard.
#[derive(Debug, Default)]
pub(crate) struct EphemeralQueue {
    /// Those whose records may not be here yet, in the order in which they came.
    arrived: Vec<ArrivedMessage>,
    /// Of each log the last record that was with this shard before its events were taken.
    delivered: Vec<Sequence>,
    /// Those that wait for the rounds of their topics, by the topics' places.
    waiting: HashMap<u32, WaitingMessages>,
    pub(super) round: EphemeralRound,
}

#[derive(Debug)]
struct ArrivedMessage {
    queued: QueuedMessage,
    /// It is lost if its records are not here by then.
    until_us: u64,
}

/// What waits for the next rounds of a topic.
#[derive(Debug)]
struct WaitingMessages {
    /// The topic's stream or pattern: its place may have been another's.
    no: StreamNo,
    messages: Vec<Arc<QueuedMessage>>,
    bytes: usize,
}

/// The messages of the round that has begun.
#[derive(Debug, Default)]
pub(super) struct EphemeralRound {
    pub(super) messages: Vec<Arc<QueuedMessage>>,
    /// Which round it is, so that none shares an encoding with another.
    pub(super) number: u64,
    /// The names of subscriptions whose subscribers share an encoding.
    labels: Vec<Box<str>>,
}

impl EphemeralQueue {
    /// Notes what is delivered to this shard, taken or not.
    pub(crate) fn note_delivered(&mut self, views: &Views) {
        self.delivered.clear();
        let delivered = (0..views.logs()).map(|log| views.log(log).delivered());
        self.delivered.extend(delivered);
    }

    /// Takes a message from the shard's channel.
    pub(crate) fn arrive(&mut self, queued: QueuedMessage, now_us: u64) {
        self.arrived.push(ArrivedMessage {
            queued,
            until_us: now_us + ORDER_WAIT_US,
        });
    }

    /// Whether messages wait for the records before them.
    pub(crate) fn awaits_records(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The messages whose records are here, and how many are lost because theirs did not come in time.
    pub(crate) fn take_ready(&mut self, now_us: u64) -> (Vec<Arc<QueuedMessage>>, u64) {
        let delivered = &self.delivered;
        let is_here = |arrived: &mut ArrivedMessage| {
            let message = &arrived.queued.broadcast.message;
            let delivered = delivered.get(log_of(message.stream)).copied();
            delivered.is_some_and(|delivered| delivered >= message.after)
        };
        let ready = self.arrived.extract_if(.., is_here);
        let ready = ready.map(|arrived| Arc::new(arrived.queued)).collect();
        let late = self.arrived.extract_if(.., |one| one.until_us <= now_us);
        (ready, late.count() as u64)
    }

    /// Has a message wait for a round of a topic. False: too much waits for the topic already.
    pub(crate) fn push(&mut self, topic: u32, no: StreamNo, message: &Arc<QueuedMessage>) -> bool {
        let empty = || WaitingMessages {
            no,
            messages: Vec::new(),
            bytes: 0,
        };
        let waiting = self.waiting.entry(topic).or_insert_with(empty);
        if waiting.no != no {
            *waiting = empty();
        }
        if !waiting.messages.is_empty() && waiting.bytes + message.bytes() > TOPIC_BYTES_MAX {
            return false;
        }
        waiting.bytes += message.bytes();
        waiting.messages.push(Arc::clone(message));
        true
    }

    /// A round of a topic begins, with as many of its messages as one send should carry.
    pub(crate) fn begin_round(&mut self, topic: u32, no: StreamNo) {
        if self.waiting.is_empty() {
            return;
        }
        let Some(mut waiting) = self.waiting.remove(&topic) else {
            return;
        };
        if waiting.no != no {
            return;
        }
        let mut bytes = 0;
        let fits = |message: &&Arc<QueuedMessage>| {
            bytes += message.broadcast.message.data.bytes.len();
            bytes <= RUN_BYTES
        };
        let messages = waiting.messages.iter().take(ROUND_MESSAGES_MAX);
        let count = messages.take_while(fits).count().max(1);
        let later = waiting.messages.split_off(count);
        self.round.messages = std::mem::replace(&mut waiting.messages, later);
        self.round.number += 1;
        if !waiting.messages.is_empty() {
            let begun = self.round.messages.iter().map(|one| one.bytes());
            waiting.bytes -= begun.sum::<usize>();
            self.waiting.insert(topic, waiting);
        }
    }

    /// The round is over. Whether messages wait for another one of its topic.
    pub(crate) fn end_round(&mut self, topic: u32, no: StreamNo) -> bool {
        self.round.messages.clear();
        self.round.labels.clear();
        let waiting = self.waiting.get(&topic);
        waiting.is_some_and(|waiting| waiting.no == no)
    }

    /// Whether the round has messages.
    pub(crate) fn has_round(&self) -> bool {
        !self.round.messages.is_empty()
    }
}

impl EphemeralRound {
    /// The number of a subscription's name. `None`: too many have another one.
    pub(super) fn label(&mut self, label: &str) -> Option<u32> {
        let known = self.labels.iter().position(|known| **known == *label);
        let place = match known {
            Some(place) => place,
            None if self.labels.len() < LABELS_MAX => {
                self.labels.push(label.into());
                self.labels.len() - 1
            }
            None => return None,
        };
        Some(place as u32)
    }

    /// The messages that are meant, by bits.
    pub(super) fn wanted(&self, wanted: u64) -> impl Iterator<Item = &BroadcastMessage> {
        let messages = (0..).zip(&self.messages);
        let wanted = messages.filter(move |(place, _)| wanted >> place & 1 != 0);
        wanted.map(|(_, message)| &*message.broadcast)
    }
}

/// Messages of one round, by the bits of a number.
const ROUND_MESSAGES_MAX: usize = 64;

/// Bytes that wait for the rounds of one topic, so that a flood there leaves room for other topics.
const TOPIC_BYTES_MAX: usize = 1 << 20;

/// How long a message waits for the records before it, which a node of a fleet may get late.
const ORDER_WAIT_US: u64 = 5_000_000;

/// Names of subscriptions whose encodings are shared in a round.
const LABELS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broadcast_message::EphemeralBytes;
    use crate::synthetic::ephemeral;

    fn queued(bytes: &EphemeralBytes, data: &[u8]) -> Arc<QueuedMessage> {
        Arc::new(bytes.take(&ephemeral(7, "a", data)).unwrap())
    }

    #[test]
    fn a_round_has_as_many_messages_as_one_send_should_carry() {
        let bytes = EphemeralBytes::new(64 << 20);
        let mut queue = EphemeralQueue::default();
        for _ in 0..ROUND_MESSAGES_MAX + 2 {
            assert!(queue.push(3, 7, &queued(&bytes, b"x")));
        }
        for left in [ROUND_MESSAGES_MAX, 2] {
            queue.begin_round(3, 7);
            assert_eq!(queue.round.messages.len(), left);
            assert!(queue.has_round());
            assert_eq!(queue.end_round(3, 7), left > 2);
            assert!(!queue.has_round());
        }
        let large = vec![b'x'; RUN_BYTES / 2 + 1];
        for _ in 0..2 {
            assert!(queue.push(3, 7, &queued(&bytes, &large)));
        }
        queue.begin_round(3, 7);
        assert_eq!(queue.round.messages.len(), 1);
        assert!(queue.end_round(3, 7));
        // The topic is another one by now.
        queue.begin_round(3, 8);
        assert!(!queue.has_round() && !queue.end_round(3, 8));
        assert_eq!(bytes.used(), 0);
    }

    #[test]
    fn a_topic_holds_a_part_of_what_may_wait() {
        let bytes = EphemeralBytes::new(64 << 20);
        let mut queue = EphemeralQueue::default();
        let data = [b'x'; 16 << 10];
        let pushed = (0..1000).take_while(|_| queue.push(1, 7, &queued(&bytes, &data)));
        assert!(pushed.count() < 65);
        assert!(bytes.used() <= TOPIC_BYTES_MAX);
        assert!(queue.push(2, 9, &queued(&bytes, &data)), "another topic");
    }

    fn counts((ready, late): (Vec<Arc<QueuedMessage>>, u64)) -> (usize, u64) {
        (ready.len(), late)
    }

    #[test]
    fn a_message_waits_for_the_records_before_it_and_not_for_ever() {
        let bytes = EphemeralBytes::new(64 << 20);
        let mut queue = EphemeralQueue {
            delivered: vec![4],
            ..EphemeralQueue::default()
        };
        // It is behind the record 5.
        queue.arrive(bytes.take(&ephemeral(7, "a", b"x")).unwrap(), 0);
        assert_eq!(counts(queue.take_ready(ORDER_WAIT_US - 1)), (0, 0));
        assert!(queue.awaits_records());
        queue.delivered = vec![5];
        assert_eq!(counts(queue.take_ready(ORDER_WAIT_US - 1)), (1, 0));
        assert!(!queue.awaits_records());
        queue.delivered.clear();
        queue.arrive(bytes.take(&ephemeral(7, "a", b"x")).unwrap(), 0);
        assert_eq!(counts(queue.take_ready(ORDER_WAIT_US)), (0, 1));
        assert_eq!(bytes.used(), 0);
    }
}
