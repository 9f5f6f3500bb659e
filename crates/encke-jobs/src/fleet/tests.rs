//! Relays of several nodes: who dispatches, and what becomes of requests.

mod changes;
mod world;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use encke_stream::{DispatcherTerm, Outcome, Refusal, Reply};
use proptest::prelude::*;

use self::world::{STEP, World, ack, client, posted, work};
use super::clients::HELD_MAX;
use super::relay::{BEAT, Relay, RelayEffect, SILENCE_MAX};
use super::session::{Broken, MESSAGE_BYTES_MAX, PART_BYTES, Session};
use super::wire::Part;
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};
use crate::request::{DispatchRequest, PoolRequest, Registration};
use crate::response::DispatchResponse;

/// How long requests wait for a dispatcher in these tests.
const HOLD: Duration = Duration::from_secs(5);

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
