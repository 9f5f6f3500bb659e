//! What is wrong with a message is said, and closes nothing.

use super::*;

#[test]
fn what_is_wrong_with_a_message_is_said_and_closes_nothing() {
    let mut server = with(&[("a", JSON), ("t", TEXT)]);
    let before = tail(&server, "a");
    let mut channel = server.open("/v1/events", &[]);
    for (message, expected) in [
        ("", (400, "bad_json")),
        ("[]", (400, "bad_json")),
        ("\"x\"", (400, "bad_json")),
        ("{\"type\":", (400, "bad_json")),
        ("{}", (400, "bad_message")),
        (r#"{"type":1}"#, (400, "bad_message")),
        (r#"{"type":"subscibe","stream":"a"}"#, (400, "bad_message")),
        (r#"{"type":"subscribe"}"#, (400, "bad_message")),
        (
            r#"{"type":"subscribe","stream":"a","first":3}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","stream":"a"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","streams":["a"]}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":null}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","id":-1}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","id":9007199254740993}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","offset":"x"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","offset":7}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","position":"0000000000000000"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a/*"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","stream":"a","offset":"00000000ffffffff_0000000000000000"}"#,
            (400, "beyond_tail"),
        ),
        (
            r#"{"type":"subscribe","streams":"a"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","streams":[1]}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"subscribe","streams":[{"stream":"a","from":"-1"}]}"#,
            (400, "bad_message"),
        ),
        (r#"{"type":"subscribe","streams":[]}"#, (400, "no_streams")),
        (
            r#"{"type":"subscribe","streams":["a","**"]}"#,
            (400, "named_twice"),
        ),
        (
            r#"{"type":"subscribe","stream":"a/**","position":"x"}"#,
            (400, "bad_parameter"),
        ),
        (
            r#"{"type":"subscribe","stream":"none"}"#,
            (404, "not_found"),
        ),
        (r#"{"type":"subscribe","stream":"a//b"}"#, (400, "bad_path")),
        (
            r#"{"type":"subscribe","stream":"__ds/x"}"#,
            (400, "reserved_name"),
        ),
        (
            r#"{"type":"subscribe","stream":"__ds/**"}"#,
            (400, "reserved_name"),
        ),
        (
            r#"{"type":"append","stream":"__ds","data":1}"#,
            (400, "reserved_name"),
        ),
        (
            r#"{"type":"stop","stream":"__ds/x"}"#,
            (400, "reserved_name"),
        ),
        (
            r#"{"type":"unsubscribe","stream":"a"}"#,
            (404, "not_subscribed"),
        ),
        (r#"{"type":"append","stream":"a"}"#, (400, "empty_body")),
        (
            r#"{"type":"append","stream":"a","data":[]}"#,
            (400, "empty_array"),
        ),
        (
            r#"{"type":"append","stream":"a","text":"{"}"#,
            (400, "bad_json"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"text":"1"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"t","data":1}"#,
            (409, "type_differs"),
        ),
        (
            r#"{"type":"append","stream":"t","text":"a","contentType":"text/html"}"#,
            (409, "type_differs"),
        ),
        (
            r#"{"type":"append","stream":"t","text":"a","contentType":"text"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"t","base64":"a"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"ack":"safe"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"close":"yes"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"producer":{"id":"w","epoch":0}}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"producer":{"id":"","epoch":0,"seq":0}}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"producer":{"id":"w\r\n","epoch":0,"seq":0}}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"seq":"\u0000"}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"producer":{"id":"w","epoch":0,"seq":9007199254740992}}"#,
            (400, "bad_message"),
        ),
        (
            r#"{"type":"append","stream":"a","data":1,"producer":{"id":"w","epoch":0,"seq":1}}"#,
            (409, "sequence_gap"),
        ),
        (
            r#"{"type":"append","stream":"pool/p/results","data":1}"#,
            (403, "pool_stream"),
        ),
        (
            r#"{"type":"append","stream":"none","data":1}"#,
            (404, "not_found"),
        ),
        (r#"{"type":"authenticate"}"#, (400, "bad_message")),
        (
            r#"{"type":"authenticate","token":["secret"]}"#,
            (400, "bad_message"),
        ),
    ] {
        let got = refused(&mut server, &mut channel, message);
        assert_eq!((got.0, &*got.1), expected, "{message}");
    }
    let deep = format!(
        r#"{{"type":"append","id":8,"stream":"a","data":{}{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    assert_eq!(
        refused(&mut server, &mut channel, &deep),
        (400, "bad_json".to_owned())
    );
    for message in [
        r#"{"type":"subscribe","id":7,"stream":"none"}"#,
        r#"{"stream":"none","offset":9,"id":7,"type":"subscribe"}"#,
        r#"{"stream":"none","id":7,"typ":"subscribe"}"#,
    ] {
        let error = parsed(&server.say(&mut channel, message)[0]);
        assert_eq!(
            (&error["id"], &error["stream"]),
            (&json!(7), &json!("none")),
            "{message}"
        );
    }
    let secret = r#"{"type":"authenticate","token":"a secret","tokens":"a secret"}"#;
    assert!(!server.say(&mut channel, secret)[0].contains("a secret"));
    assert!(!server.say(&mut channel, "\"a secret\"")[0].contains("a secret"));
    let gap = r#"{"type":"append","stream":"a","data":1,"producer":{"id":"w","epoch":0,"seq":5}}"#;
    let error = parsed(&server.say(&mut channel, gap)[0]);
    assert_eq!(
        (&error["expected"], &error["received"]),
        (&json!(0), &json!(5))
    );
    // Nothing was stored, and the channel goes on.
    assert!(channel.feeds.is_empty());
    assert_eq!(tail(&server, "a"), before);
    let said = ask(
        &mut server,
        &mut channel,
        &json!({"type":"append","stream":"a","data":1}),
    );
    assert_eq!(parsed(&said)["type"], "appended");
}

/// A message of a stranger costs no more than it is long, and its error is short.
#[test]
fn large_messages_are_refused_and_not_repeated() {
    let mut server = with(&[("a", JSON)]);
    let mut channel = server.open("/v1/events", &[]);
    let long = "\\u007f".repeat(5_000);
    let longer = "n".repeat(70_000);
    let many = vec!["\"b\""; 200].join(",");
    for (message, expected) in [
        (
            format!(r#"{{"type":"append","stream":"a","data":1,"ack":"{long}"}}"#),
            (400, "bad_message"),
        ),
        (
            format!(r#"{{"type":"subscribe","stream":"a","offset":"{long}"}}"#),
            (400, "bad_message"),
        ),
        (
            format!(r#"{{"type":"unsubscribe","stream":"{long}"}}"#),
            (404, "not_subscribed"),
        ),
        (
            format!(r#"{{"type":"subscribe","streams":[{many}]}}"#),
            (400, "too_many_streams"),
        ),
        (
            format!(r#"{{"type":"subscribe","stream":"{longer}"}}"#),
            (413, "too_large"),
        ),
        (
            format!(r#"{{"type":"{longer}","stream":"a"}}"#),
            (413, "too_large"),
        ),
        (
            format!(r#"{{"type":"authenticate","token":"{longer}"}}"#),
            (413, "too_large"),
        ),
    ] {
        let said = server.say(&mut channel, &message);
        let error = parsed(&said[0]);
        let got = (error["status"].as_u64().unwrap(), error["code"].as_str());
        assert_eq!(got, (expected.0, Some(expected.1)), "{}", said[0]);
        assert!(said[0].len() < 1_500, "{} bytes", said[0].len());
    }
    let append = format!(r#"{{"type":"append","stream":"a","data":"{longer}"}}"#);
    assert!(server.say(&mut channel, &append)[0].contains("appended"));
}

#[test]
fn the_names_of_all_subscriptions_are_bounded_and_each_has_its_own() {
    let mut server = with(&[("x,y", JSON), ("x", JSON), ("y", JSON)]);
    let mut channel = server.open("/v1/events", &[]);
    let list = json!({"type": "subscribe", "streams": ["x", "y"]});
    assert!(ask(&mut server, &mut channel, &list).contains("subscribed"));
    let same = r#"{"type":"subscribe","stream":"x,y"}"#;
    let got = refused(&mut server, &mut channel, same);
    assert_eq!(got, (409, "already_subscribed".to_owned()));
    let mut taken = 0;
    loop {
        let name = format!("{}{taken}/**", "n".repeat(900));
        let message = json!({"type": "subscribe", "stream": name}).to_string();
        let said = server.say(&mut channel, &message);
        if parsed(&said[0])["code"] == "too_many_streams" {
            break;
        }
        taken += 1;
    }
    assert_eq!(taken, (16 << 10) / 904);
}
