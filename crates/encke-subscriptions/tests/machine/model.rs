//! A naive model of subscriptions: what clients, workers and receivers have learned, and what must follow from that.

use std::collections::{BTreeMap, BTreeSet};

use encke_subscriptions::{
    ReportKind, RequestNo, SubscriptionConfig, SubscriptionError, SubscriptionRequest,
    SubscriptionResponse,
};

use crate::asked::Held;
use crate::known::{Asked, Failures, Known};
use crate::world::World;

/// What is known of all subscriptions.
#[derive(Default)]
pub(crate) struct Model {
    /// Those that exist: their creation was acknowledged, their deletion was not.
    pub(crate) subscriptions: BTreeMap<String, Known>,
    /// Requests without a response.
    pub(crate) asked: BTreeMap<RequestNo, Asked>,
    /// The calls that were seen.
    seen_calls: BTreeSet<u64>,
    /// The server may not have written yet what a power cut has changed.
    pub(crate) awaits_comparison: bool,
}

impl Model {
    /// Sends a request.
    pub(crate) fn send(&mut self, world: &mut World, request: SubscriptionRequest) {
        let id = id_of(&request).to_owned();
        let known = self.subscriptions.get_mut(&id);
        let generation = known.as_ref().map_or(0, |known| known.generation);
        if let Some(known) = known
            && let SubscriptionRequest::Report(report) = &request
        {
            let reported = report.generation.unwrap_or_default();
            known.failures.reported = known.failures.reported.max(reported);
            for ack in &report.acks {
                let (Ok(offset), Some((no, _))) =
                    (ack.offset.parse(), world.streams.facts(&ack.stream))
                else {
                    continue;
                };
                let key = (ack.stream.to_string(), no);
                let most = known.acked_max.entry(key).or_insert(offset);
                *most = offset.max(*most);
            }
            let ends = report.done || report.kind == ReportKind::Release;
            if let Some(holder) = &mut known.holder
                && holder.held.wake_id == *report.wake_id.as_ref().unwrap()
            {
                holder.may_be_over |= ends;
            }
        }
        let at_ms = world.now_ms;
        let number = world.send(request.clone());
        let asked = Asked {
            request,
            at_ms,
            generation,
        };
        self.asked.insert(number, asked);
    }

    /// Takes responses and calls that have come.
    pub(crate) fn observe(&mut self, world: &mut World) {
        for (number, response) in std::mem::take(&mut world.responses) {
            if let Some(asked) = self.asked.remove(&number) {
                self.response(world, asked, response);
            }
        }
        for call in &world.calls {
            if !self.seen_calls.insert(call.number) {
                continue;
            }
            let notice = &call.notice;
            assert!(
                notice.links.iter().any(|link| link.has_pending),
                "a call for nothing: {notice:?}"
            );
            let Some(known) = self.subscriptions.get_mut(&*notice.subscription) else {
                continue;
            };
            known.generation = known.generation.max(notice.generation);
            if let Some(not_before_ms) = known.failures.not_before_ms.take() {
                let now_ms = world.now_ms;
                assert!(
                    now_ms >= not_before_ms,
                    "called {} ms too early",
                    not_before_ms - now_ms
                );
            }
            known.wakes.push(Held {
                id: notice.subscription.to_string(),
                wake_id: notice.wake_id.clone(),
                generation: notice.generation,
                token: notice.callback_token.clone(),
            });
        }
    }

    fn response(&mut self, world: &World, asked: Asked, response: SubscriptionResponse) {
        let id = id_of(&asked.request).to_owned();
        match (&asked.request, response) {
            (
                SubscriptionRequest::Create { config, .. },
                SubscriptionResponse::Created {
                    existed,
                    subscription,
                },
            ) => {
                if !existed {
                    let known = Known::new(config.clone(), &subscription.links, world);
                    self.subscriptions.insert(id, known);
                }
            }
            (_, SubscriptionResponse::Deleted) => {
                self.subscriptions.remove(&id);
                // A new subscription of this name counts its generations from 0.
                let of_same_name = |asked: &&mut Asked| id_of(&asked.request) == id;
                for asked in self.asked.values_mut().filter(of_same_name) {
                    asked.generation = 0;
                }
            }
            (request, response) => {
                if let Some(known) = self.subscriptions.get_mut(&id) {
                    known.response(world, request, &asked, response);
                }
            }
        }
    }

    /// A receiver responds to a call.
    pub(crate) fn responded(&mut self, world: &World, at: usize, failed: bool) {
        let notice = &world.calls[at].notice;
        let Some(known) = self.subscriptions.get_mut(&*notice.subscription) else {
            return;
        };
        let is_current = known
            .wakes
            .iter()
            .any(|wake| wake.wake_id == notice.wake_id)
            && known.generation == notice.generation
            && known.failures.reported != notice.generation;
        if failed && is_current {
            known.failures.count += 1;
            let pause = 800 << (known.failures.count - 1).min(6);
            known.failures.not_before_ms = Some(world.now_ms + pause.min(48_000));
            known.failures.is_new = true;
        } else {
            known.failures = Failures {
                reported: known.failures.reported,
                ..Failures::default()
            };
        }
        if !failed {
            for link in &notice.links {
                if let Some((no, _)) = world.streams.facts(&link.stream) {
                    let key = (link.stream.to_string(), no);
                    let most = known.acked_max.entry(key).or_insert(link.tail);
                    *most = link.tail.max(*most);
                }
            }
        }
    }

    /// The wake that a worker or a receiver has, or one that it had before.
    pub(crate) fn wake(&self, id: &str, is_old: bool, choice: u8) -> Option<Held> {
        let known = self.subscriptions.get(id)?;
        match (&known.holder, is_old) {
            (Some(holder), false) => Some(holder.held.clone()),
            (None, false) => known.wakes.last().cloned(),
            (_, true) => {
                let at = usize::from(choice) % known.wakes.len().max(1);
                known.wakes.get(at).cloned()
            }
        }
    }

    /// The log has refused something: pauses behind failures may be forgotten.
    pub(crate) fn refused(&mut self) {
        for known in self.subscriptions.values_mut() {
            known.failures = Failures {
                reported: known.failures.reported,
                ..Failures::default()
            };
        }
    }

    /// The server has crashed. With `power_was_cut`, streams may have lost their ends.
    pub(crate) fn crashed(&mut self, world: &World, power_was_cut: bool) {
        self.seen_calls.clear();
        self.awaits_comparison |= power_was_cut;
        for known in self.subscriptions.values_mut() {
            if known.failures.is_new {
                known.failures = Failures::default();
            }
            if power_was_cut {
                let named = &known.named;
                known.links.retain(|name, (no, acked)| {
                    let Some(state) = world.streams.state(name) else {
                        *no = None;
                        return true;
                    };
                    *acked = state.tail.min(*acked);
                    // The link of a stream that has lost all its records may be gone, unless it was linked by name.
                    named.contains(name) || state.tail > state.begin
                });
            }
            known.power_was_cut |= power_was_cut;
        }
        // What was under way may have happened or not.
        for (_, asked) in std::mem::take(&mut self.asked) {
            let id = id_of(&asked.request).to_owned();
            match asked.request {
                SubscriptionRequest::Create { .. } | SubscriptionRequest::Delete { .. } => {
                    self.subscriptions.remove(&id);
                }
                SubscriptionRequest::Link { streams, .. } => {
                    if let Some(known) = self.subscriptions.get_mut(&id) {
                        let names = streams.iter();
                        names.for_each(|name| known.may_begin_at_tail(name, world));
                    }
                    self.forget_names(&id, streams);
                }
                SubscriptionRequest::Unlink { stream, .. } => self.forget_names(&id, [stream]),
                SubscriptionRequest::Report(_) => {
                    // It may have ended the pauses behind failures.
                    if let Some(known) = self.subscriptions.get_mut(&id) {
                        known.failures = Failures::default();
                    }
                }
                _ => {}
            }
        }
    }

    /// It is not known any more whether a subscription follows these by their names.
    fn forget_names(&mut self, id: &str, streams: impl IntoIterator<Item = Box<str>>) {
        if let Some(known) = self.subscriptions.get_mut(id) {
            let names = streams.into_iter().map(String::from);
            names.for_each(|name| known.forget_name(name));
        }
    }

    /// Compares all that is known with the server, when nothing is under way.
    pub(crate) fn check(&mut self, world: &mut World, ids: &[(&str, SubscriptionConfig)]) {
        self.observe(world);
        assert!(self.asked.is_empty());
        self.awaits_comparison = false;
        for (id, config) in ids {
            let response = world.ask(SubscriptionRequest::Describe { id: (*id).into() });
            let status = match response {
                SubscriptionResponse::Described(status) => status,
                response => {
                    let error = SubscriptionResponse::Refused(SubscriptionError::NotFound);
                    assert_eq!(response, error);
                    assert!(!self.subscriptions.contains_key(*id), "{id} is lost");
                    continue;
                }
            };
            // One whose creation was not answered, or that was not deleted after all.
            let known = self
                .subscriptions
                .entry((*id).to_owned())
                .or_insert_with(|| Known::new(config.clone(), &status.links, world));
            known.failures.is_new = false;
            known.check_links(world, id, &status.links);
        }
    }
}

fn id_of(request: &SubscriptionRequest) -> &str {
    match request {
        SubscriptionRequest::Create { id, .. }
        | SubscriptionRequest::Describe { id }
        | SubscriptionRequest::Delete { id, .. }
        | SubscriptionRequest::Link { id, .. }
        | SubscriptionRequest::Unlink { id, .. }
        | SubscriptionRequest::Claim { id, .. } => id,
        SubscriptionRequest::Report(report) => &report.id,
        SubscriptionRequest::Keys => "",
    }
}
