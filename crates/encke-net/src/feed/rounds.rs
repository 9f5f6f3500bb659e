//! Selects the topic that is served next, and lets topics rest.
//!
//! A round that takes longer than a turn has many subscribers. If records arrived faster than such rounds end, each subscriber
//! would get them in ones and twos, at a system call each, and the shard would have time for little else. So behind such a
//! round its topic rests for twice as long as the round took, or until enough has been appended to be worth a send. Records of
//! that time go out together, and most of the shard's time is left to other topics. Records that arrive later go out at once.

use std::collections::VecDeque;
use std::time::Duration;

use super::weight::weight;

/// A topic's place in the queue of rounds, and when the oldest record of the round became visible, in the shard's counts of
/// bytes and of microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueRound {
    pub(crate) topic: u32,
    pub(crate) bytes: u64,
    pub(crate) us: u64,
}

/// The rounds that are due.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// The first may have begun; the others have not.
    queue: VecDeque<DueRound>,
    /// When the first one began, if it has.
    begun_us: Option<u64>,
    /// In the order of their rounds. There are few: each round took a turn or more and ended within the last `rest_max_us`.
    resting: Vec<Rest>,
    rest_max_us: u64,
}

#[derive(Debug)]
struct Rest {
    topic: u32,
    until_us: u64,
    /// What had been appended to the topic by the end of the round, by [`weight`].
    appended: u32,
    /// The topic's place in the queue, if something was appended meanwhile.
    due: Option<DueRound>,
}

impl Rounds {
    /// No rounds. No topic rests for longer than `rest_max`.
    pub(crate) fn new(rest_max: Duration) -> Self {
        Rounds {
            queue: VecDeque::new(),
            begun_us: None,
            resting: Vec::new(),
            rest_max_us: rest_max.as_micros() as u64,
        }
    }

    /// Whether no round is due before a topic has rested.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// A topic has something for its subscribers.
    pub(crate) fn push(&mut self, due: DueRound) {
        self.queue.push_back(due);
    }

    /// The topic of the round that has begun or is next.
    pub(crate) fn first(&mut self) -> Option<u32> {
        while let Some(due) = self.queue.front() {
            let mut resting = self.resting.iter_mut();
            let rest = resting.find(|rest| rest.topic == due.topic);
            match rest {
                // A topic whose round has begun does not rest; its number may be that of a former topic that did.
                Some(rest) if self.begun_us.is_none() => {
                    rest.due.get_or_insert(*due);
                    self.queue.pop_front();
                }
                _ => return Some(due.topic),
            }
        }
        None
    }

    /// The first round begins.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.begun_us = Some(now_us);
    }

    /// Ends the first round; `appended` is what has been appended to its topic. Whether the topic rests.
    pub(crate) fn end(&mut self, now_us: u64, appended: u32) -> bool {
        let begun_us = self.begun_us.take().unwrap_or(now_us);
        let rest_us = (now_us.saturating_sub(begun_us) * REST).min(self.rest_max_us);
        match self.queue.pop_front() {
            Some(due) if rest_us > 0 => {
                self.resting.push(Rest {
                    topic: due.topic,
                    until_us: now_us + rest_us,
                    appended,
                    due: None,
                });
                true
            }
            _ => false,
        }
    }

    /// Queues the topics that have rested before all rounds that have not begun, because their records are older. `appended`
    /// says what has been appended to a topic.
    pub(crate) fn wake(&mut self, now_us: u64, appended: impl Fn(u32) -> u32) {
        let mut at = usize::from(self.begun_us.is_some());
        let has_rested = |rest: &mut Rest| {
            let came = appended(rest.topic).wrapping_sub(rest.appended);
            rest.until_us <= now_us || came >= weight(ENOUGH_BYTES)
        };
        for rest in self.resting.extract_if(.., has_rested) {
            if let Some(due) = rest.due {
                self.queue.insert(at, due);
                at += 1;
            }
        }
    }

    /// When the next topic has rested for which records wait.
    pub(crate) fn wake_us(&self) -> Option<u64> {
        let waiting = self.resting.iter().filter(|rest| rest.due.is_some());
        waiting.map(|rest| rest.until_us).min()
    }

    /// The topic whose records wait for the longest time, resting or not.
    pub(crate) fn oldest(&self) -> Option<DueRound> {
        let resting = self.resting.iter().filter_map(|rest| rest.due);
        let all = self.queue.front().copied().into_iter().chain(resting);
        all.min_by_key(|due| due.bytes)
    }
}

/// A topic rests for this many times the duration of its round.
const REST: u64 = 2;

/// Bytes for each subscriber that are worth a round: then a send costs less than what it carries.
const ENOUGH_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(rest_max_us: u64) -> Rounds {
        Rounds::new(Duration::from_micros(rest_max_us))
    }

    fn due(topic: u32, us: u64) -> DueRound {
        DueRound {
            topic,
            bytes: us,
            us,
        }
    }

    /// A round of that duration over a topic; whether it rests then.
    fn round(rounds: &mut Rounds, topic: u32, now_us: u64, took_us: u64) -> bool {
        rounds.push(due(topic, now_us));
        assert_eq!(rounds.first(), Some(topic));
        rounds.begin(now_us);
        rounds.end(now_us + took_us, 0)
    }

    #[test]
    fn a_topic_rests_for_twice_as_long_as_its_round_took() {
        let mut rounds = rounds(20_000);
        assert!(!round(&mut rounds, 1, 0, 0), "within a turn");
        assert!(round(&mut rounds, 1, 1_000, 4_000));
        assert_eq!((rounds.first(), rounds.wake_us()), (None, None));
        rounds.push(due(1, 6_000));
        rounds.push(due(2, 7_000));
        assert_eq!(rounds.first(), Some(2));
        assert_eq!(rounds.wake_us(), Some(13_000));
        // It is the oldest one nevertheless.
        assert_eq!(rounds.oldest(), Some(due(1, 6_000)));
        rounds.wake(12_999, |_| 0);
        assert_eq!(rounds.first(), Some(2));
        rounds.wake(13_000, |_| 0);
        assert_eq!((rounds.first(), rounds.wake_us()), (Some(1), None));
    }

    #[test]
    fn a_topic_to_which_much_is_appended_rests_no_longer() {
        let mut rounds = rounds(20_000);
        assert!(round(&mut rounds, 1, 0, 4_000));
        rounds.push(due(1, 4_100));
        let enough = weight(ENOUGH_BYTES);
        rounds.wake(4_100, |_| enough - 1);
        assert_eq!(rounds.first(), None);
        rounds.wake(4_100, |_| enough);
        assert_eq!(rounds.first(), Some(1));
    }

    #[test]
    fn no_topic_rests_for_longer_than_allowed() {
        let mut capped = rounds(20_000);
        assert!(round(&mut capped, 1, 0, 50_000));
        capped.push(due(1, 51_000));
        assert_eq!(capped.first(), None);
        assert_eq!(capped.wake_us(), Some(70_000));
        assert!(!round(&mut rounds(0), 1, 0, 50_000));
    }

    #[test]
    fn topics_that_have_rested_do_not_come_before_a_round_that_has_begun() {
        let mut rounds = rounds(20_000);
        assert!(round(&mut rounds, 1, 0, 1_000));
        assert!(round(&mut rounds, 2, 1_000, 1_000));
        for (topic, us) in [(1, 2_100), (2, 2_200), (3, 2_300), (4, 2_400)] {
            rounds.push(due(topic, us));
        }
        assert_eq!(rounds.first(), Some(3));
        rounds.begin(2_500);
        rounds.wake(9_000, |_| 0);
        assert_eq!(rounds.first(), Some(3));
        assert!(rounds.end(2_600, 0));
        let mut next = || {
            let topic = rounds.first();
            rounds.begin(9_000);
            rounds.end(9_000, 0);
            topic
        };
        assert_eq!(
            [next(), next(), next(), next()],
            [Some(1), Some(2), Some(4), None]
        );
    }
}
