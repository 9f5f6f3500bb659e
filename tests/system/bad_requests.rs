//! Valid HTTP with invalid requests: each gets a definite status and is counted; the connection stays open.

use crate::rig::{Bystanders, Connection, Encke, JSON, path};

const S: &str = "/v1/stream/s";
const POOL: &str = "/v1/pool/p";
const TEXT: &str = "Content-Type: text/plain";

/// A server with the stream `s` of JSON, and a client that asks for nonsense.
struct Nonsense {
    encke: Encke,
    connection: Connection,
}

impl Nonsense {
    fn start() -> Nonsense {
        let encke = Encke::start(&[]);
        encke.create("s");
        Nonsense {
            connection: encke.connect(),
            encke,
        }
    }

    /// The request is refused with that status and code.
    fn refuses(
        &mut self,
        status: u16,
        code: &str,
        method: &str,
        target: &str,
        fields: &[&str],
        body: &[u8],
    ) {
        let before = self.encke.refused(&status.to_string());
        let answer = self.connection.ask(method, target, fields, body);
        let what = format!("{method} {target} {fields:?}");
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert_eq!(answer.error_code(), code, "{what}");
        assert!(!answer.closes(), "{what}");
        let after = self.encke.refused(&status.to_string());
        assert_eq!(after, before + 1, "{what} is counted");
    }
}

#[test]
fn bodies() {
    let mut nonsense = Nonsense::start();
    let bystanders = Bystanders::of(&nonsense.encke);
    let t = "/v1/stream/t";
    let made = nonsense.connection.ask("PUT", t, &[TEXT], b"");
    assert_eq!(made.status, 201);
    for body in [
        b"{\"a\":".as_slice(),
        b"[1,]",
        b"1 2",
        b"\xff",
        b"\"\xff\"",
        b"\xef\xbb\xbf1",
    ] {
        nonsense.refuses(400, "bad_json", "POST", S, &[JSON], body);
        nonsense.refuses(400, "bad_json", "PUT", "/v1/stream/new", &[JSON], body);
    }
    let deep = "[".repeat(100_000);
    nonsense.refuses(400, "bad_json", "POST", S, &[JSON], deep.as_bytes());
    nonsense.refuses(400, "empty_array", "POST", S, &[JSON], b" [ ] ");
    nonsense.refuses(400, "empty_body", "POST", S, &[JSON], b"");
    nonsense.refuses(400, "missing_content_type", "POST", S, &[], b"1");
    nonsense.refuses(
        400,
        "missing_content_type",
        "POST",
        S,
        &["Content-Type:"],
        b"1",
    );
    nonsense.refuses(409, "type_differs", "POST", S, &[TEXT], b"1");
    nonsense.refuses(409, "type_differs", "POST", t, &[JSON], b"1");
    nonsense.refuses(409, "config_differs", "PUT", S, &[TEXT], b"");
    // A field that is no text.
    let append = b"POST /v1/stream/s HTTP/1.1\r\nHost: x\r\nContent-Type: \xff\r\nContent-Length: 1\r\n\r\n1";
    nonsense.connection.send(append);
    assert_eq!(nonsense.connection.answer().status, 400);
    assert!(nonsense.encke.numbers("s").is_empty());
    nonsense.refuses(404, "not_found", "GET", "/v1/stream/new", &[], b"");
    bystanders.were_not_disturbed();
}

#[test]
fn names_and_methods() {
    let mut nonsense = Nonsense::start();
    let bystanders = Bystanders::of(&nonsense.encke);
    for method in ["GET", "DELETE"] {
        nonsense.refuses(404, "not_found", method, "/v1/stream/none", &[], b"");
    }
    nonsense.refuses(404, "not_found", "POST", "/v1/stream/none", &[JSON], b"1");
    let long = "a".repeat(1025);
    for name in [
        "",
        "%",
        "%4",
        "%zz",
        "%ff",
        "%00",
        "a%0d%0ab",
        "%7f",
        ".",
        "..",
        "a/../b",
        "a/%2E%2e/b",
        "a/./b",
        &long,
    ] {
        for method in ["GET", "PUT", "DELETE"] {
            nonsense.refuses(400, "bad_path", method, &path(name), &[], b"");
        }
    }
    // Outside of the streams nothing is found, whatever way is tried.
    nonsense.refuses(404, "not_found", "GET", "/v1/streams", &[], b"");
    for target in [
        "/v1/../etc/passwd",
        "/../../etc/passwd",
        "/v1/%2e%2e/etc/passwd",
    ] {
        nonsense.refuses(400, "bad_path", "GET", target, &[], b"");
    }
    // One rule for all paths: no empty segment.
    for target in [
        "//v1/stream/s",
        "/v1/stream/s/",
        "/v1/stream/s%2F",
        "/v1/pool/",
        "/v1/pool/p/",
        "/v1/pool/p%2F",
        "/v1/events/?stream=s",
        "/metrics/",
    ] {
        nonsense.refuses(400, "bad_path", "GET", target, &[], b"");
    }
    for method in ["BREW", "get", "PATCH", "TRACE"] {
        nonsense.refuses(405, "method_not_allowed", method, S, &[JSON], b"1");
    }
    for (method, target) in [
        ("BREW", S),
        ("POST", "/"),
        ("DELETE", "/metrics"),
        ("PUT", "/readyz"),
    ] {
        let answer = nonsense.connection.ask(method, target, &[], b"");
        assert_eq!(answer.status, 405, "{answer:?}");
        let allowed = answer.field("Allow").expect("405 says what is allowed");
        assert!(allowed.split(", ").any(|allowed| allowed == "GET"));
        assert!(!allowed.split(", ").any(|allowed| allowed == method));
    }
    bystanders.were_not_disturbed();
}

#[test]
fn offsets() {
    let mut nonsense = Nonsense::start();
    let bystanders = Bystanders::of(&nonsense.encke);
    for query in [
        "offset=",
        "offset=x",
        "offset=-2",
        "offset=0",
        "offset=-1&offset=-1",
        "offset=%2e%2e%2f",
        "offset=%f",
        "offset=%00",
        "offset=0000000000000000_000000000000000g",
        "offset=00000000000000FF_0000000000000000",
        "offset=0000000000000000_ffffffffffffffff",
        "offset=0000000000000000",
        "offset=-1&live=yes",
        "offset=-1&live=",
        "live=sse",
        "live=long-poll",
        "%ff=1",
    ] {
        let target = format!("{S}?{query}");
        nonsense.refuses(400, "bad_parameter", "GET", &target, &[], b"");
    }
    for beyond in [
        "00000000ffffffff_0000000000000000",
        "ffffffffffffffff_00000000ffffffff",
    ] {
        for live in ["", "&live=sse", "&live=long-poll"] {
            let target = format!("{S}?offset={beyond}{live}");
            nonsense.refuses(400, "beyond_tail", "GET", &target, &[], b"");
        }
    }
    bystanders.were_not_disturbed();
}

#[test]
fn fields() {
    let mut nonsense = Nonsense::start();
    let bystanders = Bystanders::of(&nonsense.encke);
    let (id, epoch, seq) = ("Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 0");
    let long = format!("Producer-Id: {}", "p".repeat(257));
    for producer in [
        &[id][..],
        &[epoch],
        &[seq],
        &[id, epoch],
        &[id, seq],
        &[epoch, seq],
        &["Producer-Id:", epoch, seq],
        &[&long, epoch, seq],
        &[id, "Producer-Epoch: -1", seq],
        &[id, "Producer-Epoch: 01", seq],
        &[id, "Producer-Epoch: 9007199254740992", seq],
        &[id, epoch, "Producer-Seq: 99999999999999999999"],
        &[id, epoch, "Producer-Seq: 1.5"],
        &[id, epoch, "Producer-Seq: one"],
        &[id, epoch, "Producer-Seq:"],
    ] {
        let fields = [&[JSON], producer].concat();
        nonsense.refuses(400, "bad_field", "POST", S, &fields, b"1");
    }
    let gap = [JSON, id, "Producer-Epoch: 1", "Producer-Seq: 5"];
    nonsense.refuses(409, "sequence_gap", "POST", S, &gap, b"1");
    for fields in [
        &["Stream-TTL: soon"][..],
        &["Stream-TTL: -1"],
        &["Stream-TTL: 01"],
        &["Stream-TTL: 1", "Stream-Expires-At: 2099-01-01T00:00:00Z"],
        &["Stream-Expires-At: tomorrow"],
        &["Stream-Expires-At: 2099-02-30T00:00:00Z"],
        &["Stream-Forked-From: s", "Stream-Fork-Offset: x"],
        &["Stream-Forked-From: s", "Stream-Fork-Sub-Offset: 1"],
        &["Stream-Forked-From: %zz"],
        &["Stream-Fork-Offset: -1"],
    ] {
        nonsense.refuses(400, "bad_field", "PUT", "/v1/stream/new", fields, b"");
    }
    let fork = ["Stream-Forked-From: none"];
    nonsense.refuses(404, "source_not_found", "PUT", "/v1/stream/new", &fork, b"");
    nonsense.refuses(404, "not_found", "GET", "/v1/stream/new", &[], b"");
    // Nothing makes a job, nor an append without its producer, count once.
    let pool = br#"{"type":"claim"}"#;
    assert_eq!(nonsense.encke.ask("PUT", POOL, &[], pool).status, 201);
    for field in [id, epoch, seq, "Stream-Seq: a", "idempotency-key: a"] {
        nonsense.refuses(400, "bad_field", "POST", POOL, &[JSON, field], b"1");
    }
    let key = [JSON, "Idempotency-Key: a"];
    nonsense.refuses(400, "bad_field", "POST", S, &key, b"1");
    let described = nonsense.encke.ask("GET", POOL, &[], b"");
    let described: serde_json::Value = serde_json::from_slice(&described.body).expect("JSON");
    assert_eq!(described["waiting"], 0, "{described}");
    assert!(nonsense.encke.numbers("s").is_empty());
    bystanders.were_not_disturbed();
}

#[test]
fn offsets_of_an_earlier_stream() {
    let mut nonsense = Nonsense::start();
    let old = nonsense.connection.ask("POST", S, &[JSON], b"1");
    let old = old.field("Stream-Next-Offset").expect("a place").to_owned();
    let gone = nonsense.connection.ask("DELETE", S, &[], b"");
    assert_eq!(gone.status, 204);
    let target = format!("{S}?offset={old}");
    nonsense.refuses(404, "not_found", "GET", &target, &[], b"");
    nonsense.encke.create("s");
    for live in ["", "&live=sse", "&live=long-poll"] {
        let target = format!("{target}{live}");
        nonsense.refuses(410, "before_start", "GET", &target, &[], b"");
    }
    // Nor does an offset of the new one lead into the old one.
    let new = nonsense.connection.ask("POST", S, &[JSON], b"2");
    let new = new.field("Stream-Next-Offset").expect("a place").to_owned();
    assert!(new > old, "tokens are never given twice");
    assert_eq!(nonsense.encke.numbers("s"), [2]);
}
