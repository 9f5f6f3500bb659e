//! Pools: two hundred workers that die repeatedly and a server that is killed lose no job.
//!
//! `ENCKE_POOL_JOBS` is the number of jobs; `make pool-load` runs a hundred thousand and prints their rate.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::rig::{Connection, Encke, can_use, data_dir, eventually, raise_descriptors, request};

const WORKERS: u64 = 200;
const SUBMITTERS: u64 = 8;
const KILLS: u64 = 5;
/// One in this many jobs kills its worker.
const DEADLY: u64 = 40;
const JOBS: u64 = 5_000;
const TEXT: &str = "Content-Type: text/plain";

/// The shared state of the test, and its records.
struct Stage {
    address: Mutex<SocketAddr>,
    over: AtomicBool,
    begun: Instant,
    next: AtomicU64,
    jobs: u64,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Jobs whose posts were answered.
    accepted: BTreeSet<u64>,
    /// When each attempt was handed out.
    handed: BTreeMap<(u64, u64), Duration>,
    /// When the acknowledgement of a job was answered.
    done: BTreeMap<u64, Duration>,
    deaths: u64,
    late: u64,
}

impl Stage {
    /// A connection to the server; `None` when it does not listen.
    fn connect(&self) -> Option<Connection> {
        let address = *self.address.lock().expect("not poisoned");
        Connection::try_open(address).ok()
    }
}

/// Posts jobs until there are enough; those whose answer is cut are posted again.
fn submit(stage: &Stage) {
    let mut connection = None;
    loop {
        let number = stage.next.fetch_add(1, Ordering::Relaxed);
        if number >= stage.jobs {
            return;
        }
        let mut tries = 0;
        while try_submit(stage, &mut connection, number).is_none() {
            connection = None;
            tries += 1;
            assert!(tries < 2_000, "job {number} can't be posted");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Posts a job. `None` when the server is overloaded, or hung up before its answer was complete.
fn try_submit(stage: &Stage, connection: &mut Option<Connection>, number: u64) -> Option<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(stage.connect()?),
    };
    let body = format!("job {number}");
    connection.send_anyway(&request("POST", "/v1/pool/load", &[TEXT], body.as_bytes()));
    let answer = connection.answer_if_alive()?;
    if answer.status == 503 {
        return None;
    }
    assert_eq!(answer.status, 202, "{answer:?}");
    let posted: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    let id = posted["job"].as_u64().expect("a job");
    let new = stage
        .books
        .lock()
        .expect("not poisoned")
        .accepted
        .insert(id);
    assert!(new, "{id} was accepted twice");
    Some(())
}

/// Works until the test is over; each death is followed by a worker with a new name.
fn work(stage: &Stage, number: u64) {
    for life in 0.. {
        if stage.over.load(Ordering::Relaxed) {
            return;
        }
        live(stage, &format!("w{number}-{life}"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Takes jobs and acknowledges most of them, until the worker dies or the server hangs up.
fn live(stage: &Stage, name: &str) {
    let (Some(mut jobs), Some(mut acks)) = (stage.connect(), stage.connect()) else {
        return;
    };
    let work = format!("/v1/pool/load/work?worker={name}");
    jobs.send_anyway(&request("POST", &work, &[], b""));
    if jobs.head_if_alive().is_none_or(|head| head.status != 200) {
        return;
    }
    while let Some(event) = jobs.event() {
        if !event.starts_with("event: job\n") {
            continue;
        }
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        let job: serde_json::Value = serde_json::from_str(data.expect("data")).expect("JSON");
        let id = job["job"].as_u64().expect("a job");
        let attempt = job["attempt"].as_u64().expect("an attempt");
        {
            let now = stage.begun.elapsed();
            let mut books = stage.books.lock().expect("not poisoned");
            let before = books.handed.insert((id, attempt), now);
            assert_eq!(before, None, "attempt {attempt} at {id} has two workers");
            if let Some(done) = books.done.get(&id) {
                panic!("{id} was done at {done:?} and is handed out again at {now:?}");
            }
        }
        let fate = (id * 31 + attempt * 17) % DEADLY;
        if fate == 0 {
            stage.books.lock().expect("not poisoned").deaths += 1;
            return;
        }
        let ack = format!("/v1/pool/load/job/{id}/ack?attempt={attempt}");
        acks.send_anyway(&request("POST", &ack, &[TEXT], name.as_bytes()));
        if fate == 1 {
            // It dies before it reads the response.
            stage.books.lock().expect("not poisoned").deaths += 1;
            return;
        }
        let Some(answer) = acks.answer_if_alive() else {
            return;
        };
        let mut books = stage.books.lock().expect("not poisoned");
        match answer.status {
            204 => {
                let before = books.done.insert(id, stage.begun.elapsed());
                assert_eq!(before, None, "{id} was done twice");
            }
            409 | 503 => books.late += 1,
            _ => panic!("{answer:?}"),
        }
    }
}

fn show(encke: &Encke) -> serde_json::Value {
    let shown = encke.ask("GET", "/v1/pool/load", &[], b"");
    assert_eq!(shown.status, 200, "{shown:?}");
    serde_json::from_slice(&shown.body).expect("JSON")
}

#[test]
#[ignore = "long: make test-all"]
fn every_job_is_done_though_workers_and_the_server_are_killed() {
    raise_descriptors();
    let jobs =
        std::env::var("ENCKE_POOL_JOBS").map_or(JOBS, |jobs| jobs.parse().expect("a number"));
    let data = data_dir();
    let mut encke = Encke::start_in(data.path(), &[]);
    // At the end everything that is remembered is looked at.
    let settings = br#"{"type":"claim","ack_ms":2000,"attempts":1000}"#;
    let made = encke.ask("PUT", "/v1/pool/load", &[], settings);
    assert_eq!(made.status, 201, "{made:?}");
    let stage = Arc::new(Stage {
        address: Mutex::new(encke.address),
        over: AtomicBool::new(false),
        begun: Instant::now(),
        next: AtomicU64::new(0),
        jobs,
        books: Mutex::default(),
    });
    let mut threads = Vec::new();
    for number in 0..WORKERS {
        let stage = Arc::clone(&stage);
        threads.push(std::thread::spawn(move || work(&stage, number)));
    }
    let submitters: Vec<_> = (0..SUBMITTERS)
        .map(|_| {
            let stage = Arc::clone(&stage);
            std::thread::spawn(move || submit(&stage))
        })
        .collect();
    for kill in 1..=KILLS {
        let due = jobs * kill / (KILLS + 1);
        let patience = Instant::now();
        while (stage.books.lock().expect("not poisoned").done.len() as u64) < due {
            assert!(
                patience.elapsed() < Duration::from_secs(600),
                "nothing goes on"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        encke.kill();
        encke = Encke::start_in(data.path(), &[]);
        *stage.address.lock().expect("not poisoned") = encke.address;
    }
    for submitter in submitters {
        submitter.join().expect("nothing is wrong");
    }
    let patience = Instant::now();
    loop {
        let shown = show(&encke);
        if shown["waiting"] == 0 && shown["running"] == 0 {
            break;
        }
        assert!(
            patience.elapsed() < Duration::from_secs(600),
            "jobs are left: {shown}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let took = stage.begun.elapsed();
    stage.over.store(true, Ordering::Relaxed);
    // The end of their connections ends the workers.
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0), "{}", stopped.log);
    for thread in threads {
        thread.join().expect("nothing is wrong");
    }
    let encke = Encke::start_in(data.path(), &[]);
    let results = encke.messages("pool/load/results");
    let done: BTreeSet<u64> = results
        .iter()
        .filter_map(|result| result["job"].as_u64())
        .collect();
    let books = stage.books.lock().expect("not poisoned");
    assert!(books.accepted.len() as u64 >= jobs);
    let lost: Vec<_> = books.accepted.difference(&done).collect();
    assert!(lost.is_empty(), "accepted and never done: {lost:?}");
    assert_eq!(encke.messages("pool/load/dead").len(), 0);
    let unheard: Vec<_> = books.done.keys().filter(|id| !done.contains(id)).collect();
    assert!(
        unheard.is_empty(),
        "acknowledged without a result: {unheard:?}"
    );
    let attempts = books.handed.len();
    let tried: BTreeSet<u64> = books.handed.keys().map(|(id, _)| *id).collect();
    eprintln!(
        "{jobs} jobs, {WORKERS} workers, {KILLS} kills of the server: {:.1} s, {:.0} jobs/s; {} workers died, {} attempts \
         at {} jobs, {} acknowledgements came too late",
        took.as_secs_f64(),
        jobs as f64 / took.as_secs_f64(),
        books.deaths,
        attempts,
        tried.len(),
        books.late,
    );
    assert!(books.deaths > 0 && attempts > tried.len(), "no worker died");
}

#[test]
fn a_stop_answers_waiting_clients_and_keeps_jobs() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    let made = encke.ask(
        "PUT",
        "/v1/pool/p",
        &[],
        br#"{"type":"claim","ack_ms":60000}"#,
    );
    assert_eq!(made.status, 201);
    let mut worker = encke.connect();
    worker.send(b"GET /v1/pool/p/work?worker=a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(worker.head().status, 200);
    let posted = encke.ask("POST", "/v1/pool/p", &[], b"one");
    let first: serde_json::Value = serde_json::from_slice(&posted.body).expect("JSON");
    let posted = encke.ask("POST", "/v1/pool/p", &[], b"two");
    assert_eq!(posted.status, 202);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    eventually("the worker has a job", || {
        let has_it = text(worker.input()).contains("event: job");
        has_it || {
            worker.fill();
            false
        }
    });
    let mut waiter = encke.connect();
    waiter.send(b"POST /v1/pool/p?wait=60 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n3");
    eventually("three jobs are there", || {
        let shown = encke.ask("GET", "/v1/pool/p", &[], b"");
        text(&shown.body).contains("\"waiting\":2")
    });
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0), "{}", stopped.log);
    assert_eq!(waiter.answer().status, 202);
    let heard = text(&worker.rest());
    assert!(heard.ends_with("event: stopping\ndata: {}\n\n"), "{heard}");
    // The worker has done its job meanwhile, and says so now.
    let encke = Encke::start_in(data.path(), &[]);
    let shown = encke.ask("GET", "/v1/pool/p", &[], b"");
    let shown: serde_json::Value = serde_json::from_slice(&shown.body).expect("JSON");
    assert_eq!(
        (&shown["running"], &shown["waiting"]),
        (&1.into(), &2.into())
    );
    let ack = format!("/v1/pool/p/job/{}/ack?attempt=1", first["job"]);
    assert_eq!(encke.ask("POST", &ack, &[], b"done").status, 204);
    assert_eq!(encke.metric("encke_pool_jobs", "waiting"), 2.0);
    eventually("the figures are shown", || {
        encke.metric("encke_pool_done_total", "p") == 1.0
    });
}

#[test]
fn full_pools_say_so() {
    let encke = Encke::start(&[
        "--tuning",
        "pools-max=1",
        "--tuning",
        "pool-waiting-max=2",
        "--pool-job-max",
        "1KiB",
    ]);
    let made = encke.ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#);
    assert_eq!(made.status, 201);
    let more = encke.ask("PUT", "/v1/pool/q", &[], br#"{"type":"claim"}"#);
    assert_eq!(more.status, 507);
    let large = encke.ask("POST", "/v1/pool/p", &[], &[b'x'; 1025]);
    assert_eq!(large.status, 413);
    for expected in [202, 202, 503] {
        let posted = encke.ask("POST", "/v1/pool/p", &[], b"x");
        assert_eq!(posted.status, expected);
    }
    assert_eq!(encke.refused("503"), 1);
}

#[test]
fn what_is_not_in_memory_is_read_from_the_log() {
    // Room for some of them.
    let encke = Encke::start(&["--tuning", "pool-cache=1KB"]);
    let made = encke.ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#);
    assert_eq!(made.status, 201);
    for number in 0..20 {
        let body = format!("job {number}");
        assert_eq!(
            encke.ask("POST", "/v1/pool/p", &[], body.as_bytes()).status,
            202
        );
    }
    let cached = || encke.metric("encke_pool_cache_bytes", "");
    eventually("as many are in memory as may be", || {
        (900.0..=1_000.0).contains(&cached())
    });
    for number in 0..20 {
        let got = encke.ask("POST", "/v1/pool/p/work?worker=a&wait=20", &[], b"");
        assert_eq!(got.status, 200);
        assert_eq!(got.body, format!("job {number}").as_bytes());
        let ack = format!(
            "/v1/pool/p/job/{}/ack?attempt=1",
            got.field("Job-Id").expect("a job")
        );
        assert_eq!(encke.ask("POST", &ack, &[], b"").status, 204);
    }
    eventually("nothing is in memory", || cached() == 0.0);
    let loads = encke.metric("encke_pool_loads_total", "");
    assert!((1.0..20.0).contains(&loads), "{loads}");
    // What they waited in to be read has its figures too.
    let metrics = encke.ask("GET", "/metrics", &[], b"");
    let metrics = String::from_utf8(metrics.body).expect("metrics are text");
    let depth = "encke_mailbox_depth{mailbox=\"loader\"} 0";
    assert!(metrics.contains(depth), "{metrics}");
}

#[test]
fn a_worker_that_hangs_up_leaves_its_job_to_the_next() {
    let encke = Encke::start(&["--ack", "accepted"]);
    let settings = br#"{"type":"round_robin","attempts":2}"#;
    let made = encke.ask("PUT", "/v1/pool/p", &[], settings);
    assert_eq!(made.status, 201);
    let mut first = encke.connect();
    first.send(b"GET /v1/pool/p/work?worker=a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(first.head().status, 200);
    assert_eq!(encke.ask("POST", "/v1/pool/p", &[], b"x").status, 202);
    eventually("the first has it", || {
        let has = |input: &[u8]| String::from_utf8_lossy(input).contains("\"attempt\":1");
        has(first.input()) || first.fill() && has(first.input())
    });
    drop(first);
    let got = encke.ask("POST", "/v1/pool/p/work?worker=b&wait=20", &[], b"");
    assert_eq!((got.status, got.field("Job-Attempt")), (200, Some("2")));
    // The metrics show all of it.
    let shows = |name: &str, label: &str, value: f64| {
        eventually(&format!("{name} of {label} is {value}"), || {
            encke.metric(name, label) == value
        });
    };
    shows("encke_pool_retried_total", "pool=\"p\"", 1.0);
    shows("encke_pool_jobs", "running", 1.0);
    shows("encke_pool_worker_jobs_total", "worker=\"a\"", 1.0);
    shows("encke_pool_worker_jobs_total", "worker=\"b\"", 1.0);
    eventually("the job ages", || {
        encke.metric("encke_pool_oldest_seconds", "p") >= 1.0
    });
    let job = got.field("Job-Id").expect("a job");
    let refuse = format!("/v1/pool/p/job/{job}/refuse?attempt=2");
    assert_eq!(encke.ask("POST", &refuse, &[], b"no").status, 204);
    shows("encke_pool_dead_total", "pool=\"p\"", 1.0);
    shows("encke_pool_jobs", "running", 0.0);
    shows("encke_pool_oldest_seconds", "p", 0.0);
}

/// The worker in the documentation, for a shell.
#[test]
fn the_worker_of_the_documentation_works() {
    let script = include_str!("../../docs/pools.md")
        .split_once("whole worker:\n\n```sh\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .expect("the documentation has a worker")
        .0;
    let runs = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if !can_use("curl", || runs("curl")) || !can_use("hostname", || runs("hostname")) {
        return;
    }
    let encke = Encke::start(&[]);
    let pool = "/v1/pool/thumbs";
    let made = encke.ask("PUT", pool, &[], br#"{"type":"claim","attempts":2}"#);
    assert_eq!(made.status, 201);
    // Images are not what this is about: a program that turns around what it can read as text stands for the converter.
    let desk = data_dir();
    let convert = desk.path().join("convert");
    std::fs::write(
        &convert,
        "#!/bin/sh\ngrep -q cat \"$1\" && rev \"$1\" > small\n",
    )
    .expect("a file is written");
    std::fs::set_permissions(&convert, std::fs::Permissions::from_mode(0o755))
        .expect("the file is ours");
    let path = std::env::var("PATH").expect("there is one");
    let mut worker = Command::new("sh")
        .args([
            "-c",
            &script.replace("localhost:4437", &encke.address.to_string()),
        ])
        .env("PATH", format!("{}:{path}", desk.path().display()))
        .current_dir(desk.path())
        .process_group(0)
        .spawn()
        .expect("there is a shell");
    let done = encke.ask(
        "POST",
        &format!("{pool}?wait=20"),
        &["Content-Type: text/plain"],
        b"a cat",
    );
    let failed = encke.ask("POST", &format!("{pool}?wait=20"), &[], b"a dog");
    let group = Pid::from_child(&worker);
    rustix::process::kill_process_group(group, Signal::TERM).expect("it is there");
    worker.wait().expect("it was started here");
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!(done.field("Content-Type"), Some("image/png"));
    assert_eq!(String::from_utf8_lossy(&done.body).trim(), "tac a");
    assert_eq!(failed.status, 502, "{failed:?}");
    let dead = encke.messages("pool/thumbs/dead");
    assert_eq!(dead[0]["reason"], "refused: this is no image");
    assert_eq!(dead[0]["attempts"], 2);
}
