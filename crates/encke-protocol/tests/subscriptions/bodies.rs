//! What bodies mean, and which are refused.

use encke_stream::Viewer;
use encke_subscriptions::{
    ReportKind, StreamAck, SubscriptionConfig, SubscriptionKind, SubscriptionRequest,
    URL_BYTES_MAX, WORKER_BYTES_MAX, WakeReport,
};
use serde_json::json;

use crate::server::Server;
use crate::{HOST, ROOT, body, outcome, refused, send, with_token};

#[test]
fn a_body_becomes_a_request() {
    let mut server = Server::default();
    let config = r#"{"type":"pull-wake","pattern":"","streams":["/b/","a","b"],"wake_stream":"/w/","webhook":{"url":"x"},
        "lease_ttl_ms":600000,"description":null,"other":[1]}"#;
    send(&mut server, "PUT /subscriptions/%C3%A4%20b", config);
    let create = SubscriptionRequest::Create {
        id: "ä b".into(),
        config: SubscriptionConfig {
            kind: SubscriptionKind::PullWake,
            pattern: None,
            streams: vec!["a".into(), "b".into()],
            wake_stream: Some("w".into()),
            lease_ms: 600_000,
            description: None,
            viewer: Viewer::All,
        },
        root: "http://push.example:8080/v1/stream".into(),
    };
    assert_eq!(*server.asked(), create);
}

#[test]
fn a_report_becomes_a_request() {
    // Before the first subscription no token can be checked.
    let mut server = Server::default();
    let report = json!({
        "wake_id": "w_1", "generation": 7, "done": true, "more": 1,
        "acks": [{ "stream": "a", "path": "b", "offset": "-1" }, { "path": "c", "offset": "9" }],
    });
    for (action, kind) in [
        ("callback", ReportKind::Callback),
        ("ack", ReportKind::Ack),
        ("release", ReportKind::Release),
    ] {
        let line = format!("POST /subscriptions/x/{action}");
        with_token(&mut server, &line, "tok", &report);
        let ack = |stream: &str, offset: &str| StreamAck {
            stream: stream.into(),
            offset: offset.into(),
        };
        let is_release = kind == ReportKind::Release;
        let expected = WakeReport {
            id: "x".into(),
            kind,
            token: "tok".into(),
            wake_id: Some("w_1".into()),
            generation: Some(7),
            acks: match is_release {
                true => Vec::new(),
                false => vec![ack("a", "-1"), ack("c", "9")],
            },
            done: !is_release,
        };
        assert_eq!(*server.asked(), SubscriptionRequest::Report(expected));
        // A report on no wake.
        for content in [
            json!({}),
            json!({ "wake_id": null, "generation": null, "done": null, "acks": null }),
        ] {
            with_token(&mut server, &line, "tok", &content);
            let SubscriptionRequest::Report(report) = server.asked() else {
                panic!("a report");
            };
            assert_eq!((&report.wake_id, report.generation), (&None, None));
            assert!(!report.done && report.acks.is_empty());
        }
    }
}

#[test]
fn bodies_that_are_wrong_are_refused_by_the_member() {
    let mut server = Server::default();
    let long = "x".repeat(1_025);
    let put = "PUT /subscriptions/s";
    let links = "POST /subscriptions/s/streams";
    let claim = "POST /subscriptions/s/claim";
    let ack = "POST /subscriptions/s/ack";
    let with =
        |more: &str| format!(r#"{{"type":"pull-wake","pattern":"a/*","wake_stream":"w",{more}}}"#);
    let cases = [
        (put, "".to_owned(), "type"),
        (put, "{".to_owned(), "the body is wrong"),
        (put, "null".to_owned(), "invalid type: null, expected an object"),
        (put, "[]".to_owned(), "invalid type: sequence, expected an object"),
        (put, "\u{feff}{}".to_owned(), "the body is wrong"),
        (put, r#"{"type":"webhooks"}"#.to_owned(), "type is"),
        (put, r#"{"type":1}"#.to_owned(), "type: invalid type: integer `1`"),
        (put, r#"{"type":"webhook","pattern":"a"}"#.to_owned(), "webhook.url"),
        (put, r#"{"type":"webhook","pattern":"a","webhook":"https://a.example"}"#.to_owned(), "webhook: invalid type: string"),
        (put, r#"{"type":"webhook","pattern":"a","webhook":{"url":[]}}"#.to_owned(), "webhook: url: invalid type: sequence"),
        (put, r#"{"type":"pull-wake","pattern":"a"}"#.to_owned(), "wake_stream"),
        (put, r#"{"type":"pull-wake","wake_stream":"w"}"#.to_owned(), "pattern"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","streams":[]}"#.to_owned(), "pattern"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","pattern":7}"#.to_owned(), "pattern: invalid type: integer `7`"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","pattern":"a//b"}"#.to_owned(), "empty segment"),
        (put, format!(r#"{{"type":"pull-wake","wake_stream":"w","pattern":"{long}"}}"#), "1025 bytes"),
        (put, r#"{"type":"pull-wake","wake_stream":"w","pattern":"__ds/*"}"#.to_owned(), "__ds"),
        (put, with(r#""streams":"a""#), "streams: invalid type: string"),
        (put, with(r#""streams":[1]"#), "streams: invalid type: integer `1`"),
        (put, with(r#""streams":[""]"#), "not the name"),
        (put, with(r#""streams":["a/../b"]"#), "not the name"),
        (put, with(r#""streams":["__ds/x"]"#), "not the name"),
        (put, with(r#""streams":["\u0001jobs"]"#), "not the name"),
        (put, with(&format!(r#""streams":["{long}"]"#)), "not the name"),
        (put, with(r#""streams":["w"]"#), "cannot follow"),
        (put, r#"{"type":"webhook","pattern":"a","wake_stream":"__ds/x","webhook":{"url":"https://a.example"}}"#.to_owned(), "not the name"),
        (put, with(r#""lease_ttl_ms":999"#), "lease_ttl_ms is 999"),
        (put, with(r#""lease_ttl_ms":600001"#), "lease_ttl_ms is 600001"),
        (put, with(r#""lease_ttl_ms":null"#), "lease_ttl_ms: invalid type: null"),
        (put, with(r#""lease_ttl_ms":"2000""#), "lease_ttl_ms: invalid type: string"),
        (put, with(r#""lease_ttl_ms":2000.5"#), "lease_ttl_ms: invalid type: floating point `2000.5`"),
        (put, with(r#""lease_ttl_ms":-1"#), "lease_ttl_ms: invalid value: integer `-1`"),
        (put, with(r#""description":{}"#), "description: invalid type: map"),
        (put, with(&format!(r#""description":"{long}""#)), "description has 1025"),
        (links, "{}".to_owned(), "streams"),
        (links, r#"{"streams":null}"#.to_owned(), "streams"),
        (links, r#"{"streams":{"a":1}}"#.to_owned(), "streams: invalid type: map"),
        (links, r#"{"streams":["a",""]}"#.to_owned(), "not the name"),
        (links, r#"{"streams":["__ds"]}"#.to_owned(), "not the name"),
        (claim, "".to_owned(), "worker"),
        (claim, r#"{"worker":""}"#.to_owned(), "worker"),
        (claim, r#"{"worker":1}"#.to_owned(), "worker: invalid type: integer `1`"),
        (claim, format!(r#"{{"worker":"{long}"}}"#), "worker"),
        (ack, "x".to_owned(), "the body is wrong"),
        (ack, r#"{"wake_id":1}"#.to_owned(), "wake_id: invalid type: integer `1`"),
        (ack, r#"{"generation":"1"}"#.to_owned(), "generation: invalid type: string"),
        (ack, r#"{"generation":1.5}"#.to_owned(), "generation: invalid type: floating point `1.5`"),
        (ack, r#"{"acks":{}}"#.to_owned(), "acks: invalid type: map"),
        (ack, r#"{"acks":["a"]}"#.to_owned(), "acks: invalid type: string"),
        (ack, r#"{"acks":[{"stream":"a"}]}"#.to_owned(), "offset"),
        (ack, r#"{"acks":[{"stream":"a","offset":1}]}"#.to_owned(), "acks: offset: invalid type: integer `1`"),
        (ack, r#"{"done":"true"}"#.to_owned(), "done: invalid type: string"),
    ];
    for (line, content, why) in cases {
        let (method, path) = line.split_once(' ').unwrap();
        let fields = [HOST, ("Authorization", "bearer t")];
        let line = format!("{method} {ROOT}{path}");
        let said = server.send(&line, &fields, content.as_bytes());
        let shown = &content[..content.len().min(200)];
        assert_eq!(
            outcome(&said),
            refused(400, "INVALID_REQUEST"),
            "{line} {shown}"
        );
        let message = body(&said)["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(why), "{shown}: {message}");
        assert!(message.len() < 500, "{message}");
    }
    // Nothing has come through, or it was refused there.
    let said = send(&mut server, "GET /subscriptions/s", "");
    assert_eq!(outcome(&said), refused(404, "SUBSCRIPTION_NOT_FOUND"));
}

#[test]
fn what_goes_to_the_dispatcher_is_bounded() {
    let mut server = Server::default();
    let url = format!("https://h.example/{}", "x".repeat(URL_BYTES_MAX));
    let config = json!({ "type": "webhook", "pattern": "a", "webhook": { "url": url } });
    let said = send(&mut server, "PUT /subscriptions/s", &config.to_string());
    assert_eq!(outcome(&said), refused(400, "WEBHOOK_URL_REJECTED"));
    let worker = json!({ "worker": "w".repeat(WORKER_BYTES_MAX + 1) });
    let said = send(
        &mut server,
        "POST /subscriptions/s/claim",
        &worker.to_string(),
    );
    assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
    assert!(server.subscriptions.requests.is_empty());
    let report = json!({ "wake_id": "w".repeat(10_000) });
    with_token(&mut server, "POST /subscriptions/s/ack", "t", &report);
    let SubscriptionRequest::Report(report) = server.asked() else {
        panic!("a report");
    };
    assert_eq!(report.wake_id, None);
}

#[test]
fn what_a_body_has_besides_is_not_looked_at() {
    let mut server = Server::default();
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let content = format!(
        r#"{{"other":{deep},"type":"pull-wake","pattern":"a","wake_stream":"w","type":"pull-wake"}}"#
    );
    let said = send(&mut server, "PUT /subscriptions/s", &content);
    assert_eq!(said.status, 201, "{}", said.text());
}
