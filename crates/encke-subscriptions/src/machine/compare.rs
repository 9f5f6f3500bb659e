//! The comparison of the links of the journal with the streams that there are at a start.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_stream::{Fetch, Stream, StreamState};

use super::replay_error::SubscriptionReplayError;
use super::state::SubscriptionMachine;
use crate::bounds::link_weight;
use crate::subscribed_streams::SubscribedStreams;

impl SubscriptionMachine {
    /// Compares what the journal says of streams with the streams.
    pub(super) fn compare_streams(
        &mut self,
        streams: &dyn SubscribedStreams,
    ) -> Result<(), SubscriptionReplayError> {
        let index = Arc::clone(&self.registry.index);
        let read = |fetch: &Fetch| streams.read(fetch);
        let mut seen = BTreeSet::new();
        for prefix in self.prefixes() {
            let unreadable = |reason| SubscriptionReplayError::Unreadable {
                stream: prefix.clone(),
                reason,
            };
            let mut found = Vec::new();
            let mut failed = None;
            let wanted = |name: &str| index.concerns(name);
            streams
                .each(&prefix, &wanted, &mut |stream| {
                    match StreamState::of(stream, &read) {
                        Ok(state) => found.extend(state),
                        Err(reason) => failed = Some(reason),
                    }
                    match failed {
                        None => ControlFlow::Continue(()),
                        Some(_) => ControlFlow::Break(()),
                    }
                })
                .map_err(unreadable)?;
            if let Some(reason) = failed {
                return Err(unreadable(reason));
            }
            for state in &found {
                for no in index.followers(&state.name) {
                    seen.extend(self.compare_stream(no, state).map(|link| (no, link)));
                }
            }
        }
        let mut looked_up: HashMap<Arc<str>, Option<StreamState>> = HashMap::new();
        let mut look_up = |name: &Arc<str>| {
            if let Some(known) = looked_up.get(name) {
                return Ok(known.clone());
            }
            let state = match find(streams, name)? {
                None => None,
                Some(stream) => StreamState::of(&stream, &read).map_err(|reason| {
                    SubscriptionReplayError::Unreadable {
                        stream: name.to_string(),
                        reason,
                    }
                })?,
            };
            looked_up.insert(Arc::clone(name), state.clone());
            Ok(state)
        };
        for no in self.subscriptions.keys().copied().collect::<Vec<_>>() {
            let subscription = &self.subscriptions[&no];
            let own = subscription.config.own_wake_stream().map(Arc::from);
            let links = subscription.links.numbers().into_iter();
            let unseen: Vec<u32> = links.filter(|link| !seen.contains(&(no, *link))).collect();
            if let Some(state) = own.map(|own| look_up(&own)).transpose()?.flatten() {
                self.compare_stream(no, &state);
            }
            for number in unseen {
                let link = self.subscriptions[&no].links.numbered(number);
                let Some(path) = link.map(|link| Arc::clone(&link.path)) else {
                    continue;
                };
                let state = look_up(&path)?;
                let compared = state.and_then(|state| self.compare_stream(no, &state));
                if compared.is_none()
                    && let Some(subscription) = self.subscriptions.get_mut(&no)
                {
                    subscription.links.missing(number);
                }
            }
        }
        Ok(())
    }

    /// Compares a subscription with a stream. Returns the number of its link, if it has one.
    fn compare_stream(&mut self, no: u64, state: &StreamState) -> Option<u32> {
        let weight = link_weight(&state.name);
        let in_all = self.registry.weight.load(Ordering::Relaxed);
        let has_room = in_all + weight <= self.limits.links_in_all_max;
        let links_max = self.limits.links_max;
        let subscription = self.subscriptions.get_mut(&no)?;
        let owner = state.owner.as_deref();
        if !subscription.config.viewer.sees(owner) {
            return None;
        }
        if subscription.config.own_wake_stream() == Some(&state.name) {
            subscription.live.wake_stream = Some(state.no);
            return None;
        }
        let link = subscription.links.get(&state.name);
        let has_records = state.tail > state.begin;
        match link {
            Some(link) if link.explicit || link.stream == Some(state.no) || has_records => {}
            // The stream of the link has ended, and the next one of its name has no records yet.
            Some(_) => return None,
            None if !has_records || !subscription.config.matches(&state.name, owner) => {
                return None;
            }
            None if !has_room || subscription.links.weight() + weight > links_max => {
                self.counts.links_refused += 1;
                return None;
            }
            None => {}
        }
        subscription.links.compare(state);
        subscription.links.number(&state.name)
    }

    /// What all names begin with that patterns match, without those that others include.
    fn prefixes(&self) -> Vec<String> {
        let patterns = self.subscriptions.values();
        let patterns = patterns.filter_map(|subscription| subscription.config.pattern.as_ref());
        let all: BTreeSet<String> = patterns.map(|pattern| pattern.prefix()).collect();
        let mut prefixes: Vec<String> = Vec::new();
        for prefix in all {
            // One that includes it comes before it.
            if !prefixes.last().is_some_and(|last| prefix.starts_with(last)) {
                prefixes.push(prefix);
            }
        }
        prefixes
    }
}

/// The stream of that name.
pub(super) fn find(
    streams: &dyn SubscribedStreams,
    name: &str,
) -> Result<Option<Arc<Stream>>, SubscriptionReplayError> {
    streams
        .find(name)
        .map_err(|reason| SubscriptionReplayError::Unreadable {
            stream: name.to_owned(),
            reason,
        })
}
