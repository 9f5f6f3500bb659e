//! The state of a server outlasts the records that retention of the log removes, whenever retention is set.

use std::collections::BTreeSet;
use std::process::Command;

use aws_lc_rs::digest;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fleet::node;
use crate::rig::websocket::WebSocketClient;
use crate::rig::{
    Answer, Brokers, Encke, Ended, Incompressible, JSON, Receiver, Response, command, data_dir,
    eventually, path, serve,
};

/// A log that keeps about a mebibyte.
pub(crate) const RETENTION: [&str; 2] = ["--retention-size", "1MiB"];

/// Segments of a size that makes records leave soon.
pub(crate) const SMALL: [&str; 6] = [
    "--segment",
    "1MiB",
    "--body-max",
    "256KiB",
    "--order-size",
    "1MiB",
];

/// Appends until retention has removed everything that is in the first log now. `ask` sends a request, and `removed_upto` returns the
/// gauge of the log.
pub(crate) fn fill_past(
    ask: &dyn Fn(&str, &str, &[u8]) -> Response,
    removed_upto: &dyn Fn() -> f64,
) {
    let created = ask("PUT", &path("fill"), b"");
    assert!([200, 201].contains(&created.status), "{created:?}");
    let mut incompressible = Incompressible::default();
    let mut last = None;
    eventually("everything of before is removed", || {
        let body = json!(incompressible.text(128 << 10)).to_string();
        let appended = ask("POST", &path("fill"), body.as_bytes());
        assert_eq!(appended.status, 204, "{appended:?}");
        let offset = appended.field("Stream-Next-Offset").expect("an offset");
        let sequence = u64::from_str_radix(&offset[..16], 16).expect("a number");
        let last = *last.get_or_insert(sequence);
        removed_upto() >= last as f64
    });
}

fn fill(encke: &Encke) {
    fill_past(
        &|method, target, body| encke.ask(method, target, &[JSON], body),
        &|| encke.metric("encke_log_kept_behind", ""),
    );
}

/// A server with an app of the Pusher protocol, whose webhook is called.
struct Kept {
    data: TempDir,
    config: TempDir,
    receiver: Receiver,
}

const JOBS: usize = 20;

impl Kept {
    fn new() -> Kept {
        let (data, config, receiver) = (
            data_dir(),
            data_dir(),
            Receiver::start(Answer::Says(200, "{}")),
        );
        let url = receiver.url();
        let text = format!(
            "[[pusher.apps]]\nid = '1'\nkey = 'k'\nsecret = 'the secret of an app'\n[[pusher.apps.webhooks]]\nurl = '{url}'\n\
             events = ['channel_occupied', 'channel_vacated']\n"
        );
        std::fs::write(config.path().join("encke.toml"), text).expect("a file can be written");
        Kept {
            data,
            config,
            receiver,
        }
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut command = serve(self.data.path(), &[&SMALL[..], flags].concat());
        command
            .arg("--config")
            .arg(self.config.path().join("encke.toml"));
        command
    }

    fn start(&self, flags: &[&str]) -> Encke {
        Encke::start_by(&mut self.command(flags))
    }

    /// The stream with the position of the webhook.
    fn reached_stream(&self) -> String {
        let digest = digest::digest(&digest::SHA256, self.receiver.url().as_bytes());
        let hex: String = digest.as_ref()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("app/1/%23webhook-reached-{hex}")
    }

    /// Writes state of each kind. Returns what must be the same ever after.
    fn write(&self, encke: &Encke) -> State {
        let ask = |method: &str, target: &str, body: &[u8], status: u16| {
            let answer = encke.ask(method, target, &[JSON], body);
            assert_eq!(answer.status, status, "{method} {target}: {answer:?}");
            answer
        };
        ask("PUT", "/v1/pool/p", br#"{"type":"claim"}"#, 201);
        for job in 0..JOBS {
            ask("POST", "/v1/pool/p", job.to_string().as_bytes(), 202);
        }
        let subscription = br#"{"type":"pull-wake","pattern":"jobs/*","wake_stream":"wakes"}"#;
        ask("PUT", &path("wakes"), b"", 201);
        ask("PUT", SUBSCRIPTION, subscription, 201);
        ask("PUT", &path("jobs/a"), b"", 201);
        ask("POST", &path("jobs/a"), b"1", 204);
        let claimed = claim(encke);
        assert_eq!(claimed.status, 200, "{claimed:?}");
        let wake: Value = serde_json::from_slice(&claimed.body).expect("JSON");
        let link = &wake["streams"][0];
        let acks = json!([{ "stream": link["path"], "offset": link["tail_offset"] }]);
        let report = json!({
            "wake_id": wake["wake_id"], "generation": wake["generation"], "acks": acks, "done": true,
        });
        let token = format!(
            "Authorization: Bearer {}",
            wake["token"].as_str().expect("a token")
        );
        let target = format!("{SUBSCRIPTION}/ack");
        let report = report.to_string();
        let done = encke.ask("POST", &target, &[JSON, &token], report.as_bytes());
        assert_eq!(done.status, 200, "{done:?}");
        // A record that waits for a worker.
        ask("POST", &path("jobs/a"), b"2", 204);
        let closed = ["Stream-Closed: true", JSON];
        assert_eq!(encke.ask("PUT", &path("closed"), &closed, b"").status, 201);
        ask("PUT", &path("produced"), b"", 201);
        assert_eq!(produce(encke), 200);
        let target = "/app/k?protocol=7&client=js&version=8.4.0&flash=false";
        let mut client = WebSocketClient::open(encke.address, target, &[]);
        client.message().expect("the server says who it is");
        client.ask(r#"{"event":"pusher:subscribe","data":{"channel":"room"}}"#);
        self.receiver.call(0);
        drop(client);
        self.receiver.call(1);
        let mut state = None;
        eventually("the position of the webhook is stored", || {
            let found = State::of(self, encke);
            let is_reached = found.reached.as_ref() == Some(&found.log_end);
            state = Some(found);
            is_reached
        });
        state.expect("it was found")
    }

    /// Everything is there after retention, and can be used.
    fn check(&self, encke: &Encke, state: &State) {
        assert_eq!(&State::of(self, encke), state);
        assert_eq!(produce(encke), 204, "the producer is known");
        let calls = self.receiver.calls();
        assert_eq!(calls.len(), 2, "the webhook is not called again: {calls:?}");
        assert_eq!(encke.metric("encke_pusher_webhook_gaps_total", ""), 0.0);
    }
}

const SUBSCRIPTION: &str = "/v1/stream/__ds/subscriptions/s";

fn claim(encke: &Encke) -> Response {
    let target = format!("{SUBSCRIPTION}/claim");
    encke.ask("POST", &target, &[JSON], br#"{"worker":"w"}"#)
}

/// The status of an append with the same number: 200 for the first one, 204 for a repetition.
fn produce(encke: &Encke) -> u16 {
    let producer = [
        "Producer-Id: p",
        "Producer-Epoch: 0",
        "Producer-Seq: 0",
        JSON,
    ];
    encke.ask("POST", &path("produced"), &producer, b"1").status
}

/// State as a server shows it.
#[derive(Debug, PartialEq)]
struct State {
    pool: Value,
    subscription: Value,
    webhook_keys: Value,
    reports: Vec<Value>,
    log_end: String,
    reached: Option<String>,
    is_closed: bool,
}

impl State {
    fn of(kept: &Kept, encke: &Encke) -> State {
        let json_at = |target: &str| -> Value {
            let answer = encke.ask("GET", target, &[], b"");
            assert_eq!(answer.status, 200, "{target}: {answer:?}");
            serde_json::from_slice(&answer.body).expect("JSON")
        };
        let log = "app/1/%23webhooks";
        let head = encke.ask("HEAD", &path(log), &[], b"");
        let reached = encke.messages(&kept.reached_stream());
        let reached = reached
            .last()
            .map(|last| last["reached"].as_str().unwrap_or_default().to_owned());
        let pool = json_at("/v1/pool/p");
        State {
            pool: json!([pool["waiting"], pool["running"], pool["done"]]),
            subscription: json_at(SUBSCRIPTION),
            webhook_keys: json_at("/v1/stream/__ds/jwks.json"),
            reports: encke.messages(log),
            log_end: head
                .field("Stream-Next-Offset")
                .unwrap_or_default()
                .to_owned(),
            reached,
            is_closed: encke
                .ask("HEAD", &path("closed"), &[], b"")
                .field("Stream-Closed")
                == Some("true"),
        }
    }
}

fn outlasts_retention(before: &[&str]) {
    let kept = Kept::new();
    let encke = kept.start(before);
    let state = kept.write(&encke);
    encke.kill();
    let checked = kept.command(&RETENTION).arg("--check").output();
    let checked = checked.expect("the command runs");
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let mut encke = kept.start(&RETENTION);
    fill(&encke);
    kept.check(&encke, &state);
    for round in 0..4 {
        match round % 2 {
            0 => encke.kill(),
            _ => assert_eq!(encke.terminate().code, Some(0)),
        }
        let check = Ended::of(command(&["log", "check", "--quiet"]).arg(kept.data.path()));
        assert_eq!(check.code, Some(0), "round {round}: {check:?}");
        encke = kept.start(&RETENTION);
        kept.check(&encke, &state);
        fill(&encke);
        kept.check(&encke, &state);
    }
    assert!(!encke.log().contains("removed"), "{}", encke.log());
    let claimed = claim(&encke);
    assert_eq!(claimed.status, 200, "a record still waits: {claimed:?}");
    let mut done = BTreeSet::new();
    for _ in 0..JOBS {
        let got = encke.ask("POST", "/v1/pool/p/work?worker=a&wait=20", &[], b"");
        assert_eq!(got.status, 200, "{got:?}");
        let job = got.field("Job-Id").expect("a job");
        let ack = format!("/v1/pool/p/job/{job}/ack?attempt=1");
        assert_eq!(encke.ask("POST", &ack, &[], b"").status, 204);
        done.insert(String::from_utf8(got.body).expect("a number"));
    }
    assert_eq!(done.len(), JOBS, "{done:?}");
}

#[test]
fn state_outlasts_a_retention_that_is_set_later() {
    outlasts_retention(&[]);
}

#[test]
fn state_outlasts_a_retention_that_was_there_before() {
    outlasts_retention(&RETENTION);
}

#[test]
fn nodes_of_a_fleet_have_the_same_retention_and_keep_pools() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let dirs = [data_dir(), data_dir(), data_dir()];
    let flags = [&SMALL[..], &RETENTION].concat();
    let start = |name: &str, data: &TempDir| node(&brokers, name, data.path(), &flags);
    let a = start("a", &dirs[0]);
    let made = a.ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#);
    assert_eq!(made.status, 201, "{made:?}");
    for _ in 0..JOBS {
        assert_eq!(a.ask("POST", "/v1/pool/p", &[JSON], b"1").status, 202);
    }
    let other = &mut crate::fleet::command(&brokers, "b", dirs[1].path(), &SMALL);
    let Err(refused) = Encke::try_start_by(other) else {
        panic!("a node without the retention of the others joins");
    };
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let why = "node a has --retention-size 1048576, this node has no retention";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    fill(&a);
    // It takes over from its own copy of what others have removed.
    let b = start("b", &dirs[2]);
    fill(&b);
    a.kill();
    let mut shown = None;
    eventually("the other node dispatches", || {
        let answer = b.ask("GET", "/v1/pool/p", &[], b"");
        let is_there = answer.status == 200;
        shown = Some(answer);
        is_there
    });
    let shown: Value = serde_json::from_slice(&shown.expect("an answer").body).expect("JSON");
    assert_eq!(shown["waiting"], JOBS, "{shown}");
}
