//! Which webhooks are called next: a bounded number at a time, in turn for each receiver, so that one that does not respond delays only
//! its own calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::bounds::SubscriptionLimits;

/// The webhooks that are to be called, and how many are called now.
#[derive(Debug)]
pub(super) struct CallQueue {
    calls_max: usize,
    retries_max: usize,
    to_receiver_max: usize,
    running: usize,
    running_retries: usize,
    /// How many calls there are to each receiver now.
    to_receiver: HashMap<Arc<str>, usize>,
    /// Subscriptions whose last call has not failed, and those whose last one has.
    fresh: WaitingCalls,
    retries: WaitingCalls,
}

/// Subscriptions that wait for their calls, by the receiver.
#[derive(Debug, Default)]
struct WaitingCalls {
    by_receiver: HashMap<Arc<str>, VecDeque<u64>>,
    /// The receivers that have room for a call, in turn.
    turns: VecDeque<Arc<str>>,
}

impl CallQueue {
    pub(super) fn new(limits: &SubscriptionLimits) -> CallQueue {
        CallQueue {
            calls_max: limits.deliveries_max,
            retries_max: limits.retries_max(),
            to_receiver_max: limits.deliveries_to_receiver_max.max(1),
            running: 0,
            running_retries: 0,
            to_receiver: HashMap::new(),
            fresh: WaitingCalls::default(),
            retries: WaitingCalls::default(),
        }
    }

    /// How many calls are under way.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Adds a subscription whose webhook is to be called.
    pub(super) fn add(&mut self, receiver: &Arc<str>, subscription: u64, is_retry: bool) {
        let has_room = self.has_room(receiver);
        let waiting = match is_retry {
            true => &mut self.retries,
            false => &mut self.fresh,
        };
        let of_receiver = waiting.by_receiver.entry(Arc::clone(receiver)).or_default();
        of_receiver.push_back(subscription);
        if has_room && of_receiver.len() == 1 {
            waiting.turns.push_back(Arc::clone(receiver));
        }
    }

    /// Takes the next subscription to call, and whether that is a retry. `None`: as many are called as may be, or none waits.
    pub(super) fn next(&mut self) -> Option<(u64, bool)> {
        if self.running >= self.calls_max {
            return None;
        }
        if let Some(next) = self.fresh.next() {
            return Some((next, false));
        }
        if self.running_retries < self.retries_max {
            return self.retries.next().map(|next| (next, true));
        }
        None
    }

    /// A call begins.
    pub(super) fn begin(&mut self, receiver: &Arc<str>, is_retry: bool) {
        self.running += 1;
        self.running_retries += usize::from(is_retry);
        *self.to_receiver.entry(Arc::clone(receiver)).or_default() += 1;
        if !self.has_room(receiver) {
            self.fresh.turns.retain(|turn| turn != receiver);
            self.retries.turns.retain(|turn| turn != receiver);
        }
    }

    /// A call has ended.
    pub(super) fn end(&mut self, receiver: &Arc<str>, is_retry: bool) {
        let had_room = self.has_room(receiver);
        self.running -= 1;
        self.running_retries -= usize::from(is_retry);
        if let Some(calls) = self.to_receiver.get_mut(receiver) {
            *calls -= 1;
            if *calls == 0 {
                self.to_receiver.remove(receiver);
            }
        }
        if !had_room {
            self.fresh.give_turn(receiver);
            self.retries.give_turn(receiver);
        }
    }

    fn has_room(&self, receiver: &Arc<str>) -> bool {
        let calls = self.to_receiver.get(receiver);
        calls.is_none_or(|calls| *calls < self.to_receiver_max)
    }
}

impl WaitingCalls {
    /// Takes a subscription of the receiver whose turn it is; the receiver's next turn is behind those of the others.
    fn next(&mut self) -> Option<u64> {
        let receiver = self.turns.pop_front()?;
        let waiting = self.by_receiver.get_mut(&receiver)?;
        let next = waiting.pop_front();
        match waiting.is_empty() {
            true => drop(self.by_receiver.remove(&receiver)),
            false => self.turns.push_back(receiver),
        }
        next
    }

    fn give_turn(&mut self, receiver: &Arc<str>) {
        if self.by_receiver.contains_key(receiver) {
            self.turns.push_back(Arc::clone(receiver));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(deliveries_max: usize, deliveries_to_receiver_max: usize) -> CallQueue {
        CallQueue::new(&SubscriptionLimits {
            deliveries_max,
            deliveries_to_receiver_max,
            ..SubscriptionLimits::default()
        })
    }

    /// Begins all calls that may begin.
    fn begin_all(queue: &mut CallQueue, receivers: &HashMap<u64, Arc<str>>) -> Vec<u64> {
        let mut begun = Vec::new();
        while let Some((next, is_retry)) = queue.next() {
            queue.begin(&receivers[&next], is_retry);
            begun.push(next);
        }
        begun
    }

    #[test]
    fn a_receiver_has_a_part_of_the_calls() {
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let receivers: HashMap<u64, Arc<str>> = (0..20)
            .map(|no| (no, if no < 10 { &one } else { &other }.clone()))
            .collect();
        let mut queue = queue(6, 4);
        for no in 0..10 {
            queue.add(&one, no, false);
        }
        assert_eq!(begin_all(&mut queue, &receivers), [0, 1, 2, 3]);
        queue.add(&other, 10, false);
        queue.add(&other, 11, false);
        queue.add(&other, 12, false);
        assert_eq!(begin_all(&mut queue, &receivers), [10, 11]);
        assert_eq!(queue.running(), 6);
        queue.end(&one, false);
        // Both have room, and their turns alternate.
        queue.end(&other, false);
        assert_eq!(begin_all(&mut queue, &receivers), [12, 4]);
        queue.end(&one, false);
        queue.end(&one, false);
        assert_eq!(begin_all(&mut queue, &receivers), [5, 6]);
    }

    #[test]
    fn receivers_alternate() {
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        let receivers = HashMap::from([
            (1, one.clone()),
            (2, one.clone()),
            (3, one.clone()),
            (4, other.clone()),
        ]);
        let mut queue = queue(8, 8);
        for no in 1..=3 {
            queue.add(&one, no, false);
        }
        queue.add(&other, 4, false);
        assert_eq!(begin_all(&mut queue, &receivers), [1, 4, 2, 3]);
    }

    #[test]
    fn retries_leave_room() {
        let receivers: HashMap<u64, Arc<str>> =
            (0..20).map(|no| (no, format!("r{no}").into())).collect();
        let mut queue = queue(4, 4);
        for no in 0..10 {
            queue.add(&receivers[&no], no, true);
        }
        assert_eq!(begin_all(&mut queue, &receivers), [0, 1]);
        queue.add(&receivers[&15], 15, false);
        assert_eq!(begin_all(&mut queue, &receivers), [15]);
        queue.end(&receivers[&15], false);
        queue.end(&receivers[&0], true);
        assert_eq!(begin_all(&mut queue, &receivers), [2]);
        assert_eq!(queue.running(), 2);
    }
}
