//! Requests for several streams: positions, ids, and immediate errors.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub)] // What the modules of a test show, they show to the test.
#![allow(dead_code)] // The server is made for other tests too.

mod server;

use encke_protocol::{Action, Feed, MergeSource};
use encke_stream::{Offset, Sequence};
use server::{Reply, Said, Server};

const TEXT: (&str, &[u8]) = ("Content-Type", b"text/plain");

fn server(streams: &[&str]) -> Server {
    let mut server = Server::default();
    for stream in streams {
        let path = format!("/v1/stream/{stream}");
        let made = server.request("PUT", &path, None, &[TEXT], b"");
        assert!(matches!(made, Reply::Said(Said { status: 201, .. })));
        let appended = server.request("POST", &path, None, &[TEXT], b"x");
        assert!(matches!(appended, Reply::Said(Said { status: 204, .. })));
    }
    server
}

fn ask(server: &mut Server, query: &str, id: Option<&str>) -> Reply {
    let id = id.map(|id| ("Last-Event-ID", id.as_bytes()));
    let fields: Vec<_> = id.into_iter().collect();
    server.request("GET", "/v1/events", Some(query), &fields, b"")
}

/// What a subscription delivers.
struct Merged {
    members: Vec<MergeSource>,
    after: Vec<Sequence>,
}

fn opened(reply: Reply) -> (String, Merged) {
    let Reply::SubscribedAll(said, subscribe) = reply else {
        panic!("a subscription was due");
    };
    assert_eq!(said.status, 200);
    assert!(said.open, "it ends with the connection");
    let Feed::Merged { sources, after, .. } = subscribe.feed else {
        panic!("a merged feed was due");
    };
    let merged = Merged {
        members: sources,
        after,
    };
    (String::from_utf8(said.body).unwrap(), merged)
}

/// The digest of names that ids hold: FNV-1a with 32 bits, over each name with a line feed behind it.
fn digest(names: &[&str]) -> String {
    let mut digest = 0x811c_9dc5_u32;
    for byte in names.iter().flat_map(|name| name.bytes().chain([b'\n'])) {
        digest = (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    format!("{digest:08x}")
}

fn refused(reply: Reply) -> (u16, String) {
    let Reply::Said(said) = reply else {
        panic!("a refusal was due");
    };
    (said.status, String::from_utf8(said.body).unwrap())
}

#[test]
fn positions_are_what_was_asked_for_and_the_id_says_so() {
    let mut server = server(&["a", "b"]);
    let committed = server.view.committed();
    let tail = server.stream("b").facts().tail;
    let query = format!("stream=a@-1&stream=b@{tail}");
    let (body, subscribe) = opened(ask(&mut server, &query, None));
    assert_eq!(subscribe.after, [0]);
    assert_eq!(subscribe.members[0].from, Offset::START);
    assert_eq!(subscribe.members[1].from, tail);
    let born = encke_stream::born(server.stream("b").no);
    assert_eq!(
        body,
        format!(
            "id:0000000000000000;{tail}:2;~{born:x}:3;={}\n\n",
            digest(&["a", "b"])
        )
    );
    // Coming back with it is the same, whatever the parameters would say by now.
    let id = body.trim().strip_prefix("id:").unwrap();
    let (again, subscribe) = opened(ask(&mut server, "stream=a&stream=b", Some(id)));
    assert_eq!(again, body);
    assert_eq!(subscribe.members[1].from, tail);
    // Some clients send no field.
    let by_parameter = format!("stream=a&stream=b&lastEventId={id}");
    assert_eq!(opened(ask(&mut server, &by_parameter, None)).0, body);
    // From now on, everything before is had.
    let (body, subscribe) = opened(ask(&mut server, "stream=a&stream=b", None));
    assert_eq!(subscribe.after, [committed]);
    let names = digest(&["a", "b"]);
    assert_eq!(
        body,
        format!("id:{committed:016x};~{born:x}:3;={names}\n\n")
    );
}

#[test]
fn a_name_may_hold_an_at_sign() {
    let mut server = server(&["user@home", "user"]);
    let (_, subscribe) = opened(ask(&mut server, "stream=user@home&stream=user@-1", None));
    assert_eq!(
        &*subscribe.members[0].kind.stream().unwrap().name,
        "user@home"
    );
    assert_eq!(&*subscribe.members[1].kind.stream().unwrap().name, "user");
    let (_, subscribe) = opened(ask(&mut server, "stream=user%40home%40now", None));
    assert_eq!(
        &*subscribe.members[0].kind.stream().unwrap().name,
        "user@home"
    );
}

#[test]
fn what_is_gone_is_refused_at_first_and_reported_to_a_client_that_resumes() {
    let mut server = server(&["a", "b"]);
    let (body, _) = opened(ask(&mut server, "stream=a&stream=b", None));
    let id = body.trim().strip_prefix("id:").unwrap().to_owned();
    server.request("DELETE", "/v1/stream/b", None, &[], b"");
    let (status, body) = refused(ask(&mut server, "stream=a&stream=b", None));
    assert_eq!(status, 404);
    assert!(body.contains("\\\"b\\\""), "it does not say which: {body}");
    let (body, subscribe) = opened(ask(&mut server, "stream=a&stream=b", Some(&id)));
    assert_eq!(subscribe.members.len(), 1);
    let end = "event:end\ndata:{\"stream\":\"b\",\"why\":\"deleted\"}\n\n";
    assert!(body.ends_with(end), "{body}");
    // A new stream of the name is another one, as it is for a client that was there when the old one was deleted.
    server.request("PUT", "/v1/stream/b", None, &[TEXT], b"");
    let (again, subscribe) = opened(ask(&mut server, "stream=a&stream=b", Some(&id)));
    assert_eq!((again, subscribe.members.len()), (body, 1));
    server.request("DELETE", "/v1/stream/a", None, &[], b"");
    let (status, body) = refused(ask(&mut server, "stream=a&stream=b", Some(&id)));
    assert_eq!(status, 410, "{body}");
    assert!(
        body.contains("before_start") && body.contains("\\\"b\\\""),
        "{body}"
    );
    server.request("DELETE", "/v1/stream/b", None, &[], b"");
    let (status, _) = refused(ask(&mut server, "stream=a&stream=b", Some(&id)));
    assert_eq!(status, 204, "nothing is left to come back for");
}

fn create(server: &mut Server, stream: &str) {
    let path = format!("/v1/stream/{stream}");
    server.request("PUT", &path, None, &[TEXT], b"");
}

fn delete(server: &mut Server, stream: &str) {
    let path = format!("/v1/stream/{stream}");
    server.request("DELETE", &path, None, &[], b"");
}

/// The id that a response begins with.
fn first_id(body: &str) -> String {
    let line = body.lines().next().unwrap();
    line.strip_prefix("id:").unwrap().to_owned()
}

#[test]
fn a_position_is_one_of_the_stream_and_not_of_its_name() {
    let mut server = server(&["r", "s"]);
    for (query, others) in [
        ("stream=r@-1", false),
        ("stream=r", false),
        ("stream=r@-1&stream=s@-1", true),
        ("stream=s&stream=r", true),
    ] {
        let (body, _) = opened(ask(&mut server, query, None));
        let id = first_id(&body);
        delete(&mut server, "r");
        create(&mut server, "r");
        server.request("POST", "/v1/stream/r", None, &[TEXT], b"new");
        // The same client after more records of the other stream: its position is behind the new stream's beginning.
        let (_, generations) = id.split_once(";~").unwrap();
        let later = format!("{:016x};~{generations}", server.view.committed());
        for id in [id.clone(), later] {
            let by_parameter = format!("{query}&after={id}");
            for (query, field) in [(query, Some(&*id)), (&by_parameter, None)] {
                let reply = ask(&mut server, query, field);
                if !others {
                    let (status, body) = refused(reply);
                    assert_eq!(status, 410, "{query} {body}");
                    assert!(body.contains("before_start"), "{body}");
                    continue;
                }
                let (body, subscribe) = opened(reply);
                let end = "event:end\ndata:{\"stream\":\"r\",\"why\":\"deleted\"}\n\n";
                assert!(body.ends_with(end), "{body}");
                let [only] = &subscribe.members[..] else {
                    panic!("the new stream is none that was asked for");
                };
                assert_eq!(&*only.kind.stream().unwrap().name, "s");
                // The next id says the same.
                let (again, _) = opened(ask(&mut server, query, Some(&first_id(&body))));
                assert_eq!(again, body);
            }
        }
    }
}

#[test]
fn a_client_that_resumes_names_the_same_streams() {
    let mut server = server(&["a", "b", "chat/1"]);
    let query = "stream=a&stream=chat/**";
    let (body, _) = opened(ask(&mut server, query, None));
    let id = first_id(&body);
    // Where they begin does not matter, and the old form of a pattern means the same.
    for same in [
        query,
        "stream=a@-1&stream=chat/**@-1",
        "stream=a&stream=chat%2F**",
        "stream=a&stream=chat/*",
    ] {
        opened(ask(&mut server, same, Some(&id)));
    }
    for other in [
        "stream=a",
        "stream=b",
        "stream=b&stream=chat/**",
        "stream=a&stream=b",
        "stream=chat/**&stream=a",
        "stream=a&stream=chat/**&stream=b",
        "stream=a&stream=chat/**&stream=b@-1",
        "stream=a&stream=chat/1",
        "stream=a&stream=cha/**",
        "stream=a%0Achat/**",
    ] {
        for query in [other.to_owned(), format!("{other}&after={id}")] {
            let field = (query == other).then_some(&*id);
            let (status, body) = refused(ask(&mut server, &query, field));
            assert_eq!(status, 400, "{query}");
            assert!(
                other.contains("%0A") || body.contains("other_streams"),
                "{body}"
            );
        }
    }
    // Without the id, and with the offsets that it has, a client adds a stream.
    let at = server.stream("a").facts().tail;
    let query = format!("stream=a@{at}&stream=b@-1");
    let (_, subscribe) = opened(ask(&mut server, &query, None));
    assert_eq!(subscribe.members[0].from, at);
    assert_eq!(subscribe.members[1].from, Offset::START);
}

#[test]
fn ids_of_the_version_before_are_read() {
    let mut server = server(&["a", "b"]);
    let committed = server.view.committed();
    for id in [
        format!("{committed:016x}"),
        format!("0000000000000000;{committed:016x}_0000000000000000:3"),
    ] {
        let (body, subscribe) = opened(ask(&mut server, "stream=a&stream=b", Some(&id)));
        for member in &subscribe.members {
            assert_eq!(member.from.sequence, committed);
        }
        // The next id says of which streams it is.
        assert!(first_id(&body).contains(";~"), "{body}");
    }
}

#[test]
fn head_says_what_get_would_and_begins_nothing() {
    let mut server = server(&["a"]);
    let reply = server.request("HEAD", "/v1/events", Some("stream=a"), &[], b"");
    let Reply::Said(said) = reply else {
        panic!("HEAD began something");
    };
    assert_eq!(said.status, 200);
    let reply = server.request("HEAD", "/v1/events", Some("stream=b"), &[], b"");
    assert_eq!(refused(reply).0, 404);
}

/// Appends so many texts to a stream, one after the other.
fn append(server: &mut Server, stream: &str, count: usize) {
    let path = format!("/v1/stream/{stream}");
    for _ in 0..count {
        let appended = server.request("POST", &path, None, &[TEXT], b"x");
        assert!(matches!(appended, Reply::Said(Said { status: 204, .. })));
    }
}

/// Where a read of one stream begins that asks for its last messages.
fn one_begins(server: &mut Server, stream: &str, count: u64) -> Offset {
    let target = format!("GET /v1/stream/{stream}?last={count}&live=sse");
    let Reply::Subscribed(_, subscription) = server.reply(&target, &[], b"") else {
        panic!("it does not subscribe");
    };
    let Feed::Single { from, .. } = subscription.feed else {
        panic!("it is for one stream");
    };
    from
}

#[test]
fn each_stream_begins_so_many_messages_before_its_end() {
    let mut server = server(&["a", "b", "c"]);
    for stream in ["a", "b", "a", "c", "b"] {
        append(&mut server, stream, 2);
    }
    let begin = |server: &mut Server, query: &str| {
        let (body, merged) = opened(ask(server, query, None));
        let from: Vec<Offset> = merged.members.iter().map(|member| member.from).collect();
        (body, from)
    };
    let names = ["a", "b", "c"];
    for count in 1..3 {
        let expected = names.map(|name| one_begins(&mut server, name, count));
        let query = format!("stream=a&stream=b&last={count}&stream=c");
        assert_eq!(begin(&mut server, &query).1, expected);
    }
    // The order of the parameters makes no difference, and a stream with an offset keeps it.
    let b = one_begins(&mut server, "b", 2);
    let tail = server.stream("a").facts().tail;
    let query = format!("last=2&stream=a@{tail}&stream=b&stream=c@-1");
    let (_, from) = begin(&mut server, &query);
    assert_eq!(from[..2], [tail, b]);
    // With fewer messages a stream is read from its beginning, and none is the end.
    let (all, from) = begin(&mut server, "stream=a&stream=b&last=10000");
    assert_eq!(begin(&mut server, "stream=a@-1&stream=b@-1"), (all, from));
    let (none, from) = begin(&mut server, "stream=a&stream=b&last=0");
    assert_eq!(begin(&mut server, "stream=a&stream=b"), (none, from));
    // A pattern has a beginning of its own.
    let (_, from) = begin(&mut server, "stream=a/**@now&stream=b&last=2");
    assert_eq!(from[1], b);
}

#[test]
fn an_id_takes_precedence_over_the_last_messages() {
    let mut server = server(&["a", "b"]);
    append(&mut server, "a", 5);
    let (body, _) = opened(ask(&mut server, "stream=a&stream=b&last=1", None));
    let id = first_id(&body);
    append(&mut server, "b", 5);
    let (again, subscribe) = opened(ask(&mut server, "stream=a&stream=b&last=1", Some(&id)));
    assert_eq!(again, body);
    let by_url = format!("stream=a&stream=b&last=1&after={id}");
    let (again, merged) = opened(ask(&mut server, &by_url, None));
    assert_eq!(again, body);
    let from = |merged: &Merged| {
        merged
            .members
            .iter()
            .map(|one| one.from)
            .collect::<Vec<_>>()
    };
    assert_eq!(from(&subscribe), from(&merged));
}

#[test]
fn streams_without_messages_begin_at_their_end() {
    let mut server = server(&["a"]);
    create(&mut server, "empty");
    let committed = server.view.committed();
    let (_, merged) = opened(ask(&mut server, "stream=empty&last=5", None));
    assert_eq!(merged.after, [committed]);
    // One that is closed has nothing to follow.
    server.send("POST /v1/stream/empty", &[("Stream-Closed", "true")], b"");
    let Reply::Said(said) = ask(&mut server, "stream=empty&last=5", None) else {
        panic!("nothing follows");
    };
    assert_eq!(said.status, 200);
    assert!(said.text().contains("event:end"), "{}", said.text());
    let (body, merged) = opened(ask(&mut server, "stream=empty&stream=a&last=5", None));
    assert!(body.contains("event:end"), "{body}");
    assert_eq!(merged.members.len(), 1);
}

#[test]
fn last_messages_of_what_has_none_are_refused_with_the_reason() {
    let mut server = server(&["a", "b"]);
    for (query, why) in [
        ("stream=a&last=10001", "from 0 to 10000"),
        ("stream=a&last=-1", "from 0 to 10000"),
        ("stream=a&last=", "from 0 to 10000"),
        ("stream=a&last=1&last=1", "twice"),
        ("stream=a@-1&last=1", "offset of their own"),
        ("last=1", "offset of their own"),
        ("stream=a/**&stream=b&last=1", "a/**@now"),
        ("stream=**&last=1", "**@now"),
        ("stream=a&lst=1", "did you mean"),
    ] {
        let (status, body) = refused(ask(&mut server, query, None));
        assert_eq!(status, 400, "{query}");
        assert!(body.contains(why), "{query}: {body}");
    }
    let (status, body) = refused(ask(&mut server, "stream=a&stream=none&last=1", None));
    assert_eq!(status, 404, "{body}");
}

#[test]
fn a_request_reads_so_many_bytes_for_all_its_streams() {
    let mut server = server(&["a", "b"]);
    let record = vec![b'x'; 900 << 10];
    for stream in ["a", "b"] {
        for _ in 0..12 {
            let line = format!("POST /v1/stream/{stream}");
            let said = server.send(&line, &[("Content-Type", "text/plain")], &record);
            assert_eq!(said.status, 204);
        }
    }
    let (_, merged) = opened(ask(&mut server, "stream=a&stream=b&last=10000", None));
    // 8 MiB of each, and the record that exceeds them.
    for member in &merged.members {
        let stream = member.kind.stream().unwrap();
        let fetch = encke_stream::Fetch::new(stream, member.from, stream.facts().tail, 1 << 30);
        let messages = server.read(&fetch).items().count();
        assert_eq!(messages, (8 << 20) / record.len() + 1, "{}", stream.name);
    }
}

#[test]
fn what_is_removed_during_the_search_is_no_message() {
    let mut server = server(&["a", "b"]);
    append(&mut server, "a", 3);
    append(&mut server, "b", 3);
    let mut action = server.act("GET /v1/events?stream=a&stream=b&last=1");
    // Between the two searches.
    let mut reads = 0;
    while let Action::Read(fetch, then) = action {
        reads += 1;
        action = server.resume(&server.read(&fetch), then);
        if reads == 1 {
            for stream in ["a", "b"] {
                let line = format!("POST /v1/stream/{stream}");
                let said = server.send(&line, &[("Encke-Truncate", "now")], b"");
                assert_eq!(said.status, 204, "{}", said.text());
            }
        }
    }
    let Action::Subscribe(subscription) = action else {
        panic!("it subscribes");
    };
    let Feed::Merged { sources, .. } = subscription.feed else {
        panic!("it is for several streams");
    };
    assert_eq!(sources.len(), 2);
    for source in sources {
        let stream = source.kind.stream().unwrap();
        assert!(source.from.sequence >= stream.facts().floor, "{source:?}");
    }
}

#[test]
fn a_stream_that_is_deleted_during_the_search_is_missing() {
    let mut server = server(&["a", "b"]);
    let Action::Read(fetch, then) = server.act("GET /v1/events?stream=a&stream=b&last=1") else {
        panic!("it reads");
    };
    let piece = server.read(&fetch);
    delete(&mut server, "b");
    let Action::Respond(response) = server.resume(&piece, then) else {
        panic!("it is refused");
    };
    let said = server::said(response);
    assert_eq!((said.status, &*said.code()), (404, "not_found"));
    assert!(said.text().contains("\\\"b\\\""), "{}", said.text());
}
