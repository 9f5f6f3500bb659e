//! Nodes, a network that loses packets, an order, and a dispatcher that only counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_stream::{DispatcherTerm, FleetCommand, Outcome, Refusal, Reply};
use encke_subscriptions::KeySeed;

use super::super::relay::{PacketTo, Relay, RelayEffect, RelayFigures};
use super::HOLD;
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};
use crate::request::{
    AttemptAction, AttemptReport, DispatchClient, DispatchRequest, NewJob, Payload, PoolRequest,
    Registration, WorkerCaller,
};
use crate::response::DispatchResponse;
use crate::token::PoolKey;

pub(super) struct World {
    pub(super) begin: Instant,
    pub(super) now: Instant,
    pub(super) nodes: BTreeMap<Box<str>, Node>,
    pub(super) term: Option<DispatcherTerm>,
    /// Packets on their way, with their receivers.
    pub(super) packets: VecDeque<(Box<str>, Vec<u8>)>,
    /// Packets that are delivered before one is lost; each number is used once.
    pub(super) losses: VecDeque<usize>,
    pub(super) jobs: u64,
}

pub(super) struct Node {
    pub(super) relay: Relay,
    pub(super) figures: Arc<RelayFigures>,
    pub(super) ready: bool,
    /// It stands still, and packets to it are lost.
    pub(super) frozen: bool,
    /// The jobs that its dispatcher has in memory.
    pub(super) known_jobs: BTreeSet<u64>,
    /// Connected workers of its dispatcher.
    pub(super) workers: Vec<DispatchClient>,
    pub(super) dispatches: bool,
    /// The number of its last term.
    pub(super) number: u64,
    pub(super) responses: Vec<(DispatchClient, DispatchResponse)>,
}

impl World {
    pub(super) fn new(names: &[&str]) -> World {
        let begin = Instant::now();
        let mut world = World {
            begin,
            now: begin + Duration::from_secs(1),
            nodes: BTreeMap::new(),
            term: None,
            packets: VecDeque::new(),
            losses: VecDeque::new(),
            jobs: 0,
        };
        for name in names {
            world.start(name);
        }
        world
    }

    pub(super) fn start(&mut self, name: &str) {
        let figures = Arc::new(RelayFigures::default());
        let node = Node {
            relay: Relay::new(
                self.now,
                name,
                self.now.duration_since(self.begin).as_millis() as u64,
                1,
                HOLD,
                Arc::clone(&figures),
            ),
            figures,
            ready: true,
            frozen: false,
            known_jobs: BTreeSet::new(),
            workers: Vec::new(),
            dispatches: false,
            number: 0,
            responses: Vec::new(),
        };
        self.nodes.insert(name.into(), node);
    }

    pub(super) fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).expect("the node is there")
    }

    /// Lets time pass in steps of the relay's thread.
    pub(super) fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis().div_ceil(STEP.as_millis()) {
            self.now += STEP;
            let names: Vec<Box<str>> = self.nodes.keys().cloned().collect();
            for name in &names {
                let (now, term) = (self.now, self.term.clone());
                let node = self.node(name);
                let ready = node.ready;
                if !node.frozen {
                    node.relay.tick(now, term, ready.then_some(Duration::ZERO));
                }
            }
            self.settle();
        }
    }

    pub(super) fn settle(&mut self) {
        loop {
            let names: Vec<Box<str>> = self.nodes.keys().cloned().collect();
            let mut quiet = true;
            for name in names {
                for effect in self.node(&name).relay.take_effects() {
                    quiet = false;
                    self.carry_out(&name, effect);
                }
            }
            while let Some((to, packet)) = self.packets.pop_front() {
                quiet = false;
                let lost = match self.losses.front_mut() {
                    Some(0) => {
                        self.losses.pop_front();
                        true
                    }
                    Some(left) => {
                        *left -= 1;
                        false
                    }
                    None => false,
                };
                let now = self.now;
                if let Some(node) = self.nodes.get_mut(&to)
                    && !lost
                    && !node.frozen
                {
                    node.relay.packet(now, &packet);
                }
            }
            if quiet {
                return;
            }
        }
    }

    pub(super) fn carry_out(&mut self, name: &str, effect: RelayEffect) {
        let now = self.now;
        match effect {
            RelayEffect::Respond(client, response) => {
                self.node(name).responses.push((client, response));
            }
            RelayEffect::Submit(FleetCommand::Dispatch { next, .. }, token) => {
                let known = self.term.as_ref().map_or(0, |known| known.term);
                let outcome = match next.term > known {
                    true => {
                        self.term = Some(next);
                        Outcome::Done
                    }
                    false => Outcome::Refused(Refusal::NotDispatcher),
                };
                self.node(name).relay.claimed(now, token, &outcome);
            }
            RelayEffect::Submit(FleetCommand::Barrier { log: 0 }, token) => {
                let outcome = Outcome::Done;
                let relay = &mut self.node(name).relay;
                relay.committed(now, vec![Reply { token, outcome }]);
            }
            RelayEffect::Submit(other, _) => panic!("neither a claim nor a check: {other:?}"),
            RelayEffect::Send(PacketTo::All, packet) => {
                for to in self.nodes.keys().cloned().collect::<Vec<_>>() {
                    self.packets.push_back((to, packet.clone()));
                }
            }
            RelayEffect::Send(PacketTo::Node(to), packet) => self.packets.push_back((to, packet)),
            RelayEffect::Restore(number) => {
                let jobs = (1..=self.jobs).collect();
                let node = self.node(name);
                node.workers.clear();
                node.known_jobs = jobs;
                assert!(node.relay.expects(number));
                node.number = number;
                node.dispatches = node.relay.restored(now, number);
            }
            RelayEffect::Dispatch(message) => self.dispatch(name, message),
            RelayEffect::StopDispatcher => {
                let node = self.node(name);
                node.dispatches = false;
                for worker in std::mem::take(&mut node.workers) {
                    node.relay.response(now, worker, DispatchResponse::Stopping);
                }
                let number = node.number;
                node.relay.ended(now, number);
            }
            RelayEffect::AbandonDispatcher => {
                let node = self.node(name);
                node.dispatches = false;
                node.workers.clear();
            }
        }
    }

    /// What a dispatcher would do.
    pub(super) fn dispatch(&mut self, name: &str, message: DispatcherMessage) {
        let now = self.now;
        let own = self.term.clone();
        let jobs = &mut self.jobs;
        let node = self.nodes.get_mut(name).expect("the node is there");
        assert!(node.dispatches, "a message without a dispatcher");
        match message {
            DispatcherMessage::Request(client, DispatchRequest::Pool(PoolRequest::Post(_))) => {
                if own.is_none_or(|own| *own.node != *name) {
                    // The order refuses the record.
                    let token = first_op(node.number, OpKind::Jobs);
                    let outcome = Outcome::Refused(Refusal::NotDispatcher);
                    return node.relay.committed(now, vec![Reply { token, outcome }]);
                }
                *jobs += 1;
                let id = *jobs;
                node.known_jobs.insert(id);
                let token = PoolKey::new(&KeySeed::of([1; 32]), 1).of_job(id);
                node.relay
                    .response(now, client, DispatchResponse::Posted { id, token });
            }
            DispatcherMessage::Request(
                client,
                DispatchRequest::Pool(PoolRequest::Report(report)),
            ) => {
                let response = match node.known_jobs.contains(&report.id) {
                    true => DispatchResponse::Reported { deadline: None },
                    false => DispatchResponse::Refused(JobError::UnknownJob(report.id)),
                };
                node.relay.response(now, client, response);
            }
            // A poll gets no response until there is a job.
            DispatcherMessage::Request(
                client,
                DispatchRequest::Pool(PoolRequest::Register(work)),
            ) if work.poll_ms.is_some() => {
                node.workers.push(client);
            }
            DispatcherMessage::Request(client, DispatchRequest::Pool(PoolRequest::Register(_))) => {
                node.workers.push(client);
                let slot = node.workers.len() as u32;
                let registered = DispatchResponse::Registered { slot };
                node.relay.response(now, client, registered);
            }
            DispatcherMessage::Disconnected(client) => {
                node.workers.retain(|worker| *worker != client);
            }
            DispatcherMessage::CallerEnded(client) => {
                node.workers.retain(|worker| *worker != client);
                node.relay.response(now, client, DispatchResponse::NoJob);
            }
            DispatcherMessage::NodeGone(gone) => node.workers.retain(|one| one.node != gone),
            other => panic!("unexpected: {other:?}"),
        }
    }

    pub(super) fn request(&mut self, node: &str, client: DispatchClient, request: DispatchRequest) {
        let now = self.now;
        let message = DispatcherMessage::Request(client, request);
        self.node(node).relay.message(now, message);
        self.settle();
    }

    pub(super) fn post(&mut self, node: &str, number: u32) -> DispatchClient {
        let client = client(number);
        self.request(node, client, post(b"a job"));
        client
    }

    /// The responses of a node since the last call.
    pub(super) fn responses(&mut self, node: &str) -> Vec<(DispatchClient, DispatchResponse)> {
        std::mem::take(&mut self.node(node).responses)
    }

    /// The nodes that dispatch.
    pub(super) fn dispatchers(&self) -> Vec<&str> {
        let nodes = self.nodes.iter();
        let dispatching = nodes.filter(|(_, node)| node.dispatches);
        dispatching.map(|(name, _)| &**name).collect()
    }

    pub(super) fn dispatcher(&self) -> String {
        match self.dispatchers()[..] {
            [one] => one.to_owned(),
            ref other => panic!("one node dispatches, not {other:?}"),
        }
    }

    pub(super) fn others(&self) -> Vec<String> {
        let dispatcher = self.dispatcher();
        let others = self.nodes.keys().filter(|name| ***name != *dispatcher);
        others.map(|name| name.to_string()).collect()
    }
}

pub(super) fn client(number: u32) -> DispatchClient {
    DispatchClient {
        node: 0,
        shard: 1,
        token: u64::from(number) << 32,
        request: number,
    }
}

pub(super) fn post(body: &[u8]) -> DispatchRequest {
    DispatchRequest::Pool(PoolRequest::Post(NewJob {
        pool: "thumbs".into(),
        payload: Payload {
            content_type: "text/plain".into(),
            key: None,
            body: body.into(),
        },
        slot: None,
        wait_ms: None,
        if_connected: false,
    }))
}

/// The acknowledgement of a job.
pub(super) fn ack(id: u64) -> DispatchRequest {
    DispatchRequest::Pool(PoolRequest::Report(AttemptReport {
        pool: "thumbs".into(),
        id,
        attempt: 1,
        token: None,
        action: AttemptAction::Ack {
            result: Payload {
                content_type: "text/plain".into(),
                key: None,
                body: b"done".as_slice().into(),
            },
        },
    }))
}

pub(super) fn work() -> DispatchRequest {
    DispatchRequest::Pool(PoolRequest::Register(Registration {
        pool: "thumbs".into(),
        worker: "anna".into(),
        slot: None,
        poll_ms: None,
        caller: WorkerCaller::Anyone,
    }))
}

pub(super) fn posted(responses: &[(DispatchClient, DispatchResponse)]) -> usize {
    let is_posted = |(_, response): &&(_, _)| matches!(response, DispatchResponse::Posted { .. });
    responses.iter().filter(is_posted).count()
}

pub(super) const STEP: Duration = Duration::from_millis(50);
