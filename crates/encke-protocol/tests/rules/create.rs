//! Create (section 5.1).

use crate::server::Server;
use crate::{CLOSED, TEXT, get, with};

#[test]
fn creating_says_where_what_and_how_far() {
    let mut server = Server::default();
    let made = server.send("PUT /v1/stream/a%20b", &[("Host", "h:1")], b"123");
    assert_eq!(made.status, 201);
    assert_eq!(made.field("Location"), Some("http://h:1/v1/stream/a%20b"));
    assert_eq!(made.field("Content-Type"), Some("application/octet-stream"));
    assert_eq!(made.field("Stream-Closed"), None);
    let again = server.send("PUT /v1/stream/a%20b", &[], b"456");
    assert_eq!((again.status, again.field("Location")), (200, None));
    assert_eq!(
        again.token(),
        made.token(),
        "a repeated creation adds nothing"
    );
    assert_eq!(get(&mut server, "a%20b").body, b"123");
    let relative = server.send("PUT /v1/stream/c", &[], b"");
    assert_eq!(relative.field("Location"), Some("/v1/stream/c"));
    server.caller.tls = true;
    let secure = server.send("PUT /v1/stream/d", &[("Host", "h:1")], b"");
    assert_eq!(secure.field("Location"), Some("https://h:1/v1/stream/d"));
    server.caller.host = Some("push.example");
    let named = server.send("PUT /v1/stream/e", &[("Host", "h:1")], b"");
    let expected = "https://push.example/v1/stream/e";
    assert_eq!(named.field("Location"), Some(expected));
}

#[test]
fn a_repeated_creation_must_say_the_same() {
    let mut server = Server::default();
    let ttl = ("Stream-TTL", "60");
    let type_and_ttl = [("Content-Type", "Text/Plain; charset=utf-8"), ttl];
    assert_eq!(
        server.send("PUT /v1/stream/a", &type_and_ttl, b"").status,
        201
    );
    for (headers, status) in [
        (&[TEXT, ttl][..], 200),
        (&[("Content-Type", "TEXT/PLAIN"), ttl], 200),
        (&[("Content-Type", "text/html"), ttl], 409),
        (&[ttl], 409),
        (&[TEXT], 409),
        (&[TEXT, ("Stream-TTL", "61")], 409),
        (&[TEXT, ("Stream-Expires-At", "2030-01-01T00:00:00Z")], 409),
        (&[TEXT, ttl, CLOSED], 409),
        (&[TEXT, ttl, ("Stream-Closed", "false")], 200),
        (&[TEXT, ttl, ("Stream-Forked-From", "/v1/stream/a")], 409),
    ] {
        let said = server.send("PUT /v1/stream/a", headers, b"");
        assert_eq!(said.status, status, "{headers:?}");
        if status == 409 {
            assert_eq!(said.code(), "config_differs");
        }
    }
    let closed = server.send("PUT /v1/stream/b", &[TEXT, CLOSED], b"all");
    assert_eq!(
        (closed.status, closed.field("Stream-Closed")),
        (201, Some("true"))
    );
    let again = server.send("PUT /v1/stream/b", &[TEXT, CLOSED], b"all");
    assert_eq!(
        (again.status, again.field("Stream-Closed")),
        (200, Some("true"))
    );
    assert_eq!(server.send("PUT /v1/stream/b", &[TEXT], b"").status, 409);
}

#[test]
fn only_true_closes() {
    for (value, closes) in [
        ("true", true),
        ("TRUE", true),
        (" True ", true),
        ("false", false),
        ("1", false),
        ("yes", false),
        ("", false),
        ("true,true", false),
    ] {
        let mut server = Server::default();
        let made = server.send("PUT /v1/stream/a", &[TEXT, ("Stream-Closed", value)], b"x");
        assert_eq!(made.status, 201);
        assert_eq!(made.field("Stream-Closed").is_some(), closes, "{value:?}");
        let mut server = with(TEXT);
        let said = server.send("POST /v1/stream/a", &[TEXT, ("stream-closed", value)], b"x");
        assert_eq!(said.status, 204);
        assert_eq!(said.field("Stream-Closed").is_some(), closes, "{value:?}");
    }
}
