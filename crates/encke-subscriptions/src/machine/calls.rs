//! Which webhooks are called next: a bounded number at a time, in turn for each receiver. Receivers of which it is not known that they
//! respond quickly have half of the places, so that they delay none of the others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::bounds::SubscriptionLimits;

/// The webhooks that are to be called, and how many are called now.
#[derive(Debug)]
pub(super) struct CallQueue {
    calls_max: usize,
    doubtful_max: usize,
    to_receiver_max: usize,
    running: usize,
    running_doubtful: usize,
    /// How many calls there are to each receiver now.
    to_receiver: HashMap<Arc<str>, usize>,
    /// Receivers whose last call was accepted quickly.
    quick: HashSet<Arc<str>>,
    /// Subscriptions that wait: of quick receivers, of others, and those whose last call has failed.
    proven: WaitingCalls,
    unproven: WaitingCalls,
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
            doubtful_max: limits.doubtful_calls_max(),
            to_receiver_max: limits.deliveries_to_receiver_max.max(1),
            running: 0,
            running_doubtful: 0,
            to_receiver: HashMap::new(),
            quick: HashSet::new(),
            proven: WaitingCalls::default(),
            unproven: WaitingCalls::default(),
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
            false if self.quick.contains(receiver) => &mut self.proven,
            false => &mut self.unproven,
        };
        let of_receiver = waiting.by_receiver.entry(Arc::clone(receiver)).or_default();
        of_receiver.push_back(subscription);
        if has_room && of_receiver.len() == 1 {
            waiting.turns.push_back(Arc::clone(receiver));
        }
    }

    /// Takes the next subscription to call, and whether the call is a doubtful one, which may take long. `None`: as many are called as may
    /// be, or none waits.
    pub(super) fn next(&mut self) -> Option<(u64, bool)> {
        if self.running >= self.calls_max {
            return None;
        }
        if let Some(next) = self.proven.next() {
            return Some((next, false));
        }
        if self.running_doubtful >= self.doubtful_max {
            return None;
        }
        let next = self.unproven.next().or_else(|| self.retries.next());
        next.map(|next| (next, true))
    }

    /// A call begins.
    pub(super) fn begin(&mut self, receiver: &Arc<str>, is_doubtful: bool) {
        self.running += 1;
        self.running_doubtful += usize::from(is_doubtful);
        *self.to_receiver.entry(Arc::clone(receiver)).or_default() += 1;
        if !self.has_room(receiver) {
            for waiting in [&mut self.proven, &mut self.unproven, &mut self.retries] {
                waiting.turns.retain(|turn| turn != receiver);
            }
        }
    }

    /// A call has ended: quickly and with success, or not.
    pub(super) fn end(&mut self, receiver: &Arc<str>, is_doubtful: bool, is_quick: bool) {
        let had_room = self.has_room(receiver);
        self.running -= 1;
        self.running_doubtful -= usize::from(is_doubtful);
        if !is_quick {
            self.quick.remove(receiver);
        } else if !self.quick.contains(receiver) {
            if self.quick.len() >= QUICK_MAX {
                // Most of them have no subscription any more; the others are proven again.
                self.quick.clear();
            }
            self.quick.insert(Arc::clone(receiver));
        }
        if let Some(calls) = self.to_receiver.get_mut(receiver) {
            *calls -= 1;
            if *calls == 0 {
                self.to_receiver.remove(receiver);
            }
        }
        if !had_room {
            for waiting in [&mut self.proven, &mut self.unproven, &mut self.retries] {
                waiting.give_turn(receiver);
            }
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

/// The most receivers that are remembered as quick.
const QUICK_MAX: usize = 20_000;

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
        while let Some((next, is_doubtful)) = queue.next() {
            queue.begin(&receivers[&next], is_doubtful);
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
        queue.quick = HashSet::from([one.clone(), other.clone()]);
        for no in 0..10 {
            queue.add(&one, no, false);
        }
        assert_eq!(begin_all(&mut queue, &receivers), [0, 1, 2, 3]);
        queue.add(&other, 10, false);
        queue.add(&other, 11, false);
        queue.add(&other, 12, false);
        assert_eq!(begin_all(&mut queue, &receivers), [10, 11]);
        assert_eq!(queue.running(), 6);
        queue.end(&one, false, true);
        // Both have room, and their turns alternate.
        queue.end(&other, false, true);
        assert_eq!(begin_all(&mut queue, &receivers), [12, 4]);
        queue.end(&one, false, true);
        queue.end(&one, false, true);
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
        queue.quick = HashSet::from([one.clone(), other.clone()]);
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
        queue.quick.insert(receivers[&15].clone());
        queue.add(&receivers[&15], 15, false);
        assert_eq!(begin_all(&mut queue, &receivers), [15]);
        queue.end(&receivers[&15], false, true);
        queue.end(&receivers[&0], true, false);
        assert_eq!(begin_all(&mut queue, &receivers), [2]);
        assert_eq!(queue.running(), 2);
    }

    #[test]
    fn receivers_that_are_slow_or_new_leave_room() {
        let receivers: HashMap<u64, Arc<str>> =
            (0..20).map(|no| (no, format!("r{no}").into())).collect();
        let mut queue = queue(4, 4);
        // All are new: half of the places.
        for no in 0..4 {
            queue.add(&receivers[&no], no, false);
        }
        assert_eq!(begin_all(&mut queue, &receivers), [0, 1]);
        queue.end(&receivers[&0], true, true);
        assert_eq!(begin_all(&mut queue, &receivers), [2]);
        // The first one is quick, and has one of the other places; the others wait for slow ones.
        queue.add(&receivers[&0], 0, false);
        assert_eq!(begin_all(&mut queue, &receivers), [0]);
        queue.end(&receivers[&1], true, false);
        assert_eq!(begin_all(&mut queue, &receivers), [3]);
        // New receivers go before those that have failed.
        queue.add(&receivers[&4], 4, true);
        queue.add(&receivers[&5], 5, false);
        queue.end(&receivers[&2], true, true);
        assert_eq!(begin_all(&mut queue, &receivers), [5]);
        // A quick one that has become slow is among the others again.
        queue.end(&receivers[&0], false, false);
        queue.add(&receivers[&0], 0, false);
        assert!(begin_all(&mut queue, &receivers).is_empty());
    }
}
