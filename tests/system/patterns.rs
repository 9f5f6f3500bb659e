//! Subscriptions by pattern: all streams whose names begin with a prefix, also those that are created later.

use crate::multi_stream::{MultiStream, append_all, ending, number};
use crate::rig::{Connection, Encke, JSON, data_dir, eventually, path, request};

/// The records of these streams that a pattern's prefix has.
fn below(prefix: &str, records: &[(String, u64)]) -> Vec<(String, u64)> {
    let records = records.iter();
    records
        .filter(|(stream, _)| stream.starts_with(prefix))
        .cloned()
        .collect()
}

/// The refusal of a query: status, code and text.
fn refusal(encke: &Encke, query: &str, id: Option<&str>) -> (u16, String, String) {
    let field = id.map(|id| format!("Last-Event-ID: {id}"));
    let fields: Vec<&str> = field.as_deref().into_iter().collect();
    let answer = encke.ask("GET", &format!("/v1/events?{query}"), &fields, b"");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    (answer.status, answer.error_code(), text)
}

#[test]
fn streams_that_appear_later_are_included() {
    for flags in [
        &[][..],
        &["--ack", "accepted"],
        &["--shards", "3"],
        &["--ack", "written"],
    ] {
        let encke = Encke::start(flags);
        encke.create("chat/old");
        encke.create("other");
        append_all(&encke, &["chat/old", "other"], 0..10);
        let mut chat = MultiStream::open(&encke, "stream=chat/**", None);
        let mut all = MultiStream::open(&encke, "stream=**", None);
        for stream in ["chat/new", "chat/a/b", "chats/x", "chat"] {
            encke.create(stream);
        }
        let streams = [
            "chat/old", "chat/new", "other", "chat/a/b", "chats/x", "chat",
        ];
        let appended = append_all(&encke, &streams, 10..100);
        let expected = below("chat/", &appended);
        assert!(expected.len() > 20);
        assert_eq!(chat.numbers(expected.len()), expected);
        assert_eq!(all.numbers(appended.len()), appended);
        assert_eq!(encke.metric("encke_patterns", ""), 2.0);
        drop((chat, all));
        encke.wait_for_metric("encke_subscribers", 0.0);
        encke.wait_for_metric("encke_patterns", 0.0);
    }
}

#[test]
fn a_client_that_returns_gets_each_record_once_also_over_a_kill() {
    for flags in [&[][..], &["--logs", "3"]] {
        let data = data_dir();
        let encke = Encke::start_in(data.path(), flags);
        encke.create("a/1");
        encke.create("b/1");
        // From now: an id comes before any record.
        let mut first = MultiStream::open(&encke, "stream=a/**", None);
        let mut expected = below("a/", &append_all(&encke, &["a/1", "b/1"], 0..20));
        let mut got = first.numbers(expected.len());
        let id = first.id.clone();
        drop(first);
        encke.create("a/2");
        let missed = append_all(&encke, &["a/1", "a/2", "b/1"], 20..60);
        encke.kill();
        let encke = Encke::start_in(data.path(), flags);
        encke.create("a/3");
        let later = append_all(&encke, &["a/1", "a/2", "a/3", "b/1"], 60..90);
        expected.extend(below("a/", &missed));
        expected.extend(below("a/", &later));
        let mut again = MultiStream::open(&encke, "stream=a/**", Some(&id));
        got.extend(again.numbers(expected.len() - got.len()));
        // What is live follows what was missed.
        let live = append_all(&encke, &["a/3", "b/1"], 90..100);
        expected.extend(below("a/", &live));
        got.extend(again.numbers(expected.len() - got.len()));
        if flags.is_empty() {
            assert_eq!(got, expected);
        } else {
            // Logs have orders of their own, so that each stream's is what counts.
            for stream in ["a/1", "a/2", "a/3"] {
                assert_eq!(below(stream, &got), below(stream, &expected));
            }
        }
    }
}

#[test]
fn the_old_form_of_a_pattern_means_the_same_and_gets_a_warning() {
    let encke = Encke::start(&[]);
    encke.create("a/b/1");
    let appended = append_all(&encke, &["a/b/1"], 0..3);
    for query in ["stream=a/*@-1", "stream=*@-1"] {
        let mut old = MultiStream::open(&encke, query, None);
        assert_eq!(old.numbers(3), appended, "{query}");
        let mut comment = encke.connect();
        comment.send(&request("GET", &format!("/v1/events?{query}"), &[], b""));
        assert_eq!(comment.head().status, 200);
        let prefix = query.trim_start_matches("stream=").trim_end_matches("*@-1");
        let warning = format!(
            ": {prefix}* stands for {prefix}**, and will mean one segment in the next version\n\n"
        );
        let mut events = std::iter::from_fn(|| comment.event()).take(3);
        assert!(events.any(|event| event == warning), "{warning}");
    }
    // Once, whatever clients do.
    let log = encke.wait_for_log("in its old form");
    assert_eq!(log.matches("in its old form").count(), 1, "{log}");
    MultiStream::open(&encke, "stream=**@-1", None).numbers(3);
}

#[test]
fn every_id_leads_to_the_rest() {
    let encke = Encke::start(&[]);
    let streams = ["a/1", "a/2", "b", "c/1"];
    streams.iter().for_each(|stream| encke.create(stream));
    let appended = append_all(&encke, &streams, 0..40);
    // The pattern from the beginning, a stream from now on, another pattern from now on.
    let query = "stream=a/**@-1&stream=b&stream=c/**";
    let mut first = MultiStream::open(&encke, query, None);
    let mut expected = below("a/", &appended);
    let later = append_all(&encke, &streams, 40..80);
    expected.extend(later);
    first.every_id_leads_to_the_rest(&encke, query, &expected);
}

#[test]
fn an_end_is_reported_and_the_others_continue() {
    let encke = Encke::start(&[]);
    for stream in ["a/closed", "a/deleted", "a/stays"] {
        encke.create(stream);
    }
    let mut several = MultiStream::open(&encke, "stream=a/**@-1", None);
    let closing = [JSON, "Stream-Closed: true"];
    let last = encke.ask("POST", &path("a/closed"), &closing, b"99");
    assert_eq!(last.status, 204);
    assert_eq!(
        encke.ask("DELETE", &path("a/deleted"), &[], b"").status,
        204
    );
    encke.connect().append("a/stays", 7);
    encke.create("a/deleted");
    encke.connect().append("a/deleted", 8);
    let closed = encke.ask("POST", &path("a/stays"), &["Stream-Closed: true"], b"");
    assert_eq!(closed.status, 204);
    assert_eq!(number(&several.event().unwrap()), ("a/closed".into(), 99));
    let id = several.id.clone();
    assert_eq!(ending(&several.event().unwrap()), ("a/closed", "closed"));
    assert_eq!(ending(&several.event().unwrap()), ("a/deleted", "deleted"));
    assert_eq!(number(&several.event().unwrap()), ("a/stays".into(), 7));
    assert_eq!(number(&several.event().unwrap()), ("a/deleted".into(), 8));
    assert_eq!(ending(&several.event().unwrap()), ("a/stays", "closed"));
    let mut again = MultiStream::open(&encke, "stream=a/**", Some(&id));
    assert_eq!(ending(&again.event().unwrap()), ("a/deleted", "deleted"));
    assert_eq!(number(&again.event().unwrap()), ("a/stays".into(), 7));
    assert_eq!(number(&again.event().unwrap()), ("a/deleted".into(), 8));
    assert_eq!(ending(&again.event().unwrap()), ("a/stays", "closed"));
}

#[test]
fn removed_records_leave_a_gap_that_is_reported() {
    let encke = Encke::start(&[]);
    encke.create("a/1");
    encke.create("a/2");
    let mut first = MultiStream::open(&encke, "stream=a/**", None);
    append_all(&encke, &["a/1"], 0..1);
    first.numbers(1);
    let id = first.id.clone();
    drop(first);
    let mut connection = encke.connect();
    let offsets: Vec<String> = (1..6).map(|n| connection.append("a/1", n)).collect();
    connection.append("a/2", 6);
    let truncate = format!("Encke-Truncate: {}", offsets[2]);
    let truncated = encke.ask("POST", &path("a/1"), &[&truncate], b"");
    assert_eq!(truncated.status, 204, "{truncated:?}");
    let mut again = MultiStream::open(&encke, "stream=a/**", Some(&id));
    let gap = again.event().expect("an event");
    assert_eq!(gap.name, "gap", "{gap:?}");
    let expected = serde_json::json!({"stream": "a/1", "why": "no_longer_kept"});
    assert_eq!(gap.data, expected);
    let rest = [("a/1", 4), ("a/1", 5), ("a/2", 6)];
    assert_eq!(again.numbers(3), rest.map(|(s, n)| (s.to_owned(), n)));
}

#[test]
fn an_id_that_the_order_no_longer_reaches_is_refused() {
    let flags = [
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
        "--order-size",
        "1MiB",
    ];
    let encke = Encke::start(&flags);
    encke.create("a/1");
    let mut first = MultiStream::open(&encke, "stream=a/**", None);
    append_all(&encke, &["a/1"], 0..1);
    first.numbers(1);
    let id = first.id.clone();
    drop(first);
    let filler = "x".repeat(200_000);
    let mut publisher = encke.connect();
    eventually("the order leaves the id behind", || {
        let body = format!("[1,\"{filler}\"]");
        let answer = publisher.ask("POST", &path("a/1"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
        let mut connection = encke.connect();
        let field = format!("Last-Event-ID: {id}");
        let head = connection.ask("HEAD", "/v1/events?stream=a/**", &[&field], b"");
        head.status == 410
    });
    let (status, code, text) = refusal(&encke, "stream=a/**", Some(&id));
    assert_eq!((status, &*code), (410, "no_longer_kept"));
    assert!(text.contains("a/**@-1"), "{text}");
    // What is left can be read.
    let mut rest = MultiStream::open(&encke, "stream=a/**@-1", None);
    assert_eq!(number(&rest.event().expect("an event")), ("a/1".into(), 1));
}

#[test]
fn a_slow_reader_catches_up_from_the_order() {
    let encke = Encke::start(&["--ring", "64KiB"]);
    let streams = ["a/1", "a/2", "a/3", "b"];
    streams.iter().for_each(|stream| encke.create(stream));
    let connection = Connection::open_narrow(encke.address);
    let mut slow = MultiStream::ask(connection, "stream=a/**", None);
    assert_eq!(slow.connection.head().status, 200);
    let mut publisher = encke.connect();
    let filler = "x".repeat(20_000);
    let mut expected = Vec::new();
    for number in 0..600_u64 {
        let stream = streams[(number * 7 % 11) as usize % streams.len()];
        let body = format!("[{number},\"{filler}\"]");
        let answer = publisher.ask("POST", &path(stream), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
        expected.push((stream.to_owned(), number));
    }
    let expected = below("a/", &expected);
    assert_eq!(slow.numbers(expected.len()), expected);
    assert!(encke.metric("encke_catch_ups_total", "") > 0.0);
}

#[test]
fn records_come_once_while_subscribers_come_and_go() {
    for flags in [
        &["--ack", "accepted", "--ring", "64KiB"][..],
        &["--ack", "synced", "--ring", "64KiB", "--shards", "2"],
    ] {
        let encke = Encke::start(flags);
        let streams = ["a/1", "b", "a/2", "c/1", "a/3"];
        streams.iter().for_each(|stream| encke.create(stream));
        let mut first = MultiStream::open(&encke, "stream=a/**", None);
        // As `append_all` chooses them.
        let chosen = (0..2_000_usize).map(|number| streams[number * number / 3 % streams.len()]);
        let count = chosen.filter(|stream| stream.starts_with("a/")).count();
        let (appended, got) = std::thread::scope(|scope| {
            let appending = scope.spawn(|| append_all(&encke, &streams, 0..2_000));
            let followers: Vec<_> = (1..5)
                .map(|step| {
                    // An id from before all records, for each.
                    let mut follower = MultiStream::open(&encke, "stream=a/**@-1", None);
                    let encke = &encke;
                    scope.spawn(move || {
                        let mut got = Vec::new();
                        while got.len() < count {
                            got.extend(follower.numbers((step * 7).min(count - got.len())));
                            let id = follower.id.clone();
                            follower = MultiStream::open(encke, "stream=a/**", Some(&id));
                        }
                        got
                    })
                })
                .collect();
            let got: Vec<_> = followers
                .into_iter()
                .map(|follower| follower.join().expect("it got them"))
                .collect();
            (appending.join().expect("all are appended"), got)
        });
        let expected = below("a/", &appended);
        for got in got {
            assert_eq!(got, expected);
        }
        assert_eq!(first.numbers(expected.len()), expected);
    }
}

#[test]
fn what_a_pattern_cannot_mean_is_refused() {
    let encke = Encke::start(&["--tuning", "streams-per-subscriber-max=2"]);
    encke.create("a/1");
    for (query, status, code, says) in [
        ("stream=a/**&stream=a/1", 400, "named_twice", "a/1"),
        ("stream=a/**&stream=a/b/**", 400, "named_twice", "a/b/*"),
        ("stream=**&stream=a/**", 400, "named_twice", "a/*"),
        (
            "stream=a/**&stream=b/**&stream=c/**",
            400,
            "too_many_streams",
            "3",
        ),
        ("stream=a//**", 400, "bad_path", "empty segment"),
        ("stream=a/../**", 400, "bad_path", ".."),
        ("stream=/**", 400, "bad_path", "no stream"),
        (
            "stream=a/**@0000000000000001_0000000000000000",
            400,
            "bad_parameter",
            "-1 or now",
        ),
    ] {
        let (got, got_code, text) = refusal(&encke, query, None);
        assert_eq!((got, &*got_code), (status, code), "{query}: {text}");
        assert!(text.contains(says), "{query}: {text}");
    }
    // A star elsewhere is a part of a name.
    let (status, _, _) = refusal(&encke, "stream=a**", None);
    assert_eq!(status, 404);
}

#[test]
fn ids_that_the_server_never_gives_are_refused() {
    for flags in [&[][..], &["--logs", "3"]] {
        let encke = Encke::start(flags);
        encke.create("a/1");
        append_all(&encke, &["a/1"], 0..3);
        let mut several = MultiStream::open(&encke, "stream=a/**@-1", None);
        several.numbers(3);
        let (after, streams) = several.id.split_once(";=").expect("the streams of an id");
        let log = if flags.is_empty() { "" } else { ":1" };
        for (ahead, code) in [
            ("ffffffffffffffff_0000000000000001:1", "beyond_tail"),
            ("ffffffffffffffff_0000000000000000:1", "beyond_tail"),
            ("00000000000000ff_0000000000000000:1", "beyond_tail"),
        ] {
            let id = format!("{after};{ahead}{log};={streams}");
            let (status, got, text) = refusal(&encke, "stream=a/**", Some(&id));
            assert_eq!((status, &*got), (400, code), "{id}: {text}");
        }
        // Within a record there is no position of a pattern; the last record of a log is the only place where this parses.
        if flags.is_empty() {
            let before = u64::from_str_radix(after, 16).expect("a sequence") - 1;
            let zero = "0000000000000000";
            let id = format!("{zero};{before:016x}_0000000000000001:1;={streams}");
            let (status, code, text) = refusal(&encke, "stream=a/**", Some(&id));
            assert_eq!((status, &*code), (400, "bad_parameter"), "{id}: {text}");
        }
    }
}

#[test]
fn a_pattern_shows_what_the_streams_own_readers_see() {
    let encke = Encke::start(&[]);
    for stream in ["t/cut", "t/gone", "t/source", "t/stays"] {
        encke.create(stream);
    }
    let streams = ["t/cut", "t/gone", "t/source", "t/stays"];
    append_all(&encke, &streams, 0..40);
    // Forks keep the records of their sources, but not for readers of these.
    for source in ["t/cut", "t/source"] {
        let field = format!("Stream-Forked-From: {}", path(source));
        let fork = format!("f/{source}");
        assert_eq!(
            encke.ask("PUT", &path(&fork), &[JSON, &field], b"").status,
            201
        );
    }
    let cut = encke.ask("POST", &path("t/cut"), &["Encke-Truncate: now"], b"");
    assert_eq!(cut.status, 204);
    for stream in ["t/gone", "t/source"] {
        assert_eq!(encke.ask("DELETE", &path(stream), &[], b"").status, 204);
    }
    encke.connect().append("t/cut", 100);
    let mut several = MultiStream::open(&encke, "stream=t/**@-1", None);
    let mut shown = Vec::new();
    loop {
        let event = several.event().expect("an event");
        match &*event.name {
            "" => {
                shown.push(number(&event));
                if number(&event).1 == 100 {
                    break;
                }
            }
            "gap" => assert_eq!(event.data["stream"], "t/cut"),
            _ => assert_eq!(ending(&event).1, "deleted"),
        }
    }
    let visible = |(stream, number): &(String, u64)| stream == "t/stays" || *number == 100;
    assert!(shown.iter().all(visible), "{shown:?}");
    assert!(shown.len() > 5, "{shown:?}");
}

#[test]
fn what_had_no_data_leaves_no_gap() {
    let encke = Encke::start(&[]);
    encke.create("a/1");
    let mut first = MultiStream::open(&encke, "stream=a/**", None);
    let id = first.position();
    drop(first);
    encke.create("a/2");
    let begin = encke.ask("HEAD", &path("a/2"), &[], b"");
    let begin = begin
        .field("Stream-Next-Offset")
        .expect("an offset")
        .to_owned();
    encke.connect().append("a/2", 1);
    let truncate = format!("Encke-Truncate: {begin}");
    assert_eq!(
        encke.ask("POST", &path("a/2"), &[&truncate], b"").status,
        204
    );
    let mut again = MultiStream::open(&encke, "stream=a/**", Some(&id));
    assert_eq!(again.numbers(1), [("a/2".to_owned(), 1)]);
}

#[test]
fn the_position_of_a_quiet_subscriber_moves_on() {
    let small = [
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
        "--order-size",
        "1MiB",
    ];
    for logs in ["1", "2"] {
        let tuned = [
            "--tuning",
            "heartbeat=50ms",
            "--logs",
            logs,
            "--ring",
            "64KiB",
        ];
        let encke = Encke::start(&[&small[..], &tuned].concat());
        encke.create("rare/1");
        (0..4).for_each(|number| encke.create(&format!("busy-{number}")));
        let mut quiet = MultiStream::open(&encke, "stream=rare/**", None);
        let first = quiet.position();
        let filler = "x".repeat(200_000);
        let mut publisher = encke.connect();
        let mut number = 0;
        eventually("the order leaves the first id behind", || {
            let body = format!("[1,\"{filler}\"]");
            let busy = path(&format!("busy-{}", number % 4));
            number += 1;
            assert_eq!(
                publisher
                    .ask("POST", &busy, &[JSON], body.as_bytes())
                    .status,
                204
            );
            let field = format!("Last-Event-ID: {first}");
            let head = encke.ask("HEAD", "/v1/events?stream=rare/**", &[&field], b"");
            head.status == 410
        });
        // It was given later ones meanwhile, which lead to what is missed.
        eventually("an id that the order reaches", || {
            let field = format!("Last-Event-ID: {}", quiet.position());
            let head = encke.ask("HEAD", "/v1/events?stream=rare/**", &[&field], b"");
            head.status == 200
        });
        let id = quiet.id.clone();
        encke.connect().append("rare/1", 7);
        assert_eq!(quiet.numbers(1), [("rare/1".to_owned(), 7)]);
        let mut again = MultiStream::open(&encke, "stream=rare/**", Some(&id));
        assert_eq!(again.numbers(1), [("rare/1".to_owned(), 7)]);
    }
}

#[test]
fn nothing_is_lost_while_positions_move_on() {
    for level in ["synced", "accepted"] {
        let flags = ["--tuning", "heartbeat=5ms", "--ack", level, "--shards", "2"];
        let encke = Encke::start(&flags);
        let streams = [
            "rare/1", "busy/1", "busy/2", "busy/3", "busy/4", "busy/5", "busy/6",
        ];
        streams.iter().for_each(|stream| encke.create(stream));
        let mut several = MultiStream::open(&encke, "stream=rare/**", None);
        let mut connection = encke.connect();
        let mut got = Vec::new();
        for number in 0..400_u64 {
            let stream = streams[(number % 7) as usize];
            connection.append(stream, number);
            if stream == "rare/1" {
                got.extend(several.numbers(1));
                assert_eq!(got.last(), Some(&("rare/1".to_owned(), number)));
                // Another connection continues from whatever position it was given last.
                let id = several.id.clone();
                several = MultiStream::open(&encke, "stream=rare/**", Some(&id));
            }
        }
        assert_eq!(got.len(), 58);
    }
}

#[test]
fn patterns_count_once_for_each_log() {
    let encke = Encke::start(&["--logs", "3", "--tuning", "streams-per-subscriber-max=5"]);
    let (status, code, text) = refusal(&encke, "stream=a/**&stream=b/**", None);
    assert_eq!((status, &*code), (400, "too_many_streams"), "{text}");
    assert!(text.contains("at most 1"), "{text}");
    MultiStream::open(&encke, "stream=a/**", None);
}

/// A subscription of many long patterns that no other one names.
fn wide(connection: usize) -> String {
    let names =
        (0..40).map(|number| format!("stream={connection}/{number}/{}/**", "x".repeat(200)));
    format!("/v1/events?{}", names.collect::<Vec<_>>().join("&"))
}

#[test]
fn patterns_of_one_client_take_a_bounded_memory_and_not_that_of_others() {
    let flags = ["--buffers-max", "1MiB", "--shards", "1", "--exempt", "none"];
    let encke = Encke::start(&flags);
    encke.create("a/b");
    let mut other = Connection::open_from(2, encke.address);
    other.send(&request(
        "GET",
        "/v1/events?stream=a/**&stream=b/**",
        &[],
        b"",
    ));
    assert_eq!(other.head().status, 200);
    let taken = || encke.metric("encke_pattern_bytes", "");
    eventually("they are counted", || taken() > 0.0);
    let of_other = taken();
    let mut held = Vec::new();
    // Until the client has lost some.
    while encke.metric("encke_buffers_shed_total", "") < 3.0 {
        let mut connection = Connection::open_from(3, encke.address);
        connection.send(&request("GET", &wide(held.len()), &[], b""));
        if connection.head_if_alive().is_some() {
            held.push(connection);
        }
        assert!(held.len() < 100, "nothing bounds them");
        let buffered = encke.metric("encke_buffered_bytes", "");
        assert!(buffered < f64::from(1 << 20), "{buffered}");
    }
    append_all(&encke, &["a/b"], 0..1);
    while !other.event().expect("it is connected").contains("a/b") {}
    drop(held);
    eventually("their memory is given back", || taken() == of_other);
    drop(other);
    eventually("all is given back", || taken() == 0.0);
}
