//! The time of day is set while clients, workers and streams wait: what lasts a duration ends when that is over, and what ends at
//! an instant ends when the time of day has come to it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant, SystemTime};

use crate::access::Guarded;
use crate::rig::{
    Connection, Encke, JSON, PATIENCE, SetWhenDropped, SteppedClock, eventually, path, request,
    serve,
};
use crate::upgrades::upgraded;

/// How the time of day is set.
#[derive(Clone, Copy)]
enum Step {
    Once(i64),
    /// So often that a duration by the time of day never ends.
    Again(i64),
}

/// What waits lasts so long, each started before the step. A server measures it in turns, so that it may seem a little shorter.
const LASTS: Duration = Duration::from_secs(4);
const SHORTER: Duration = Duration::from_millis(500);

const TEXT: &str = "Content-Type: text/plain";

#[test]
fn back_by_an_hour() {
    durations_last(Step::Once(-3_600));
}

#[test]
fn back_by_ten_seconds_again_and_again() {
    durations_last(Step::Again(-10));
}

#[test]
fn forward_by_an_hour() {
    durations_last(Step::Once(3_600));
}

/// How many of those that wait have begun to, and the test itself.
#[derive(Default)]
struct Begun(AtomicUsize);

impl Begun {
    /// Notes one more, and waits until all have begun. One that fails before leaves the others to fail, too.
    fn wait(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let all = WAITS.len() + 1;
        eventually("all have begun to wait", || {
            self.0.load(Ordering::SeqCst) == all
        });
    }
}

/// What waits: its name, and what waits for it.
type Wait = (&'static str, fn(&Encke, &Begun) -> Duration);

const WAITS: [Wait; 8] = [
    ("a long poll", long_poll),
    ("a body of which half was sent", half_sent_body),
    ("the wait for a result", wait_for_result),
    ("the poll of a worker", worker_poll),
    ("a running attempt", running_attempt),
    ("the wait for the next attempt", retry),
    ("a sliding lifetime", sliding_lifetime),
    ("a lifetime that an append has renewed", renewed_lifetime),
];

fn durations_last(step: Step) {
    let Some(clock) = SteppedClock::new() else {
        return;
    };
    let data = crate::rig::data_dir();
    let tuning = [
        "--tuning",
        "heartbeat=1s",
        "--tuning",
        "poll-wait=4s",
        "--tuning",
        "request-timeout=4s",
    ];
    let encke = Encke::start_by(clock.applied_to(&mut serve(data.path(), &tuning)));
    encke.create("quiet");
    let soon = expires_at(Duration::from_secs(1_800));
    let made = encke.ask("PUT", &path("until"), &[TEXT, &soon], b"");
    assert_eq!(made.status, 201, "{made:?}");
    let mut quiet = encke.connect();
    quiet.send(&request(
        "GET",
        "/v1/stream/quiet?offset=-1&live=sse",
        &[],
        b"",
    ));
    assert_eq!(quiet.head().status, 200);
    let mut ending = encke.subscribe("until", "-1");

    let begun = Begun::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (server, barrier) = (&encke, &begun);
        let waits = WAITS.map(|(what, wait)| (what, scope.spawn(move || wait(server, barrier))));
        begun.wait();
        // All of them wait when a subscriber has nothing to hear but this.
        heartbeat(&mut quiet);
        heartbeat(&mut quiet);
        let _over = SetWhenDropped(&over);
        set(scope, &clock, step, &over);
        for _ in 0..3 {
            heartbeat(&mut quiet);
        }
        for (what, wait) in waits {
            let lasted = wait.join().expect("it has not panicked");
            assert!(lasted + SHORTER >= LASTS, "{what} lasted {lasted:?}");
        }
    });

    let has_ended = || encke.ask("HEAD", &path("until"), &[], b"").status == 404;
    if matches!(step, Step::Once(1..)) {
        eventually("the stream has come to its end", has_ended);
        assert_eq!(ending.message(), None);
    } else {
        assert!(!has_ended());
        encke.connect().ask("POST", &path("until"), &[TEXT], b"x");
        assert!(!has_ended());
    }
}

fn set<'scope>(
    scope: &'scope Scope<'scope, '_>,
    clock: &'scope SteppedClock,
    step: Step,
    over: &'scope AtomicBool,
) {
    scope.spawn(move || match step {
        Step::Once(by_s) => clock.step(by_s),
        Step::Again(by_s) => {
            while !over.load(Ordering::SeqCst) {
                clock.step(by_s);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
}

/// The field that ends a stream at a time from now, by the machine's own clock.
fn expires_at(later: Duration) -> String {
    let at = jiff::Timestamp::try_from(SystemTime::now() + later).expect("a time");
    format!("Stream-Expires-At: {at:.0}")
}

/// Waits for the next comment of a stream of events in which there is nothing else.
fn heartbeat(connection: &mut Connection) {
    loop {
        let event = connection.event().expect("the subscription goes on");
        if event.trim_start().starts_with(':') {
            return;
        }
    }
}

/// How long the answer to a request takes that is sent before the step, and its status.
fn answer_after(encke: &Encke, begun: &Begun, bytes: &[u8]) -> (Duration, u16) {
    let mut connection = encke.connect();
    let sent = Instant::now();
    connection.send(bytes);
    begun.wait();
    let status = connection.answer().status;
    (sent.elapsed(), status)
}

fn long_poll(encke: &Encke, begun: &Begun) -> Duration {
    let poll = request(
        "GET",
        "/v1/stream/quiet?offset=now&live=long-poll",
        &[],
        b"",
    );
    let (lasted, status) = answer_after(encke, begun, &poll);
    assert_eq!(status, 204);
    lasted
}

fn half_sent_body(encke: &Encke, begun: &Begun) -> Duration {
    let whole = request("POST", &path("quiet"), &[JSON], b"[1,2,3]");
    let (lasted, status) = answer_after(encke, begun, &whole[..whole.len() - 4]);
    assert_eq!(status, 408);
    lasted
}

fn create_pool(encke: &Encke, pool: &str, settings: &str) {
    let made = encke.ask("PUT", &format!("/v1/pool/{pool}"), &[], settings.as_bytes());
    assert_eq!(made.status, 201, "{made:?}");
}

fn wait_for_result(encke: &Encke, begun: &Begun) -> Duration {
    create_pool(encke, "without", r#"{"type":"claim"}"#);
    let post = request("POST", "/v1/pool/without?wait=4", &[TEXT], b"job");
    let (lasted, status) = answer_after(encke, begun, &post);
    assert_eq!(status, 202);
    lasted
}

fn worker_poll(encke: &Encke, begun: &Begun) -> Duration {
    create_pool(encke, "idle", r#"{"type":"claim"}"#);
    let poll = request("GET", "/v1/pool/idle/work?worker=w&wait=4", &[], b"");
    let (lasted, status) = answer_after(encke, begun, &poll);
    assert_eq!(status, 204);
    lasted
}

/// A worker that has the first job of a new pool, and when it got it at the earliest.
fn working(encke: &Encke, pool: &str, settings: &str) -> (Connection, Instant) {
    create_pool(encke, pool, settings);
    let mut worker = encke.connect();
    worker.send(&request(
        "GET",
        &format!("/v1/pool/{pool}/work?worker=w"),
        &[],
        b"",
    ));
    assert_eq!(worker.head().status, 200);
    let posted = Instant::now();
    let post = encke.ask("POST", &format!("/v1/pool/{pool}"), &[TEXT], b"job");
    assert_eq!(post.status, 202, "{post:?}");
    attempt(&mut worker, 1);
    (worker, posted)
}

/// Waits for an attempt.
fn attempt(worker: &mut Connection, number: u64) {
    let begin = Instant::now();
    loop {
        // Heartbeats come in any case.
        assert!(begin.elapsed() < PATIENCE, "attempt {number} does not come");
        let event = worker.event().expect("the worker is connected");
        if !event.starts_with("event: job\n") {
            continue;
        }
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        let job: serde_json::Value = serde_json::from_str(data.expect("data")).expect("JSON");
        assert_eq!(job["attempt"], number, "{job}");
        return;
    }
}

fn running_attempt(encke: &Encke, begun: &Begun) -> Duration {
    let settings = r#"{"type":"claim","ack_ms":4000,"retry_ms":0}"#;
    let (mut worker, given) = working(encke, "slow", settings);
    begun.wait();
    attempt(&mut worker, 2);
    given.elapsed()
}

fn retry(encke: &Encke, begun: &Begun) -> Duration {
    create_pool(encke, "retrying", r#"{"type":"claim"}"#);
    let posted = encke.ask("POST", "/v1/pool/retrying", &[TEXT], b"job");
    let job = posted.field("Job-Id").expect("a job").to_owned();
    let mut worker = encke.connect();
    worker.send(&request("GET", "/v1/pool/retrying/work?worker=w", &[], b""));
    assert_eq!(worker.head().status, 200);
    attempt(&mut worker, 1);
    let refused = Instant::now();
    let refusal = format!("/v1/pool/retrying/job/{job}/refuse?attempt=1&after=4");
    let answer = encke.ask("POST", &refusal, &[TEXT], b"not now");
    assert_eq!(answer.status, 204, "{answer:?}");
    begun.wait();
    attempt(&mut worker, 2);
    refused.elapsed()
}

/// Waits for the end of a stream, in a way that does not renew its lifetime.
fn ends(encke: &Encke, stream: &str) {
    let mut connection = encke.connect();
    eventually("the lifetime is over", || {
        connection.ask("HEAD", &path(stream), &[], b"").status == 404
    });
}

fn sliding_lifetime(encke: &Encke, begun: &Begun) -> Duration {
    let created = Instant::now();
    let made = encke.ask("PUT", &path("short"), &[TEXT, "Stream-TTL: 4"], b"");
    assert_eq!(made.status, 201, "{made:?}");
    begun.wait();
    ends(encke, "short");
    created.elapsed()
}

fn renewed_lifetime(encke: &Encke, begun: &Begun) -> Duration {
    begun.wait();
    // In the middle of steps, or before or behind them.
    let made = encke.ask("PUT", &path("renewed"), &[TEXT, "Stream-TTL: 4"], b"");
    assert_eq!(made.status, 201, "{made:?}");
    let appended = Instant::now();
    let answer = encke.ask("POST", &path("renewed"), &[TEXT], b"x");
    assert_eq!(answer.status, 204, "{answer:?}");
    ends(encke, "renewed");
    appended.elapsed()
}

#[test]
#[ignore = "long: make test-all"]
fn a_token_ends_at_its_time_of_day() {
    for step in [-3_600, -10, 3_600] {
        let Some(clock) = SteppedClock::new() else {
            return;
        };
        let guarded = Guarded::by_clock(&clock, &["--tuning", "heartbeat=1s"]);
        guarded.create("/v1/stream/a", b"[1]");
        let token = guarded.token(&["--sub", "ann", "--expires", "30m", "--allow", "read=/v1/**"]);
        let credentials = format!("Authorization: Bearer {token}");
        let mut subscriber = guarded.encke.connect();
        let subscribe = "/v1/stream/a?offset=-1&live=sse";
        subscriber.send(&request("GET", subscribe, &[&credentials], b""));
        assert_eq!(subscriber.head().status, 200);
        clock.step(step);
        if step > 0 {
            let rest = String::from_utf8(subscriber.rest()).expect("events are text");
            assert!(rest.contains("the token has expired"), "{rest}");
            let answer = guarded.encke.ask("GET", subscribe, &[&credentials], b"");
            assert_eq!(answer.status, 401, "{answer:?}");
            continue;
        }
        for _ in 0..3 {
            heartbeat(&mut subscriber);
        }
    }
}

/// A stop stores deadlines by the time of day as it is then, and an upgrade is one.
#[test]
#[ignore = "long: make test-all"]
fn an_attempt_lasts_over_a_step_and_an_upgrade() {
    for (step, is_upgrade) in [(-60, true), (3_600, true), (-60, false), (3_600, false)] {
        let Some(clock) = SteppedClock::new() else {
            return;
        };
        let data = crate::rig::data_dir();
        let start = || Encke::start_by(clock.applied_to(&mut serve(data.path(), &[])));
        let mut encke = start();
        let settings = r#"{"type":"claim","ack_ms":8000,"retry_ms":0}"#;
        let (worker, given) = working(&encke, "slow", settings);
        clock.step(step);
        if is_upgrade {
            upgraded(data.path());
        } else {
            assert_eq!(encke.terminate().code, Some(0));
            encke = start();
        }
        drop(worker);
        let mut worker = encke.connect();
        worker.send(&request("GET", "/v1/pool/slow/work?worker=w", &[], b""));
        assert_eq!(worker.head().status, 200);
        attempt(&mut worker, 2);
        let lasted = given.elapsed();
        let (least, most) = (Duration::from_millis(7_500), Duration::from_secs(40));
        assert!(least <= lasted && lasted < most, "{step}: {lasted:?}");
    }
}
