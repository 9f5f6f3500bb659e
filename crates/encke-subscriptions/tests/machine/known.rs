//! What clients, workers and receivers have learned of one subscription, and what must follow from that.

use std::collections::{BTreeMap, BTreeSet};

use encke_stream::Offset;
use encke_subscriptions::{
    LinkStatus, ReportKind, SubscriptionConfig, SubscriptionError, SubscriptionRequest,
    SubscriptionResponse,
};

use crate::asked::Held;
use crate::world::World;

/// A request, and when it was sent.
pub(crate) struct Asked {
    pub(crate) request: SubscriptionRequest,
    pub(crate) at_ms: u64,
    /// The last generation that anyone had learned of.
    pub(crate) generation: u64,
}

/// What is known of a subscription.
pub(crate) struct Known {
    pub(crate) config: SubscriptionConfig,
    /// The streams that it follows by name.
    pub(crate) named: BTreeSet<String>,
    /// What was last seen of its links: the stream, and the position up to which it was done at least.
    pub(crate) links: BTreeMap<String, (Option<u64>, Offset)>,
    /// The greatest position that anyone has acknowledged, by stream.
    pub(crate) acked_max: BTreeMap<(String, u64), Offset>,
    /// The last generation that anyone has learned of.
    pub(crate) generation: u64,
    /// The last wake that a worker has claimed.
    pub(crate) holder: Option<Holder>,
    /// All wakes that workers and receivers have had.
    pub(crate) wakes: Vec<Held>,
    pub(crate) failures: Failures,
    /// Streams that the subscription may follow by name or not: a request about them was under way at a crash.
    pub(crate) unsure: BTreeSet<String>,
    /// Streams of its pattern that requests have linked or unlinked. While one has no records, the server has a link of it only if it knew
    /// the stream during the request, which the model can't tell.
    pub(crate) unsure_if_empty: BTreeSet<String>,
    /// Streams may have lost all their records, and the journal may have links of them or not.
    pub(crate) power_was_cut: bool,
}

pub(crate) struct Holder {
    pub(crate) held: Held,
    /// The lease lasts at least until then.
    pub(crate) until_ms: u64,
    /// A report that ends the wake was sent.
    pub(crate) may_be_over: bool,
}

/// Calls of a webhook that have failed in a row.
#[derive(Default)]
pub(crate) struct Failures {
    pub(crate) count: u32,
    /// No call before, unless the failure was forgotten.
    pub(crate) not_before_ms: Option<u64>,
    /// The failure may be unknown after a crash.
    pub(crate) is_new: bool,
    /// The last wake that a receiver has reported on.
    pub(crate) reported: u64,
}

const LEASE_MS: u64 = 1_000;

impl Known {
    pub(crate) fn new(config: SubscriptionConfig, links: &[LinkStatus], world: &World) -> Known {
        let mut known = Known {
            named: links
                .iter()
                .filter(|link| link.explicit)
                .map(|link| link.stream.to_string())
                .collect(),
            config,
            links: BTreeMap::new(),
            acked_max: BTreeMap::new(),
            generation: 0,
            holder: None,
            wakes: Vec::new(),
            failures: Failures::default(),
            unsure: BTreeSet::new(),
            unsure_if_empty: BTreeSet::new(),
            power_was_cut: false,
        };
        known.adopt(links, world);
        known
    }

    /// Whether its pattern matches a stream.
    fn is_matched(&self, name: &str) -> bool {
        let pattern = self.config.pattern.as_ref();
        pattern.is_some_and(|glob| glob.matches(name))
    }

    /// A new link may begin at the tail of a stream during the request, which was not greater than it is now.
    pub(crate) fn may_begin_at_tail(&mut self, name: &str, world: &World) {
        if let Some((no, facts)) = world.streams.facts(name) {
            let most = self.acked_max.entry((name.to_owned(), no)).or_default();
            *most = facts.tail.max(*most);
        }
    }

    /// A request about this stream was under way at a crash.
    pub(crate) fn forget_name(&mut self, name: String) {
        if self.is_matched(&name) {
            self.unsure_if_empty.insert(name.clone());
        }
        self.unsure.insert(name);
    }

    fn adopt(&mut self, links: &[LinkStatus], world: &World) {
        self.links.clear();
        for link in links {
            let no = world.streams.facts(&link.stream).map(|(no, _)| no);
            self.links.insert(link.stream.to_string(), (no, link.acked));
            if let Some(no) = no {
                let key = (link.stream.to_string(), no);
                let most = self.acked_max.entry(key).or_insert(link.acked);
                *most = link.acked.max(*most);
            }
        }
    }

    pub(crate) fn response(
        &mut self,
        world: &World,
        request: &SubscriptionRequest,
        asked: &Asked,
        response: SubscriptionResponse,
    ) {
        let now_ms = world.now_ms;
        match (request, response) {
            (SubscriptionRequest::Link { streams, .. }, SubscriptionResponse::LinksChanged) => {
                for name in streams.iter().map(|name| name.to_string()) {
                    // It may have been unlinked at a crash, and this is a new link.
                    let was_unsure = self.unsure.remove(&name);
                    let is_same_link = |no| {
                        let seen = self.links.get(&name).and_then(|(seen, _)| *seen);
                        seen == Some(no) && !was_unsure
                    };
                    let no = world.streams.facts(&name).map(|(no, _)| no);
                    if !no.is_some_and(is_same_link) {
                        self.may_begin_at_tail(&name, world);
                    }
                    self.named.insert(name);
                }
            }
            (SubscriptionRequest::Link { streams, .. }, SubscriptionResponse::Refused(_)) => {
                // A link that was kept for the request when its stream ended may have the next stream of the name.
                let matched = streams.iter().filter(|name| self.is_matched(name));
                let names: Vec<String> = matched.map(|name| name.to_string()).collect();
                self.unsure_if_empty.extend(names);
            }
            (SubscriptionRequest::Unlink { stream, .. }, SubscriptionResponse::LinksChanged) => {
                let was_named = self.named.remove(&**stream);
                self.unsure.remove(&**stream);
                if !self.is_matched(stream) {
                    // A request may follow it again, from another position.
                    self.links.remove(&**stream);
                } else if was_named {
                    self.unsure_if_empty.insert(stream.to_string());
                    if let Some((no, _)) = world.streams.facts(stream) {
                        let link = self.links.entry(stream.to_string()).or_default();
                        if link.0 != Some(no) {
                            *link = (Some(no), Offset::START);
                        }
                    }
                }
            }
            (SubscriptionRequest::Claim { id, .. }, SubscriptionResponse::Claimed(claimed)) => {
                if let Some(holder) = &self.holder {
                    let is_over = holder.may_be_over || now_ms >= holder.until_ms;
                    assert!(is_over, "two workers have {id}");
                }
                assert!(claimed.generation >= asked.generation, "an old wake");
                let has_work = claimed.links.iter().any(|link| link.has_pending);
                assert!(has_work || world.has_deletions, "no work");
                self.generation = self.generation.max(claimed.generation);
                let held = crate::asked::held(id, &claimed);
                self.wakes.push(held.clone());
                self.holder = Some(Holder {
                    held,
                    until_ms: asked.at_ms + LEASE_MS,
                    may_be_over: false,
                });
            }
            (
                SubscriptionRequest::Report(report),
                SubscriptionResponse::Reported { .. } | SubscriptionResponse::Released,
            ) => {
                self.failures = Failures {
                    reported: self.failures.reported,
                    ..Failures::default()
                };
                let generation = report.generation.unwrap();
                assert!(
                    generation >= asked.generation,
                    "an old report counts: {report:?}"
                );
                if report.kind != ReportKind::Release {
                    for ack in &report.acks {
                        let offset: Offset = ack.offset.parse().unwrap();
                        if let Some((no, acked)) = self.links.get_mut(&*ack.stream)
                            && *no == world.streams.facts(&ack.stream).map(|(no, _)| no)
                        {
                            *acked = offset.max(*acked);
                        }
                    }
                }
                if let Some(holder) = &mut self.holder
                    && holder.held.generation == generation
                    && !report.done
                    && report.kind == ReportKind::Ack
                {
                    holder.until_ms = holder.until_ms.max(asked.at_ms + LEASE_MS);
                }
            }
            (
                SubscriptionRequest::Report(report),
                SubscriptionResponse::Refused(SubscriptionError::Fenced),
            ) => {
                if let Some(holder) = &self.holder
                    && Some(holder.held.generation) == report.generation
                    && Some(&holder.held.wake_id) == report.wake_id.as_ref()
                {
                    let is_over = holder.may_be_over || now_ms >= holder.until_ms;
                    assert!(is_over, "a worker has lost its wake: {report:?}");
                }
            }
            _ => {}
        }
    }

    pub(crate) fn check_links(&mut self, world: &World, id: &str, links: &[LinkStatus]) {
        let own = self.config.wake_stream.as_deref();
        for name in std::mem::take(&mut self.unsure) {
            let is_named = |link: &LinkStatus| link.explicit && *link.stream == *name;
            match links.iter().any(is_named) {
                true => drop(self.named.insert(name)),
                false => drop(self.named.remove(&name)),
            }
        }
        let mut expected: BTreeSet<String> = self.named.clone();
        for name in world.streams.names() {
            let Some(state) = world.streams.state(&name) else {
                continue;
            };
            let was_seen = self
                .links
                .get(&name)
                .is_some_and(|(no, _)| *no == Some(state.no));
            if self.is_matched(&name)
                && own != Some(&name)
                && (state.tail > state.begin || was_seen)
            {
                expected.insert(name);
            }
        }
        let found: BTreeSet<String> = links.iter().map(|link| link.stream.to_string()).collect();
        let power_was_cut = std::mem::take(&mut self.power_was_cut);
        let unsure_if_empty = std::mem::take(&mut self.unsure_if_empty);
        let is_unsure = |name: &String| {
            let state = world.streams.state(name);
            (power_was_cut || unsure_if_empty.contains(name))
                && !self.named.contains(name)
                && state.is_some_and(|state| state.tail <= state.begin)
        };
        expected.retain(|name| found.contains(name) || !is_unsure(name));
        expected.extend(found.iter().filter(|name| is_unsure(name)).cloned());
        assert_eq!(found, expected, "links of {id}");
        for link in links {
            let name = link.stream.to_string();
            assert!(
                self.named.contains(&name) || !link.explicit,
                "{id}: {link:?}"
            );
            let Some(state) = world.streams.state(&name) else {
                assert_eq!(
                    (link.acked, link.tail),
                    (Offset::START, Offset::START),
                    "{id}: {link:?}"
                );
                continue;
            };
            assert_eq!(link.tail, state.tail, "{id}: {link:?}");
            assert_eq!(link.has_pending, link.acked < link.tail, "{id}: {link:?}");
            let begin = world.begin(&state);
            let least = match self.links.get(&name) {
                // The position before the first record is as good as the beginning.
                Some((no, acked)) if *no == Some(state.no) && *acked > begin => *acked,
                _ => state.begin,
            };
            // The server's own events are done by themselves; a crash may forget that.
            let is_of_events = name.starts_with("wake/");
            assert!(
                link.acked >= least.min(state.tail) || is_of_events,
                "{id}: {link:?} was done up to {least}"
            );
            let most = self.acked_max.get(&(name.clone(), state.no)).copied();
            let most = most.unwrap_or(begin).max(begin).max(least);
            let was_followed = self.links.contains_key(&name);
            assert!(
                link.acked <= most || is_of_events || !was_followed && link.acked <= state.tail,
                "{id}: {link:?} was done up to {most} at most"
            );
        }
        self.adopt(links, world);
    }
}
