//! Where channels are opened, and for which pages.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use encke_access::ClientCertificate;
use encke_clock::WallTime;
use encke_protocol::{CallerInfo, Gate, Origins, Policy, ProtocolSettings};

use super::*;

#[test]
fn a_handshake_opens_a_channel_where_there_is_one() {
    let mut server = with(&[("a", JSON)]);
    let Reply::Opened(said, _) = server.upgrade("/v1/events", &[PROTOCOL]) else {
        panic!("it opens a channel");
    };
    assert_eq!(said.field("Sec-WebSocket-Protocol"), Some("encke.v1"));
    // A client that offers nothing gets nothing, and one that offers a token learns nothing of it.
    let token = URL_SAFE_NO_PAD.encode("secret");
    let offers = format!("encke.token.{token}, encke.v1");
    for (offer, chosen) in [
        ("chat", None),
        ("encke.v2", None),
        (&*offers, Some("encke.v1")),
    ] {
        let reply = server.upgrade("/v1/events", &[("Sec-WebSocket-Protocol", offer)]);
        let Reply::Opened(said, _) = reply else {
            panic!("it opens a channel");
        };
        assert_eq!(said.field("Sec-WebSocket-Protocol"), chosen);
    }
    for (target, expected) in [
        ("/v1/stream/a?offset=-1", (400, "no_websocket")),
        ("/v1/stream/a?offset=-1&live=sse", (400, "no_websocket")),
        ("/v1/pool/a", (400, "no_websocket")),
        ("/", (400, "no_websocket")),
        ("/nothing", (404, "not_found")),
        ("/v1/stream/a?live=websocket", (400, "bad_parameter")),
        (
            "/v1/stream/a?offset=x&live=websocket",
            (400, "bad_parameter"),
        ),
        (
            "/v1/stream/a/**?offset=-1&live=websocket",
            (400, "bad_path"),
        ),
        ("/v1/events?after=0", (400, "bad_parameter")),
        ("/v1/events?after=0000000000000000", (400, "no_streams")),
        ("/v1/events?stream=a&stream=a", (400, "named_twice")),
    ] {
        let (status, code) = status(server.upgrade(target, &[PROTOCOL]));
        assert_eq!((status, &*code), expected, "{target}");
    }
    let said = server.send("GET /v1/stream/a?offset=-1&live=websocket", &[], b"");
    assert_eq!(
        (said.status, said.field("Upgrade")),
        (426, Some("websocket"))
    );
    assert_eq!(said.code(), "upgrade_required");
    server.caller.operator = true;
    let (status, _) = status(server.upgrade("/v1/events", &[PROTOCOL]));
    assert_eq!(status, 404, "operators have no channels");
}

#[test]
fn pages_of_other_origins_open_no_channel() {
    let host = ("Host", "here:8080");
    let cookie = format!("session={}", token(1));
    let offer = format!("encke.v1, encke.token.{}", URL_SAFE_NO_PAD.encode(token(1)));
    let bearer = bearer(1);
    let machine: &'static ClientCertificate = Box::leak(Box::new(ClientCertificate {
        names: vec!["machine".to_owned()],
        ends_at: WallTime::from_ms(u64::MAX),
    }));
    let credentials = [
        (("Cookie", &*cookie), None),
        (("Authorization", &*bearer), None),
        (("Sec-WebSocket-Protocol", &*offer), None),
        (PROTOCOL, None),
        (("X-None", ""), Some(machine)),
    ];
    let listed = || Origins::Listed(vec!["https://app".into()]);
    let open = |origins: Origins, origin: Option<&str>, (credential, certificate): (_, _)| {
        let gate = Gate {
            access: Policy::Controlled(std::sync::Arc::new(access())),
            origins,
            ..Gate::default()
        };
        let mut server = Server::behind(gate, ProtocolSettings::default());
        server.caller = CallerInfo {
            certificate,
            ..CallerInfo::default()
        };
        let origin = origin.map(|origin| ("Origin", origin));
        let headers: Vec<_> = [host, credential].into_iter().chain(origin).collect();
        status(server.upgrade("/v1/events", &headers))
    };
    for credential in credentials {
        let opened = (101, String::new());
        let foreign = (403, "origin".to_owned());
        for (origins, origin, expected) in [
            (Origins::None, None, &opened),
            (Origins::None, Some("https://here:8080"), &opened),
            (Origins::None, Some("https://evil"), &foreign),
            (Origins::None, Some("null"), &foreign),
            (listed(), Some("https://app"), &opened),
            (listed(), Some("https://here:8080"), &opened),
            (listed(), Some("https://evil"), &foreign),
            (Origins::Any, None, &opened),
            (Origins::Any, Some("https://here:8080"), &opened),
        ] {
            let got = open(origins, origin, credential);
            assert_eq!(got, *expected, "{origin:?} {credential:?}");
        }
        // Any origin is allowed without what a browser adds by itself.
        let is_added = credential.0.0 == "Cookie" || credential.1.is_some();
        let expected = if is_added { &foreign } else { &opened };
        let got = open(Origins::Any, Some("https://evil"), credential);
        assert_eq!(got, *expected, "{credential:?}");
    }
    // Without access control.
    let mut server = Server::behind(Gate::default(), ProtocolSettings::default());
    let got = status(server.upgrade("/v1/events", &[host, ("Origin", "https://evil")]));
    assert_eq!(got, (403, "origin".to_owned()));
}
