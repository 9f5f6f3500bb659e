//! Fan-out backpressure, for streams with appends faster than most of their subscribers read.
//!
//! A single slow subscriber catches up, or is closed when it is too far behind. When most subscribers of a stream with many are
//! behind, the stream is congested: further records would only wait in sockets and in the log. So acknowledgements of appends
//! to such a stream are delayed until nearly all of its subscribers have everything, or until the others would take too long,
//! and never beyond a limit. A publisher that waits for acknowledgements is slowed to the subscribers' pace, and publishers of
//! other streams are not affected.

use std::time::Duration;

use encke_log::StreamNo;
use encke_stream::{Command, Reply, Target};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::congested_streams::CongestedStreams;
use super::slot::Token;
use crate::clock::Monotonic;

/// The congested streams of a shard, and the acknowledgements that it delays.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    /// By the numbers of their topics.
    congested: HashMap<u32, Congestion>,
    /// What the present round has found so far.
    found: AudienceBacklog,
    /// Connections that append to a congested stream and have no reply yet.
    appends: HashMap<Token, StreamNo>,
    /// Delayed acknowledgements, the oldest first.
    held: Vec<HeldBack>,
    looked: Option<Monotonic>,
}

/// The subscribers of a stream, how many of them are behind, and the sum of what these lack, by
/// [`weight`](super::weight::weight).
#[derive(Clone, Copy, Debug, Default)]
struct AudienceBacklog {
    seen: usize,
    behind: usize,
    backlog: u64,
}

/// A congested stream.
#[derive(Debug)]
struct Congestion {
    stream: StreamNo,
    /// As the last round has found it, less what has been sent since.
    found: AudienceBacklog,
    /// What the lagging subscribers got in this interval.
    gained: u64,
    gained_since: Monotonic,
    /// Catching up would take too long: publishers do not wait for it.
    given_up: bool,
}

#[derive(Debug)]
struct HeldBack {
    reply: Reply,
    stream: StreamNo,
    until: Monotonic,
}

impl Congestion {
    /// Whether nearly all subscribers have everything.
    fn is_over(&self) -> bool {
        self.found.behind * 8 <= self.found.seen
    }

    /// At the end of an interval, decides whether to wait for the lagging subscribers. Whether that has changed.
    fn look(&mut self, now: Monotonic) -> bool {
        if now < self.gained_since.after(INTERVAL) {
            return false;
        }
        let before = self.given_up;
        self.given_up = self.gained.saturating_mul(INTERVALS_MAX) < self.found.backlog;
        (self.gained, self.gained_since) = (0, now);
        self.given_up != before
    }

    fn leave(self, all: &CongestedStreams) {
        if !self.given_up {
            all.end(self.stream);
        }
    }
}

impl Backpressure {
    /// Whether acknowledgements are delayed.
    pub(crate) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether no stream is congested, and the present round finds none.
    pub(crate) fn is_idle(&self) -> bool {
        self.congested.is_empty() && self.found.behind < BEHIND_MIN
    }

    /// A round over a topic's subscribers begins.
    pub(crate) fn begin_round(&mut self) {
        self.found = AudienceBacklog::default();
    }

    /// The round has come to a subscriber; `backlog` is what it lacks, if it is behind.
    pub(crate) fn see(&mut self, backlog: Option<u32>) {
        self.found.seen += 1;
        if let Some(backlog) = backlog {
            self.found.behind += 1;
            self.found.backlog += u64::from(backlog);
        }
    }

    /// How many subscribers of one stream the round has found behind.
    pub(crate) fn found_behind(&self) -> usize {
        self.found.behind
    }

    /// A round over a topic's subscribers is over.
    pub(crate) fn end_round(
        &mut self,
        topic: u32,
        stream: StreamNo,
        now: Monotonic,
        all: &CongestedStreams,
    ) {
        self.forget_another(topic, stream, all);
        if let Some(congestion) = self.congested.get_mut(&topic) {
            congestion.found = self.found;
            self.end_if_over(topic, all);
        }
        self.begin_if_most(topic, stream, now, all);
    }

    /// A stream becomes congested if most subscribers so far are behind, even before the round is over.
    pub(crate) fn begin_if_most(
        &mut self,
        topic: u32,
        stream: StreamNo,
        now: Monotonic,
        all: &CongestedStreams,
    ) {
        let found = self.found;
        let most = found.behind >= BEHIND_MIN && found.behind * 2 > found.seen;
        if most && let Entry::Vacant(entry) = self.congested.entry(topic) {
            entry.insert(Congestion {
                stream,
                found,
                gained: 0,
                gained_since: now,
                given_up: false,
            });
            all.begin(stream);
        }
    }

    /// Forgets the congestion of a former topic with that number.
    fn forget_another(&mut self, topic: u32, stream: StreamNo, all: &CongestedStreams) {
        if let Entry::Occupied(entry) = self.congested.entry(topic)
            && entry.get().stream != stream
        {
            entry.remove().leave(all);
        }
    }

    /// A lagging subscriber of a topic got this much.
    pub(crate) fn gains(&mut self, topic: u32, weight: u32) {
        if let Some(congestion) = self.congested.get_mut(&topic) {
            congestion.gained += u64::from(weight);
            congestion.found.backlog = congestion.found.backlog.saturating_sub(u64::from(weight));
        }
    }

    /// A lagging subscriber of a topic has caught up or is gone.
    pub(crate) fn leaves(&mut self, topic: u32, all: &CongestedStreams) {
        if let Some(congestion) = self.congested.get_mut(&topic) {
            congestion.found.behind = congestion.found.behind.saturating_sub(1);
            self.end_if_over(topic, all);
        }
    }

    fn end_if_over(&mut self, topic: u32, all: &CongestedStreams) {
        let Entry::Occupied(entry) = self.congested.entry(topic) else {
            return;
        };
        if entry.get().is_over() {
            entry.remove().leave(all);
        }
    }

    /// A command of that connection goes to the sequencer: an append to a congested stream is remembered.
    pub(crate) fn note_command(&mut self, token: Token, command: &Command, all: &CongestedStreams) {
        if let Command::Append(append) = command
            && let Target::Known(stream) = &append.target
            && all.has(stream.no)
        {
            self.appends.insert(token, stream.no);
        }
    }

    /// The command of that connection has its reply. The stream, if it was an append to a congested one.
    pub(crate) fn note_reply(&mut self, token: Token) -> Option<StreamNo> {
        match self.appends.is_empty() {
            true => None,
            false => self.appends.remove(&token),
        }
    }

    /// Delays an acknowledgement.
    pub(crate) fn hold(&mut self, reply: Reply, stream: StreamNo, until: Monotonic) {
        self.held.push(HeldBack {
            reply,
            stream,
            until,
        });
    }

    /// The acknowledgements that are due, once a millisecond.
    pub(crate) fn take_due(&mut self, now: Monotonic, all: &CongestedStreams) -> Vec<Reply> {
        if self.congested.is_empty() && self.held.is_empty() || self.looked == Some(now) {
            return Vec::new();
        }
        self.looked = Some(now);
        self.look(now, all);
        let is_due = |held: &mut HeldBack| now >= held.until || !all.has(held.stream);
        let due = self.held.extract_if(.., is_due);
        due.map(|held| held.reply).collect()
    }

    /// All delayed acknowledgements.
    pub(crate) fn take_all(&mut self) -> Vec<Reply> {
        let all = std::mem::take(&mut self.held);
        all.into_iter().map(|held| held.reply).collect()
    }

    /// Gives up congestions that would last too long, and takes them up again when they would not.
    fn look(&mut self, now: Monotonic, all: &CongestedStreams) {
        for congestion in self.congested.values_mut() {
            match congestion.look(now) {
                true if congestion.given_up => all.end(congestion.stream),
                true => all.begin(congestion.stream),
                false => {}
            }
        }
    }
}

/// The least lagging subscribers on a shard: a few slow ones are no reason to slow a publisher.
const BEHIND_MIN: usize = 64;

/// The interval of decisions. Publishers wait if the subscribers would have everything within that many intervals, a minute.
const INTERVAL: Duration = Duration::from_millis(500);
const INTERVALS_MAX: u64 = 120;

/// How often a shard looks for acknowledgements that are due.
pub(crate) const LOOK_EVERY_MS: u64 = 1;

#[cfg(test)]
mod tests {
    use encke_stream::Outcome;

    use super::*;

    const INTERVAL_MS: u64 = INTERVAL.as_millis() as u64;

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_ms(ms)
    }

    /// A round over `seen` subscribers, of which `behind` lack 100 each.
    fn round(
        watch: &mut Backpressure,
        seen: usize,
        behind: usize,
        now: Monotonic,
        all: &CongestedStreams,
    ) {
        watch.begin_round();
        for one in 0..seen {
            watch.see((one < behind).then_some(100));
        }
        watch.end_round(1, 7, now, all);
    }

    #[test]
    fn a_stream_is_congested_when_most_of_many_subscribers_are_behind() {
        for (seen, behind, congested) in [
            (BEHIND_MIN - 1, BEHIND_MIN - 1, false),
            (BEHIND_MIN, BEHIND_MIN, true),
            (2 * BEHIND_MIN, BEHIND_MIN, false),
            (2 * BEHIND_MIN - 1, BEHIND_MIN, true),
        ] {
            let (mut watch, all) = (Backpressure::default(), CongestedStreams::default());
            round(&mut watch, seen, behind, at(0), &all);
            assert_eq!(all.has(7), congested, "{behind} of {seen}");
        }
    }

    #[test]
    fn congestion_ends_when_nearly_all_have_everything() {
        let (mut watch, all) = (Backpressure::default(), CongestedStreams::default());
        round(&mut watch, 80, 80, at(0), &all);
        // Others join, and some lagging ones are gone.
        round(&mut watch, 88, 71, at(10), &all);
        for left in 1..=60 {
            assert!(all.has(7), "after {left}");
            watch.leaves(1, &all);
        }
        assert!(!all.has(7));
        // Further ones make no difference.
        watch.leaves(1, &all);
        assert!(watch.congested.is_empty());
        // A round that is not over says only that there is one, and one that is may say that there is none.
        watch.begin_round();
        (0..BEHIND_MIN).for_each(|_| watch.see(Some(100)));
        watch.begin_if_most(1, 7, at(30), &all);
        assert!(all.has(7));
        (0..10 * BEHIND_MIN).for_each(|_| watch.see(None));
        watch.begin_if_most(1, 7, at(30), &all);
        assert!(all.has(7));
        watch.end_round(1, 7, at(30), &all);
        assert!(!all.has(7));
        round(&mut watch, 80, 80, at(40), &all);
        round(&mut watch, 80, 10, at(50), &all);
        assert!(!all.has(7));
    }

    #[test]
    fn congestion_that_would_last_is_given_up_until_it_would_not() {
        let (mut watch, all) = (Backpressure::default(), CongestedStreams::default());
        round(&mut watch, 80, 80, at(0), &all);
        // Of what is left of 8,000 the subscribers must get a 120th in an interval.
        watch.gains(1, 67);
        watch.look(at(INTERVAL_MS - 1), &all);
        watch.look(at(INTERVAL_MS), &all);
        assert!(all.has(7));
        watch.gains(1, 65);
        watch.look(at(2 * INTERVAL_MS - 1), &all);
        assert!(all.has(7));
        watch.look(at(2 * INTERVAL_MS), &all);
        assert!(!all.has(7));
        round(&mut watch, 80, 79, at(2 * INTERVAL_MS + 1), &all);
        assert!(!all.has(7), "it is not waited for again");
        watch.gains(1, 500);
        watch.look(at(3 * INTERVAL_MS), &all);
        assert!(all.has(7));
        watch.look(at(4 * INTERVAL_MS), &all);
        (0..80).for_each(|_| watch.leaves(1, &all));
        assert!(watch.congested.is_empty() && all.count() == 0);
    }

    #[test]
    fn an_acknowledgement_waits_for_its_stream_and_never_longer_than_allowed() {
        let (mut watch, all) = (Backpressure::default(), CongestedStreams::default());
        let reply = |token| Reply {
            token,
            outcome: Outcome::Deleted,
        };
        let tokens = |replies: Vec<Reply>| -> Vec<u64> {
            replies.into_iter().map(|reply| reply.token).collect()
        };
        round(&mut watch, 80, 80, at(1000), &all);
        // Another shard's.
        all.begin(8);
        watch.hold(reply(1), 7, at(9000));
        watch.hold(reply(2), 8, at(9000));
        watch.hold(reply(3), 8, at(1020));
        assert!(watch.take_due(at(1019), &all).is_empty());
        assert_eq!(tokens(watch.take_due(at(1020), &all)), [3]);
        // Its own does not get on.
        assert_eq!(tokens(watch.take_due(at(1000 + INTERVAL_MS), &all)), [1]);
        watch.hold(reply(4), 8, at(9000));
        all.end(8);
        assert_eq!(tokens(watch.take_due(at(1200), &all)), [2, 4]);
        assert!(!watch.holds());
        // A later topic with the same number is another one.
        round(&mut watch, 80, 80, at(2000), &all);
        watch.begin_round();
        watch.end_round(1, 9, at(2000), &all);
        assert!(watch.congested.is_empty() && all.count() == 0);
    }
}
