//! The API below `/v1/admin/`: what it says of connections and streams, its pages and bounds, and what it changes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::{
    Connection, Encke, JSON, data_dir, eventually, operators_address, request, serve_on,
};

/// What a question is answered.
fn ask(encke: &Encke, path: &str) -> Value {
    let response = encke.ask("GET", &format!("/v1/admin/{path}"), &[], b"");
    let text = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(response.status, 200, "{path}: {text}");
    assert_eq!(response.field("Cache-Control"), Some("no-store"), "{path}");
    serde_json::from_str(&text).unwrap_or_else(|why| panic!("{path}: {why}: {text}"))
}

fn post(encke: &Encke, path: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let path = format!("/v1/admin/{path}");
    let response = encke.ask("POST", &path, &[JSON], body.as_bytes());
    let code = match response.status {
        ..400 => String::new(),
        _ => response.error_code(),
    };
    (response.status, code)
}

fn rows(answer: &Value) -> &Vec<Value> {
    answer["connections"].as_array().expect("a list")
}

#[test]
fn pages_of_connections_have_each_of_them_once() {
    let encke = Encke::start(&["--shards", "2"]);
    encke.create("a");
    let subscribers: Vec<_> = (0..25).map(|_| encke.subscribe("a", "-1")).collect();
    let mut seen = Vec::new();
    let mut after = String::new();
    let mut pages = 0;
    loop {
        let page = ask(
            &encke,
            &format!("connections?stream=a&limit=4&after={after}"),
        );
        assert!(rows(&page).len() <= 4);
        for row in rows(&page) {
            assert_eq!(row["streams"], json!(["a"]));
            assert_eq!(row["doing"], "subscribed");
            assert_eq!(row["client"], "127.0.0.1");
            seen.push(row["id"].as_str().expect("a name").to_owned());
        }
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert!(pages >= 7, "{pages}");
    let total = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), total), (subscribers.len(), subscribers.len()));
    let groups = ask(&encke, "connections/groups?by=stream&limit=1");
    assert_eq!(groups["groups"][0]["name"], "a");
    assert_eq!(groups["groups"][0]["connections"], 25);
    assert_eq!(groups["complete"], true);
}

#[test]
fn subscriptions_of_one_connection_are_told_apart() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("a/1");
    encke.create("b");
    let mut both = encke.connect();
    both.send(&request("GET", "/v1/events?stream=a/**&stream=b", &[], b""));
    assert_eq!(both.head().status, 200);
    let mut poll = encke.connect();
    let path = "/v1/stream/b?offset=now&live=long-poll";
    poll.send(&request("GET", path, &[], b""));
    eventually("the poll waits", || {
        let page = ask(&encke, "connections?stream=b");
        rows(&page).iter().any(|row| row["doing"] == "long_poll")
    });
    let of_b = ask(&encke, "connections?stream=b");
    assert_eq!(rows(&of_b).len(), 2, "{of_b}");
    let of_a = ask(&encke, "connections?stream=a/1");
    assert_eq!(rows(&of_a).len(), 1, "by the pattern: {of_a}");
    assert_eq!(rows(&of_a)[0]["streams"], json!(["a/**", "b"]));
    assert_eq!(rows(&of_a)[0]["streamsTotal"], 2);
    let none = encke.ask("GET", "/v1/admin/connections?stream=c", &[], b"");
    assert_eq!(none.status, 404);
}

#[test]
fn a_connection_is_closed_once_and_its_name_is_never_anothers() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("a");
    let subscriber = encke.subscribe("a", "-1");
    let page = ask(&encke, "connections?stream=a");
    let name = rows(&page)[0]["id"].clone();
    assert_eq!(
        post(&encke, "connections/close", &json!({ "connection": name })),
        (204, String::new())
    );
    let end = subscriber.into_connection().rest();
    let end = String::from_utf8_lossy(&end).into_owned();
    assert!(
        end.contains("an operator has closed the connection"),
        "{end}"
    );
    assert_eq!(
        encke.metric("encke_connections_closed_total", "disconnected"),
        1.0
    );
    // Its slot goes to the next connection, which has another name.
    let _next = encke.subscribe("a", "-1");
    let gone = (404, "unknown_connection".to_owned());
    let close = json!({ "connection": name });
    assert_eq!(post(&encke, "connections/close", &close), gone);
    assert_eq!(
        encke.metric("encke_connections_closed_total", "disconnected"),
        1.0
    );
    for (body, code) in [
        (json!({ "connection": "9-0" }), (404, "unknown_connection")),
        (json!({ "connection": "x" }), (400, "bad_connection")),
        (json!({ "connections": "0-0" }), (400, "bad_connection")),
        (json!([]), (400, "bad_connection")),
    ] {
        let (status, named) = post(&encke, "connections/close", &body);
        assert_eq!((status, &*named), code, "{body}");
    }
    // An idle connection, and one that is in the middle of a request.
    let mut idle = encke.connect();
    assert_eq!(idle.ask("GET", "/healthz", &[], b"").status, 200);
    let mut half = encke.connect();
    half.send(b"GET /healthz HTTP/1.1\r\n");
    eventually("both are closed", || {
        let page = ask(&encke, "connections?limit=1000");
        let others: Vec<_> = rows(&page)
            .iter()
            .filter(|row| row["doing"] == "idle" || row["doing"] == "receiving")
            .collect();
        for row in &others {
            post(
                &encke,
                "connections/close",
                &json!({ "connection": row["id"] }),
            );
        }
        others.is_empty()
    });
    idle.expect_end();
    half.expect_end();
}

#[test]
fn a_client_that_reads_nothing_is_shown_as_slow_and_closed_at_once() {
    let encke = Encke::start(&["--shards", "1"]);
    encke.create("a");
    let subscriber = encke.subscribe_narrow("a");
    let mut producer = encke.connect();
    let data = format!("\"{}\"", "x".repeat(200_000));
    eventually("the client is behind", || {
        let answer = producer.ask("POST", "/v1/stream/a", &[JSON], data.as_bytes());
        assert_eq!(answer.status, 204);
        !rows(&ask(&encke, "connections?slow=true")).is_empty()
    });
    let page = ask(&encke, "connections?slow=true");
    let row = &rows(&page)[0];
    assert!(row["lagSeconds"].is_f64(), "{row}");
    assert_eq!(row["streams"], json!(["a"]));
    let groups = ask(&encke, "connections/groups?by=stream");
    assert_eq!(groups["groups"][0]["behind"], 1, "{groups}");
    let close = json!({ "connection": row["id"] });
    assert_eq!(post(&encke, "connections/close", &close).0, 204);
    eventually("it is gone", || {
        rows(&ask(&encke, "connections?stream=a")).is_empty()
    });
    drop(subscriber);
}

#[test]
fn the_largest_streams_are_found_and_stay_so_over_a_restart() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    for (name, messages, bytes) in [
        ("t/many", 9, 10),
        ("t/large", 2, 5_000),
        ("other", 1, 9_000),
    ] {
        let path = format!("/v1/stream/{name}");
        encke.create(name);
        for _ in 0..messages {
            let body = format!("\"{}\"", "x".repeat(bytes - 2));
            assert_eq!(
                encke.ask("POST", &path, &[JSON], body.as_bytes()).status,
                204
            );
        }
    }
    let names = |encke: &Encke, query: &str| {
        let answer = ask(encke, &format!("streams?{query}"));
        let streams = answer["streams"].as_array().expect("a list").clone();
        let names = streams
            .iter()
            .map(|one| one["name"].as_str().expect("a name"));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let check = |encke: &Encke| {
        assert_eq!(names(encke, "sort=bytes"), ["t/large", "other", "t/many"]);
        assert_eq!(names(encke, "sort=messages&limit=1"), ["t/many"]);
        assert_eq!(names(encke, "prefix=t/&sort=bytes"), ["t/large", "t/many"]);
        assert_eq!(names(encke, "prefix=t/&limit=1"), ["t/large"]);
        assert_eq!(names(encke, "prefix=t/&after=t/large"), ["t/many"]);
        let answer = ask(encke, "streams?sort=bytes");
        assert_eq!(answer["streams"][0]["appendedBytes"], 10_000);
        assert_eq!(answer["total"], 3);
    };
    check(&encke);
    assert_eq!(encke.terminate().code, Some(0));
    check(&Encke::start_in(data.path(), &[]));
}

#[test]
fn wrong_questions_are_named_and_change_nothing() {
    let encke = Encke::start(&[]);
    for (method, path, fields, status, code) in [
        (
            "GET",
            "connections?limit=1001",
            &[][..],
            400,
            "bad_parameter",
        ),
        ("GET", "connections?steam=a", &[], 400, "bad_parameter"),
        ("GET", "streams?sort=size", &[], 400, "bad_parameter"),
        ("GET", "history?x=1", &[], 400, "bad_parameter"),
        ("GET", "nothing", &[], 404, "not_found"),
        ("POST", "overview", &[JSON], 405, "method_not_allowed"),
        ("DELETE", "streams", &[], 405, "method_not_allowed"),
        ("GET", "connections/close", &[], 405, "method_not_allowed"),
        ("POST", "connections/close", &[], 415, "content_type"),
        ("POST", "explain", &[JSON], 409, "no_access_control"),
    ] {
        let path = format!("/v1/admin/{path}");
        let response = encke.ask(method, &path, fields, b"{}");
        let named = response.error_code();
        assert_eq!(
            (response.status, &*named),
            (status, code),
            "{method} {path}"
        );
    }
    let head = encke.ask("HEAD", "/v1/admin/overview", &[], b"");
    assert_eq!(head.status, 200);
}

#[test]
#[ignore = "long: make test-all"]
fn nobody_asks_and_nothing_is_done_but_the_samples() {
    let encke = Encke::start(&[]);
    ask(&encke, "history");
    let inspector = |encke: &Encke| {
        let threads = encke.cpu_seconds_of_threads();
        let mut found = threads
            .iter()
            .filter(|((a, b), _)| a == "inspector" || b == "inspector");
        *found.next().expect("the thread is there").1
    };
    let before = inspector(&encke);
    // Two samples are taken meanwhile.
    std::thread::sleep(Duration::from_secs(21));
    let used = inspector(&encke) - before;
    assert!(used <= 0.02, "{used} s of 21 s");
    let history = ask(&encke, "history");
    assert!(
        history["at"].as_array().expect("a list").len() >= 2,
        "{history}"
    );
}

#[test]
fn where_other_machines_reach_operators_streams_are_for_programs_of_this_one() {
    let data = data_dir();
    let flags = ["--admin-listen", "0.0.0.0:0"];
    let mut encke = Encke::start_by(&mut serve_on("127.0.0.1:0", data.path(), &flags));
    let mut stdout = encke.take_stdout();
    let port = operators_address(&mut stdout).port();
    let mut operator = Connection::open(([127, 0, 0, 1], port).into());
    encke.create("a");
    for (method, path) in [
        ("GET", "/v1/stream/a"),
        ("DELETE", "/v1/stream/a"),
        ("PUT", "/v1/stream/b"),
        ("GET", "/v1/stream"),
        ("GET", "/v1/pool"),
    ] {
        let response = operator.ask(method, path, &[], b"");
        assert_eq!(response.status, 403, "{method} {path}");
        assert_eq!(response.error_code(), "not_here", "{method} {path}");
    }
    assert_eq!(
        operator.ask("GET", "/v1/admin/streams", &[], b"").status,
        200
    );
    assert_eq!(
        operator.ask("GET", "/v1/events?stream=a", &[], b"").status,
        404
    );
}
