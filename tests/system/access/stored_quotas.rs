//! Quotas of what callers store: streams and bytes, by whatever path and wire, and over restarts.

use serde_json::{Value, json};

use super::quotas::with_quotas;
use super::{Guarded, bearer, data_dir};
use crate::rig::http2::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, Http2Client};
use crate::rig::websocket::WebSocketClient;
use crate::rig::{Brokers, JSON, Response, eventually};

const BINARY: &str = "Content-Type: application/octet-stream";
const STREAMS: &str = "quota_streams";
const BYTES: &str = "quota_stored_bytes";

fn limited(quotas: &str) -> Guarded {
    let guarded = Guarded::start(&[]);
    guarded.reload(&with_quotas(quotas));
    guarded
}

/// A caller of a server.
struct Writer<'a> {
    guarded: &'a Guarded,
    token: String,
}

impl<'a> Writer<'a> {
    /// One that may do anything. Each `jti` is another token of the subject.
    fn of(guarded: &'a Guarded, subject: &str, jti: &str) -> Self {
        let mut arguments = vec!["--sub", subject, "--jti", jti, "--expires", "1h"];
        let all = ["read", "append", "create", "delete", "own"].map(|one| format!("{one}=/v1/**"));
        arguments.extend(all.iter().flat_map(|allow| ["--allow", allow]));
        let token = bearer(&guarded.token(&arguments));
        Writer { guarded, token }
    }

    fn ask(&self, method: &str, name: &str, fields: &[&str], body: &[u8]) -> Response {
        let fields = [&[&*self.token], fields].concat();
        let path = format!("/v1/stream/{name}");
        self.guarded.encke.ask(method, &path, &fields, body)
    }

    fn put(&self, name: &str, fields: &[&str], body: &[u8]) -> u16 {
        self.ask("PUT", name, fields, body).status
    }

    fn post(&self, name: &str, bytes: usize) -> u16 {
        self.ask("POST", name, &[BINARY], &vec![b'x'; bytes]).status
    }

    fn refused(&self, code: &str, (method, name): (&str, &str), fields: &[&str], body: &[u8]) {
        let answer = self.ask(method, name, fields, body);
        self.guarded.refused(&answer, code);
    }

    /// Its streams, and the bytes that they store.
    fn used(&self, subject: &str) -> (u64, u64) {
        let used = self.guarded.used_by(subject);
        let number = |what: &str| used[what]["used"].as_u64().expect("a number");
        (number("streams"), number("stored_bytes"))
    }
}

#[test]
fn revocations_are_stored_whatever_the_callers_have_used_up() {
    let guarded = limited("streams = 1\nstored-bytes = 10\n");
    let allow = "admin,create,append=/v1/**";
    let token = bearer(&guarded.token(&["--sub", "ops", "--allow", allow]));
    let (place, data) = ("/v1/stream/a", [b'x'; 10]);
    let created = guarded.encke.ask("PUT", place, &[BINARY, &token], &data);
    assert_eq!(created.status, 201, "{created:?}");
    let full = guarded.encke.ask("POST", place, &[BINARY, &token], b"x");
    guarded.refused(&full, BYTES);
    for subject in ["bob", "eve"] {
        let body = json!({ "sub": subject }).to_string();
        let fields = [JSON, &*token];
        let revoked = guarded
            .encke
            .ask("POST", "/v1/admin/revoke", &fields, body.as_bytes());
        assert_eq!(revoked.status, 204, "{revoked:?}");
    }
    let used = guarded.used_by("ops");
    assert_eq!(
        (&used["streams"]["used"], &used["stored_bytes"]["used"]),
        (&1.into(), &10.into())
    );
}

#[test]
fn streams_are_bounded_by_whatever_they_are_made() {
    let guarded = limited("streams = 3\n");
    let ann = Writer::of(&guarded, "ann", "1");
    assert_eq!(ann.put("a", &[BINARY], b"data"), 201);
    assert_eq!(ann.put("b", &[BINARY], b""), 201);
    let fork = ["Stream-Forked-From: /v1/stream/a"];
    assert_eq!(ann.put("fork", &fork, b""), 201);
    // Another token of the same subject, on every path.
    let again = Writer::of(&guarded, "ann", "2");
    again.refused(STREAMS, ("PUT", "c"), &[BINARY], b"");
    again.refused(STREAMS, ("PUT", "c"), &[BINARY], b"data");
    again.refused(STREAMS, ("PUT", "c"), &fork, b"");
    again.refused(STREAMS, ("PUT", "c"), &[BINARY, "Encke-Owner: true"], b"");
    let closed = [BINARY, "Stream-Closed: true"];
    again.refused(STREAMS, ("PUT", "c"), &closed, b"");
    let mut http2 = Http2Client::open(guarded.encke.address, &[]);
    let mut fields = Frame::fields("PUT", "/v1/stream/c");
    let value = again.token.trim_start_matches("Authorization: ");
    fields.push(("authorization", value));
    http2.send(&Frame::headers(5, 1, &fields));
    assert_eq!(http2.error_code(1), STREAMS);
    assert_eq!(ann.ask("HEAD", "c", &[], b"").status, 404);
    // What exists is confirmed as ever, and what one has can be used.
    assert_eq!(again.put("b", &[BINARY], b""), 200);
    assert_eq!(ann.post("b", 10), 204);
    // A limit of one is none of another, and the backend has none.
    assert_eq!(
        Writer::of(&guarded, "bob", "1").put("c", &[BINARY], b""),
        201
    );
    guarded.create("/v1/stream/d", b"[1]");
    assert_eq!(ann.used("ann"), (3, 14));
    // A deleted stream whose data a fork has is no stream, and its bytes count as long as the fork needs them.
    assert_eq!(ann.ask("DELETE", "a", &[], b"").status, 204);
    assert_eq!(ann.used("ann"), (2, 14));
    assert_eq!(ann.put("e", &[BINARY], b""), 201);
    again.refused(STREAMS, ("PUT", "f"), &[BINARY], b"");
    assert_eq!(ann.ask("DELETE", "fork", &[], b"").status, 204);
    assert_eq!(ann.used("ann"), (2, 10));
    // What ends by itself counts until then.
    assert_eq!(ann.put("short", &[BINARY, "Stream-TTL: 5"], b"abc"), 201);
    again.refused(STREAMS, ("PUT", "f"), &[BINARY], b"");
    eventually("the stream has ended", || ann.used("ann") == (2, 10));
    assert_eq!(ann.put("f", &[BINARY], b""), 201);
    let metric = "encke_quotas_exceeded_total{quota=\"streams\"}";
    assert_eq!(guarded.metric(metric), 8);
    assert_eq!(guarded.used_by("ann")["exceeded"], 8);
}

#[test]
fn bytes_are_bounded_by_whatever_they_come() {
    let guarded = limited("stored-bytes = 1000\n");
    let (ann, bob) = (
        Writer::of(&guarded, "ann", "1"),
        Writer::of(&guarded, "bob", "1"),
    );
    assert_eq!(ann.put("a", &[BINARY], b""), 201);
    assert_eq!(ann.put("json", &[JSON], b"[1,2]"), 201);
    assert_eq!(bob.put("b", &[BINARY], b""), 201);
    assert_eq!(ann.post("a", 900), 204);
    assert_eq!(ann.used("ann"), (2, 903));
    // The account of a stream pays, whoever appends.
    let hundred = vec![b'x'; 100];
    bob.refused(BYTES, ("POST", "a"), &[BINARY], &hundred);
    ann.refused(BYTES, ("POST", "a"), &[BINARY], &hundred);
    assert_eq!(ann.post("b", 1_000), 204);
    bob.refused(BYTES, ("POST", "b"), &[BINARY], b"x");
    let many = json!(vec![7; 100]).to_string().into_bytes();
    ann.refused(BYTES, ("POST", "json"), &[JSON], &many);
    ann.refused(BYTES, ("PUT", "new"), &[BINARY], &hundred);
    let fork = ["Stream-Forked-From: /v1/stream/b", BINARY];
    ann.refused(BYTES, ("PUT", "new"), &fork, &hundred);
    let metadata = format!("Encke-Metadata: {{\"a\":\"{}\"}}", "x".repeat(100));
    ann.refused(BYTES, ("PUT", "new"), &[BINARY, &metadata], b"");
    ann.refused(BYTES, ("POST", "a"), &[BINARY, &metadata], b"");
    let closes = [BINARY, "Stream-Closed: true"];
    ann.refused(BYTES, ("POST", "a"), &closes, &hundred);
    let mut channel = WebSocketClient::open(guarded.encke.address, "/v1/events", &[&bob.token]);
    let append = json!({"type": "append", "id": 7, "stream": "json", "data": "x".repeat(100)});
    let refused = channel.ask(&append.to_string());
    assert_eq!(
        (&refused["id"], &refused["status"], &refused["code"]),
        (&json!(7), &json!(429), &json!(BYTES)),
        "{refused}"
    );
    let mut http2 = Http2Client::open(guarded.encke.address, &[]);
    let mut fields = Frame::fields("POST", "/v1/stream/a");
    let value = ann.token.trim_start_matches("Authorization: ");
    fields.extend([
        ("authorization", value),
        ("content-type", "application/octet-stream"),
    ]);
    http2.send(&Frame::headers(4, 1, &fields));
    http2.send(&Frame::new(0, 1, 1, &hundred));
    assert_eq!(http2.error_code(1), BYTES);
    assert_eq!(ann.used("ann"), (2, 903), "nothing was stored");
    // What fits is taken, up to the last byte, and so is what stores nothing.
    assert_eq!(ann.post("a", 97), 204);
    assert_eq!(ann.used("ann"), (2, 1_000));
    ann.refused(BYTES, ("POST", "a"), &[BINARY], b"x");
    assert_eq!(ann.put("empty", &[BINARY], b""), 201);
    assert_eq!(
        ann.ask("POST", "a", &["Stream-Closed: true"], b"").status,
        204
    );
    // A deletion gives everything back, and a fork of what others pay for costs nothing.
    assert_eq!(ann.ask("DELETE", "a", &[], b"").status, 204);
    assert_eq!(
        ann.put("fork", &["Stream-Forked-From: /v1/stream/b"], b""),
        201
    );
    assert_eq!(ann.used("ann"), (3, 3));
    // A retention gives back what it removes; a truncation of a stream without one does not.
    let kept = [BINARY, "Encke-Retention: bytes=200"];
    assert_eq!(ann.put("kept", &kept, b""), 201);
    for _ in 0..40 {
        assert_eq!(ann.post("kept", 100), 204);
    }
    let (_, bytes) = ann.used("ann");
    assert!((203..=503).contains(&bytes), "{bytes}");
    // A truncation of one record gives nothing back, and of all of them everything.
    assert_eq!(
        ann.put("cut", &[BINARY, "Encke-Retention: records=1000000"], b""),
        201
    );
    for _ in 0..3 {
        assert_eq!(ann.post("cut", 50), 204);
    }
    let offset = ann.ask("HEAD", "cut", &[], b"");
    let last = offset
        .field("Stream-Next-Offset")
        .expect("an offset")
        .to_owned();
    assert_eq!(ann.post("cut", 50), 204);
    let truncate = |fields: &[&str]| {
        let answer = ann.ask("POST", "cut", fields, b"");
        assert!(answer.status < 300, "{answer:?}");
    };
    truncate(&[&format!("Encke-Truncate: {last}")]);
    assert_eq!(ann.used("ann").1, bytes + 200);
    truncate(&["Encke-Truncate: now"]);
    assert_eq!(ann.used("ann").1, bytes);
    assert_eq!(ann.post("fork", 100), 204);
    let truncated = ann.ask("POST", "fork", &["Encke-Truncate: now"], b"");
    assert!(truncated.status < 300, "{truncated:?}");
    assert_eq!(ann.used("ann").1, bytes + 100);
    let metric = "encke_quotas_exceeded_total{quota=\"stored-bytes\"}";
    assert_eq!(guarded.metric(metric), 12);
}

#[test]
fn limits_of_one_caller_and_of_a_reload() {
    let guarded = Guarded::start(&[]);
    // What is made before there are quotas is nobody's.
    let ann = Writer::of(&guarded, "ann", "1");
    assert_eq!(ann.put("before", &[BINARY], b"data"), 201);
    guarded.reload(&with_quotas("streams = 1\n"));
    assert_eq!(ann.put("a", &[BINARY], b""), 201);
    ann.refused(STREAMS, ("PUT", "b"), &[BINARY], b"");
    assert_eq!(ann.post("before", 100), 204);
    assert_eq!(ann.used("ann"), (1, 0));
    let more = format!(
        "{}[[access.quotas.overrides]]\nname = 'app'\nsubject = 'ann'\nstreams = 3\n",
        with_quotas("streams = 1\n")
    );
    guarded.reload(&more);
    assert_eq!(ann.put("b", &[BINARY], b""), 201);
    assert_eq!(ann.put("c", &[BINARY], b""), 201);
    ann.refused(STREAMS, ("PUT", "d"), &[BINARY], b"");
    let bob = Writer::of(&guarded, "bob", "1");
    assert_eq!(bob.put("e", &[BINARY], b""), 201);
    bob.refused(STREAMS, ("PUT", "f"), &[BINARY], b"");
    // Below what is used: everything stays, and nothing comes to it.
    guarded.reload(&with_quotas("streams = 1\nstored-bytes = 1\n"));
    assert_eq!(ann.used("ann"), (3, 0));
    ann.refused(STREAMS, ("PUT", "d"), &[BINARY], b"");
    assert_eq!(ann.post("a", 1), 204);
    ann.refused(BYTES, ("POST", "b"), &[BINARY], b"x");
    assert_eq!(ann.ask("GET", "a", &[], b"").body, b"x");
}

#[test]
fn usage_survives_restarts_and_kills() {
    let (mut guarded, data) = Guarded::start_in(data_dir(), &[]);
    guarded.reload(&with_quotas("streams = 5\nstored-bytes = 1000\n"));
    let mut expected = Value::Null;
    // Each round restarts in another way; between them the accounts change.
    for round in 0..4_u64 {
        let ann = Writer::of(&guarded, "ann", &round.to_string());
        if round > 0 {
            let usage = guarded.usage();
            let callers = usage["callers"].as_array().expect("a list").iter();
            let stored = callers.filter(|one| one["streams"]["used"] != 0);
            let stored: Vec<_> = stored
                .map(|one| (&one["account"], &one["streams"], &one["stored_bytes"]))
                .collect();
            assert_eq!(json!(stored), expected, "round {round}");
        }
        let name = format!("s{round}");
        assert_eq!(ann.put(&name, &[BINARY], b"1234567890"), 201);
        assert_eq!(ann.post("s0", 5), 204);
        if round == 2 {
            assert_eq!(ann.ask("DELETE", "s1", &[], b"").status, 204);
        }
        let streams = if round < 2 { round + 1 } else { round };
        let used = (streams, 10 * streams + 5 * (round + 1));
        assert_eq!(ann.used("ann"), used);
        let of_ann = guarded.used_by("ann");
        expected = json!([(
            &of_ann["account"],
            &of_ann["streams"],
            &of_ann["stored_bytes"]
        )]);
        guarded = guarded.restarted(data.path(), |encke| match round % 2 {
            0 => encke.kill(),
            _ => drop(encke.terminate()),
        });
    }
    // Nobody has said the name of the subject again.
    let usage = guarded.usage();
    let stored = &usage["callers"][0];
    assert_eq!(
        (&stored["name"], &stored["subject"], &stored["kind"]),
        (&json!("app"), &Value::Null, &Value::Null),
        "{usage}"
    );
    let ann = Writer::of(&guarded, "ann", "last");
    assert_eq!(ann.put("s8", &[BINARY], b""), 201);
    assert_eq!(ann.put("s9", &[BINARY], b""), 201);
    ann.refused(STREAMS, ("PUT", "s10"), &[BINARY], b"");
}

#[test]
fn an_account_is_one_over_several_logs_and_all_urls_of_a_key() {
    let guarded = Guarded::start(&["--logs", "3"]);
    guarded.reload(&with_quotas("streams = 8\nstored-bytes = 100\n"));
    let ann = Writer::of(&guarded, "ann", "1");
    for number in 0..8 {
        assert_eq!(
            ann.put(&format!("s{number}"), &[BINARY], b"1234567890"),
            201
        );
    }
    ann.refused(STREAMS, ("PUT", "s8"), &[BINARY], b"");
    assert_eq!(ann.used("ann"), (8, 80));
    assert_eq!(ann.post("s0", 20), 204);
    ann.refused(BYTES, ("POST", "s1"), &[BINARY], b"x");
    // Whoever has a signed URL is the key that signed it.
    let put = |number: u32| {
        let target = format!("/v1/stream/u{number}");
        let signed = guarded.signed("PUT", &target, &[BINARY]);
        guarded.encke.ask("PUT", &signed, &[BINARY], b"")
    };
    for number in 0..8 {
        assert_eq!(put(number).status, 201);
    }
    guarded.refused(&put(8), STREAMS);
    assert_eq!(put(0).status, 200);
}

/// Sends requests with ten bytes each at once, and waits for their responses.
fn at_once(writer: &Writer<'_>, method: &str, names: &[String]) {
    let mut client = Http2Client::open(writer.guarded.encke.address, &[]);
    let credentials = writer.token.trim_start_matches("Authorization: ");
    let mut bytes = Vec::new();
    for (name, stream) in names.iter().zip((1..).step_by(2)) {
        let path = format!("/v1/stream/{name}");
        let mut fields = Frame::fields(method, &path);
        fields.push(("content-type", "application/octet-stream"));
        fields.push(("authorization", credentials));
        bytes.extend(Frame::headers(END_HEADERS, stream, &fields).bytes());
        bytes.extend(Frame::new(DATA, END_STREAM, stream, b"1234567890").bytes());
    }
    client.send_bytes(&bytes);
    for _ in names {
        client.until(HEADERS);
    }
}

#[test]
fn requests_at_once_exceed_no_quota() {
    for flags in [&[][..], &["--logs", "3"], &["--ack", "accepted"]] {
        let guarded = Guarded::start(flags);
        guarded.reload(&with_quotas("streams = 5\nstored-bytes = 200\n"));
        let ann = Writer::of(&guarded, "ann", "1");
        let names: Vec<String> = (0..90).map(|number| format!("s{number}")).collect();
        at_once(&ann, "PUT", &names);
        assert_eq!(ann.used("ann"), (5, 50), "{flags:?}");
        let is_there = |name: &&String| ann.ask("HEAD", name, &[], b"").status == 200;
        let name = names.iter().find(is_there).expect("five are there");
        at_once(&ann, "POST", &vec![name.clone(); 90]);
        assert_eq!(ann.used("ann"), (5, 200), "{flags:?}");
    }
}

#[test]
fn an_account_is_one_at_all_nodes_of_a_fleet() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let node = |name: &str| {
        let (node, data) = Guarded::node(&brokers, name);
        node.reload(&with_quotas("streams = 2\nstored-bytes = 100\n"));
        (node, data)
    };
    let ((a, _a_data), (b, _b_data)) = (node("a"), node("b"));
    let (at_a, at_b) = (Writer::of(&a, "ann", "1"), Writer::of(&b, "ann", "2"));
    assert_eq!(at_a.put("s", &[BINARY], b""), 201);
    assert_eq!(at_b.put("t", &[BINARY], &[b'x'; 60]), 201);
    for writer in [&at_a, &at_b] {
        eventually("the node knows both streams", || {
            writer.used("ann") == (2, 60)
        });
        writer.refused(STREAMS, ("PUT", "u"), &[BINARY], b"");
        writer.refused(BYTES, ("POST", "s"), &[BINARY], &[b'x'; 50]);
    }
    assert_eq!(at_b.post("s", 40), 204);
    eventually("the other node knows", || at_a.used("ann") == (2, 100));
    at_a.refused(BYTES, ("POST", "t"), &[BINARY], b"x");
}
