//! The subscriptions of the server: their machine, whose work is done at once.

use std::sync::Arc;

use encke_protocol::{DispatchResponse, OnDispatch};
use encke_stream::{Fetch, Piece, Stream, StreamChange, StreamState, View};
use encke_subscriptions::{
    KeySeed, PublishedSubscriptions, SubscriptionEffect, SubscriptionIndex, SubscriptionLimits,
    SubscriptionMachine, SubscriptionRequest, SubscriptionResponse, WebhookDelivery,
};

use super::{Heard, Reply, Server, Waiting, said};

/// The machine of the subscriptions, and what it has done.
pub struct TestSubscriptions {
    machine: SubscriptionMachine,
    index: Arc<SubscriptionIndex>,
    published: Arc<PublishedSubscriptions>,
    /// All requests that have come to it.
    pub requests: Vec<SubscriptionRequest>,
    /// The webhooks that it has called. No receiver responds.
    pub calls: Vec<WebhookDelivery>,
    /// What the dispatcher responds to the next request, without the machine.
    pub instead: Option<DispatchResponse>,
    answers: Vec<SubscriptionResponse>,
}

impl TestSubscriptions {
    pub fn new(limits: SubscriptionLimits, published: Arc<PublishedSubscriptions>) -> Self {
        let index = published.begin();
        let seed = KeySeed::of([7; 32]);
        TestSubscriptions {
            machine: SubscriptionMachine::new(limits, &seed, Arc::clone(&index)),
            index,
            published,
            requests: Vec::new(),
            calls: Vec::new(),
            instead: None,
            answers: Vec::new(),
        }
    }
}

impl Server {
    /// The last request that has come to the subscriptions.
    pub fn asked(&self) -> &SubscriptionRequest {
        let requests = &self.subscriptions.requests;
        requests
            .last()
            .expect("a request has come to the subscriptions")
    }

    pub(super) fn ask_subscriptions(
        &mut self,
        request: SubscriptionRequest,
        then: Box<dyn OnDispatch>,
    ) -> Reply {
        self.subscriptions.requests.push(request.clone());
        let response = match self.subscriptions.instead.take() {
            Some(response) => response,
            None => {
                self.observe_streams();
                self.subscriptions.machine.request(self.now(), 1, request);
                self.run_subscriptions();
                let response = self.subscriptions.answers.pop();
                let response = response.expect("what waits is done at once");
                DispatchResponse::Subscription(Box::new(response))
            }
        };
        match Waiting::First(then).event(response) {
            Heard::Respond(response) => Reply::Said(said(response)),
            other => panic!("{other:?}"),
        }
    }

    /// Reports the streams as they are, and does what follows from that.
    pub fn run_subscriptions(&mut self) {
        self.observe_streams();
        let now = self.now();
        self.subscriptions.machine.tick(now);
        self.subscriptions.machine.flush(now);
        loop {
            let effects = self.subscriptions.machine.take_effects();
            if effects.is_empty() {
                let published = &self.subscriptions.published;
                return published.publish(&self.subscriptions.machine);
            }
            for effect in effects {
                self.carry_out(effect);
            }
            self.subscriptions.machine.flush(now);
        }
    }

    fn carry_out(&mut self, effect: SubscriptionEffect) {
        let now = self.now();
        match effect {
            SubscriptionEffect::Commit { op, command } => {
                let outcome = self.apply(*command);
                self.commit();
                self.subscriptions.machine.committed(now, op, outcome);
                self.observe_streams();
            }
            SubscriptionEffect::LookUp {
                look_up,
                streams,
                pattern,
                ..
            } => {
                let is_wanted = |name: &str| {
                    let is_named = streams.iter().any(|stream| **stream == *name);
                    is_named || pattern.as_ref().is_some_and(|glob| glob.matches(name))
                };
                let found = self.states(&is_wanted);
                let found = Ok(found);
                self.subscriptions.machine.found(now, look_up, found);
            }
            SubscriptionEffect::CatchUp { catch_up } => {
                self.observe_streams();
                self.subscriptions.machine.caught_up(now, catch_up);
            }
            SubscriptionEffect::Deliver(delivery) => self.subscriptions.calls.push(*delivery),
            SubscriptionEffect::Respond { response, .. } => {
                self.subscriptions.answers.push(response);
            }
        }
    }

    fn observe_streams(&mut self) {
        let index = Arc::clone(&self.subscriptions.index);
        let now = self.now();
        for state in self.states(&|name| index.concerns(name)) {
            let change = StreamChange::Changed(state);
            self.subscriptions.machine.changed(now, &change);
        }
    }

    fn states(&self, is_wanted: &dyn Fn(&str) -> bool) -> Vec<StreamState> {
        let read = |fetch: &Fetch| -> Result<Piece, String> { Ok(self.read(fetch)) };
        let mut states = Vec::new();
        let view: &View = &self.view;
        view.for_each(&mut |stream: &Arc<Stream>| {
            if is_wanted(&stream.name) {
                states.extend(StreamState::of(stream, &read).unwrap());
            }
        });
        states.sort_by(|one, other| one.name.cmp(&other.name));
        states
    }
}
