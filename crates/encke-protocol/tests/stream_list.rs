//! The list of streams.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.
#![allow(unreachable_pub, dead_code)] // Each test uses what it needs of the server.

mod server;

use serde_json::{Value, json};
use server::Server;

const TEXT: (&str, &str) = ("Content-Type", "text/plain");
const JSON: (&str, &str) = ("Content-Type", "application/json");

fn list(server: &mut Server, query: &str) -> Value {
    let said = server.send(&format!("GET /v1/stream{query}"), &[], b"");
    assert_eq!(said.status, 200, "{query}: {}", said.text());
    assert_eq!(said.field("Content-Type"), Some("application/json"));
    assert_eq!(said.field("Cache-Control"), Some("no-store"));
    serde_json::from_slice(&said.body).unwrap()
}

fn names(page: &Value) -> Vec<&str> {
    let streams = page["streams"].as_array().unwrap();
    streams
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect()
}

fn with(names: &[&str]) -> Server {
    let mut server = Server::default();
    for name in names {
        let said = server.send(&format!("PUT /v1/stream/{name}"), &[TEXT], b"");
        assert_eq!(said.status, 201);
    }
    server
}

#[test]
fn streams_are_listed_by_name_a_page_at_a_time() {
    let mut server = with(&["chat/2", "b", "chat/10", "chat/1", "chatter", "a/b"]);
    let page = list(&mut server, "");
    assert_eq!(
        names(&page),
        ["a/b", "b", "chat/1", "chat/10", "chat/2", "chatter"]
    );
    assert_eq!(page.get("next"), None);
    assert_eq!(
        names(&list(&mut server, "?prefix=chat/")),
        ["chat/1", "chat/10", "chat/2"]
    );
    assert_eq!(
        names(&list(&mut server, "?prefix=chat%2F1")),
        ["chat/1", "chat/10"]
    );
    assert_eq!(names(&list(&mut server, "?prefix=none/")), [""; 0]);
    let mut all = Vec::new();
    let mut query = "?limit=2".to_owned();
    loop {
        let page = list(&mut server, &query);
        assert!(names(&page).len() <= 2);
        all.extend(names(&page).into_iter().map(str::to_owned));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        query = format!("?limit=2&after={}", next.replace('/', "%2F"));
    }
    assert_eq!(all, names(&list(&mut server, "")));
    // A name that is no longer there is a place all the same.
    assert_eq!(
        names(&list(&mut server, "?after=chat/11")),
        ["chat/2", "chatter"]
    );
    // What is deleted is gone.
    server.send("DELETE /v1/stream/chat/1", &[], b"");
    assert_eq!(
        names(&list(&mut server, "?prefix=chat/")),
        ["chat/10", "chat/2"]
    );
}

#[test]
fn a_list_says_of_each_stream_what_head_says() {
    let mut server = Server::default();
    let fields = [JSON, ("Encke-Metadata", r#"{"title":"ä"}"#)];
    server.send("PUT /v1/stream/s", &fields, b"[1,2]");
    let page = list(&mut server, "");
    let tail = server.stream("s").facts().tail.to_string();
    let expected = json!({
        "name": "s", "contentType": "application/json", "nextOffset": tail, "messages": 2,
        "metadata": {"title": "ä"},
    });
    assert_eq!(page, json!({ "streams": [expected] }));
    server.send("POST /v1/stream/s", &[("Encke-Stop", "true")], b"");
    assert_eq!(list(&mut server, "")["streams"][0]["stopRequested"], true);
    let end = [
        ("Stream-Closed", "true"),
        ("Encke-End-Reason", "stopped"),
        JSON,
    ];
    server.send("POST /v1/stream/s", &end, b"3");
    let page = list(&mut server, "");
    let one = &page["streams"][0];
    assert_eq!(
        (&one["closed"], &one["endReason"]),
        (&json!(true), &json!("stopped"))
    );
    assert_eq!(
        (&one["messages"], one.get("stopRequested")),
        (&json!(3), None)
    );
    let head = server.send("HEAD /v1/stream/s", &[], b"");
    assert_eq!(head.field("Encke-Messages"), Some("3"));
}

#[test]
fn messages_are_counted_as_lines_are() {
    let mut server = with(&["text"]);
    server.send("PUT /v1/stream/json", &[JSON], b"[1,[2,3]]");
    for body in ["one", "two"] {
        server.send("POST /v1/stream/text", &[TEXT], body.as_bytes());
    }
    server.send("POST /v1/stream/json", &[JSON], b"{}");
    let messages = |server: &mut Server, name: &str| {
        let head = server.send(&format!("HEAD /v1/stream/{name}"), &[], b"");
        head.field("Encke-Messages").map(str::to_owned)
    };
    assert_eq!(messages(&mut server, "text").as_deref(), Some("2"));
    assert_eq!(messages(&mut server, "json").as_deref(), Some("3"));
    // A fork has what its source has at its end; nobody has counted up to another place.
    let at = server.send("HEAD /v1/stream/text", &[], b"");
    let at = at.field("Stream-Next-Offset").unwrap().to_owned();
    server.send("POST /v1/stream/text", &[TEXT], b"three");
    let source = ("Stream-Forked-From", "/v1/stream/text");
    server.send("PUT /v1/stream/fork", &[source], b"four");
    assert_eq!(messages(&mut server, "fork").as_deref(), Some("4"));
    let inside = [source, ("Stream-Fork-Offset", &*at)];
    server.send("PUT /v1/stream/inside", &inside, b"");
    assert_eq!(messages(&mut server, "inside"), None);
    // Those that are removed were appended all the same.
    server.send("POST /v1/stream/text", &[("Encke-Truncate", "now")], b"");
    assert_eq!(messages(&mut server, "text").as_deref(), Some("3"));
}

#[test]
fn the_right_to_list_is_asked_for_at_the_folder_of_the_prefix() {
    let mut server = Server::guarded(&[
        ("all", "list,create,read", "/v1/stream/**"),
        ("chat", "list", "/v1/stream/chat/**"),
        ("reader", "read", "/v1/stream/**"),
    ]);
    server.call_as("all");
    for name in ["chat/1", "chat/a/1", "other"] {
        server.send(&format!("PUT /v1/stream/{name}"), &[TEXT], b"");
    }
    assert_eq!(
        names(&list(&mut server, "")),
        ["chat/1", "chat/a/1", "other"]
    );
    server.call_as("chat");
    assert_eq!(
        names(&list(&mut server, "?prefix=chat/")),
        ["chat/1", "chat/a/1"]
    );
    assert_eq!(names(&list(&mut server, "?prefix=chat/a")), ["chat/a/1"]);
    for query in [
        "",
        "?prefix=",
        "?prefix=chat",
        "?prefix=other",
        "?prefix=chat&limit=1&after=chat/1",
    ] {
        let said = server.send(&format!("GET /v1/stream{query}"), &[], b"");
        assert_eq!(said.status, 404, "{query}");
    }
    server.call_as("reader");
    let said = server.send("GET /v1/stream?prefix=chat/", &[], b"");
    assert_eq!((said.status, &*said.code()), (403, "forbidden"));
}

#[test]
fn streams_of_others_are_left_out() {
    let mut server = Server::guarded(&[
        ("ann", "list,create", "/v1/stream/**"),
        ("bob", "list,create", "/v1/stream/**"),
        ("backend", "list,own", "/v1/stream/**"),
    ]);
    for name in ["ann", "bob"] {
        server.call_as(name);
        let fields = [TEXT, ("Encke-Owner", "self")];
        server.send(&format!("PUT /v1/stream/of-{name}"), &fields, b"");
        server.send(&format!("PUT /v1/stream/by-{name}"), &[TEXT], b"");
    }
    let open = ["by-ann", "by-bob"];
    for (name, own) in [
        ("ann", vec!["of-ann"]),
        ("bob", vec!["of-bob"]),
        ("backend", vec!["of-ann", "of-bob"]),
    ] {
        server.call_as(name);
        let page = list(&mut server, "");
        assert_eq!(names(&page), [&open[..], &own].concat(), "{name}");
    }
    server.call_as("ann");
    assert_eq!(
        list(&mut server, "?prefix=of")["streams"][0]["owner"],
        "ann"
    );
}

#[test]
fn a_bad_list_is_refused_with_what_is_allowed() {
    let mut server = with(&["a"]);
    for (query, says) in [
        ("?limit=0", "from 1 to 1000"),
        ("?limit=1001", "from 1 to 1000"),
        ("?limit=-1", "from 1 to 1000"),
        ("?limit=01", "from 1 to 1000"),
        ("?limit=", "from 1 to 1000"),
        ("?prefix=a&prefix=b", "comes once"),
        ("?after=%zz", "percent-encoded"),
        ("?prefx=a", "prefix"),
    ] {
        let said = server.send(&format!("GET /v1/stream{query}"), &[], b"");
        assert_eq!(
            (said.status, &*said.code()),
            (400, "bad_parameter"),
            "{query}"
        );
        assert!(said.text().contains(says), "{query}: {}", said.text());
    }
    for method in ["POST", "PUT", "DELETE", "HEAD"] {
        let said = server.send(&format!("{method} /v1/stream"), &[], b"");
        assert_eq!(
            (said.status, said.field("Allow")),
            (405, Some("GET")),
            "{method}"
        );
    }
}
