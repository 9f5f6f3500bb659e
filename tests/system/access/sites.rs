//! Pages of other sites: what they cause a browser to send, and what a browser makes of what is stored.

use super::{API_KEY, Guarded, bearer};
use crate::rig::http2::*;
use crate::rig::{Connection, Encke, JSON, Response, data_dir, path, serve_on};

/// The answer to a request with these fields, `Host` among them.
fn ask(connection: &mut Connection, line: &str, fields: &[&str], body: &str) -> Response {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = body.len();
    connection.send(
        format!("{line} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{body}").as_bytes(),
    );
    connection.answer()
}

#[test]
fn what_is_stored_is_no_page_of_this_server() {
    let encke = Encke::start(&[]);
    let html = "<script>document.title = 'it ran'</script>";
    let html_type = "Content-Type: text/html";
    let target = path("page");
    assert_eq!(
        encke
            .ask("PUT", &target, &[html_type], html.as_bytes())
            .status,
        201
    );
    assert_eq!(
        encke
            .ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#)
            .status,
        201
    );
    let posted = encke.ask("POST", "/v1/pool/p", &[html_type], html.as_bytes());
    assert_eq!(posted.status, 202, "{posted:?}");
    let policy = "default-src 'none'; sandbox";
    let whole = encke.ask("GET", &format!("{target}?offset=-1"), &[], b"");
    let etag = format!("If-None-Match: {}", whole.field("ETag").expect("a tag"));
    for (method, target, fields) in [
        ("GET", format!("{target}?offset=-1"), &[][..]),
        (
            "GET",
            format!("{target}?offset=-1"),
            &["Accept-Encoding: gzip"],
        ),
        ("GET", format!("{target}?offset=-1"), &[&*etag]),
        ("GET", format!("{target}?offset=now"), &[]),
        ("GET", format!("{target}?offset=-1&live=long-poll"), &[]),
        ("HEAD", target.clone(), &[]),
        ("GET", "/v1/stream/%3Cscript%3E".into(), &[]),
        ("GET", "/v1/pool/p/job/1".into(), &[]),
        ("GET", "/v1/pool/p/work?worker=a&wait=1".into(), &[]),
    ] {
        let answer = encke.ask(method, &target, fields, b"");
        let line = format!("{method} {target} {fields:?}: {answer:?}");
        assert_eq!(
            answer.field("Content-Security-Policy"),
            Some(policy),
            "{line}"
        );
        assert_eq!(
            answer.field("X-Content-Type-Options"),
            Some("nosniff"),
            "{line}"
        );
    }
    for live in ["live=sse", "live=long-poll"] {
        let mut connection = encke.connect();
        let target = format!("{target}?offset=-1&{live}");
        connection.send(&crate::rig::request("GET", &target, &[], b""));
        let head = connection.head();
        assert_eq!(
            head.field("Content-Security-Policy"),
            Some(policy),
            "{live}"
        );
    }
    let mut client = Http2Client::open(encke.address, &[]);
    client.send(&Frame::get(1, &format!("{target}?offset=-1")));
    let head = client.until(HEADERS);
    assert!(
        head.payload.len() > policy.len(),
        "the fields are compressed"
    );
    assert_eq!(client.body(1), html.as_bytes());
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let guarded = Guarded::start(&["--cors-origins", "https://app.example"]);
    guarded.create("/v1/stream/a", b"[1]");
    let local = Encke::start(&["--cors-origins", "https://app.example"]);
    local.create("a");
    let token = bearer(API_KEY);
    for (encke, credential) in [(&guarded.encke, &*token), (&local, "X: y")] {
        let put = encke.ask("PUT", "/v1/pool/p", &[credential], br#"{"type":"claim"}"#);
        assert_eq!(put.status, 201);
        for (method, target) in [
            ("POST", "/v1/stream/a"),
            ("PUT", "/v1/stream/b"),
            ("DELETE", "/v1/stream/a"),
            ("GET", "/v1/pool/p/work?worker=a&wait=0"),
            ("POST", "/v1/pool/p"),
            ("DELETE", "/v1/pool/p"),
        ] {
            let ask = |fields: &[&str]| {
                let fields = [&[credential, JSON], fields].concat();
                encke.ask(method, target, &fields, b"[2]")
            };
            for fields in [
                &["Sec-Fetch-Site: cross-site"][..],
                &["Sec-Fetch-Site: same-site"],
                &["Sec-Fetch-Site: cross-site", "Origin: null"],
                &["Sec-Fetch-Site: cross-site", "Origin: https://evil.example"],
                &[
                    "Sec-Fetch-Site: cross-site",
                    "Sec-Fetch-Mode: no-cors",
                    "Sec-Fetch-Dest: image",
                ],
                &["Sec-Fetch-Site: none", "Sec-Fetch-Site: cross-site"],
            ] {
                let answer = ask(fields);
                let line = format!("{method} {target} {fields:?}");
                assert_eq!(
                    (answer.status, &*answer.error_code()),
                    (403, "origin"),
                    "{line}"
                );
            }
        }
        for fields in [
            &["Sec-Fetch-Site: same-origin"][..],
            &["Sec-Fetch-Site: none"],
            &["Sec-Fetch-Site: cross-site", "Origin: https://app.example"],
            &["Sec-Fetch-Site: same-site", "Origin: https://app.example"],
        ] {
            let fields = [&[credential, JSON], fields].concat();
            let answer = encke.ask("POST", "/v1/stream/a", &fields, b"[2]");
            assert_eq!(answer.status, 204, "{fields:?}");
        }
    }
}

/// The fields of browsers for `<script>`, `<link>` and `<img>` of a page of a sibling, and of a page of another site.
const EMBEDDED: [[&str; 3]; 3] = [
    [
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Mode: no-cors",
        "Sec-Fetch-Dest: script",
    ],
    [
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Mode: no-cors",
        "Sec-Fetch-Dest: style",
    ],
    [
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Mode: no-cors",
        "Sec-Fetch-Dest: image",
    ],
];

#[test]
fn a_page_of_another_site_embeds_nothing_that_the_browser_has_rights_to() {
    let guarded = Guarded::start(&["--cors-origins", "https://app.example"]);
    guarded.create("/v1/stream/a", b"[1]");
    let local = Encke::start(&[]);
    local.create("a");
    let cookie = format!("Cookie: encke={}", guarded.token_of("ann", "read=/v1/**"));
    let bearer = bearer(API_KEY);
    let status = |encke: &Encke, credential: &str, fields: &[&str]| {
        let fields = [&[credential], fields].concat();
        encke.ask("GET", "/v1/stream/a", &fields, b"").status
    };
    for fields in &EMBEDDED {
        assert_eq!(status(&guarded.encke, &cookie, fields), 403, "{fields:?}");
        // A page can't add a token to these.
        assert_eq!(status(&guarded.encke, &bearer, fields), 200, "{fields:?}");
    }
    assert_eq!(status(&local, "X: y", &EMBEDDED[2]), 403);
    // Pages of this machine.
    let mut own = local.connect();
    let fields = [&["Host: localhost"], &EMBEDDED[0][..]].concat();
    assert_eq!(ask(&mut own, "GET /v1/stream/a", &fields, "").status, 200);
    for fields in [
        &[
            "Sec-Fetch-Site: none",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: document",
        ][..],
        &[
            "Sec-Fetch-Site: same-origin",
            "Sec-Fetch-Mode: no-cors",
            "Sec-Fetch-Dest: image",
        ],
        &[
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Mode: navigate",
            "Sec-Fetch-Dest: document",
        ],
        &[
            "Sec-Fetch-Site: same-site",
            "Sec-Fetch-Mode: cors",
            "Origin: https://app.example",
        ],
    ] {
        assert_eq!(status(&guarded.encke, &cookie, fields), 200, "{fields:?}");
    }
    let frame = [
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Mode: navigate",
        "Sec-Fetch-Dest: iframe",
    ];
    assert_eq!(status(&guarded.encke, &cookie, &frame), 403);
}

#[test]
fn a_page_of_any_allowed_origin_has_no_rights_of_its_visitor() {
    let guarded = Guarded::start(&["--cors-origins", "*"]);
    guarded.create("/v1/stream/a", b"[1]");
    let cookie = format!("Cookie: encke={}", guarded.token_of("ann", "append=/v1/**"));
    let append = |credential: &str, origin: &str, site: &str| {
        let fields = [JSON, credential, origin, site];
        let answer = guarded.encke.ask("POST", "/v1/stream/a", &fields, b"[2]");
        answer.status
    };
    let (evil, cross) = ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site");
    assert_eq!(append(&cookie, evil, cross), 403);
    assert_eq!(append(&bearer(API_KEY), evil, cross), 204);
    let (own, same) = (
        "Origin: http://encke.localhost",
        "Sec-Fetch-Site: same-origin",
    );
    assert_eq!(append(&cookie, own, same), 204);
}

#[test]
fn the_address_for_operators_is_no_address_for_pages() {
    let open = data_dir();
    let flags = ["--open", "--admin-listen", "127.0.0.1:0"];
    let mut open_server = Encke::start_by(&mut serve_on("127.0.0.1:0", open.path(), &flags));
    let mut stdout = open_server.take_stdout();
    let of_open = crate::rig::operators_address(&mut stdout);
    let guarded = Guarded::start(&["--cors-origins", "*"]);
    for address in [of_open, guarded.operators] {
        let own = format!("Host: {address}");
        let get = |fields: &[&str]| {
            ask(&mut Connection::open(address), "GET /metrics", fields, "").status
        };
        assert_eq!(get(&[&own]), 200);
        assert_eq!(get(&["Host: encke:4438"]), 200, "the name of a service");
        assert_eq!(get(&[&own, &format!("Origin: http://{address}")]), 200);
        assert_eq!(get(&[&own, "Sec-Fetch-Site: none"]), 200);
        // A name that resolves to this machine, and pages that know the address.
        assert_eq!(get(&["Host: evil.example"]), 421);
        assert_eq!(
            get(&[
                "Host: evil.example:4438",
                "Origin: http://evil.example:4438"
            ]),
            421
        );
        for foreign in [
            "Origin: https://evil.example",
            "Origin: null",
            "Origin: http://localhost:5173",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            assert_eq!(get(&[&own, foreign]), 403, "{foreign}");
        }
        // Pages of all origins may read what the other address says, and nothing of this one.
        let origin = "Origin: https://evil.example";
        for line in ["GET /metrics", "OPTIONS /metrics"] {
            let answer = ask(&mut Connection::open(address), line, &[&own, origin], "");
            let reader = answer.field("Access-Control-Allow-Origin");
            assert_eq!(reader, None, "{line}");
        }
    }
    // A form and a request without preflight send other types.
    let address = guarded.operators;
    let own = format!("Host: {address}");
    let revoke = |content_type: &str| {
        let line = "POST /v1/admin/revoke";
        let body = r#"{"sub":"ann"}"#;
        ask(
            &mut Connection::open(address),
            line,
            &[&own, content_type],
            body,
        )
        .status
    };
    for content_type in [
        "X: y",
        "Content-Type: text/plain",
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: text/plain; application/json",
    ] {
        assert_eq!(revoke(content_type), 415, "{content_type}");
    }
    assert_eq!(revoke("Content-Type: application/json; charset=utf-8"), 204);
}

#[test]
fn no_origin_is_named_where_none_is_allowed() {
    let guarded = Guarded::start(&["--cors-origins", "none"]);
    guarded.create("/v1/stream/public/a", b"[1]");
    let token = guarded.allowed("ann", "read=/v1/**");
    for fields in [
        vec!["Origin: https://evil.example"],
        vec!["Origin: https://evil.example", &token],
        vec![&*token],
        vec![],
    ] {
        for target in [
            "/v1/stream/public/a",
            "/v1/stream/public/a?offset=now",
            "/v1/stream/none",
        ] {
            let answer = guarded.encke.ask("GET", target, &fields, b"");
            let allowed = answer.field("Access-Control-Allow-Origin");
            assert_eq!(allowed, None, "{target} {fields:?}");
        }
    }
}

#[test]
fn an_open_server_is_reached_by_names_that_no_site_can_have() {
    let data = data_dir();
    let flags = [
        "--open",
        "--admin-listen",
        "none",
        "--tuning",
        "hosts=push.example",
    ];
    let encke = Encke::start_by(&mut serve_on("127.0.0.1:0", data.path(), &flags));
    for (host, status) in [
        ("127.0.0.1", 200),
        ("10.1.2.3:4437", 200),
        ("encke", 200),
        ("encke.default.svc.cluster.local", 200),
        ("push.example", 200),
        ("evil.example", 421),
        ("push.example.evil.example", 421),
    ] {
        let host_field = format!("Host: {host}");
        let answer = ask(&mut encke.connect(), "GET /healthz", &[&host_field], "");
        assert_eq!(answer.status, status, "{host}");
    }
}
