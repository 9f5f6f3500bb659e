//! No request breaks the server, whatever it contains.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::ROOT;
use crate::server::{Reply, Server};

/// A value that a member may have, and often the wrong one.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => select(vec![
            json!("webhook"), json!("pull-wake"), json!("a/*"), json!("**"), json!("w"), json!(["a", "/b/"]),
            json!({ "url": "https://h.example/" }), json!({ "url": "https://10.0.0.1" }), json!(1_000), json!(true),
            json!([{ "stream": "a", "offset": "-1" }]), json!([{ "path": "a" }]),
        ]),
        1 => select(vec![json!(null), json!([]), json!({}), json!(-1), json!(""), json!([[1]])]),
        1 => "\\PC{0,12}".prop_map(Value::from),
    ]
}

fn content() -> impl Strategy<Value = Vec<u8>> {
    let names = select(vec![
        "type",
        "pattern",
        "streams",
        "webhook",
        "wake_stream",
        "lease_ttl_ms",
        "description",
        "worker",
        "wake_id",
        "generation",
        "acks",
        "done",
        "other",
    ]);
    let members = proptest::collection::btree_map(names, value(), 0..6);
    prop_oneof![
        6 => members.prop_map(|members| json!(members).to_string().into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
        1 => value().prop_map(|value| value.to_string().into_bytes()),
    ]
}

proptest! {
    /// Nothing that a client sends is an internal error, and every refusal is a problem with a code.
    #[test]
    fn no_request_breaks_the_server(
        requests in proptest::collection::vec((
            select(vec!["GET", "HEAD", "PUT", "POST", "DELETE"]),
            prop_oneof![
                select(vec![
                    "/subscriptions/s", "/subscriptions/s/claim", "/subscriptions/s/ack", "/subscriptions/s/callback",
                    "/subscriptions/s/release", "/subscriptions/s/streams", "/subscriptions/s/streams/a", "/jwks.json",
                ]).prop_map(str::to_owned),
                "/[a-z/%0-9.]{0,12}",
                "/subscriptions/\\PC{0,12}",
            ],
            content(),
        ), 1..12),
    ) {
        let mut server = Server::default();
        for (method, path, content) in requests {
            let fields: [(&str, &[u8]); 2] = [("Host", b"h"), ("Authorization", b"Bearer t")];
            let path = format!("{ROOT}{path}");
            let Reply::Said(said) = server.request(method, &path, None, &fields, &content) else {
                panic!("{method} {path} has no response");
            };
            prop_assert!(said.status < 500 || said.status == 507, "{method} {path}: {said:?}");
            if said.status >= 400 {
                prop_assert_eq!(said.field("Content-Type"), Some("application/problem+json"));
                prop_assert!(!said.code().is_empty());
            }
        }
    }
}
