//! Pools in a fleet: one node dispatches the jobs, workers and posters connect to any node.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tempfile::TempDir;

use crate::fleet::node;
use crate::rig::{Brokers, Connection, Encke, JSON, SetWhenDropped, data_dir, eventually, request};

const TEXT: &str = "Content-Type: text/plain";

/// Three nodes, and the pool `p` whose workers take a job at a time.
struct Nodes {
    nodes: Vec<Option<Encke>>,
    dirs: Vec<TempDir>,
    brokers: Brokers,
}

impl Nodes {
    /// None: there is no broker here.
    fn start() -> Option<Nodes> {
        let brokers = Brokers::start(1)?;
        let mut nodes = Nodes {
            nodes: Vec::new(),
            dirs: (0..3).map(|_| data_dir()).collect(),
            brokers,
        };
        for at in 0..3 {
            nodes.nodes.push(None);
            nodes.run(at);
        }
        let made = nodes.at(0).ask("PUT", "/v1/pool/p", &[], SETTINGS);
        assert_eq!(made.status, 201, "{made:?}");
        Some(nodes)
    }

    fn run(&mut self, at: usize) {
        let name = ["a", "b", "c"][at];
        self.nodes[at] = Some(node(&self.brokers, name, self.dirs[at].path(), &[]));
    }

    fn at(&self, at: usize) -> &Encke {
        self.nodes[at].as_ref().expect("the node runs")
    }

    /// The node that dispatches, and the two others.
    fn dispatcher(&self) -> (usize, [usize; 2]) {
        let dispatches = |at: &usize| {
            let node = self.nodes[*at].as_ref();
            node.is_some_and(|node| node.metric("encke_fleet_dispatcher", "") > 0.0)
        };
        let mut found = None;
        eventually("one node dispatches", || {
            let all: Vec<usize> = (0..3).filter(dispatches).collect();
            found = all.first().copied();
            all.len() == 1
        });
        let found = found.expect("there is one");
        (found, [(found + 1) % 3, (found + 2) % 3])
    }
}

const SETTINGS: &[u8] = br#"{"type":"claim","ack_ms":60000,"attempts":100}"#;

/// A worker's stream of jobs.
fn work(encke: &Encke, name: &str) -> Connection {
    let mut connection = encke.connect();
    let target = format!("/v1/pool/p/work?worker={name}");
    connection.send(&request("POST", &target, &[], b""));
    let head = connection.head();
    assert_eq!(head.status, 200, "{head:?}");
    for first in ["registered", "hired"] {
        let event = connection.event().expect("the worker is registered");
        assert!(event.contains(&format!("event: {first}\n")), "{event}");
    }
    connection
}

/// The job of the next event that has one: its number and the attempt. None at the end of the stream.
fn job(connection: &mut Connection) -> Option<(u64, u64)> {
    loop {
        let event = connection.event()?;
        if !event.starts_with("event: job\n") {
            continue;
        }
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        let job: serde_json::Value = serde_json::from_str(data.expect("data")).expect("JSON");
        return Some((job["job"].as_u64()?, job["attempt"].as_u64()?));
    }
}

fn ack(encke: &Encke, (id, attempt): (u64, u64)) -> u16 {
    let target = format!("/v1/pool/p/job/{id}/ack?attempt={attempt}");
    encke.ask("POST", &target, &[TEXT], b"done").status
}

#[test]
fn workers_and_posters_connect_to_any_node() {
    let Some(nodes) = Nodes::start() else {
        return;
    };
    let (dispatcher, others) = nodes.dispatcher();
    let far = work(nodes.at(others[0]), "far");
    let near = work(nodes.at(dispatcher), "near");
    let mut workers = [far, near];
    // A job that is larger than what nodes send at a time, and its result.
    let body = vec![b'x'; 700_000];
    let mut waiter = nodes.at(others[1]).connect();
    waiter.send(&request("POST", "/v1/pool/p?wait=30", &[TEXT], &body));
    let first = job(&mut workers[0]).expect("a job");
    let state = nodes
        .at(dispatcher)
        .ask("GET", &format!("/v1/pool/p/job/{}", first.0), &[], b"");
    assert!(String::from_utf8_lossy(&state.body).contains("\"worker\":\"far\""));
    // The report may come through any node.
    assert_eq!(ack(nodes.at(others[1]), first), 204);
    let result = waiter.answer();
    assert_eq!((result.status, &*result.body), (200, &b"done"[..]));
    let mut done = BTreeSet::new();
    for number in 0..30 {
        let at = number % 3;
        let posted = nodes.at(at).ask("POST", "/v1/pool/p", &[JSON], b"1");
        assert_eq!(posted.status, 202, "{posted:?}");
        let mut next = None;
        eventually("one of the workers has the job", || {
            let has = workers.iter_mut().find(|worker| worker.has_input());
            next = has.and_then(job);
            next.is_some()
        });
        let next = next.expect("a job");
        assert_eq!(ack(nodes.at((at + 1) % 3), next), 204);
        assert!(done.insert(next.0), "{next:?} came twice");
    }
    // A worker that is gone gives its job back, wherever it was connected.
    let posted = nodes.at(0).ask("POST", "/v1/pool/p", &[JSON], b"2");
    assert_eq!(posted.status, 202);
    let [mut far, mut near] = workers;
    let lost = job(&mut far).expect("a job");
    drop(far);
    let again = job(&mut near).expect("the job of the worker that is gone");
    assert_eq!(again, (lost.0, lost.1 + 1));
    assert_eq!(ack(nodes.at(others[0]), again), 204);
    // Results are the same at every node, and an error of the dispatcher reaches the client as it is.
    let results = |at: usize| nodes.at(at).messages("pool/p/results");
    assert_eq!(results(0).len(), 32);
    assert!(results(0) == results(1) && results(1) == results(2));
    for at in 0..3 {
        let late = nodes.at(at).ask(
            "POST",
            &format!("/v1/pool/p/job/{}/ack?attempt=1", lost.0),
            &[TEXT],
            b"late",
        );
        assert_eq!((late.status, &*late.error_code()), (409, "attempt_over"));
        let unknown = nodes.at(at).ask("GET", "/v1/pool/none", &[], b"");
        assert_eq!(
            (unknown.status, &*unknown.error_code()),
            (404, "unknown_pool")
        );
        let poll = nodes.at(at).ask(
            "GET",
            &format!("/v1/pool/p/work?worker=poll{at}&wait=0.1"),
            &[],
            b"",
        );
        assert_eq!(poll.status, 204, "{poll:?}");
    }
    drop(near);
    let removed = nodes
        .at(others[0])
        .ask("DELETE", "/v1/pool/p?force", &[], b"");
    assert_eq!(removed.status, 204, "{removed:?}");
    for node in nodes.nodes.into_iter().flatten() {
        assert_eq!(node.terminate().code, Some(0));
    }
}

#[test]
fn another_node_goes_on_when_the_dispatcher_is_killed() {
    let Some(mut nodes) = Nodes::start() else {
        return;
    };
    let (dispatcher, others) = nodes.dispatcher();
    let post = |node: &Encke| node.ask("POST", "/v1/pool/p", &[JSON], b"1");
    let mut accepted = BTreeSet::new();
    let number = |posted: &crate::rig::Response| -> u64 {
        posted
            .field("Job-Id")
            .expect("a number")
            .parse()
            .expect("a number")
    };
    for at in 0..3 {
        let posted = post(nodes.at(at));
        assert_eq!(posted.status, 202, "{posted:?}");
        accepted.insert(number(&posted));
    }
    let mut worker = work(nodes.at(others[0]), "w");
    let held = job(&mut worker).expect("a job");
    nodes.nodes[dispatcher].take().expect("it runs").kill();
    // The worker's stream ends in its protocol's way. It may report on the job that it has.
    assert_eq!(job(&mut worker), None);
    eventually("another node dispatches", || {
        let posted = post(nodes.at(others[1]));
        if posted.status == 202 {
            return accepted.insert(number(&posted));
        }
        assert_eq!(
            (posted.status, &*posted.error_code()),
            (503, "no_dispatcher")
        );
        false
    });
    assert_eq!(ack(nodes.at(others[0]), held), 204);
    let mut done = BTreeSet::from([held.0]);
    let mut worker = work(nodes.at(others[1]), "w");
    while done.len() < accepted.len() {
        let next = job(&mut worker).expect("a job");
        assert_eq!(ack(nodes.at(others[0]), next), 204);
        done.insert(next.0);
    }
    assert_eq!(done, accepted);
    // The node that was killed is there again, and passes requests on.
    nodes.run(dispatcher);
    let posted = post(nodes.at(dispatcher));
    assert_eq!(posted.status, 202, "{posted:?}");
    let next = job(&mut worker).expect("a job");
    assert_eq!(
        (next, ack(nodes.at(dispatcher), next)),
        ((number(&posted), 1), 204)
    );
}

#[test]
fn nodes_are_restarted_one_after_the_other_and_no_poster_notices() {
    let Some(mut nodes) = Nodes::start() else {
        return;
    };
    let over = AtomicBool::new(false);
    let posted = AtomicU64::new(0);
    let more_is_posted = || {
        let before = posted.load(Ordering::Relaxed);
        eventually("more is posted", || {
            posted.load(Ordering::Relaxed) > before + 1
        });
    };
    // The third node stays, so that its clients stay connected.
    let (first, [second, third]) = nodes.dispatcher();
    let steady = nodes.nodes[third].take().expect("it runs");
    std::thread::scope(|scope| {
        let poster = scope.spawn(|| {
            let mut connection = steady.connect();
            while !over.load(Ordering::Relaxed) {
                let answer = connection.ask("POST", "/v1/pool/p", &[JSON], b"1");
                assert_eq!(answer.status, 202, "after {posted:?}: {answer:?}");
                posted.fetch_add(1, Ordering::Relaxed);
            }
        });
        let is_over = SetWhenDropped(&over);
        for at in [first, second, first] {
            let node = nodes.nodes[at].take().expect("it runs");
            assert_eq!(node.terminate().code, Some(0));
            more_is_posted();
            nodes.run(at);
            more_is_posted();
        }
        drop(is_over);
        poster.join().expect("the poster has seen no error");
    });
    let shown = steady.ask("GET", "/v1/pool/p", &[], b"");
    let shown: serde_json::Value = serde_json::from_slice(&shown.body).expect("JSON");
    assert_eq!(shown["waiting"], posted.into_inner());
}
