//! Signed URLs over real sockets: the signed request, and nothing else.

use std::io::Read;

use super::{API_KEY, Guarded, bearer};
use crate::rig::{Ended, command, request};

impl Guarded {
    /// A URL that `encke sign` makes.
    pub(super) fn signed(&self, method: &str, target: &str, fields: &[&str]) -> String {
        let config = self.config.to_str().expect("the path is text");
        let mut command = command(&["sign", "--config", config, "--method", method, target]);
        command.args(fields.iter().flat_map(|field| ["--field", field]));
        let ended = Ended::of(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.trim_end().to_owned()
    }

    fn ask_with(&self, method: &str, target: &str, fields: &[&str], body: &[u8]) -> (u16, String) {
        let response = self.encke.ask(method, target, fields, body);
        let code = match response.status {
            ..400 => String::new(),
            _ => response.error_code(),
        };
        (response.status, code)
    }
}

#[test]
fn a_signed_url_is_no_deputy_for_other_requests() {
    let guarded = Guarded::start(&[]);
    let text = "Content-Type: text/plain";
    for stream in ["secret", "there"] {
        let fields = [text, &bearer(API_KEY)];
        let target = format!("/v1/stream/{stream}");
        assert_eq!(guarded.ask_with("PUT", &target, &fields, b"abc").0, 201);
    }
    let refused = (403, "unsigned_field".to_owned());
    let put = guarded.signed("PUT", "/v1/stream/new", &[]);
    let post = guarded.signed("POST", "/v1/stream/there", &[]);
    for (method, url, field) in [
        ("PUT", &put, "Stream-Forked-From: /v1/stream/secret"),
        ("PUT", &put, "stream-forked-from: secret"),
        ("PUT", &put, "Encke-Ack: accepted"),
        ("POST", &post, "Encke-Truncate: now"),
        ("POST", &post, "STREAM-CLOSED: true"),
        ("POST", &post, "Stream-Seq: z"),
    ] {
        let answer = guarded.ask_with(method, url, &[text, field], b"");
        assert_eq!(answer, refused, "{method} {field}");
    }
    let read = guarded.signed("GET", "/v1/stream/there", &[]);
    assert_eq!(guarded.encke.ask("GET", &read, &[], b"").body, b"abc");
    assert_eq!(guarded.ask_with("POST", &post, &[text], b"d").0, 204);
    // With the field signed, the same request is allowed, and so is no other value.
    let fork = guarded.signed(
        "PUT",
        "/v1/stream/fork",
        &["Stream-Forked-From: /v1/stream/there"],
    );
    let other = ["Stream-Forked-From: /v1/stream/secret"];
    assert_eq!(
        guarded.ask_with("PUT", &fork, &other, b""),
        (401, "signature".to_owned())
    );
    let signed = ["Stream-Forked-From: /v1/stream/there"];
    assert_eq!(guarded.ask_with("PUT", &fork, &signed, b"").0, 201);
}

#[test]
fn a_subscriber_by_signed_url_resumes_behind_the_signed_offset() {
    let guarded = Guarded::start(&[]);
    guarded.create("/v1/stream/a", b"[1]");
    let tail = || {
        let head = guarded
            .encke
            .ask("HEAD", "/v1/stream/a", &[&bearer(API_KEY)], b"");
        head.field("Stream-Next-Offset")
            .expect("it has one")
            .to_owned()
    };
    let first = tail();
    assert_eq!(
        guarded
            .ask("POST", "/v1/stream/a", &bearer(API_KEY), b"[2]")
            .0,
        204
    );
    let begin = tail();
    let url = guarded.signed("GET", &format!("/v1/stream/a?offset={begin}&live=sse"), &[]);
    let resume = |offset: &str| {
        let mut connection = guarded.encke.connect();
        let field = format!("Last-Event-ID: {offset}");
        connection.send(&request("GET", &url, &[&field], b""));
        connection.head().status
    };
    assert_eq!(resume(&begin), 200);
    assert_eq!(resume(&first), 403);
}

#[test]
fn a_signature_by_an_escaped_name_is_refused_and_not_logged() {
    let mut guarded = Guarded::start(&["--access-log", "json", "--log", "encke_net=debug"]);
    guarded.create("/v1/stream/a", b"[1]");
    let url = guarded.signed("GET", "/v1/stream/a?offset=-1", &[]);
    let (_, signature) = url.split_once("signature=").expect("it is signed");
    let escaped = url.replace("signature=", "%73ignature=");
    let answer = guarded.ask_with("GET", &escaped, &[], b"");
    assert_eq!(answer, (400, "malformed_credentials".to_owned()));
    let by_mistake = "/v1/stream/a?access%5Ftoken=eyJhbGciOi";
    assert_eq!(guarded.ask_with("GET", by_mistake, &[], b"").0, 401);
    let referer = format!("Referer: http://localhost{url}");
    assert_eq!(guarded.ask_with("GET", &url, &[&referer], b"").0, 200);
    let mut stdout = String::new();
    guarded.encke.signal(rustix::process::Signal::TERM);
    let read = guarded.stdout.read_to_string(&mut stdout);
    read.expect("it prints text");
    let log = guarded.encke.log();
    assert!(stdout.contains("%73ignature=-"), "{stdout}");
    for secret in [signature, "eyJhbGciOi"] {
        assert!(!stdout.contains(secret), "the access log holds {secret}");
        assert!(!log.contains(secret), "the log holds {secret}");
    }
}
