//! Streams at rest: unused streams leave memory, and are loaded unchanged when a request names them.

use std::thread;

use crate::rig::{Encke, JSON, Response, data_dir, eventually, path, request};

/// A server that evicts streams after moments.
const SOON: [&str; 2] = ["--tuning", "streams-idle=100ms"];

const IN_MEMORY: &str = "encke_streams_in_memory";

/// Does the same for many streams, over some connections at once: streams are numbered from 0.
fn for_each(
    server: &Encke,
    count: u64,
    ask: impl Fn(u64) -> Vec<u8> + Sync,
    check: impl Fn(u64, Response) + Sync,
) {
    const CONNECTIONS: u64 = 40;
    thread::scope(|scope| {
        for first in 0..CONNECTIONS {
            let (ask, check) = (&ask, &check);
            scope.spawn(move || {
                let mut connection = server.connect();
                for number in (first..count).step_by(CONNECTIONS as usize) {
                    connection.send(&ask(number));
                    check(number, connection.answer());
                }
            });
        }
    });
}

fn name(number: u64) -> String {
    path(&format!("at/rest/{number}"))
}

/// The request of a producer that sends its `seq`-th message.
fn produce(number: u64, seq: u64) -> Vec<u8> {
    let seq_field = format!("Producer-Seq: {seq}");
    let fields = [JSON, "Producer-Id: p", "Producer-Epoch: 0", &seq_field];
    request(
        "POST",
        &name(number),
        &fields,
        format!("[{seq}]").as_bytes(),
    )
}

fn produced(number: u64, answer: &Response) {
    assert_eq!(answer.status, 200, "{number}: {answer:?}");
}

fn create(server: &Encke, count: u64) {
    let ask = |number: u64| {
        let lives = [
            "Stream-TTL: 86400",
            "Stream-Expires-At: 2100-01-01T00:00:00Z",
            JSON,
        ];
        let fields = [JSON, lives[number as usize % 3]];
        let fields = if number % 3 == 2 {
            &fields[..1]
        } else {
            &fields
        };
        request("PUT", &name(number), fields, b"")
    };
    for_each(server, count, ask, |number, answer| {
        assert_eq!(answer.status, 201, "{number}: {answer:?}");
    });
}

#[test]
fn streams_at_rest_cost_no_memory_and_are_there_after_crashes_when_they_are_named() {
    const COUNT: u64 = 1_500;
    let data = data_dir();
    let server = Encke::start_in(data.path(), &SOON);
    create(&server, COUNT);
    for_each(
        &server,
        COUNT,
        |number| produce(number, 0),
        |number, answer| produced(number, &answer),
    );
    server.wait_for_metric(IN_MEMORY, 0.0);
    assert_eq!(server.metric("encke_streams", "") as u64, COUNT);
    assert!(server.metric("encke_stream_evictions_total", "") as u64 >= COUNT);
    server.kill();

    // A start loads no streams.
    let server = Encke::start_in(data.path(), &SOON);
    assert_eq!(server.metric("encke_streams", "") as u64, COUNT);
    assert_eq!(server.metric(IN_MEMORY, ""), 0.0);
    // The crash comes while some are in memory, changed, and some are not.
    for_each(
        &server,
        COUNT / 2,
        |number| produce(number, 1),
        |number, answer| produced(number, &answer),
    );
    server.kill();

    let server = Encke::start_in(data.path(), &SOON);
    assert_eq!(server.metric("encke_streams", "") as u64, COUNT);
    // What was done already is known as that, and what comes next is taken.
    for_each(
        &server,
        COUNT,
        |number| produce(number, 1),
        |number, answer| {
            let status = if number < COUNT / 2 { 204 } else { 200 };
            assert_eq!(answer.status, status, "{number}: {answer:?}");
        },
    );
    let read = |number: u64| request("GET", &format!("{}?offset=-1", name(number)), &[], b"");
    for_each(&server, COUNT, read, |number, answer| {
        assert_eq!(answer.body, b"[0,1]", "{number}: {answer:?}");
    });
    server.wait_for_metric(IN_MEMORY, 0.0);
    let lives = |number: u64| request("HEAD", &name(number), &[], b"");
    for number in 0..3 {
        let mut connection = server.connect();
        connection.send(&lives(number));
        let head = connection.answer_to("HEAD");
        assert_eq!(head.field("Stream-TTL"), (number == 0).then_some("86400"));
        assert_eq!(head.field("Stream-Expires-At").is_some(), number == 1);
    }
    // What was changed shortly before the crash is replayed, and may be in memory from the start.
    assert!(server.metric("encke_stream_loads_total", "") as u64 >= COUNT / 2);
    assert!(server.metric("encke_look_up_seconds_count", "") as u64 >= COUNT / 2);
    assert_eq!(server.terminate().code, Some(0));
}

#[test]
fn whatever_is_asked_of_a_stream_at_rest_is_answered_as_if_it_were_in_memory() {
    let server = Encke::start(&SOON);
    for stream in ["a", "b", "c", "d", "e"] {
        server.create(stream);
        server.connect().append(stream, 1);
    }
    let made = server.ask(
        "PUT",
        &path("fork"),
        &[JSON, "Stream-Forked-From: /v1/stream/a"],
        b"",
    );
    assert_eq!(made.status, 201, "{made:?}");
    let rest = || server.wait_for_metric(IN_MEMORY, 0.0);

    rest();
    let json = || server.ask("PUT", &path("a"), &[JSON], b"");
    assert_eq!(json().status, 200, "it is there, with the same settings");
    rest();
    let text = server.ask("PUT", &path("a"), &["Content-Type: text/plain"], b"");
    assert_eq!(text.status, 409, "{text:?}");
    rest();
    // A deleted source is kept for its fork, in memory or not.
    assert_eq!(server.ask("DELETE", &path("a"), &[], b"").status, 204);
    rest();
    assert_eq!(server.ask("GET", &path("a"), &[], b"").status, 410);
    assert_eq!(server.numbers("fork"), [1]);
    rest();
    assert_eq!(json().status, 409);
    rest();
    assert_eq!(server.ask("DELETE", &path("fork"), &[], b"").status, 204);
    rest();
    assert_eq!(
        server.ask("GET", &path("a"), &[], b"").status,
        404,
        "it went with its fork"
    );
    rest();
    assert_eq!(json().status, 201);
    assert_eq!(server.numbers("a"), [0; 0]);

    rest();
    let fields = [JSON, "Stream-Forked-From: /v1/stream/b"];
    let made = server.ask("PUT", &path("branch"), &fields, b"");
    assert_eq!(made.status, 201, "both names are looked up: {made:?}");
    assert_eq!(server.numbers("branch"), [1]);
    rest();
    let closed = server.ask("POST", &path("c"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204, "{closed:?}");
    rest();
    let closed = server.ask("POST", &path("c"), &[JSON], b"2");
    assert_eq!((closed.status, &*closed.error_code()), (409, "closed"));
    rest();
    let mut subscriber = server.subscribe("d", "-1");
    assert_eq!(subscriber.numbers(1), [1]);
    server.connect().append("d", 2);
    assert_eq!(subscriber.numbers(1), [2]);
    drop(subscriber);
    rest();
    let poll = server.ask(
        "GET",
        &format!("{}?offset=-1&live=long-poll", path("e")),
        &[],
        b"",
    );
    assert_eq!((poll.status, &*poll.body), (200, &b"[1]"[..]));
    // Pipelined requests keep their order while names are looked up.
    rest();
    let mut connection = server.connect();
    let mut all = request("POST", &path("e"), &[JSON], b"2");
    all.extend(request(
        "GET",
        &format!("{}?offset=-1", path("e")),
        &[],
        b"",
    ));
    all.extend(request("GET", &path("nobody"), &[], b""));
    all.extend(request("DELETE", &path("b"), &[], b""));
    connection.send(&all);
    let answers: Vec<Response> = (0..4).map(|_| connection.answer()).collect();
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [204, 200, 404, 204]);
    assert_eq!(answers[1].body, b"[1,2]");
    assert_eq!(server.terminate().code, Some(0));
}

#[test]
fn more_streams_and_names_than_may_be_in_memory_leave_it_sooner() {
    const COUNT: u64 = 1_500;
    const MAX: f64 = 200.0;
    let data = data_dir();
    let flags = [
        "--tuning",
        "streams-hot-max=200",
        "--tuning",
        "streams-idle=1h",
    ];
    let server = Encke::start_in(data.path(), &flags);
    create(&server, COUNT);
    let few = |server: &Encke| {
        server.metric(IN_MEMORY, "") + server.metric("encke_names_free", "") <= MAX
    };
    eventually("few streams are in memory", || few(&server));
    for_each(
        &server,
        COUNT,
        |number| produce(number, 0),
        |number, answer| produced(number, &answer),
    );
    eventually("few streams are in memory", || few(&server));
    // Free names are bounded, too.
    let nobody = |number: u64| request("GET", &path(&format!("nobody/{number}")), &[], b"");
    for_each(&server, COUNT, nobody, |_, answer| {
        assert_eq!(answer.status, 404);
    });
    eventually("few names are in memory", || few(&server));
    assert_eq!(server.metric("encke_streams", "") as u64, COUNT);
    assert_eq!(server.terminate().code, Some(0));
}

#[test]
fn subscribers_keep_no_stream_in_memory_and_miss_nothing() {
    const COUNT: usize = 60;
    let data = data_dir();
    let server = Encke::start_in(data.path(), &SOON);
    let stream = |number: usize| format!("watched/{number}");
    let mut subscribers = Vec::new();
    for number in 0..COUNT {
        server.create(&stream(number));
        server.connect().append(&stream(number), 1);
        let mut subscriber = server.subscribe(&stream(number), "-1");
        assert_eq!(subscriber.numbers(1), [1]);
        subscribers.push(subscriber);
    }
    server.wait_for_metric(IN_MEMORY, 0.0);
    assert_eq!(server.metric("encke_subscribers", "") as usize, COUNT);

    for number in 0..COUNT {
        server.connect().append(&stream(number), 2);
    }
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.numbers(1), [2]);
    }
    server.wait_for_metric(IN_MEMORY, 0.0);
    // Closed without data, closed with data, deleted: all subscribers get the end.
    let over = |number: usize| match number % 3 {
        0 => server.ask(
            "POST",
            &path(&stream(number)),
            &["Stream-Closed: true"],
            b"",
        ),
        1 => server.ask(
            "POST",
            &path(&stream(number)),
            &["Stream-Closed: true", JSON],
            b"3",
        ),
        _ => server.ask("DELETE", &path(&stream(number)), &[], b""),
    };
    for (number, subscriber) in subscribers.iter_mut().enumerate() {
        assert_eq!(over(number).status, 204);
        let last: &[u64] = if number % 3 == 1 { &[3] } else { &[] };
        assert_eq!(subscriber.rest(), last);
    }
    server.wait_for_metric("encke_subscribers", 0.0);
    server.wait_for_metric(IN_MEMORY, 0.0);
    assert_eq!(server.terminate().code, Some(0));
}
