//! Invalid HTTP: each case gets a definite status or a closed connection, is counted by reason, and disturbs no other client.

use std::time::{Duration, Instant};

use crate::rig::{Bystanders, Connection, Encke, JSON, eventually, request};

/// A request whose end can't be known, so that the connection is closed behind the answer.
fn broken(encke: &Encke, bytes: &[u8], status: u16, reason: &str) {
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
    let before = encke.refused(reason);
    let mut connection = encke.connect();
    connection.send_anyway(bytes);
    let answer = connection.answer();
    assert_eq!(answer.status, status, "{shown:?}: {answer:?}");
    assert_eq!(answer.error_code(), reason, "{shown:?}");
    assert!(answer.closes(), "{shown:?}: {answer:?}");
    connection.expect_end();
    assert_eq!(encke.refused(reason), before + 1, "{shown:?} is counted");
}

#[test]
fn requests_that_are_not_http() {
    let encke = Encke::start(&[]);
    let bystanders = Bystanders::of(&encke);
    let tls = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        &[0xa5; 501],
    ]
    .concat();
    for bytes in [
        b"GET\r\n\r\n".as_slice(),
        b"GET /\r\n\r\n",
        b"\r\n\r\n\0",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b" GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1 x\r\nHost: x\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / http/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/one\r\nHost: x\r\n\r\n",
        b"G(T / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n A: folded\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\rA: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
        b"\0\x01\x02\x03\x04\x05\x06\x07\x08\t\n",
        b"\xff\xfe\xfd",
        b"{\"jsonrpc\":\"2.0\"}\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        // What TLS clients send first.
        &tls,
    ] {
        broken(&encke, bytes, 400, "malformed");
    }
    for bytes in [
        b"GET / HTTP/1.2\r\nHost: x\r\n\r\n".as_slice(),
        b"GET / HTTP/3.0\r\nHost: x\r\n\r\n",
    ] {
        broken(&encke, bytes, 505, "version");
    }
    for target in [
        "x",
        "x:80",
        "//x:80?",
        "ftp://x/",
        "http://",
        "http:///x",
        "http://user@x/",
        "/a#b",
        "/<a>",
        "**",
    ] {
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
        if target.starts_with("//") {
            // A path may begin so; it is not the URL that it looks like.
            assert_eq!(encke.ask("GET", target, &[], b"").error_code(), "bad_path");
        } else {
            broken(&encke, bytes.as_bytes(), 400, "bad_target");
        }
    }
    for bytes in [
        b"GET / HTTP/1.1\nHost: x\n\n".as_slice(),
        b"GET / HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        broken(&encke, bytes, 400, "bare_lf");
    }
    let tunnel = b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n";
    broken(&encke, tunnel, 400, "bad_target");
    for hosts in [
        "",
        "Host: x\r\nHost: x\r\n",
        "Host: x y\r\n",
        "Host: u@x\r\n",
        "Host: x:y\r\n",
    ] {
        let bytes = format!("GET / HTTP/1.1\r\n{hosts}\r\n");
        broken(&encke, bytes.as_bytes(), 400, "host");
    }
    let bytes = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n";
    broken(&encke, bytes, 417, "expectation");
    bystanders.were_not_disturbed();
}

#[test]
fn lengths_that_two_readers_could_read_in_two_ways() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    // Were one of the lengths believed, the other reader's request would be smuggled in behind.
    let smuggled = "0\r\n\r\nDELETE /v1/stream/s HTTP/1.1\r\nHost: x\r\n\r\n";
    for (fields, status, reason) in [
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            400,
            "two_lengths",
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5",
            400,
            "two_lengths",
        ),
        ("Content-Length: 5\r\nContent-Length: 6", 400, "two_lengths"),
        ("Content-Length: 5\r\ncontent-length: 5", 400, "two_lengths"),
        ("Content-Length: 5, 5", 400, "bad_length"),
        ("Content-Length: +5", 400, "bad_length"),
        ("Content-Length: -5", 400, "bad_length"),
        ("Content-Length: 0x5", 400, "bad_length"),
        ("Content-Length: 5 5", 400, "bad_length"),
        ("Content-Length: five", 400, "bad_length"),
        ("Content-Length:", 400, "bad_length"),
        ("Content-Length: 99999999999999999999", 400, "bad_length"),
        ("Transfer-Encoding: gzip, chunked", 501, "transfer_encoding"),
        (
            "Transfer-Encoding: chunked, identity",
            501,
            "transfer_encoding",
        ),
        ("Transfer-Encoding: xchunked", 501, "transfer_encoding"),
        ("Transfer-Encoding:", 501, "transfer_encoding"),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            501,
            "transfer_encoding",
        ),
        ("Transfer-Encoding : chunked", 400, "malformed"),
        ("Transfer-Encoding:\r\n chunked", 400, "malformed"),
    ] {
        let bytes = format!("POST /v1/stream/s HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n{smuggled}");
        broken(&encke, bytes.as_bytes(), status, reason);
    }
    let bytes =
        format!("POST /v1/stream/s HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n{smuggled}");
    broken(&encke, bytes.as_bytes(), 400, "transfer_encoding");
    assert_eq!(encke.ask("HEAD", "/v1/stream/s", &[], b"").status, 200);
    bystanders.were_not_disturbed();
}

#[test]
fn chunks_that_are_none() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let head = format!(
        "POST /v1/stream/s HTTP/1.1\r\nHost: x\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let digits = "1".repeat(16) + "\r\n";
    let extension = format!("1;{}", "x".repeat(300));
    let trailer = format!("1\r\n7\r\n0\r\nA: {}", "x".repeat(5000));
    for chunks in [
        "\r\n",
        "x\r\n",
        "-1\r\n",
        "+1\r\n",
        "0x1\r\n",
        " 1\r\n",
        "1 \r\n",
        "1\n7",
        ";x\r\n",
        "1\r\n77",
        "1\r\n7\n",
        "1\r\n7\rx",
        "1;x\ny",
        "0\r\nA: b\n",
        "0\r\nA : b\r\n",
        "0\r\n A: b\r\n",
        "0\r\nA\r\n",
        "0\r\n\rx",
        &digits,
        &extension,
        &trailer,
    ] {
        let bytes = format!("{head}{chunks}");
        broken(&encke, bytes.as_bytes(), 400, "bad_chunk");
    }
    assert!(encke.numbers("s").is_empty());
    bystanders.were_not_disturbed();
}

#[test]
fn heads_and_bodies_that_are_too_large() {
    const BODY_MAX: usize = 64 << 10;
    let encke = Encke::start(&["--tuning", "head-max=4KiB", "--body-max", "64KiB"]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    // One that never ends, one that is complete, one whose target is the trouble.
    let endless = format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}", "b".repeat(5000));
    let complete = format!("{endless}\r\n\r\n");
    let target = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(5000));
    for bytes in [endless, complete, target] {
        broken(&encke, bytes.as_bytes(), 431, "head_too_large");
    }
    let many = "A: b\r\n".repeat(100);
    let bytes = format!("GET / HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    broken(&encke, bytes.as_bytes(), 431, "too_many_fields");
    let just = "A: b\r\n".repeat(99);
    let mut connection = encke.connect();
    connection.send(format!("GET / HTTP/1.1\r\nHost: x\r\n{just}\r\n").as_bytes());
    assert_eq!(connection.answer().status, 200);

    let post = |framing: &str| {
        format!("POST /v1/stream/s HTTP/1.1\r\nHost: x\r\n{JSON}\r\n{framing}\r\n\r\n")
    };
    // Bodies that no one reads may be short only.
    for line in ["GET / ", "GET /v1/events?stream=s ", "DELETE /v1/stream/s "] {
        let unread = format!(
            "{line}HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
            (8 << 10) + 1
        );
        broken(&encke, unread.as_bytes(), 413, "body_too_large");
    }
    let mut connection = encke.connect();
    connection.send(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!(connection.answer().status, 200);
    // Refused for what it says, before anything of it comes.
    let length = post(&format!("Content-Length: {}", BODY_MAX + 1));
    broken(&encke, length.as_bytes(), 413, "body_too_large");
    // Most clients look for the answer only when they have sent everything, and take a reset before that for a broken
    // server: so everything is taken, and thrown away.
    let sent = 8 << 20;
    let mut bytes = post(&format!("Content-Length: {sent}")).into_bytes();
    bytes.resize(bytes.len() + sent, b' ');
    let mut patient = encke.connect();
    patient.send(&bytes);
    let answer = patient.answer();
    assert_eq!(answer.status, 413, "{answer:?}");
    assert!(answer.closes());
    patient.expect_end();
    let chunked = post("Transfer-Encoding: chunked");
    let one = format!("{chunked}{:x}\r\n", BODY_MAX + 1);
    broken(&encke, one.as_bytes(), 413, "body_too_large");
    let mut many = chunked.clone();
    for _ in 0..5 {
        many.push_str(&format!("4000\r\n{}\r\n", " ".repeat(0x4000)));
    }
    broken(&encke, many.as_bytes(), 413, "body_too_large");
    // And what just fits is taken, in both ways.
    let fits = format!("7{}", " ".repeat(BODY_MAX - 1));
    let mut connection = encke.connect();
    let answer = connection.ask("POST", "/v1/stream/s", &[JSON], fits.as_bytes());
    assert_eq!(answer.status, 204, "{answer:?}");
    connection.send(format!("{chunked}{BODY_MAX:x}\r\n{fits}\r\n0\r\n\r\n").as_bytes());
    assert_eq!(connection.answer().status, 204);
    assert_eq!(encke.numbers("s"), [7, 7]);
    bystanders.were_not_disturbed();
}

#[test]
fn a_body_may_take_longer_than_a_request_as_long_as_some_of_it_comes() {
    let encke = Encke::start(&["--tuning", "request-timeout=10s"]);
    encke.create("s");
    let mut slow = encke.connect();
    let head = format!("POST /v1/stream/s HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: 5");
    slow.send(format!("{head}\r\n\r\n12").as_bytes());
    for byte in b"345" {
        std::thread::sleep(Duration::from_secs(4));
        slow.send(&[*byte]);
    }
    assert_eq!(slow.answer().status, 204);
    assert_eq!(encke.numbers("s"), [12345]);
}

#[test]
#[ignore = "long: make test-all"]
fn clients_that_are_too_slow() {
    let encke = Encke::start(&[
        "--tuning",
        "request-timeout=3s",
        "--tuning",
        "idle-timeout=10s",
    ]);
    encke.create("s");
    let bystanders = Bystanders::of(&encke);
    let head = b"GET / HTTP/1.1\r\nHost: x\r\n".as_slice();
    let body =
        format!("POST /v1/stream/s HTTP/1.1\r\nHost: x\r\n{JSON}\r\nContent-Length: 5\r\n\r\n12");
    for bytes in [b"G".as_slice(), head, body.as_bytes()] {
        let begin = Instant::now();
        broken(&encke, bytes, 408, "timeout");
        let waited = begin.elapsed();
        assert!(waited > Duration::from_millis(2_900), "after {waited:?}");
    }
    // Empty lines behind a request are no part of the next: they start no clock.
    let mut line = encke.connect();
    line.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n\r\n");
    assert_eq!(line.answer().status, 200);
    std::thread::sleep(Duration::from_millis(3_500));
    assert_eq!(line.ask("GET", "/healthz", &[], b"").status, 200);
    // A byte now and then does not hold it off.
    let mut dribble = encke.connect();
    let mut endless = head.iter().chain(b"X: ").chain(std::iter::repeat(&b'y'));
    eventually("the server answers", || {
        dribble.send_anyway(&[*endless.next().expect("it is endless")]);
        std::thread::sleep(Duration::from_millis(20));
        dribble.has_input()
    });
    assert_eq!(dribble.answer().status, 408);
    // A silent client is closed without a response.
    let mut idle = encke.connect();
    let mut used = encke.connect();
    assert_eq!(used.ask("GET", "/healthz", &[], b"").status, 200);
    idle.expect_end();
    used.expect_end();
    assert!(encke.metric("encke_connections_closed_total", "\"idle\"") >= 2.0);
    bystanders.were_not_disturbed();
}

#[test]
fn garbage_from_many_sides_at_once() {
    let encke = Encke::start(&["--tuning", "request-timeout=500ms"]);
    let bystanders = Bystanders::of(&encke);
    let threads: Vec<_> = (0..4_u64)
        .map(|seed| {
            let address = encke.address;
            std::thread::spawn(move || {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                let mut next = move || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random
                };
                for _ in 0..150 {
                    let mut connection = Connection::open(address);
                    let mut bytes = request("POST", "/v1/stream/g", &[JSON], b"[1,2,3]");
                    for _ in 0..next() % 8 {
                        let at = next() as usize % bytes.len();
                        match next() % 3 {
                            0 => bytes[at] = next() as u8,
                            1 => drop(bytes.remove(at)),
                            _ => bytes.insert(at, next() as u8),
                        }
                    }
                    connection.send_anyway(&bytes);
                    match next() % 3 {
                        0 => connection.reset(),
                        1 => drop(connection),
                        _ => {
                            connection.half_close();
                            // Whatever it says, it ends, and what it says are responses.
                            while connection.fill() {}
                            while !connection.input().is_empty() {
                                let status = connection.answer().status;
                                assert!((200..600).contains(&status), "{status}");
                            }
                        }
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("every answer was one");
    }
    bystanders.were_not_disturbed();
    // Nothing of it is left: the only connection is the one that asks.
    eventually("all connections are gone", || {
        encke.metric("encke_connections", "") <= 1.0
    });
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}
