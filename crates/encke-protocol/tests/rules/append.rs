//! Append and close (sections 5.2 and 5.3).

use crate::server::{Reply, Server};
use crate::{CLOSED, JSON, TEXT, get, producer, with};

#[test]
fn appending_needs_a_body_and_its_type() {
    let mut server = with(TEXT);
    for (headers, body, status, code) in [
        (&[TEXT][..], &b""[..], 400, "empty_body"),
        (&[], b"x", 400, "missing_content_type"),
        (&[("Content-Type", " ")], b"x", 400, "missing_content_type"),
        (&[("Content-Type", "text/html")], b"x", 409, "type_differs"),
        (&[("Content-Type", "text/\x01")], b"x", 400, "bad_field"),
    ] {
        let said = server.send("POST /v1/stream/a", headers, body);
        assert_eq!((said.status, &*said.code()), (status, code), "{headers:?}");
    }
    let parameters = ("Content-Type", "TEXT/plain;charset=latin-1");
    assert_eq!(
        server.send("POST /v1/stream/a", &[parameters], b"x").status,
        204
    );
    let long = "x".repeat(257);
    let said = server.send("POST /v1/stream/a", &[("Content-Type", &long)], b"x");
    assert_eq!((said.status, said.code()), (400, "bad_field".into()));
    let said = server.send("POST /v1/stream/a", &[TEXT, ("Stream-Seq", &long)], b"x");
    assert_eq!((said.status, said.code()), (400, "bad_field".into()));
    let body = vec![b'x'; 2 << 20];
    let said = server.send("POST /v1/stream/a", &[TEXT], &body);
    assert_eq!((said.status, said.code()), (413, "too_large".into()));
    assert_eq!(get(&mut server, "a").body, b"x");
}

#[test]
fn closing_without_data_asks_for_no_type_and_can_be_repeated() {
    let mut server = with(JSON);
    let request: [(&str, &[u8]); 2] = [("Stream-Closed", b"true"), ("Content-Type", b"\xff\x01")];
    for _ in 0..2 {
        let reply = server.request("POST", "/v1/stream/a", None, &request, b"");
        let Reply::Said(said) = reply else { panic!() };
        assert_eq!(
            (said.status, said.field("Stream-Closed")),
            (204, Some("true"))
        );
    }
    // With data it can't: the data is not there.
    let said = server.send("POST /v1/stream/a", &[JSON, CLOSED], b"1");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (409, Some("true"))
    );
    let tail = server.send("HEAD /v1/stream/a", &[], b"").token();
    assert_eq!(said.token(), tail);
    // That it is closed comes before everything else that is wrong.
    let said = server.send("POST /v1/stream/a", &[TEXT, ("Stream-Seq", "0")], b"1");
    assert_eq!((said.code(), said.token()), ("closed".into(), tail));
}

#[test]
fn stream_seq_grows_byte_by_byte() {
    let mut server = with(TEXT);
    let seq = |server: &mut Server, seq: &str| {
        let said = server.send("POST /v1/stream/a", &[TEXT, ("Stream-Seq", seq)], b"x");
        said.status
    };
    assert_eq!(seq(&mut server, "2"), 204);
    assert_eq!(seq(&mut server, "2"), 409);
    assert_eq!(seq(&mut server, "10"), 409, "1 comes before 2");
    assert_eq!(seq(&mut server, "20"), 204);
    assert_eq!(seq(&mut server, "a"), 204);
    assert_eq!(seq(&mut server, "Z"), 409);
    assert_eq!(seq(&mut server, "ä"), 204);
    // An append without one is none of its business, and a refused one leaves it.
    assert_eq!(server.send("POST /v1/stream/a", &[TEXT], b"x").status, 204);
    let wrong = [("Content-Type", "text/html"), ("Stream-Seq", "ö")];
    assert_eq!(server.send("POST /v1/stream/a", &wrong, b"x").status, 409);
    assert_eq!(seq(&mut server, "å"), 204);
    // A fork is another stream.
    let from = ("Stream-Forked-From", "/v1/stream/a");
    assert_eq!(server.send("PUT /v1/stream/f", &[from], b"").status, 201);
    let said = server.send("POST /v1/stream/f", &[TEXT, ("Stream-Seq", "0")], b"x");
    assert_eq!(said.status, 204);
}

#[test]
fn producers_get_their_last_sequence() {
    let mut server = with(TEXT);
    let expect = |server: &mut Server, epoch, seq, status, fields: &[(&str, &str)]| {
        let said = server.send("POST /v1/stream/a", &producer(epoch, seq), b"x");
        assert_eq!(said.status, status, "epoch {epoch}, seq {seq}");
        for (name, value) in fields {
            assert_eq!(said.field(name), Some(*value), "{name}");
        }
        said
    };
    let gap = |expected, received| {
        [
            ("Producer-Expected-Seq", expected),
            ("Producer-Received-Seq", received),
        ]
    };
    expect(&mut server, "0", "1", 409, &gap("0", "1"));
    expect(
        &mut server,
        "0",
        "0",
        200,
        &[("Producer-Epoch", "0"), ("Producer-Seq", "0")],
    );
    expect(&mut server, "0", "1", 200, &[("Producer-Seq", "1")]);
    let highest = [("Producer-Epoch", "0"), ("Producer-Seq", "1")];
    expect(&mut server, "0", "0", 204, &highest);
    expect(&mut server, "0", "3", 409, &gap("2", "3"));
    expect(&mut server, "7", "1", 400, &[]);
    expect(
        &mut server,
        "7",
        "0",
        200,
        &[("Producer-Epoch", "7"), ("Producer-Seq", "0")],
    );
    let stale = expect(&mut server, "0", "2", 403, &[("Producer-Epoch", "7")]);
    assert_eq!(stale.field("Producer-Seq"), None);
    let close = [&producer("7", "1")[..], &[CLOSED]].concat();
    let said = server.send("POST /v1/stream/a", &close, b"end");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (200, Some("true"))
    );
    let said = server.send("POST /v1/stream/a", &close, b"end");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (204, Some("true"))
    );
    let said = server.send("POST /v1/stream/a", &producer("7", "0"), b"x");
    assert_eq!(
        (said.status, said.field("Stream-Closed")),
        (409, Some("true"))
    );
    assert_eq!(get(&mut server, "a").body, b"xxxend");
    // Without data there is nothing new to tell.
    let mut server = with(TEXT);
    let close = [&producer("0", "0")[1..], &[CLOSED]].concat();
    for _ in 0..2 {
        let said = server.send("POST /v1/stream/a", &close, b"");
        assert_eq!((said.status, said.field("Producer-Seq")), (204, Some("0")));
    }
}

#[test]
fn producers_say_all_three_and_say_them_plainly() {
    let mut server = with(TEXT);
    let all = producer("0", "0");
    for left_out in 1..4 {
        let mut some = all.to_vec();
        some.remove(left_out);
        assert_eq!(server.send("POST /v1/stream/a", &some, b"x").status, 400);
        let one = [TEXT, all[left_out]];
        assert_eq!(server.send("POST /v1/stream/a", &one, b"x").status, 400);
    }
    for (name, value) in [
        ("Producer-Id", ""),
        ("Producer-Id", "  "),
        ("Producer-Id", &"x".repeat(257)),
        ("Producer-Epoch", ""),
        ("Producer-Epoch", "-1"),
        ("Producer-Epoch", "1.0"),
        ("Producer-Epoch", "00"),
        ("Producer-Seq", "+1"),
        ("Producer-Seq", "1e3"),
        ("Producer-Seq", "9007199254740992"),
        ("Producer-Seq", "x"),
    ] {
        let mut headers = all.to_vec();
        headers.retain(|(field, _)| *field != name);
        headers.push((name, value));
        let said = server.send("POST /v1/stream/a", &headers, b"x");
        assert_eq!(
            (said.status, said.code()),
            (400, "bad_field".into()),
            "{name}: {value}"
        );
    }
    let said = server.send(
        "POST /v1/stream/a",
        &producer("9007199254740991", "0"),
        b"x",
    );
    assert_eq!(said.field("Producer-Epoch"), Some("9007199254740991"));
    assert_eq!(get(&mut server, "a").body, b"x");
}
