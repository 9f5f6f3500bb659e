//! The begin and the end of wakes.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, SteadyTime};
use encke_stream::log_of;

use super::decision::{Decision, WakeEvent};
use super::op::{Op, series};
use super::state::SubscriptionMachine;
use super::subscription::Subscription;
use crate::entry::{LinkPosition, SubscriptionEntry};
use crate::token::WakeName;

impl SubscriptionMachine {
    /// Does what is due for a subscription, unless something about it is under way.
    pub(super) fn advance(&mut self, now: Now, no: u64) {
        while let Some(subscription) = self.subscriptions.get_mut(&no)
            && !subscription.live.is_busy
        {
            if let Some((generation, result)) = subscription.live.result.take() {
                self.judge_delivery(now, no, generation, result);
            } else if let Some((from, request)) = subscription.live.held.pop_front() {
                self.request(now, from, request);
            } else {
                break;
            }
        }
        if self.is_stopping {
            return;
        }
        if now.steady >= self.paused_until {
            self.wake_or_end(now, no);
        }
        self.set_timer(now, no);
    }

    fn wake_or_end(&mut self, now: Now, no: u64) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        if subscription.live.is_busy {
            return;
        }
        if subscription.live.has_lost_links {
            return self.decide(Decision::new(no));
        }
        if subscription.is_lease_over(now) {
            self.counts.leases_over += 1;
            let mut decision = Decision::new(no);
            self.end_wake(now, &mut decision, &[]);
            return self.decide(decision);
        }
        if subscription.wake.is_none() {
            if subscription.links.has_pending() && subscription.wakes_from() <= now.steady {
                let mut decision = Decision::new(no);
                self.begin_wake(now, &mut decision, &[]);
                self.decide(decision);
            }
            return;
        }
        let event = &subscription.live.event;
        if let Some((generation, stream)) = event.written
            && generation == subscription.generation
            && subscription
                .wake
                .as_ref()
                .is_some_and(|wake| wake.announced != Some(stream))
        {
            let mut decision = Decision::new(no);
            let announced = SubscriptionEntry::Announced { no, stream };
            decision.entries.push(announced);
            return self.decide(decision);
        }
        if subscription.needs_call() && subscription.retry.at <= now.steady {
            if subscription.has_news() {
                return self.queue_call(no);
            }
            // Its streams are gone or done.
            let mut decision = Decision::new(no);
            self.end_wake(now, &mut decision, &[]);
            self.decide(decision);
        } else if subscription.needs_event() && event.at <= now.steady {
            self.write_event(now, no);
        }
    }

    /// Ends the wake with a decision that moves these cursors, and begins the next one if there is reason for it. Returns whether it
    /// begins.
    pub(super) fn end_wake(
        &mut self,
        now: Now,
        decision: &mut Decision,
        cursors: &[LinkPosition],
    ) -> bool {
        let no = decision.no;
        decision.entries.push(SubscriptionEntry::Ended { no });
        let is_forgiven = decision
            .entries
            .iter()
            .any(|entry| matches!(entry, SubscriptionEntry::Retry { failures: 0, .. }));
        let wakes_from = self.subscriptions.get(&no).map(|subscription| {
            let retry_at = subscription.retry.at;
            let retry_at = if is_forgiven { now.steady } else { retry_at };
            subscription.rests_until().max(retry_at)
        });
        wakes_from.is_some_and(|from| from <= now.steady) && self.begin_wake(now, decision, cursors)
    }

    /// Begins a wake with a decision that moves these cursors. False: no stream has new records then.
    pub(super) fn begin_wake(
        &mut self,
        now: Now,
        decision: &mut Decision,
        cursors: &[LinkPosition],
    ) -> bool {
        let no = decision.no;
        let Some(subscription) = self.subscriptions.get(&no) else {
            return false;
        };
        let tails = subscription.links.pending_behind(cursors);
        if tails.is_empty() || self.is_stopping {
            return false;
        }
        let generation = subscription.generation + 1;
        let mut announced = None;
        if subscription.is_webhook() {
            decision.entries.extend(SubscriptionEntry::snapshot(
                no,
                subscription.links.below(),
                &tails,
                self.limits.record_bytes,
            ));
        } else {
            let stream = subscription.live.wake_stream;
            // Only the records of one log can be in one series.
            let stream = stream.filter(|stream| log_of(*stream) == JOURNAL_LOG);
            announced = stream;
            decision.event = stream.map(|stream| {
                let cause = subscription.cause(&tails);
                subscription.event(stream, &cause, generation, now)
            });
        }
        decision.entries.push(SubscriptionEntry::Woken {
            no,
            generation,
            announced,
        });
        true
    }

    /// Writes the event of the wake without a decision: to a stream of another log, or again.
    fn write_event(&mut self, now: Now, no: u64) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let Some(stream) = subscription.live.wake_stream else {
            return;
        };
        subscription.live.event.is_under_way = true;
        let generation = subscription.generation;
        let cause = subscription.cause(&subscription.links.pending_behind(&[]));
        let event = subscription.event(stream, &cause, generation, now);
        let command = series(vec![event.append()]);
        let op = Op::Event {
            no,
            generation,
            event,
        };
        self.commit(command, op);
    }

    /// Notes that a wake ends, and whether something was done in it. Wakes that are given back without that again and again follow each
    /// other with pauses.
    pub(super) fn pace(&mut self, now: Now, no: u64, has_moved: bool) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let live = &mut subscription.live;
        live.idle_wakes = match has_moved || live.has_moved {
            true => 0,
            false => live.idle_wakes.saturating_add(1),
        };
        let idle_wakes = live.idle_wakes;
        let pause = match idle_wakes {
            0 | 1 => Duration::ZERO,
            idle_wakes => self.pause(no, idle_wakes - 1),
        };
        if let Some(subscription) = self.subscriptions.get_mut(&no) {
            subscription.live.rest_until = now.steady.after(pause);
        }
    }

    /// The pause behind so many failures in a row.
    pub(super) fn pause(&self, no: u64, failures: u32) -> Duration {
        let doubled = failures.saturating_sub(1).min(PAUSE_DOUBLINGS_MAX);
        let pause = (PAUSE * (1 << doubled)).min(PAUSE_MAX);
        let generation = self
            .subscriptions
            .get(&no)
            .map_or(0, |subscription| subscription.generation);
        let wake = WakeName {
            subscription: no,
            generation,
        };
        self.secrets.spread(pause, wake, failures)
    }

    /// Sets the timer of a subscription to the next moment at which something is due.
    fn set_timer(&mut self, now: Now, no: u64) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let due = subscription
            .next_due()
            .map(|due| due.max(self.paused_until));
        // What is due already is done in this turn, or waits for something else.
        let due = due.filter(|due| *due > now.steady);
        let before = std::mem::replace(&mut subscription.live.timer, due);
        if before != due {
            if let Some(before) = before {
                self.timers.remove(&(before, no));
            }
            self.timers.extend(due.map(|due| (due, no)));
        }
    }
}

impl Subscription {
    /// When something is due that no commit, response or outcome brings about.
    fn next_due(&self) -> Option<SteadyTime> {
        if self.live.is_busy {
            return None;
        }
        if self.live.has_lost_links {
            return Some(SteadyTime::default());
        }
        if self.wake.is_none() {
            return self.links.has_pending().then(|| self.wakes_from());
        }
        let call = (self.needs_call() && !self.live.is_queued).then_some(self.retry.at);
        let event = self.needs_event().then_some(self.live.event.at);
        let times = [self.lease_ends(), call, event];
        times.into_iter().flatten().min()
    }

    /// The stream that an event names: the one whose commit has caused the wake, or the first of those with new records.
    fn cause(&self, tails: &[LinkPosition]) -> Arc<str> {
        let is_new = |number: u32| {
            tails
                .binary_search_by_key(&number, |tail| tail.link)
                .is_ok()
        };
        let cause = self.live.cause.as_ref();
        let cause = cause.filter(|path| self.links.number(path).is_some_and(is_new));
        let first = tails
            .first()
            .and_then(|tail| self.links.numbered(tail.link));
        let found = cause.or(first.map(|link| &link.path));
        found.cloned().unwrap_or_default()
    }

    fn event(&self, stream_no: u64, cause: &str, generation: u64, now: Now) -> WakeEvent {
        let stream = self.config.own_wake_stream().unwrap_or_default();
        WakeEvent::new(
            stream.into(),
            stream_no,
            &self.id,
            cause,
            generation,
            now.wall.as_ms(),
        )
    }
}

/// The log that has the journal: that of all streams whose names begin with a control character.
const JOURNAL_LOG: usize = 0;

/// The pause behind the first failure. It doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Beyond so many doublings the pause is the longest.
const PAUSE_DOUBLINGS_MAX: u32 = 6;
