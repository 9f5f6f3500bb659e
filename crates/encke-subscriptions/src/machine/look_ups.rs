//! Look-ups of the streams that a request begins to follow.
//!
//! From the request on, the commits of these streams are reported, and only then they are looked up: what was committed before is in the
//! look-up, what comes behind it is reported. Some commits are in both, which does no harm. But a commit can be reported that was older
//! than the request, when another subscription had asked for it, and the end of its stream is not: what was reported and is not in the
//! look-up is looked up once more.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::Now;
use encke_stream::{StreamNo, StreamState};

use super::decision::{Answer, Decision};
use super::op::LookUpPurpose;
use super::state::{SubscriptionEffect, SubscriptionMachine};
use super::subscription::Subscription;
use crate::entry::SubscriptionEntry;
use crate::error::SubscriptionError;
use crate::glob::Glob;
use crate::response::SubscriptionResponse;

/// Why streams could not be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookUpError {
    /// The pattern matches more of them than allowed.
    TooMany,
    /// For this reason.
    Failed(String),
}

impl SubscriptionMachine {
    /// Has streams be looked up. Until they are found, everything else about the subscription waits.
    pub(super) fn look_up(
        &mut self,
        purpose: LookUpPurpose,
        streams: Vec<Arc<str>>,
        pattern: Option<Glob>,
    ) {
        if let Some(subscription) = self.subscriptions.get_mut(&purpose.no) {
            subscription.live.is_busy = true;
            subscription.live.ended = Some(BTreeSet::new());
        }
        let look_up = self.next_look_up;
        self.next_look_up += 1;
        self.look_ups.insert(look_up, purpose);
        self.effects.push(SubscriptionEffect::LookUp {
            look_up,
            streams,
            pattern,
            matches_max: self.limits.links_max,
        });
    }

    /// Handles the streams that a look-up has found.
    pub fn found(&mut self, now: Now, look_up: u64, found: Result<Vec<StreamState>, LookUpError>) {
        let Some(purpose) = self.look_ups.remove(&look_up) else {
            return;
        };
        let links_max = self.limits.links_max;
        let no = purpose.no;
        let refusal = match found {
            Ok(found) => {
                let Some(subscription) = self.subscriptions.get_mut(&no) else {
                    return;
                };
                if purpose.unverified.is_empty() {
                    let unverified = subscription.take_found(&purpose, &found);
                    if !unverified.is_empty() {
                        let names = unverified.iter().map(|(name, _)| Arc::clone(name));
                        let names = names.collect();
                        let purpose = LookUpPurpose {
                            unverified,
                            ..purpose
                        };
                        return self.look_up(purpose, names, None);
                    }
                } else {
                    subscription.verify(&purpose.unverified, &found);
                }
                let in_all = self.registry.weight.load(Ordering::Relaxed);
                let in_all_max = self.limits.links_in_all_max;
                match subscription.links.weight() > links_max {
                    true => Some(SubscriptionError::TooManyLinks(links_max)),
                    false if in_all > in_all_max => {
                        Some(SubscriptionError::TooManyLinksInAll(in_all_max))
                    }
                    false => None,
                }
            }
            Err(LookUpError::TooMany) => Some(SubscriptionError::TooManyLinks(links_max)),
            Err(LookUpError::Failed(reason)) => Some(SubscriptionError::LookUp(reason.into())),
        };
        match refusal {
            Some(error) => self.withdraw(now, no, vec![purpose.from], &error),
            None => self.decide_found(purpose),
        }
    }

    /// The request that has looked streams up is decided.
    fn decide_found(&mut self, purpose: LookUpPurpose) {
        let LookUpPurpose {
            from, no, added, ..
        } = purpose;
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        subscription.live.ended = None;
        let mut decision = Decision::new(no);
        decision.requested = subscription.links.proposed();
        let answer = if added.is_some() {
            Answer::Response(SubscriptionResponse::LinksChanged)
        } else {
            decision.entries = vec![
                subscription.created(),
                SubscriptionEntry::Opened { no, generation: 0 },
            ];
            Answer::Created
        };
        decision.answers.push((from, answer));
        self.decide(decision);
    }
}

impl Subscription {
    /// Takes what a look-up has found. Returns the streams that were reported and not found.
    fn take_found(
        &mut self,
        purpose: &LookUpPurpose,
        found: &[StreamState],
    ) -> Vec<(Arc<str>, StreamNo)> {
        let ended = self.live.ended.take().unwrap_or_default();
        let config = Arc::clone(&self.config);
        let is_added = |name: &str| match &purpose.added {
            Some(added) => added.iter().any(|added| **added == *name),
            None => true,
        };
        let mut known = BTreeSet::new();
        for state in found.iter().filter(|state| !ended.contains(&state.no)) {
            known.insert(state.no);
            let owner = state.owner.as_deref();
            if !config.viewer.sees(owner) {
                continue;
            }
            if config.own_wake_stream() == Some(&state.name) {
                self.live.wake_stream = Some(state.no);
                continue;
            }
            let is_named = is_added(&state.name) && self.links.get(&state.name).is_some();
            if is_named || config.matches(&state.name, owner) {
                self.links.found(state);
            }
        }
        let mut unverified = self.links.streams();
        unverified.retain(|(name, no)| is_added(name) && !known.contains(no));
        if let Some(stream) = self.live.wake_stream
            && purpose.added.is_none()
            && !known.contains(&stream)
        {
            let name = config.own_wake_stream().unwrap_or_default();
            unverified.push((name.into(), stream));
        }
        unverified
    }

    /// Forgets streams that have ended before they were reported.
    fn verify(&mut self, unverified: &[(Arc<str>, StreamNo)], found: &[StreamState]) {
        for (name, no) in unverified {
            if !found.iter().any(|state| state.no == *no) {
                self.stream_ended(name, *no);
            }
        }
    }
}
