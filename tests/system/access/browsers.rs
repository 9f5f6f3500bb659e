//! Browsers: cookies, signed URLs, origins and host names.

use super::{API_KEY, Guarded, bearer};
use crate::rig::{Encke, Ended, JSON, command, path};

#[test]
fn cookies_and_signed_urls_are_credentials_of_browsers() {
    let guarded = Guarded::start(&["--cors-origins", "https://app.example"]);
    let backend = bearer(API_KEY);
    guarded.create("/v1/stream/a", b"[1]");
    let token = guarded.token_of("ann", "read,append=/v1/**");
    let cookie = format!("Cookie: x=y; encke={token}");
    let ask = |method: &str, fields: &[&str]| {
        let fields = [&[JSON, &cookie], fields].concat();
        guarded.encke.ask(method, "/v1/stream/a", &fields, b"[2]")
    };
    assert_eq!(ask("GET", &[]).status, 200);
    // From a page of another site the browser sends the cookie, too.
    let foreign = ask("POST", &["Origin: https://evil.example"]);
    assert_eq!((foreign.status, &*foreign.error_code()), (403, "origin"));
    assert_eq!(ask("POST", &["Origin: null"]).status, 403);
    let allowed = ask("POST", &["Origin: https://app.example"]);
    assert_eq!(allowed.status, 204);
    assert_eq!(
        allowed.field("Access-Control-Allow-Origin"),
        Some("https://app.example")
    );
    assert_eq!(
        allowed.field("Access-Control-Allow-Credentials"),
        Some("true")
    );
    assert_eq!(ask("POST", &["Origin: http://encke.localhost"]).status, 204);
    // Two credentials that differ are refused.
    let both = ask("GET", &[&backend]);
    assert_eq!(
        (both.status, &*both.error_code()),
        (400, "conflicting_credentials")
    );

    let url = format!("http://{}/v1/stream/a?offset=-1", guarded.encke.address);
    let config = guarded.config.to_str().expect("the path is text");
    let mut sign = command(&[
        "sign",
        "--config",
        config,
        "--kid",
        "links",
        "--expires",
        "1h",
        &url,
    ]);
    let ended = Ended::of(&mut sign);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let signed = ended.stdout.trim_end();
    let target = &signed[signed.find("/v1/").expect("it is a URL")..];
    assert_eq!(guarded.ask("GET", target, "", b"").0, 200);
    assert_eq!(guarded.ask("HEAD", target, "", b"").0, 200);
    assert_eq!(
        guarded.ask("POST", target, "", b"[3]"),
        (401, "signature".into())
    );
    let other = target.replace("stream/a", "stream/b");
    assert_eq!(
        guarded.ask("GET", &other, "", b""),
        (401, "signature".into())
    );
    let other = target.replace("offset=-1", "offset=now");
    assert_eq!(
        guarded.ask("GET", &other, "", b""),
        (401, "signature".into())
    );
}

#[test]
fn without_access_control_pages_of_other_sites_get_nothing() {
    let encke = Encke::start(&["--tuning", "hosts=push.example"]);
    encke.create("a");
    let path = path("a");
    let status = |host: &str, fields: &[&str]| {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\n{}\r\n",
            fields
                .iter()
                .map(|field| format!("{field}\r\n"))
                .collect::<String>()
        );
        let mut connection = encke.connect();
        connection.send(head.as_bytes());
        connection.answer().status
    };
    let own = encke.address.to_string();
    for host in [
        "localhost:1",
        "app.localhost",
        "[::1]:80",
        "push.example",
        &own,
    ] {
        assert_eq!(status(host, &[]), 200, "{host}");
    }
    // A name that an attacker makes resolve to this machine.
    for host in [
        "evil.example",
        "evil.example:4437",
        "10.0.0.1",
        "push.example.evil.example",
    ] {
        assert_eq!(status(host, &[]), 421, "{host}");
    }
    for (origin, expected) in [
        ("http://localhost:5173", 200),
        ("http://127.0.0.1:8080", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
    ] {
        assert_eq!(
            status("localhost", &[&format!("Origin: {origin}")]),
            expected,
            "{origin}"
        );
    }
    let mut connection = encke.connect();
    let answer = connection.ask("GET", &path, &["Origin: http://localhost:5173"], b"");
    assert_eq!(
        answer.field("Access-Control-Allow-Origin"),
        Some("http://localhost:5173")
    );
    assert_eq!(answer.vary(), "Accept-Encoding, Origin");
}
