//! Subscriptions that begin with the last messages of their stream.

use encke_protocol::{Action, ChannelMessage, Failure, Feed, FeedEnd};
use encke_stream::Offset;

use super::*;

/// A server whose stream `a` has the numbers 1 to 6, in three appends, and whose stream `t` has three texts.
fn filled() -> Server {
    let mut server = with(&[("a", JSON), ("t", TEXT)]);
    for numbers in ["1", "[2,3,4]", "[5,6]"] {
        append(&mut server, "a", JSON, numbers.as_bytes());
    }
    for text in ["one ", "two ", "three "] {
        append(&mut server, "t", TEXT, text.as_bytes());
    }
    server
}

fn append(server: &mut Server, name: &str, content_type: (&str, &str), body: &[u8]) {
    let line = format!("POST /v1/stream/{name}");
    assert_eq!(server.send(&line, &[content_type], body).status, 204);
}

/// Where a subscription begins, and what it delivers up to the tail.
fn last(server: &mut Server, name: &str, count: u64) -> (Value, Vec<Value>) {
    let mut channel = server.open("/v1/events", &[]);
    let message = json!({"type": "subscribe", "id": 7, "stream": name, "last": count});
    let subscribed = parsed(&ask(server, &mut channel, &message));
    assert_eq!(
        (&subscribed["type"], &subscribed["id"]),
        (&json!("subscribed"), &json!(7)),
        "{subscribed}"
    );
    (subscribed, delivered(server, &mut channel))
}

/// The data that a channel's feeds deliver: messages of JSON, or whole texts.
fn delivered(server: &mut Server, channel: &mut TestChannel) -> Vec<Value> {
    let delivered = server.deliver(channel);
    let messages = delivered.iter().map(|message| parsed(message));
    let records = messages.filter(|message| message["type"] == "records");
    let data = records.flat_map(|message| match &message["data"] {
        Value::Array(data) => data.clone(),
        _ => vec![message["text"].clone()],
    });
    data.collect()
}

#[test]
fn a_subscription_begins_so_many_messages_before_the_end() {
    let mut server = filled();
    for count in 0..6 {
        let (subscribed, data) = last(&mut server, "a", count);
        let expected: Vec<Value> = (7 - count..=6).map(Value::from).collect();
        assert_eq!(data, expected, "{subscribed}");
        assert_eq!(subscribed["upToDate"] == true, count == 0);
        // The offset is where it begins: another subscription from there on gets the same.
        let mut channel = server.open("/v1/events", &[]);
        let offset = &subscribed["offset"];
        let message = json!({"type": "subscribe", "stream": "a", "offset": offset});
        assert_eq!(
            parsed(&ask(&mut server, &mut channel, &message))["offset"],
            *offset
        );
        assert_eq!(delivered(&mut server, &mut channel), expected);
    }
    let (subscribed, data) = last(&mut server, "a", 6);
    assert_ne!(subscribed["offset"], Offset::START.to_string());
    assert_eq!(data.len(), 6);
    for count in [7, 10_000] {
        let (subscribed, data) = last(&mut server, "a", count);
        assert_eq!(subscribed["offset"], Offset::START.to_string());
        assert_eq!(data.len(), 6);
    }
}

#[test]
fn an_append_of_text_is_one_message() {
    let mut server = filled();
    for (count, expected) in [(1, "three "), (2, "two three "), (9, "one two three ")] {
        let (_, data) = last(&mut server, "t", count);
        let text: String = data.iter().filter_map(Value::as_str).collect();
        assert_eq!(text, expected);
    }
}

#[test]
fn what_is_appended_later_follows() {
    let mut server = filled();
    let mut channel = server.open("/v1/events", &[]);
    let message = json!({"type": "subscribe", "stream": "a", "last": 1});
    ask(&mut server, &mut channel, &message);
    append(&mut server, "a", JSON, b"7");
    assert_eq!(delivered(&mut server, &mut channel), [6, 7]);
    append(&mut server, "a", JSON, b"8");
    assert_eq!(delivered(&mut server, &mut channel), [8]);
}

#[test]
fn truncations_ends_and_records_without_data_are_no_messages() {
    let mut server = filled();
    let cut = tail(&server, "a");
    append(&mut server, "a", JSON, b"[7,8]");
    for before in [cut, tail(&server, "a")] {
        let truncate = [("Encke-Truncate", &*before)];
        let said = server.send("POST /v1/stream/a", &truncate, b"");
        assert_eq!(said.status, 204, "{}", said.text());
        append(&mut server, "a", JSON, b"9");
    }
    server.send("POST /v1/stream/a", &[("Stream-Closed", "true")], b"");
    assert_eq!(last(&mut server, "a", 1).1, [9]);
    for count in [2, 3] {
        assert_eq!(last(&mut server, "a", count).1, [9, 9]);
    }
    // The end of a closed stream has nothing to follow.
    let (subscribed, _) = last(&mut server, "a", 0);
    assert_eq!(subscribed["ended"][0]["reason"], "closed");
    create(&mut server, "empty", JSON);
    assert_eq!(last(&mut server, "empty", 50).1, [0; 0]);
}

#[test]
fn a_fork_counts_what_it_shares_with_its_source() {
    let mut server = filled();
    let said = server.send("GET /v1/stream/a?last=4", &[], b"");
    assert_eq!(said.text(), "[3,4,5,6]");
    // Behind 3, inside a record.
    let mut channel = server.open("/v1/events", &[]);
    let message = json!({"type": "subscribe", "stream": "a", "last": 3});
    let at = parsed(&ask(&mut server, &mut channel, &message))["offset"].take();
    let fork = [
        JSON,
        ("Stream-Forked-From", "a"),
        ("Stream-Fork-Offset", at.as_str().unwrap()),
    ];
    assert_eq!(server.send("PUT /v1/stream/f", &fork, b"").status, 201);
    append(&mut server, "f", JSON, b"[10,11]");
    for (count, expected) in [
        (1, &[11][..]),
        (3, &[3, 10, 11]),
        (4, &[2, 3, 10, 11]),
        (5, &[1, 2, 3, 10, 11]),
        (6, &[1, 2, 3, 10, 11]),
    ] {
        assert_eq!(last(&mut server, "f", count).1, expected);
    }
}

#[test]
fn so_many_bytes_are_read_and_no_more() {
    let mut server = with(&[("t", TEXT)]);
    let record = vec![b'x'; 900 << 10];
    for _ in 0..25 {
        append(&mut server, "t", TEXT, &record);
    }
    let (_, data) = last(&mut server, "t", 10_000);
    let bytes: usize = data.iter().filter_map(Value::as_str).map(str::len).sum();
    assert!(
        bytes >= 16 << 20 && bytes < (16 << 20) + record.len(),
        "{bytes}"
    );
    assert_eq!(bytes % record.len(), 0, "it begins with a whole message");
}

#[test]
fn a_wrong_count_is_refused_with_what_is_allowed() {
    let mut server = filled();
    let mut channel = server.open("/v1/events", &[]);
    let subscribe = |rest: &str| format!(r#"{{"type":"subscribe",{rest}}}"#);
    for (rest, why) in [
        (r#""stream":"a","last":10001"#, "from 0 to 10000"),
        (r#""stream":"a","last":-1"#, "from 0 to 10000"),
        (r#""stream":"a","last":1.5"#, "from 0 to 10000"),
        (r#""stream":"a","last":"50""#, "from 0 to 10000"),
        (r#""stream":"a","last":null"#, "from 0 to 10000"),
        (
            r#""stream":"a","last":99999999999999999999"#,
            "from 0 to 10000",
        ),
        (
            r#""stream":"a","last":5,"offset":"-1""#,
            r#"one of "offset" and "last""#,
        ),
        (r#""stream":"a","last":5,"last":5"#, "twice"),
        (r#""stream":"a","last":5,"position":"x""#, "position"),
        (
            r#""streams":[{"stream":"a","last":10001}]"#,
            "from 0 to 10000",
        ),
        (
            r#""streams":["a"],"last":5,"offset":"-1""#,
            r#"one of "offset" and "last""#,
        ),
        (
            r#""streams":[{"stream":"a","last":5,"offset":"-1"}]"#,
            r#"one of "offset" and "last""#,
        ),
        (
            r#""streams":[{"stream":"a","offset":"-1"}],"last":5"#,
            "there is none",
        ),
    ] {
        let said = server.say(&mut channel, &subscribe(rest));
        let error = parsed(&said[0]);
        assert_eq!(
            (&error["status"], &error["code"]),
            (&json!(400), &json!("bad_message")),
            "{rest}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(why), "{rest}: {message}");
    }
    // Which streams match a pattern changes.
    for pattern in [
        r#""stream":"a/**","last":5"#,
        r#""streams":["a","b/**"],"last":5"#,
        r#""streams":["a",{"stream":"b/**","last":5}]"#,
    ] {
        let said = server.say(&mut channel, &subscribe(pattern));
        let error = parsed(&said[0]);
        assert_eq!(error["status"], 400, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("/**@now"), "{message}");
    }
    let missing = json!({"type": "subscribe", "stream": "none", "last": 5}).to_string();
    let refused = refused(&mut server, &mut channel, &missing);
    assert_eq!(refused, (404, "not_found".into()));
}

#[test]
fn a_url_may_name_it() {
    let mut server = filled();
    let mut channel = server.open("/v1/stream/a?last=2&live=websocket", &[]);
    assert_eq!(parsed(&channel.first[0])["type"], "subscribed");
    assert_eq!(delivered(&mut server, &mut channel), [5, 6]);
}

/// Where the sources of a channel's only subscription begin, which is for several streams.
fn sources(channel: &TestChannel) -> Vec<(String, Offset)> {
    let [subscription] = &channel.feeds.values().collect::<Vec<_>>()[..] else {
        panic!("it has one subscription");
    };
    let Feed::Merged { sources, .. } = &subscription.feed else {
        panic!("it is for several streams");
    };
    let sources = sources.iter();
    let sources = sources.map(|source| {
        let name = source.kind.stream().map_or("", |stream| &stream.name);
        (name.to_owned(), source.from)
    });
    sources.collect()
}

#[test]
fn each_of_several_streams_begins_so_many_messages_before_its_end() {
    let mut server = filled();
    let mut one = |name: &str, count: u64| {
        let (subscribed, _) = last(&mut server, name, count);
        subscribed["offset"].as_str().unwrap().parse().unwrap()
    };
    let expected = |a: Offset, t: Offset| [("a".to_owned(), a), ("t".to_owned(), t)];
    let two: [(String, Offset); 2] = expected(one("a", 2), one("t", 2));
    let mixed = expected(one("a", 3), one("t", 1));
    let beginning = expected(one("a", 2), Offset::START);
    for (members, expected) in [
        (json!({"streams": ["a", "t"], "last": 2}), &two),
        (
            json!({"streams": [{"stream": "a", "last": 3}, "t"], "last": 1}),
            &mixed,
        ),
        (
            json!({"streams": [{"stream": "a", "last": 2}, {"stream": "t", "offset": "-1"}]}),
            &beginning,
        ),
    ] {
        let mut message = json!({"type": "subscribe", "id": 7});
        let own = members.as_object().unwrap().clone();
        message.as_object_mut().unwrap().extend(own);
        let mut channel = server.open("/v1/events", &[]);
        let subscribed = parsed(&ask(&mut server, &mut channel, &message));
        assert_eq!(
            (&subscribed["type"], &subscribed["id"]),
            (&json!("subscribed"), &json!(7)),
            "{subscribed}"
        );
        assert_eq!(sources(&channel), *expected, "{members}");
        // The position is good for another subscription, and takes precedence.
        let position = subscribed["position"].clone();
        let mut channel = server.open("/v1/events", &[]);
        let again =
            json!({"type": "subscribe", "streams": ["a", "t"], "position": position, "last": 1});
        let again = parsed(&ask(&mut server, &mut channel, &again));
        assert_eq!(again["position"], position);
    }
    // A URL stands for the same subscription.
    let channel = server.open("/v1/events?stream=a&stream=t&last=2", &[]);
    assert_eq!(parsed(&channel.first[0])["type"], "subscribed");
    assert_eq!(sources(&channel), two);
}

/// The first read of a subscription to the last message of `a`.
fn first_read(server: &Server, channel: &mut TestChannel) -> (u32, Action) {
    let text = json!({"type": "subscribe", "id": 7, "stream": "a", "last": 1}).to_string();
    let done = channel.channel.message(ChannelMessage {
        text: &text,
        now: server.now(),
        barriers: 0,
        certificate: None,
        address: None,
    });
    assert_ne!(done.key, 0);
    (done.key, done.action)
}

/// The response of a search during which a request is sent, before its read or behind it.
fn during_search(line: &str, fields: &[(&str, &str)], is_read: bool) -> (Server, Value) {
    let mut server = filled();
    let mut channel = server.open("/v1/events", &[]);
    let (_, action) = first_read(&server, &mut channel);
    let Action::Read(fetch, then) = action else {
        panic!("it reads");
    };
    let early = is_read.then(|| server.read(&fetch));
    assert_eq!(server.send(line, fields, b"").status, 204);
    let piece = early.unwrap_or_else(|| server.read(&fetch));
    let response = match server.resume(&piece, then) {
        Action::Respond(response) => response,
        Action::Subscribe(subscription) => subscription.response,
        other => panic!("{other:?}"),
    };
    let message = parsed(std::str::from_utf8(response.body.as_ref()).unwrap());
    assert_eq!(message["id"], 7);
    (server, message)
}

#[test]
fn what_is_removed_during_the_search_is_no_message() {
    for is_read in [false, true] {
        let (_, message) = during_search("DELETE /v1/stream/a", &[], is_read);
        assert_eq!(message["status"], 404, "{message}");
        let truncate = [("Encke-Truncate", "now")];
        let (server, message) = during_search("POST /v1/stream/a", &truncate, is_read);
        let expected = match is_read {
            // It has found the last message, and begins with what is left.
            true => Offset::START.to_string(),
            false => tail(&server, "a"),
        };
        assert_eq!(message["offset"], expected);
    }
}

#[test]
fn a_search_that_fails_ends_the_subscription_that_was_to_begin() {
    let mut server = filled();
    let mut channel = server.open("/v1/events", &[]);
    let (key, action) = first_read(&server, &mut channel);
    let Action::Read(_, then) = action else {
        panic!("it reads");
    };
    // Meanwhile the channel has the subscription.
    let again = json!({"type": "subscribe", "stream": "a"}).to_string();
    let named = refused(&mut server, &mut channel, &again);
    assert_eq!(named, (409, "already_subscribed".into()));
    let Action::Respond(response) = then.read(Err(Failure::Overloaded), server.now().wall) else {
        panic!("it is refused");
    };
    let error = parsed(std::str::from_utf8(response.body.as_ref()).unwrap());
    assert_eq!(
        (&error["id"], &error["stream"], &error["code"]),
        (&json!(7), &json!("a"), &json!("overloaded"))
    );
    channel.channel.ended(key, FeedEnd::Told);
    let said = server.say(&mut channel, &again);
    assert_eq!(parsed(&said[0])["type"], "subscribed");
}
