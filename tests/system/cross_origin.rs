//! Pages of allowed origins can read what the server refuses before it looks at a request, and an `EventSource` that is refused for a while
//! comes back.

use std::io::Read;
use std::net::TcpStream;

use crate::ports::fixed_port;
use crate::rig::{
    Authority, Connection, Encke, JSON, Response, TlsClient, connect_from, path, request,
};

const ORIGIN: &str = "https://app.example";
const FROM: &str = "Origin: https://app.example";

/// A limit of connections, and what a client beyond it gets.
struct AtLimit {
    flags: &'static [&'static str],
    status: u16,
    code: &'static str,
}

const LIMITS: &[AtLimit] = &[
    AtLimit {
        flags: &["--connections-max", "1"],
        status: 503,
        code: "connections_max",
    },
    AtLimit {
        flags: &["--connections-per-address", "1"],
        status: 429,
        code: "connections_per_address",
    },
    AtLimit {
        flags: &["--request-rate", "1", "--tuning", "request-burst=2"],
        status: 429,
        code: "request_rate",
    },
];

/// A server that allows these origins, and a client that has used up the limit.
fn at_limit(limit: &AtLimit, origins: &str) -> (Encke, Connection) {
    let flags = ["--exempt", "127.0.0.1", "--cors-origins", origins];
    let encke = Encke::start(&[limit.flags, &flags].concat());
    let mut inside = encke.connect_from(2);
    assert_eq!(inside.ask("GET", "/healthz", &[], b"").status, 200);
    (encke, inside)
}

fn allowed(response: &Response) -> Option<&str> {
    response.field("Access-Control-Allow-Origin")
}

#[test]
fn a_page_reads_that_there_is_no_room_for_its_connection() {
    for limit in LIMITS {
        for (origins, expected) in [
            (ORIGIN, Some(ORIGIN)),
            ("*", Some("*")),
            ("https://other.example", None),
        ] {
            let (encke, _inside) = at_limit(limit, origins);
            for fields in [&[FROM][..], &[FROM, "Content-Length: 9"]] {
                let mut client = encke.connect_from(2);
                client.send_anyway(&request("POST", &path("s"), fields, b""));
                let refused = client.answer();
                assert_eq!(
                    (refused.status, &*refused.error_code()),
                    (limit.status, limit.code)
                );
                assert_eq!(allowed(&refused), expected, "{refused:?}");
                assert!(refused.field("Retry-After").is_some(), "{refused:?}");
            }
        }
    }
}

/// More clients than have a place to be refused get a response that knows nothing of their requests.
#[test]
fn a_refusal_that_no_request_was_read_for_names_all_origins_or_none() {
    for (origins, expected) in [("*", Some("*")), (ORIGIN, None)] {
        let (encke, _inside) = at_limit(&LIMITS[0], origins);
        let connect = |_| Connection::over(connect_from(2, encke.address));
        let mut clients: Vec<Connection> = (0..200).map(connect).collect();
        let refused: Vec<Response> = clients.iter_mut().map(Connection::answer).collect();
        for refused in &refused {
            assert_eq!(
                (refused.status, &*refused.error_code()),
                (503, "connections_max")
            );
            assert_eq!(allowed(refused), expected, "{refused:?}");
        }
    }
}

#[test]
fn a_page_reads_refusals_over_tls_and_follows_the_redirect_to_it() {
    let authority = Authority::new();
    let files = authority.issue("localhost");
    let redirect = format!("127.0.0.1:{}", fixed_port());
    let flags = [
        "--cors-origins",
        ORIGIN,
        "--body-max",
        "1KiB",
        "--redirect-http",
        &redirect,
    ];
    let encke = Encke::start(&[&files.flags()[..], &flags].concat());
    let names_origin =
        |head: &str| head.contains(&format!("Access-Control-Allow-Origin: {ORIGIN}\r\n"));
    let mut client = TlsClient::open(&encke, &authority.client());
    let (head, body) = client.ask("POST", &path("s"), &[JSON, FROM], &[b' '; 2_000]);
    assert!(
        head.starts_with("HTTP/1.1 413 ") && names_origin(&head),
        "{head} {body:?}"
    );

    for (method, fields, status, is_named) in [
        ("GET", &[FROM][..], "308", true),
        ("POST", &[FROM], "403", true),
        ("GET", &[], "308", false),
        ("GET", &["Origin: https://other.example"], "308", false),
    ] {
        let mut plain = Connection::over(TcpStream::connect(&redirect).expect("it listens"));
        plain.send(&request(method, "/", fields, b""));
        let mut head = String::new();
        // The answer ends with the connection.
        let _ = plain.socket.read_to_string(&mut head);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert_eq!(names_origin(&head), is_named, "{head}");
    }
}

#[test]
fn event_sources_that_are_refused_for_a_while_come_back() {
    let live = format!("{}?offset=-1&live=sse", path("s"));
    let source = ["Accept: text/event-stream", "Cache-Control: no-cache", FROM];
    for limit in LIMITS {
        let (encke, _inside) = at_limit(limit, ORIGIN);
        let open = |_| {
            let mut client = encke.connect_from(2);
            client.send_anyway(&request("GET", &live, &source, b""));
            client
        };
        let mut clients: Vec<Connection> = (0..60).map(open).collect();
        for client in &mut clients {
            let answer = client.answer();
            assert_eq!(
                answer.status,
                200,
                "{limit:?}: {answer:?}",
                limit = limit.code
            );
            assert_eq!(allowed(&answer), Some(ORIGIN));
            let events = String::from_utf8(answer.body).expect("text");
            assert!(
                events.starts_with("retry: ") && events.contains(limit.code),
                "{events}"
            );
        }
    }
}
