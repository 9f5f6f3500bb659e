//! Commits of streams: which subscriptions they make pending.

use encke_stream::{StreamChange, StreamState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::Now;

use super::live::EventState;
use super::state::SubscriptionMachine;

impl SubscriptionMachine {
    /// Handles a commit of a stream. The changes of a log are reported in their order, each once, and those of a commit behind the
    /// outcomes of the machine's own commands in it.
    pub fn changed(&mut self, _now: Now, change: &StreamChange) {
        let is_event = match change {
            StreamChange::Changed(state) => self.take_own_event(state),
            StreamChange::Ended { .. } => false,
        };
        for no in self.registry.index.subscriptions(change.name()) {
            match change {
                StreamChange::Changed(state) => self.stream_changed(no, state, is_event),
                StreamChange::Ended { no: stream, name } => {
                    if let Some(subscription) = self.subscriptions.get_mut(&no) {
                        subscription.stream_ended(name, *stream);
                        self.touched.insert(no);
                    }
                }
            }
        }
    }

    fn stream_changed(&mut self, no: u64, state: &StreamState, is_event: bool) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let owner = state.owner.as_deref();
        if subscription.config.own_wake_stream() == Some(&state.name) {
            if subscription.config.viewer.sees(owner)
                && subscription.live.wake_stream != Some(state.no)
            {
                subscription.live.wake_stream = Some(state.no);
                // An event that waits for the stream waits no longer.
                subscription.live.event = EventState {
                    is_under_way: subscription.live.event.is_under_way,
                    ..EventState::default()
                };
                self.touched.insert(no);
            }
            return;
        }
        if !subscription.config.viewer.sees(owner) {
            return;
        }
        if subscription.links.get(&state.name).is_none() {
            // A stream without records is followed from its first one on.
            let is_new =
                state.tail > state.begin && subscription.config.matches(&state.name, owner);
            if !is_new {
                return;
            }
            let in_all = self.registry.count.load(Ordering::Relaxed);
            if subscription.links.len() >= self.limits.links_max
                || in_all >= self.limits.links_in_all_max
            {
                self.counts.links_refused += 1;
                tracing::warn!(
                    subscription = &*subscription.id,
                    stream = &*state.name,
                    "a stream is not followed, because as many are followed as may be"
                );
                return;
            }
        }
        subscription.links.changed(state, is_event);
        let link = subscription.links.get(&state.name);
        if let Some(link) = link.filter(|link| link.is_pending()) {
            subscription.live.cause = Some(Arc::clone(&link.path));
            self.touched.insert(no);
        }
    }

    /// Whether the change is an event that the machine has written itself.
    fn take_own_event(&mut self, state: &StreamState) -> bool {
        let event = (state.no, state.tail.sequence);
        let at = self.own_events.iter().position(|own| *own == event);
        at.is_some_and(|at| self.own_events.remove(at).is_some())
    }

    /// Notes an event that the machine has written: it makes no subscription pending, so that two that watch each other's events do not
    /// wake each other for ever.
    pub(super) fn note_own_event(&mut self, stream: u64, sequence: u64) {
        if self.own_events.len() >= OWN_EVENTS_MAX {
            self.own_events.pop_front();
        }
        self.own_events.push_back((stream, sequence));
    }
}

/// The most events of the machine whose commits were not reported yet. A commit comes right behind the outcome of its command.
const OWN_EVENTS_MAX: usize = 1_024;
