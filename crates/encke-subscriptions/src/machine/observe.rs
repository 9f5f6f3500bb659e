//! Commits of streams: which subscriptions they make pending.

use encke_stream::{StreamChange, StreamState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::Now;

use super::live::EventState;
use super::state::SubscriptionMachine;
use crate::bounds::link_weight;

impl SubscriptionMachine {
    /// Handles a commit of a stream. The changes of a log are reported in their order, each once, and those of a commit behind the
    /// outcomes of the machine's own commands in it.
    pub fn changed(&mut self, now: Now, change: &StreamChange) {
        match change {
            StreamChange::Changed(state) => {
                for no in self.event_streams.changed(&state.name, state.no) {
                    self.event_stream_changed(no, state);
                }
                let sequence = state.tail.sequence;
                let is_event = self
                    .event_streams
                    .take_event(&state.name, state.no, sequence);
                for no in self.registry.index.followers(&state.name) {
                    self.stream_changed(now, no, state, is_event);
                }
            }
            StreamChange::Ended { no: stream, name } => {
                let mut concerned = self.event_streams.ended(name, *stream);
                concerned.extend(self.registry.index.followers(name));
                for no in concerned {
                    if let Some(subscription) = self.subscriptions.get_mut(&no) {
                        subscription.stream_ended(name, *stream);
                        self.touched.insert(no);
                    }
                }
            }
        }
    }

    /// The stream for the events of a subscription exists.
    fn event_stream_changed(&mut self, no: u64, state: &StreamState) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let owner = state.owner.as_deref();
        if subscription.config.viewer.sees(owner) && subscription.live.wake_stream != Some(state.no)
        {
            subscription.live.wake_stream = Some(state.no);
            // An event that waits for the stream waits no longer.
            subscription.live.event = EventState {
                is_under_way: subscription.live.event.is_under_way,
                ..EventState::default()
            };
            self.touched.insert(no);
        }
    }

    /// A stream has changed that a subscription follows by its name or its pattern.
    fn stream_changed(&mut self, now: Now, no: u64, state: &StreamState, is_event: bool) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let owner = state.owner.as_deref();
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
            let weight = link_weight(&state.name);
            let in_all = self.registry.weight.load(Ordering::Relaxed);
            if subscription.links.weight() + weight > self.limits.links_max
                || in_all + weight > self.limits.links_in_all_max
            {
                self.counts.links_refused += 1;
                if let Some(commits) = subscription.live.no_room_warning.count(now) {
                    tracing::warn!(
                        subscription = &*subscription.id,
                        stream = &*state.name,
                        commits,
                        "streams are not followed, because as many are followed as may be"
                    );
                }
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
}
