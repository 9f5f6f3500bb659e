//! Relays of several nodes with a network that loses packets, an order, and a dispatcher that only counts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use encke_stream::{DispatcherTerm, FleetCommand, Outcome, Refusal, Reply, StreamChange};
use encke_subscriptions::KeySeed;
use proptest::prelude::*;

use super::clients::HELD_MAX;
use super::relay::{BEAT, EARLY_MAX, PacketTo, Relay, RelayEffect, RelayFigures, SILENCE_MAX};
use super::session::{Broken, MESSAGE_BYTES_MAX, PART_BYTES, Session};
use super::wire::Part;
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};
use crate::request::{
    AttemptAction, AttemptReport, DispatchClient, DispatchRequest, NewJob, Payload, PoolRequest,
    Registration, WorkerCaller,
};
use crate::response::DispatchResponse;
use crate::token::PoolKey;

/// How long requests wait for a dispatcher in these tests.
const HOLD: Duration = Duration::from_secs(5);

struct World {
    begin: Instant,
    now: Instant,
    nodes: BTreeMap<Box<str>, Node>,
    term: Option<DispatcherTerm>,
    /// Packets on their way, with their receivers.
    packets: VecDeque<(Box<str>, Vec<u8>)>,
    /// Packets that are delivered before one is lost; each number is used once.
    losses: VecDeque<usize>,
    jobs: u64,
}

struct Node {
    relay: Relay,
    figures: Arc<RelayFigures>,
    ready: bool,
    /// It stands still, and packets to it are lost.
    frozen: bool,
    /// The jobs that its dispatcher has in memory.
    known_jobs: BTreeSet<u64>,
    /// Connected workers of its dispatcher.
    workers: Vec<DispatchClient>,
    dispatches: bool,
    /// The number of its last term.
    number: u64,
    responses: Vec<(DispatchClient, DispatchResponse)>,
}

impl World {
    fn new(names: &[&str]) -> World {
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

    fn start(&mut self, name: &str) {
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

    fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).expect("the node is there")
    }

    /// Lets time pass in steps of the relay's thread.
    fn pass(&mut self, time: Duration) {
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

    fn settle(&mut self) {
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

    fn carry_out(&mut self, name: &str, effect: RelayEffect) {
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
    fn dispatch(&mut self, name: &str, message: DispatcherMessage) {
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

    fn request(&mut self, node: &str, client: DispatchClient, request: DispatchRequest) {
        let now = self.now;
        let message = DispatcherMessage::Request(client, request);
        self.node(node).relay.message(now, message);
        self.settle();
    }

    fn post(&mut self, node: &str, number: u32) -> DispatchClient {
        let client = client(number);
        self.request(node, client, post(b"a job"));
        client
    }

    /// The responses of a node since the last call.
    fn responses(&mut self, node: &str) -> Vec<(DispatchClient, DispatchResponse)> {
        std::mem::take(&mut self.node(node).responses)
    }

    /// The nodes that dispatch.
    fn dispatchers(&self) -> Vec<&str> {
        let nodes = self.nodes.iter();
        let dispatching = nodes.filter(|(_, node)| node.dispatches);
        dispatching.map(|(name, _)| &**name).collect()
    }

    fn dispatcher(&self) -> String {
        match self.dispatchers()[..] {
            [one] => one.to_owned(),
            ref other => panic!("one node dispatches, not {other:?}"),
        }
    }

    fn others(&self) -> Vec<String> {
        let dispatcher = self.dispatcher();
        let others = self.nodes.keys().filter(|name| ***name != *dispatcher);
        others.map(|name| name.to_string()).collect()
    }
}

fn client(number: u32) -> DispatchClient {
    DispatchClient {
        node: 0,
        shard: 1,
        token: u64::from(number) << 32,
        request: number,
    }
}

fn post(body: &[u8]) -> DispatchRequest {
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
fn ack(id: u64) -> DispatchRequest {
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

fn work() -> DispatchRequest {
    DispatchRequest::Pool(PoolRequest::Register(Registration {
        pool: "thumbs".into(),
        worker: "anna".into(),
        slot: None,
        poll_ms: None,
        caller: WorkerCaller::Anyone,
    }))
}

fn posted(responses: &[(DispatchClient, DispatchResponse)]) -> usize {
    let is_posted = |(_, response): &&(_, _)| matches!(response, DispatchResponse::Posted { .. });
    responses.iter().filter(is_posted).count()
}

#[test]
fn one_node_dispatches_and_all_pass_requests_to_it() {
    let mut world = World::new(&["a", "b", "c"]);
    let early = world.post("a", 1);
    assert!(world.responses("a").is_empty(), "it waits for a dispatcher");
    world.pass(Duration::from_secs(1));
    world.dispatcher();
    assert!(
        matches!(world.responses("a")[..], [(to, DispatchResponse::Posted { id: 1, .. })] if to == early)
    );
    for (number, node) in ["a", "b", "c"].into_iter().enumerate() {
        let client = world.post(node, 10 + number as u32);
        assert!(
            matches!(world.responses(node)[..], [(to, DispatchResponse::Posted { .. })] if to == client)
        );
    }
    assert_eq!(world.jobs, 4);
}

#[test]
fn another_node_takes_over_within_five_seconds_and_what_was_sent_is_an_error() {
    let mut world = World::new(&["a", "b", "c"]);
    world.pass(Duration::from_secs(1));
    let (gone, others) = (world.dispatcher(), world.others());
    let worker = client(1);
    world.request(&others[0], worker, work());
    world.nodes.remove(&*gone);
    let sent = world.post(&others[1], 2);
    world.pass(SILENCE_MAX + Duration::from_millis(500));
    let next = world.dispatcher();
    assert!(others.contains(&next));
    assert_eq!(world.term.as_ref().map(|term| term.term), Some(2));
    let responses = world.responses(&others[1]);
    assert!(
        matches!(responses[..], [(to, DispatchResponse::Refused(JobError::NoDispatcher))] if to == sent),
        "{responses:?}"
    );
    let responses = world.responses(&others[0]);
    assert!(
        matches!(responses[..], [(_, DispatchResponse::Registered { .. }), (to, DispatchResponse::Stopping)]
            if to == worker),
        "{responses:?}"
    );
    world.post(&others[0], 3);
    world.post(&others[1], 4);
    let done = posted(&world.responses(&others[0])) + posted(&world.responses(&others[1]));
    assert_eq!(done, 2);
}

#[test]
fn a_node_that_has_lost_its_turn_calls_no_job_unknown() {
    let mut world = World::new(&["a", "b", "c"]);
    world.pass(Duration::from_secs(1));
    let (former, others) = (world.dispatcher(), world.others());
    world.node(&former).frozen = true;
    world.pass(SILENCE_MAX + Duration::from_millis(1_000));
    let next = match world.node(&others[0]).dispatches {
        true => &others[0],
        false => &others[1],
    };
    world.post(next, 1);
    assert_eq!(posted(&world.responses(next)), 1);
    // It continues, and has a request before it knows of the other one.
    world.node(&former).frozen = false;
    let reporter = client(2);
    world.request(&former, reporter, ack(1));
    let responses = world.responses(&former);
    assert!(responses.is_empty(), "{responses:?}");
    world.pass(2 * BEAT);
    let responses = world.responses(&former);
    assert!(
        matches!(responses[..], [(to, DispatchResponse::Reported { .. })] if to == reporter),
        "{responses:?}"
    );
}

#[test]
fn clients_of_other_nodes_get_no_refusal_from_the_memory_of_a_node_that_has_lost_its_turn() {
    let mut world = World::new(&["a", "b", "c"]);
    world.pass(Duration::from_secs(1));
    let (former, others) = (world.dispatcher(), world.others());
    // The order has another term, which neither the node that dispatches nor the one with the client has followed yet.
    world.term = Some(DispatcherTerm {
        node: "somebody else".into(),
        term: 7,
    });
    let reporter = client(1);
    world.request(&others[0], reporter, ack(1));
    let responses = world.responses(&others[0]);
    assert!(responses.is_empty(), "{responses:?}");
    let (now, term) = (world.now, world.term.clone());
    world
        .node(&former)
        .relay
        .tick(now, term, Some(Duration::ZERO));
    world.settle();
    let responses = world.responses(&others[0]);
    assert!(
        matches!(responses[..], [(to, DispatchResponse::Refused(JobError::NoDispatcher))] if to == reporter),
        "{responses:?}"
    );
}

#[test]
fn a_node_that_dispatches_refuses_when_the_order_has_shown_that_it_does() {
    let mut world = World::new(&["a", "b"]);
    world.pass(Duration::from_secs(1));
    let nodes = [world.dispatcher(), world.others().remove(0)];
    for (number, node) in nodes.iter().enumerate() {
        let reporter = client(number as u32);
        world.request(node, reporter, ack(9));
        assert!(world.responses(node).is_empty(), "not before");
        world.pass(2 * STEP);
        let responses = world.responses(node);
        assert!(
            matches!(responses[..], [(to, DispatchResponse::Refused(JobError::UnknownJob(9)))] if to == reporter),
            "{responses:?}"
        );
    }
}

#[test]
fn a_node_that_stops_hands_over_at_once_and_its_clients_do_not_notice() {
    let mut world = World::new(&["a", "b", "c"]);
    world.pass(Duration::from_secs(1));
    let (stops, others) = (world.dispatcher(), world.others());
    let worker = client(1);
    world.request(&stops, worker, work());
    let now = world.now;
    world.node(&stops).relay.stop(now);
    world.settle();
    // Its shards still have requests, and so have those of the other nodes.
    world.post(&stops, 2);
    world.post(&others[0], 3);
    world.pass(Duration::from_millis(600));
    let next = world.dispatcher();
    assert_ne!(next, stops);
    let responses = world.responses(&stops);
    assert!(
        matches!(
            responses[..],
            [
                (_, DispatchResponse::Registered { .. }),
                (_, DispatchResponse::Stopping),
                (_, DispatchResponse::Posted { .. })
            ]
        ),
        "{responses:?}"
    );
    assert_eq!(posted(&world.responses(&others[0])), 1);
}

#[test]
fn a_node_that_hears_no_broker_asks_for_no_term_and_leaves_its_office() {
    let mut world = World::new(&["a"]);
    let now = world.now + Duration::from_secs(10);
    let relay = &mut world.node("a").relay;
    relay.tick(now, None, Some(Duration::from_millis(2_000)));
    assert!(!relay.is_in_office());
    relay.tick(now, None, Some(Duration::from_millis(1_000)));
    assert!(relay.is_in_office());
    world.settle();
    assert_eq!(world.dispatcher(), "a");
    let (now, term) = (world.now, world.term.clone());
    let relay = &mut world.node("a").relay;
    relay.tick(now, term.clone(), Some(Duration::from_millis(4_000)));
    assert!(relay.is_in_office());
    relay.tick(now, term, Some(Duration::from_millis(6_000)));
    assert!(!relay.is_in_office());
}

#[test]
fn a_dispatcher_that_ends_by_itself_is_replaced_and_late_pools_are_not_wanted() {
    let mut world = World::new(&["a"]);
    world.pass(Duration::from_secs(1));
    let (now, number) = (world.now, world.node("a").number);
    let relay = &mut world.node("a").relay;
    relay.ended(now, number + 1);
    assert!(relay.is_in_office(), "another one has ended");
    relay.ended(now, number);
    assert!(!relay.is_in_office());
    world.settle();
    world.pass(SILENCE_MAX + Duration::from_millis(500));
    assert_eq!(world.dispatcher(), "a");
    let relay = &world.node("a").relay;
    assert!(!relay.expects(number) && !relay.expects(number + 1));
}

#[test]
fn a_claim_without_an_outcome_ends_and_its_late_outcome_means_nothing() {
    let mut world = World::new(&["a"]);
    let mut now = world.now + Duration::from_secs(1);
    let relay = &mut world.node("a").relay;
    relay.tick(now, None, Some(Duration::ZERO));
    let claims = |relay: &mut Relay| -> Vec<u64> {
        let effects = relay.take_effects().into_iter();
        let tokens = effects.filter_map(|effect| match effect {
            RelayEffect::Submit(_, token) => Some(token),
            _ => None,
        });
        tokens.collect()
    };
    let first = claims(relay);
    now += Duration::from_secs(20);
    relay.tick(now, None, Some(Duration::ZERO));
    assert!(!relay.is_in_office());
    now += SILENCE_MAX;
    relay.tick(now, None, Some(Duration::ZERO));
    let second = claims(relay);
    assert_eq!((first.len(), second.len()), (1, 1));
    relay.claimed(now, first[0], &Outcome::Done);
    assert!(relay.take_effects().is_empty());
    relay.claimed(now, second[0], &Outcome::Done);
    assert!(!relay.take_effects().is_empty());
}

#[test]
fn a_node_that_stops_while_it_asks_for_a_term_gives_it_back() {
    let mut world = World::new(&["a", "b"]);
    let now = world.now + Duration::from_secs(1);
    let a = world.node("a");
    a.relay.tick(now, None, Some(Duration::ZERO));
    assert!(a.relay.is_in_office());
    // The outcome comes when the server stops already.
    let claim = a.relay.take_effects();
    a.relay.stop(now);
    a.relay.stop(now);
    for effect in claim {
        world.carry_out("a", effect);
    }
    world.settle();
    assert!(!world.node("a").relay.is_in_office());
    world.pass(Duration::from_millis(500));
    assert_eq!(world.dispatcher(), "b");
}

#[test]
fn a_dispatcher_that_loses_the_fleet_or_its_term_stops() {
    let mut world = World::new(&["a", "b"]);
    world.pass(Duration::from_secs(1));
    let first = world.dispatcher();
    world.node(&first).ready = false;
    world.pass(Duration::from_millis(100));
    assert!(world.dispatchers().is_empty());
    world.pass(SILENCE_MAX + Duration::from_millis(500));
    let second = world.dispatcher();
    assert_ne!(first, second);
    world.node(&first).ready = true;
    // The order says that another term has begun, of which no packet has told.
    world.term = Some(DispatcherTerm {
        node: "somebody else".into(),
        term: 7,
    });
    world.pass(Duration::from_millis(100));
    assert!(world.dispatchers().is_empty());
    world.pass(SILENCE_MAX + Duration::from_millis(500));
    world.dispatcher();
    assert_eq!(world.term.as_ref().map(|term| term.term), Some(8));
}

#[test]
fn a_dispatcher_whose_writes_are_refused_begins_again() {
    let mut world = World::new(&["a"]);
    world.pass(Duration::from_secs(1));
    let now = world.now;
    let reply = |token, refusal| {
        let outcome = Outcome::Refused(refusal);
        DispatcherMessage::Committed(vec![Reply { token, outcome }])
    };
    let first = first_op(1, OpKind::Jobs);
    // Of an earlier term, or a refusal that says that nothing was stored.
    let node = world.node("a");
    node.relay
        .message(now, reply(first - 1, Refusal::NotDispatcher));
    assert!(node.relay.take_effects().is_empty());
    node.relay.message(now, reply(first, Refusal::NoSpace));
    assert!(matches!(
        node.relay.take_effects()[..],
        [RelayEffect::Dispatch(DispatcherMessage::Committed(_))]
    ));
    for (term, refusal) in [
        (2, Refusal::NotDispatcher),
        (3, Refusal::Unknown("?".into())),
    ] {
        let now = world.now;
        let node = world.node("a");
        node.relay
            .message(now, reply(first_op(term, OpKind::Jobs), refusal));
        world.settle();
        assert!(world.dispatchers().is_empty());
        // Another node may have more luck, and there is none.
        world.pass(Duration::from_secs(1));
        assert!(world.dispatchers().is_empty());
        world.pass(SILENCE_MAX);
        world.dispatcher();
        assert_eq!(world.term.as_ref().map(|now| now.term), Some(term));
    }
    let takeovers = world.node("a").figures.takeovers.load(Ordering::Relaxed);
    assert_eq!(takeovers, 3);
}

/// A relay whose machines are being restored, for its first term.
fn restoring(now: Instant) -> Relay {
    let mut relay = Relay::new(now, "a", 1, 1, HOLD, Arc::default());
    relay.tick(now + Duration::from_secs(1), None, Some(Duration::ZERO));
    let claim = relay
        .take_effects()
        .into_iter()
        .find_map(|effect| match effect {
            RelayEffect::Submit(_, token) => Some(token),
            _ => None,
        });
    let reply = Reply {
        token: claim.expect("a claim"),
        outcome: Outcome::Done,
    };
    relay.message(now, DispatcherMessage::Committed(vec![reply]));
    let effects = relay.take_effects();
    assert!(matches!(effects[..], [RelayEffect::Restore(1), ..]));
    relay
}

fn change() -> StreamChange {
    StreamChange::Ended {
        no: 7,
        name: "s".into(),
    }
}

#[test]
fn changes_of_streams_wait_for_the_machines_that_are_restored() {
    let now = Instant::now();
    let mut relay = restoring(now);
    for _ in 0..2 {
        relay.message(now, DispatcherMessage::Changed(vec![change()]));
        assert!(relay.take_effects().is_empty());
    }
    assert!(relay.restored(now, 1));
    let dispatched = |relay: &mut Relay| -> Vec<usize> {
        let effects = relay.take_effects().into_iter();
        let changes = effects.filter_map(|effect| match effect {
            RelayEffect::Dispatch(DispatcherMessage::Changed(changes)) => Some(changes.len()),
            _ => None,
        });
        changes.collect()
    };
    assert_eq!(dispatched(&mut relay), [2]);
    relay.message(now, DispatcherMessage::Changed(vec![change()]));
    assert_eq!(dispatched(&mut relay), [1]);
    // A node that does not dispatch drops them.
    relay.not_restored(now, 1);
    relay.message(now, DispatcherMessage::Changed(vec![change()]));
    assert!(dispatched(&mut relay).is_empty());
}

#[test]
fn changes_that_wait_are_bounded() {
    let now = Instant::now();
    let mut relay = restoring(now);
    let changes = vec![change(); EARLY_MAX];
    relay.message(now, DispatcherMessage::Changed(changes));
    assert!(relay.is_dispatching());
    relay.message(now, DispatcherMessage::Changed(vec![change()]));
    assert!(!relay.is_dispatching());
}

#[test]
fn a_log_that_refuses_to_change_nothing_costs_no_turn() {
    let now = Instant::now();
    let mut relay = restoring(now);
    assert!(relay.restored(now, 1));
    for kind in [OpKind::Barriers, OpKind::Subscriptions] {
        let refused = Reply {
            token: first_op(1, kind),
            outcome: Outcome::Refused(Refusal::Unknown("?".into())),
        };
        relay.message(now, DispatcherMessage::Committed(vec![refused]));
        assert_eq!(relay.is_dispatching(), kind == OpKind::Barriers);
    }
}

#[test]
fn requests_wait_for_a_dispatcher_for_a_bounded_time_and_in_a_bounded_number() {
    let mut world = World::new(&["a"]);
    world.node("a").ready = false;
    for number in 0..=HELD_MAX as u32 {
        world.post("a", number);
    }
    let responses = world.responses("a");
    assert!(matches!(
        responses[..],
        [(_, DispatchResponse::Refused(JobError::Overloaded))]
    ));
    world.pass(HOLD - Duration::from_millis(100));
    let held = world.node("a").figures.held.load(Ordering::Relaxed);
    assert_eq!((held, world.responses("a").len()), (HELD_MAX as u64, 0));
    world.pass(Duration::from_millis(200));
    let responses = world.responses("a");
    assert_eq!(responses.len(), HELD_MAX);
    let refused = |(_, response): &(_, DispatchResponse)| {
        matches!(response, DispatchResponse::Refused(JobError::NoDispatcher))
    };
    assert!(responses.iter().all(refused));
}

#[test]
fn clients_of_a_node_that_is_gone_are_gone() {
    let mut world = World::new(&["a", "b", "c"]);
    world.pass(Duration::from_secs(1));
    let (dispatcher, others) = (world.dispatcher(), world.others());
    for (number, node) in others.iter().enumerate() {
        world.request(node, client(number as u32), work());
    }
    assert_eq!(world.node(&dispatcher).workers.len(), 2);
    world.nodes.remove(&*others[0]);
    world.pass(SILENCE_MAX + BEAT);
    assert_eq!(world.node(&dispatcher).workers.len(), 1);
    // The node is there again, and its sessions are others.
    world.start(&others[0]);
    world.pass(BEAT);
    world.request(&others[0], client(1), work());
    assert_eq!(world.node(&dispatcher).workers.len(), 2);
    assert_eq!(world.dispatcher(), dispatcher);
}

#[test]
fn long_messages_travel_in_parts_and_a_loss_is_noticed() {
    let now = Instant::now();
    let mut sender = Session::new(1, now);
    let mut receiver = Session::new(1, now);
    let message = vec![7_u8; PART_BYTES * 3];
    let mut parts: Vec<(u32, bool, Vec<u8>)> = Vec::new();
    sender.send(&message, |part| {
        parts.push((part.number, part.more, part.bytes.to_vec()));
    });
    assert_eq!(parts.len(), 4);
    let part = |index: usize| Part {
        number: parts[index].0,
        more: parts[index].1,
        bytes: &parts[index].2,
    };
    for index in 0..3 {
        assert_eq!(receiver.take(now, part(index)), Ok(None));
    }
    let whole = receiver.take(now, part(3)).ok().flatten();
    assert_eq!(whole, Some(super::wire::encode(&message)));
    let mut receiver = Session::new(1, now);
    assert_eq!(receiver.take(now, part(0)), Ok(None));
    assert_eq!(receiver.take(now, part(2)), Err(Broken));
    // The same part again is no part of the session either.
    assert_eq!(receiver.take(now, part(0)), Err(Broken));
    let endless = vec![0_u8; MESSAGE_BYTES_MAX / 4];
    let taken = (1..).map(|number| {
        let part = Part {
            number,
            more: true,
            bytes: &endless,
        };
        receiver.take(now, part)
    });
    let refused = taken.take(4).filter(|taken| *taken == Err(Broken)).count();
    assert_eq!(refused, 1, "a message has an end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is lost, and whichever nodes are killed or stand still: each request gets one response, no job is posted twice, none that
    /// exists is unknown, and in the end one node dispatches.
    #[test]
    fn every_request_gets_one_response(
        losses in prop::collection::vec(0_usize..40, 0..12),
        steps in prop::collection::vec((0_usize..3, 0_u64..3_000, 0_u8..14), 1..40),
    ) {
        let names = ["a", "b", "c"];
        let mut world = World::new(&names);
        world.losses = losses.into();
        let mut sent = 0;
        let mut answered = Vec::new();
        let mut posts = 0;
        for (node, wait_ms, what) in steps {
            let name = names[node];
            match what {
                // It is killed: its clients are gone with it.
                0 => {
                    answered.extend(world.responses(name));
                    let had = world.nodes.remove(name);
                    sent -= had.map_or(0, |node| node.relay.pending());
                    world.start(name);
                }
                1 => world.node(name).ready ^= true,
                2..=4 => world.node(name).frozen ^= true,
                5..=7 if world.jobs > 0 => {
                    posts += 1;
                    sent += 1;
                    world.request(name, client(posts), ack(world.jobs));
                }
                _ => {
                    posts += 1;
                    sent += 1;
                    world.post(name, posts);
                }
            }
            world.pass(Duration::from_millis(wait_ms));
        }
        world.losses.clear();
        for name in names {
            let node = world.node(name);
            (node.ready, node.frozen) = (true, false);
        }
        world.pass(HOLD + 2 * SILENCE_MAX + Duration::from_millis(1_000));
        for name in names {
            answered.extend(world.responses(name));
        }
        for (_, response) in &answered {
            let unknown = matches!(response, DispatchResponse::Refused(JobError::UnknownJob(_)));
            prop_assert!(!unknown, "all that are acknowledged exist");
        }
        let mut answered: Vec<_> = answered.into_iter().map(|(to, _)| to).collect();
        let count = answered.len();
        answered.sort();
        answered.dedup();
        prop_assert_eq!(count, answered.len(), "a request was answered twice");
        prop_assert_eq!(count, sent);
        prop_assert!(world.jobs <= u64::from(posts));
        world.dispatcher();
        let last = world.post("a", posts + 1);
        let responses = world.responses("a");
        prop_assert!(
            matches!(responses[..], [(to, DispatchResponse::Posted { .. })] if to == last),
            "{:?}",
            responses
        );
    }
}

const STEP: Duration = Duration::from_millis(50);

#[test]
fn a_caller_that_ends_gets_an_answer_and_nothing_is_done_for_it_later() {
    let mut world = World::new(&["a", "b"]);
    let held = world.post("a", 1);
    let end = |world: &mut World, node: &str, client| {
        let now = world.now;
        let message = DispatcherMessage::CallerEnded(client);
        world.node(node).relay.message(now, message);
        world.settle();
    };
    end(&mut world, "a", held);
    assert!(
        matches!(world.responses("a")[..], [(to, DispatchResponse::Refused(JobError::CallerEnded))] if to == held)
    );
    world.pass(Duration::from_secs(1));
    let other = world.others().remove(0);
    assert_eq!(world.jobs, 0, "no dispatcher gets it");
    // A poll at another node: its end reaches the dispatcher, whose answer comes back.
    let poll = client(2);
    let DispatchRequest::Pool(PoolRequest::Register(work)) = work() else {
        panic!("it registers");
    };
    let poll_ms = Some(60_000);
    let request = Registration { poll_ms, ..work };
    let request = DispatchRequest::Pool(PoolRequest::Register(request));
    world.request(&other, poll, request);
    world.responses(&other);
    let dispatcher = world.dispatcher();
    assert_eq!(world.node(&dispatcher).workers.len(), 1);
    end(&mut world, &other, poll);
    assert!(
        world
            .responses(&other)
            .iter()
            .any(|(to, response)| *to == poll && matches!(response, DispatchResponse::NoJob))
    );
}
