//! Streams that belong to callers: nobody else learns of them, by any request.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use server::{Reply, Said, Server};

const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const OWN: (&str, &str) = ("Encke-Owner", "self");

const ALL: &str = "read,append,create,delete,stop,list";

/// Ann and Bob may do everything to all streams that are theirs or nobody's, and the backend to those of others as well.
fn server() -> Server {
    let mut server = Server::guarded(&[
        ("ann", ALL, "/v1/stream/**"),
        ("bob", ALL, "/v1/stream/**"),
        ("backend", ALL, "/v1/stream/**"),
        ("backend", "own", "/v1/stream/**"),
        ("reader", "read,stop", "/v1/stream/**"),
    ]);
    as_caller(
        &mut server,
        "ann",
        "PUT /v1/stream/s",
        &[TEXT, OWN],
        b"secret",
    );
    server
}

fn as_caller(
    server: &mut Server,
    name: &str,
    line: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> Said {
    server.call_as(name);
    server.send(line, fields, body)
}

fn reply(server: &mut Server, name: &str, line: &str) -> Reply {
    server.call_as(name);
    server.reply(line, &[], b"")
}

/// The line, the fields and the body of a request.
type Asked = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static [u8],
);

/// All that can be asked of a stream.
const REQUESTS: [Asked; 13] = [
    ("GET /v1/stream/s", &[], b""),
    ("GET /v1/stream/s?offset=now", &[], b""),
    ("GET /v1/stream/s?last=1", &[], b""),
    ("GET /v1/stream/s?offset=now&live=long-poll", &[], b""),
    ("GET /v1/stream/s?offset=-1&live=sse", &[], b""),
    ("GET /v1/stream/s?offset=-1&live=true", &[], b""),
    ("HEAD /v1/stream/s", &[], b""),
    ("POST /v1/stream/s", &[TEXT], b"x"),
    ("POST /v1/stream/s", &[("Stream-Closed", "true")], b""),
    ("POST /v1/stream/s", &[("Encke-Stop", "true")], b""),
    ("POST /v1/stream/s", &[("Encke-Truncate", "now")], b""),
    ("DELETE /v1/stream/s", &[], b""),
    ("GET /v1/events?stream=s@-1", &[], b""),
];

#[test]
fn to_others_the_stream_does_not_exist() {
    let mut server = server();
    for (line, fields, body) in REQUESTS {
        let said = as_caller(&mut server, "bob", line, fields, body);
        assert_eq!(said.status, 404, "{line}");
        let missing = line
            .replace("stream/s", "stream/none")
            .replace("=s@", "=none@");
        let missing = as_caller(&mut server, "bob", &missing, fields, body);
        // To the byte, but for the name in messages that name it.
        let text = |said: &Said| String::from_utf8_lossy(&said.body).replace("none", "s");
        assert_eq!((said.status, text(&said)), (404, text(&missing)), "{line}");
    }
    // A fork would show what is in it.
    let fork = [("Stream-Forked-From", "/v1/stream/s")];
    let said = as_caller(&mut server, "bob", "PUT /v1/stream/fork", &fork, b"");
    assert_eq!((said.status, &*said.code()), (404, "source_not_found"));
    // Its name is taken, which nobody can hide.
    for fields in [&[TEXT][..], &[TEXT, OWN]] {
        let said = as_caller(&mut server, "bob", "PUT /v1/stream/s", fields, b"");
        assert_eq!((said.status, &*said.code()), (403, "not_owner"));
    }
    let said = as_caller(&mut server, "ann", "GET /v1/stream/s", &[], b"");
    assert_eq!(said.body, b"secret");
}

#[test]
fn its_owner_and_who_may_use_the_streams_of_others_do_everything() {
    for name in ["ann", "backend"] {
        for (line, fields, body) in REQUESTS {
            let mut server = server();
            server.call_as(name);
            let reply = server.reply(line, fields, body);
            let status = match reply {
                Reply::Said(said) | Reply::Subscribed(said, _) | Reply::SubscribedAll(said, _) => {
                    said.status
                }
                _ => 200,
            };
            assert!(status < 300, "{name}: {line}: {status}");
        }
        let mut server = server();
        let head = as_caller(&mut server, name, "HEAD /v1/stream/s", &[], b"");
        assert_eq!(head.field("Encke-Owner"), Some("ann"));
        // The same again, with and without its owner.
        let fields = [TEXT, OWN];
        let said = as_caller(&mut server, "ann", "PUT /v1/stream/s", &fields, b"");
        assert_eq!(said.status, 200);
        let said = as_caller(&mut server, name, "PUT /v1/stream/s", &[TEXT], b"");
        assert_eq!(said.status, 200);
    }
}

#[test]
fn a_fork_belongs_to_the_owner_of_its_source() {
    let mut server = server();
    let fork = [("Stream-Forked-From", "/v1/stream/s")];
    let said = as_caller(&mut server, "backend", "PUT /v1/stream/fork", &fork, b"");
    assert_eq!(said.status, 201);
    let said = as_caller(&mut server, "bob", "GET /v1/stream/fork", &[], b"");
    assert_eq!(said.status, 404);
    let said = as_caller(&mut server, "ann", "GET /v1/stream/fork", &[], b"");
    assert_eq!(said.body, b"secret");
}

#[test]
fn a_stream_is_made_for_others_by_whoever_may() {
    let mut server = server();
    for owner in ["ann", "backend", "x; issuer=none"] {
        let fields = [TEXT, ("Encke-Owner", owner)];
        let said = as_caller(&mut server, "bob", "PUT /v1/stream/new", &fields, b"");
        // There are no issuers here, so no subjects.
        assert_eq!((said.status, &*said.code()), (400, "bad_field"), "{owner}");
    }
    // Who stops needs no right to append, and has none by it.
    let said = as_caller(&mut server, "ann", "PUT /v1/stream/open", &[TEXT], b"");
    assert_eq!(said.status, 201);
    let stopped = [("Stream-Closed", "true"), ("Encke-End-Reason", "stopped")];
    let with_data = [&stopped[..], &[TEXT]].concat();
    let said = as_caller(
        &mut server,
        "reader",
        "POST /v1/stream/open",
        &with_data,
        b"x",
    );
    assert_eq!(said.status, 403);
    let done = [("Stream-Closed", "true"), ("Encke-End-Reason", "done")];
    let said = as_caller(&mut server, "reader", "POST /v1/stream/open", &done, b"");
    assert_eq!(said.status, 403);
    for fields in [&[("Encke-Stop", "true")][..], &stopped] {
        let said = as_caller(&mut server, "reader", "POST /v1/stream/open", fields, b"");
        assert_eq!(said.status, 204, "{fields:?}");
    }
}

#[test]
fn a_pattern_leaves_out_what_belongs_to_others() {
    use encke_protocol::{Feed, SourceKind};
    let mut server = server();
    for (name, sees_ann, sees_bob) in [
        ("ann", true, false),
        ("bob", false, true),
        ("reader", false, false),
        ("backend", true, true),
    ] {
        let Reply::SubscribedAll(_, subscription) =
            reply(&mut server, name, "GET /v1/events?stream=a/**@-1")
        else {
            panic!("{name}")
        };
        let Feed::Merged { sources, .. } = &subscription.feed else {
            panic!("{name}")
        };
        let SourceKind::Pattern { pattern, .. } = &sources[0].kind else {
            panic!("{name}")
        };
        let owner = |name: &str| format!("Certificate\0{name}\0");
        let sees = |owner: &str| pattern.viewer.sees(Some(owner));
        assert_eq!(
            (sees(&owner("ann")), sees(&owner("bob"))),
            (sees_ann, sees_bob),
            "{name}"
        );
        assert!(pattern.viewer.sees(None));
    }
}
