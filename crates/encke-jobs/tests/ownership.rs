//! What belongs to a pool: its streams, and the attempts and jobs of its workers and posters.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(dead_code)] // Each test uses what it needs of the world.

#[path = "crashes/world.rs"]
mod world;

use encke_jobs::{
    AttemptAction, DispatchClient, DispatchResponse, JobError, JobState, NewJob, PoolLimits,
    PoolRequest, Registration, WorkerCaller,
};
use encke_stream::{Append, Command, Create, Data, Lifetime, Outcome, Target};
use world::{POOL, World, text};

const RESULTS: &str = "pool/p/results";
const DEAD: &str = "pool/p/dead";

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

fn settings(text: &str) -> encke_jobs::PoolSettings {
    serde_json::from_str(text).unwrap()
}

fn claim() -> World {
    World::new(
        PoolLimits::default(),
        r#"{"type":"claim","attempts":1,"ack_ms":60000}"#,
    )
}

/// A worker that has the job `#1`: the job, and the attempt.
fn with_job(world: &mut World) -> (u64, u16) {
    world.post("#1", None, None);
    world.settle();
    if !world.workers.contains_key("w") {
        world.join("w", None, None);
    }
    world.settle();
    let (_, handed) = world.held.pop().expect("the worker has a job");
    (handed.id, handed.attempt)
}

fn heard(world: &mut World, client: DispatchClient) -> DispatchResponse {
    world.flush();
    world.settle();
    world.heard(client).expect("a response")
}

fn refusal(world: &mut World, client: DispatchClient) -> JobError {
    match heard(world, client) {
        DispatchResponse::Refused(error) => error,
        other => panic!("{other:?}"),
    }
}

fn ask(world: &mut World, request: PoolRequest) -> DispatchResponse {
    let client = world.client();
    world.ask(client, request);
    heard(world, client)
}

fn make(world: &mut World, pool: &str) -> DispatchResponse {
    ask(
        world,
        PoolRequest::Create {
            pool: pool.into(),
            settings: settings(r#"{"type":"claim"}"#),
        },
    )
}

/// What a client of an earlier version could do.
fn make_stream(world: &mut World, name: &str, content_type: &str) {
    let made = world.store(Command::Create(Create {
        content_type: Some(content_type.into()),
        lifetime: Some(Lifetime::Unbounded),
        ..Create::new(name)
    }));
    assert!(
        matches!(made, Outcome::Created { existed: false, .. }),
        "{made:?}"
    );
}

fn close_stream(world: &mut World, name: &str) {
    let closed = world.store(Command::Append(Append {
        closes: true,
        ..Append::to(Target::Named(name.into()))
    }));
    assert!(matches!(closed, Outcome::Appended { .. }), "{closed:?}");
}

fn delete_stream(world: &mut World, name: &str) {
    let target = Target::Named(name.into());
    let deleted = world.store(Command::Delete { target, ack: None });
    assert_eq!(deleted, Outcome::Deleted);
}

#[test]
fn a_report_needs_the_token_of_its_attempt() {
    let mut world = claim();
    let (id, attempt) = with_job(&mut world);
    let right = world.tokens[&(id, attempt)];
    let client = world.post("#2", None, None);
    let DispatchResponse::Posted { token: of_job, .. } = heard(&mut world, client) else {
        panic!("the job is posted");
    };
    let ack = || AttemptAction::Ack {
        result: text("forged", None),
    };
    let refuse = || AttemptAction::Refuse {
        after_ms: None,
        reason: "".into(),
    };
    let extend = || AttemptAction::Extend { ms: None };
    // What there is, and what there is not: the answer is the same.
    for (at_id, at_attempt, token) in [
        (id, attempt, of_job),
        (id, attempt + 1, right),
        (id + 1, attempt, right),
        (999, 1, right),
    ] {
        for action in [ack(), refuse(), extend()] {
            let client = world.report(at_id, at_attempt, Some(token), action);
            let expected = JobError::WrongToken {
                id: at_id,
                attempt: at_attempt,
            };
            assert_eq!(refusal(&mut world, client), expected);
        }
    }
    // A token outlives a restart, because the key is in the journal.
    let mut world = world.crash(0);
    let client = world.report(id, attempt, Some(right), ack());
    assert!(matches!(
        heard(&mut world, client),
        DispatchResponse::Reported { .. }
    ));
    // Repeated, because the response may have been lost; without the token also then refused.
    let client = world.report(id, attempt, Some(right), ack());
    assert!(matches!(
        heard(&mut world, client),
        DispatchResponse::Reported { .. }
    ));
    let client = world.report(id, attempt, Some(of_job), ack());
    assert!(matches!(
        refusal(&mut world, client),
        JobError::WrongToken { .. }
    ));
}

#[test]
fn two_pools_have_two_keys() {
    let mut world = claim();
    assert!(matches!(
        make(&mut world, "q"),
        DispatchResponse::Created { existed: false, .. }
    ));
    let (id, attempt) = with_job(&mut world);
    let stolen = world.tokens[&(id, attempt)];
    let report = encke_jobs::AttemptReport {
        pool: "q".into(),
        id,
        attempt,
        token: Some(stolen),
        action: AttemptAction::Extend { ms: None },
    };
    let refused = ask(&mut world, PoolRequest::Report(report));
    assert!(
        matches!(
            refused,
            DispatchResponse::Refused(JobError::WrongToken { .. })
        ),
        "{refused:?}"
    );
}

#[test]
fn a_job_is_shown_with_its_token_only() {
    let mut world = claim();
    let mut posted = |body| {
        let client = world.post(body, None, None);
        match heard(&mut world, client) {
            DispatchResponse::Posted { id, token } => (id, token),
            other => panic!("{other:?}"),
        }
    };
    let (first, first_token) = posted("#1");
    let (second, second_token) = posted("#2");
    let mut world = world.crash(0);
    for (id, token, shown) in [
        (first, first_token, true),
        (second, second_token, true),
        (first, second_token, false),
        (999, second_token, false),
    ] {
        let request = PoolRequest::DescribeJob {
            pool: POOL.into(),
            id,
            token: Some(token),
        };
        match ask(&mut world, request) {
            DispatchResponse::Job(job) => assert!(shown && job.id == id && job.token == token),
            DispatchResponse::Refused(error) => {
                assert!(!shown && error == JobError::UnknownJob(id), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_acknowledgement_includes_its_result() {
    // A stream that clients of an earlier version have deleted is made again.
    let mut world = claim();
    let (id, attempt) = with_job(&mut world);
    delete_stream(&mut world, RESULTS);
    let client = world.ack(id, attempt);
    assert_eq!(refusal(&mut world, client), JobError::StreamMissing);
    assert!(matches!(
        world.find(id).unwrap().state,
        JobState::Running { .. }
    ));
    let mut world = world.crash(0);
    assert!(matches!(
        world.find(id).unwrap().state,
        JobState::Running { .. }
    ));
    let client = world.ack(id, attempt);
    assert!(matches!(
        heard(&mut world, client),
        DispatchResponse::Reported { .. }
    ));
    assert_eq!(world.messages("results")[0]["job"], id);

    // One that they have closed is made anew when a client says so, because it may hold results.
    let mut world = claim();
    let (id, attempt) = with_job(&mut world);
    close_stream(&mut world, RESULTS);
    let delete = || PoolRequest::DeleteStream {
        pool: POOL.into(),
        stream: RESULTS.into(),
    };
    let client = world.ack(id, attempt);
    assert_eq!(
        refusal(&mut world, client),
        JobError::StreamClosed(POOL.into())
    );
    let deleted = ask(&mut world, delete());
    assert!(matches!(deleted, DispatchResponse::Removed), "{deleted:?}");
    let client = world.ack(id, attempt);
    assert!(matches!(
        heard(&mut world, client),
        DispatchResponse::Reported { .. }
    ));
    assert_eq!(world.messages("results")[0]["job"], id);
    // It is as good as any now.
    let kept = ask(&mut world, delete());
    assert!(
        matches!(kept, DispatchResponse::Refused(JobError::StreamOfPool(_))),
        "{kept:?}"
    );
}

#[test]
fn a_dead_letter_is_stored_before_the_job_is_dead() {
    let mut world = claim();
    let (id, attempt) = with_job(&mut world);
    delete_stream(&mut world, DEAD);
    let refuse = AttemptAction::Refuse {
        after_ms: None,
        reason: "no".into(),
    };
    let client = world.end(id, attempt, refuse);
    assert_eq!(refusal(&mut world, client), JobError::StreamMissing);
    assert!(matches!(
        world.find(id).unwrap().state,
        JobState::Running { .. }
    ));
    // The attempt fails again by itself.
    world.pass(1_000);
    world.settle();
    let dead = world.find(id).unwrap().state;
    assert!(matches!(dead, JobState::Dead { .. }), "{dead:?}");
    assert_eq!(world.messages("dead")[0]["job"], id);
}

#[test]
fn a_pool_takes_over_no_stream_that_clients_have_made() {
    for taken in ["results", "dead", "events"] {
        let mut world = World::empty(PoolLimits::default());
        let name = format!("pool/z/{taken}");
        make_stream(&mut world, &name, JSON);
        for _ in 0..2 {
            let refused = make(&mut world, "z");
            let DispatchResponse::Refused(JobError::StreamTaken(stream)) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!(*stream, *name);
            // It is so behind a restart, too, and whatever the first attempt has left.
            world = world.crash(0);
        }
        let delete = PoolRequest::DeleteStream {
            pool: "z".into(),
            stream: name.into(),
        };
        assert!(matches!(ask(&mut world, delete), DispatchResponse::Removed));
        assert!(matches!(
            make(&mut world, "z"),
            DispatchResponse::Created { existed: false, .. }
        ));
    }
}

#[test]
fn a_pool_continues_the_streams_of_its_name() {
    let mut world = claim();
    let (id, attempt) = with_job(&mut world);
    world.ack(id, attempt);
    world.settle();
    let remove = PoolRequest::Remove {
        pool: POOL.into(),
        force: true,
    };
    assert!(matches!(ask(&mut world, remove), DispatchResponse::Removed));
    for restarts in [false, true] {
        if restarts {
            world = world.crash(0);
        }
        assert!(matches!(
            make(&mut world, POOL),
            DispatchResponse::Created { existed: false, .. }
        ));
        assert_eq!(world.messages("results").len(), 1);
        let remove = PoolRequest::Remove {
            pool: POOL.into(),
            force: true,
        };
        assert!(matches!(ask(&mut world, remove), DispatchResponse::Removed));
    }
    // Without a pool they can be deleted.
    let delete = PoolRequest::DeleteStream {
        pool: POOL.into(),
        stream: RESULTS.into(),
    };
    assert!(matches!(ask(&mut world, delete), DispatchResponse::Removed));
}

#[test]
fn a_creation_that_a_crash_has_cut_can_be_repeated() {
    for before in 0.. {
        let mut world = World::empty(PoolLimits::default());
        let client = world.client();
        let create = PoolRequest::Create {
            pool: "z".into(),
            settings: settings(r#"{"type":"claim"}"#),
        };
        world.ask(client, create);
        for _ in 0..before {
            world.commit(1);
        }
        let complete = world.queue.is_empty();
        let mut world = world.crash(1);
        let again = make(&mut world, "z");
        assert!(
            matches!(again, DispatchResponse::Created { .. }),
            "after {before} commands: {again:?}"
        );
        if complete {
            return;
        }
    }
}

#[test]
fn what_waits_ends_with_its_caller() {
    let mut world = World::new(PoolLimits::default(), r#"{"type":"claim"}"#);
    let waits = |world: &mut World, body: &str| {
        let client = world.client();
        let post = NewJob {
            pool: POOL.into(),
            payload: text(body, None),
            slot: None,
            wait_ms: Some(60_000),
            if_connected: false,
        };
        world.ask(client, PoolRequest::Post(post));
        client
    };
    // A poster that waits gets the state of the job, and so does one whose job is on its way to the log.
    let waiting = waits(&mut world, "#1");
    world.settle();
    world.jobs.caller_ended(world.now(), waiting);
    world.flush();
    let answer = heard(&mut world, waiting);
    assert!(matches!(answer, DispatchResponse::Job(_)), "{answer:?}");
    let early = waits(&mut world, "#2");
    world.jobs.caller_ended(world.now(), early);
    let answer = heard(&mut world, early);
    assert!(
        matches!(answer, DispatchResponse::Posted { .. }),
        "{answer:?}"
    );
    assert_eq!(world.info().stats.waiting, 2, "the jobs go on");

    // A worker that is about to get a job gets none; the next one does.
    let about = world.join("about", None, Some(60_000));
    world.jobs.caller_ended(world.now(), about);
    let answer = heard(&mut world, about);
    assert!(matches!(answer, DispatchResponse::NoJob), "{answer:?}");
    assert!(world.held.is_empty());
    world.join("next", None, Some(60_000));
    world.settle();
    assert_eq!(world.held.len(), 1, "the job of the worker that has ended");
    world.join("last", None, Some(60_000));
    world.settle();

    // A poll without jobs.
    let poll = world.join("poll", None, Some(60_000));
    world.settle();
    world.jobs.caller_ended(world.now(), poll);
    let answer = heard(&mut world, poll);
    assert!(matches!(answer, DispatchResponse::NoJob), "{answer:?}");
    world.post("#3", None, None);
    world.settle();
    assert_eq!(world.info().stats.waiting, 1, "no worker waits");
}

#[test]
fn a_request_that_was_held_is_not_carried_out_for_a_caller_that_has_ended() {
    let limits = PoolLimits {
        segment_records: 2,
        ..PoolLimits::default()
    };
    let mut world = World::new(limits, r#"{"type":"claim","ack_ms":60000}"#);
    let (id, attempt) = with_job(&mut world);
    // Reports on one job make the journal long, until a segment has begun and requests are held.
    let begins = |world: &World| {
        let mut commands = world.queue.iter();
        commands.any(|(_, command)| matches!(command, Command::Create(_)))
    };
    for _ in 0..20 {
        if begins(&world) {
            break;
        }
        world.end(id, attempt, AttemptAction::Extend { ms: None });
        world.commit(1);
    }
    assert!(begins(&world), "a segment has begun");
    let held = world.post("#held", None, None);
    let client = world.client();
    let work = Registration {
        pool: POOL.into(),
        worker: "w".into(),
        slot: None,
        poll_ms: Some(60_000),
        caller: WorkerCaller::Anyone,
    };
    world.ask(client, PoolRequest::Register(work));
    for client in [held, client] {
        assert!(world.heard(client).is_none(), "it is held");
        world.jobs.caller_ended(world.now(), client);
    }
    for client in [held, client] {
        assert_eq!(refusal(&mut world, client), JobError::CallerEnded);
    }
    world.settle();
    let figures = world.info().stats;
    assert_eq!((figures.waiting, figures.running), (0, 1));
}

/// Appends a record as an earlier version has written it; its sequence.
fn append_old(world: &mut World, stream: &str, bytes: Vec<u8>) -> u64 {
    let units = bytes.len() as u32;
    let appended = world.store(Command::Append(Append {
        data: Data { bytes, units },
        ..Append::to(Target::Named(stream.into()))
    }));
    match appended {
        Outcome::Appended { tail, .. } => tail.sequence,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_journal_without_a_key_gets_one_before_a_job_is_given_out() {
    let mut world = World::empty(PoolLimits::default());
    // As version 0.1.0 has left them: the registry, and a journal with a waiting job and one that a worker has.
    let registry = "\u{1}pools";
    for stream in ["results", "dead", "events"] {
        make_stream(&mut world, &format!("pool/{POOL}/{stream}"), JSON);
    }
    make_stream(&mut world, registry, BYTES);
    let made = postcard::to_allocvec(&(0_u8, POOL)).unwrap();
    let no = append_old(&mut world, registry, made);
    let journal = format!("\u{1}pool/{POOL}/{no}/1");
    make_stream(&mut world, &journal, BYTES);
    let jobs = (Vec::<u8>::new(), Vec::<u8>::new(), Vec::<u8>::new());
    let settings = r#"{"type":"claim","ack_ms":60000}"#;
    let begin = (
        0_u8,
        settings,
        (0_u64, 0_u64, 0_u64),
        Vec::<u8>::new(),
        jobs,
    );
    append_old(&mut world, &journal, postcard::to_allocvec(&begin).unwrap());
    let mut post = |body: &str| {
        let head = (1_u8, 0_u32, 1_u32, None::<&str>, "text/plain");
        let mut bytes = postcard::to_allocvec(&head).unwrap();
        bytes.extend_from_slice(body.as_bytes());
        append_old(&mut world, &journal, bytes)
    };
    let (held, waiting) = (post("#held"), post("#waits"));
    let deadline_ms = world.now_ms + 60_000;
    let leased = (2_u8, vec![(0_u8, held, 1_u16, "old", deadline_ms)]);
    append_old(
        &mut world,
        &journal,
        postcard::to_allocvec(&leased).unwrap(),
    );
    let current = postcard::to_allocvec(&(1_u8, no, 1_u32)).unwrap();
    append_old(&mut world, registry, current);

    let mut world = world.crash(0);
    world.join("w", None, None);
    assert_eq!(world.segments(), 1);
    world.settle();
    let figures = world.info().stats;
    assert_eq!((figures.waiting, figures.running), (0, 2));
    let (_, handed) = world.held.pop().expect("the waiting job");
    assert_eq!(handed.id, waiting);
    // The token is good behind another restart, and the old attempt has none that anybody knows.
    let mut world = world.crash(0);
    let ack = |world: &mut World, id, token| {
        let result = text("done", None);
        let client = world.report(id, 1, token, AttemptAction::Ack { result });
        heard(world, client)
    };
    let stolen = ack(&mut world, held, Some(handed.token));
    assert!(matches!(
        stolen,
        DispatchResponse::Refused(JobError::WrongToken { .. })
    ));
    let done = ack(&mut world, waiting, Some(handed.token));
    assert!(
        matches!(done, DispatchResponse::Reported { .. }),
        "{done:?}"
    );
    // Without access control its number is enough.
    let done = ack(&mut world, held, None);
    assert!(
        matches!(done, DispatchResponse::Reported { .. }),
        "{done:?}"
    );
}
