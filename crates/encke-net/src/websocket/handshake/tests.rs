use super::*;
use crate::websocket::negotiation::ClientWindow;

type Request<'a> = Vec<(&'a str, &'a [u8])>;

/// A request that is accepted.
fn request() -> Request<'static> {
    vec![
        ("Host", b"x"),
        ("upgrade", b"WebSocket"),
        ("Connection", b"keep-alive, Upgrade"),
        ("Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Version", b"13"),
    ]
}

/// The request with another value for a field; without the field for `None`.
fn with<'a>(name: &str, value: Option<&'a str>) -> Request<'a> {
    let mut request: Request<'a> = request();
    request.retain(|(field, _)| !field.eq_ignore_ascii_case(name));
    if let Some(value) = value {
        let field = [
            "Upgrade",
            "Connection",
            KEY_FIELD,
            VERSION_FIELD,
            PROTOCOLS,
            EXTENSIONS,
        ];
        let name = field
            .iter()
            .find(|field| **field == name)
            .expect("a known field");
        request.push((name, value.as_bytes()));
    }
    request
}

fn refusal(fields: &Request<'_>) -> Option<HandshakeRefusal> {
    open("GET", 1, fields).err()
}

#[test]
fn the_example_of_the_standard_is_accepted() {
    let fields = request();
    let opening = open("GET", 1, &fields).unwrap().unwrap();
    let accept = opening.accept.as_deref();
    assert_eq!(accept, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(opening.subprotocols, [""; 0]);
    assert_eq!(opening.deflate_offers, []);
}

#[test]
fn offers_are_collected_from_all_fields() {
    let mut fields = with(PROTOCOLS, Some("b, a"));
    fields.push((PROTOCOLS, b"c"));
    fields.push((EXTENSIONS, b"foo; bar=\"baz\""));
    fields.push((EXTENSIONS, b"permessage-deflate; client_max_window_bits"));
    let opening = open("GET", 1, &fields).unwrap().unwrap();
    assert_eq!(opening.subprotocols, ["b", "a", "c"]);
    let [offer] = opening.deflate_offers[..] else {
        panic!("{opening:?}");
    };
    assert_eq!(offer.client_max_window_bits, ClientWindow::Boundable);
}

#[test]
fn a_request_that_asks_for_nothing_is_none() {
    let plain: Request<'_> = vec![("Host", b"x"), ("Connection", b"keep-alive")];
    let other: Request<'_> = vec![("Connection", b"Upgrade"), ("Upgrade", b"h2c")];
    for fields in [plain, other] {
        for method in ["GET", "POST"] {
            assert_eq!(open(method, 1, &fields), Ok(None));
            assert_eq!(open(method, 0, &fields), Ok(None));
        }
    }
}

#[test]
fn every_rule_that_is_broken_is_named() {
    assert_eq!(open("POST", 1, &request()), Err(HandshakeRefusal::Method));
    assert_eq!(open("get", 1, &request()), Err(HandshakeRefusal::Method));
    assert_eq!(
        open("GET", 0, &request()),
        Err(HandshakeRefusal::HttpVersion)
    );
    let status = STATUS_UPGRADE_REQUIRED;
    for (name, value, expected) in [
        ("Upgrade", None, Some(HandshakeRefusal::Upgrade)),
        (
            "Upgrade",
            Some("websocket2"),
            Some(HandshakeRefusal::Upgrade),
        ),
        ("Upgrade", Some("h2c, websocket"), None),
        ("Connection", None, Some(HandshakeRefusal::Connection)),
        (
            "Connection",
            Some("keep-alive"),
            Some(HandshakeRefusal::Connection),
        ),
        ("Connection", Some("upgrade"), None),
        (KEY_FIELD, None, Some(HandshakeRefusal::Key)),
        (KEY_FIELD, Some(""), Some(HandshakeRefusal::Key)),
        // Of RFC 6455, section 4.1.
        (KEY_FIELD, Some("AQIDBAUGBwgJCgsMDQ4PEC=="), None),
        (KEY_FIELD, Some(" AQIDBAUGBwgJCgsMDQ4PEA== "), None),
        (
            KEY_FIELD,
            Some("AQIDBAUGBwgJCgsMDQ4PEA"),
            Some(HandshakeRefusal::Key),
        ),
        (
            KEY_FIELD,
            Some("AQIDBAUGBwgJCgsMDQ4PEA=A"),
            Some(HandshakeRefusal::Key),
        ),
        (
            KEY_FIELD,
            Some("AQIDBAUGBwgJCgsMDQ4PEBE="),
            Some(HandshakeRefusal::Key),
        ),
        (
            KEY_FIELD,
            Some("AQIDBAUGBwgJCgsMDQ4PEBES"),
            Some(HandshakeRefusal::Key),
        ),
        (
            KEY_FIELD,
            Some("AQIDBAUGBwgJCgsMDQ4P"),
            Some(HandshakeRefusal::Key),
        ),
        (
            KEY_FIELD,
            Some("AQID AUGBwgJCgsMDQ4PEA=="),
            Some(HandshakeRefusal::Key),
        ),
        (
            KEY_FIELD,
            Some("AQIDBAUGBwgJCgsMDQ4PEBESEw=="),
            Some(HandshakeRefusal::Key),
        ),
        (
            VERSION_FIELD,
            None,
            Some(HandshakeRefusal::Version { status }),
        ),
        (
            VERSION_FIELD,
            Some("8"),
            Some(HandshakeRefusal::Version { status }),
        ),
        (
            VERSION_FIELD,
            Some("13, 8"),
            Some(HandshakeRefusal::Version { status }),
        ),
        (
            VERSION_FIELD,
            Some("013"),
            Some(HandshakeRefusal::Version { status }),
        ),
        (PROTOCOLS, Some("a,, b"), None),
        (
            PROTOCOLS,
            Some("a, b, a"),
            Some(HandshakeRefusal::Subprotocols),
        ),
        (PROTOCOLS, Some("a b"), Some(HandshakeRefusal::Subprotocols)),
        (EXTENSIONS, Some("a; b"), None),
        (EXTENSIONS, Some("a b"), Some(HandshakeRefusal::Extensions)),
        // An offer with wrong parameters is declined, and the handshake goes on without it.
        (EXTENSIONS, Some("permessage-deflate; x"), None),
    ] {
        assert_eq!(refusal(&with(name, value)), expected, "{name}: {value:?}");
    }
    for twice in [KEY_FIELD, VERSION_FIELD] {
        let mut fields = request();
        let value = single(&request(), twice).unwrap().to_vec();
        fields.push((twice, &value));
        assert!(refusal(&fields).is_some(), "{twice}");
    }
    // A proxy dropped the fields that are for one hop.
    let mut fields = with("Upgrade", None);
    fields.retain(|(name, _)| *name != "Connection");
    assert_eq!(refusal(&fields), Some(HandshakeRefusal::Upgrade));
}

#[test]
fn a_refusal_of_the_version_says_which_is_supported() {
    let refusal = refusal(&with(VERSION_FIELD, Some("8"))).unwrap();
    assert_eq!(refusal.status(), 426);
    let names: Vec<_> = refusal.fields().iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [VERSION_FIELD, "Upgrade", "Connection"]);
    let http2 = open_http2("CONNECT", Some("websocket"), &[]).unwrap_err();
    assert_eq!(http2.status(), 400);
    assert_eq!(http2.fields(), [(VERSION_FIELD, "13")]);
    assert_eq!(HandshakeRefusal::Key.status(), 400);
    assert_eq!(HandshakeRefusal::Key.fields(), []);
}

#[test]
fn an_extended_connect_needs_neither_key_nor_upgrade() {
    let fields: Request<'_> = vec![(VERSION_FIELD, b"13"), (PROTOCOLS, b"a")];
    let opening = open_http2("CONNECT", Some("websocket"), &fields);
    let opening = opening.unwrap().unwrap();
    assert_eq!(
        (opening.accept, &opening.subprotocols[..]),
        (None, &["a"][..])
    );
    assert_eq!(open_http2("CONNECT", None, &fields), Ok(None));
    assert_eq!(
        open_http2("CONNECT", Some("connect-udp"), &fields),
        Ok(None)
    );
    assert_eq!(open_http2("GET", None, &[]), Ok(None));
    assert_eq!(
        open_http2("GET", None, &fields),
        Err(HandshakeRefusal::ExtendedConnect)
    );
}

const PROTOCOLS: &str = "Sec-WebSocket-Protocol";
const EXTENSIONS: &str = "Sec-WebSocket-Extensions";
