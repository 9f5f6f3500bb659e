//! Proxies: the server takes the client's address from trusted proxies only, and uses it for limits and `Location`.

use std::time::{Duration, Instant};

use crate::rig::{
    Bystanders, Connection, Encke, JSON, Response, eventually, operators_address, path, request,
};

fn where_made(encke: &Encke, client: u8, stream: &str, fields: &[&str]) -> String {
    let fields = [&[JSON], fields].concat();
    let answer = encke
        .connect_from(client)
        .ask("PUT", &path(stream), &fields, b"");
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.field("Location").expect("a place").to_owned()
}

#[test]
fn scheme_and_host_are_believed_from_the_trusted_alone() {
    let encke = Encke::start(&["--trust", "127.0.0.9"]);
    let fields = [
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: push.example",
    ];
    let place = |client, stream, fields: &[&str]| where_made(&encke, client, stream, fields);
    assert_eq!(place(2, "a", &fields), "http://encke.localhost/v1/stream/a");
    assert_eq!(place(9, "b", &fields), "https://push.example/v1/stream/b");
    assert_eq!(
        place(9, "c", &fields[..2]),
        "https://encke.localhost/v1/stream/c"
    );
    assert_eq!(place(9, "d", &[]), "http://encke.localhost/v1/stream/d");
    // A client's own Forwarded comes through such a proxy as it was sent.
    let forged = "Forwarded: for=192.0.2.1;proto=https;host=evil.example";
    assert_eq!(
        place(9, "e", &[forged]),
        "http://encke.localhost/v1/stream/e"
    );

    let flags = ["--trust", "127.0.0.9", "--forwarded-by", "forwarded"];
    let encke = Encke::start(&flags);
    let honest = "Forwarded: for=192.0.2.1;proto=https;host=\"push.example:8443\"";
    assert_eq!(
        where_made(&encke, 9, "a", &[honest]),
        "https://push.example:8443/v1/stream/a"
    );
    assert_eq!(
        where_made(&encke, 9, "b", &fields),
        "http://encke.localhost/v1/stream/b"
    );
    // Garbage from a trusted proxy is refused, and the connection stays open.
    let mut proxy = encke.connect_from(9);
    let answer = proxy.ask("GET", "/healthz", &["Forwarded: for=\"x"], b"");
    assert_eq!((answer.status, answer.closes()), (400, false), "{answer:?}");
    assert_eq!(answer.error_code(), "forwarded");
    assert_eq!(proxy.ask("GET", "/healthz", &[honest], b"").status, 200);
    assert_eq!(encke.refused("forwarded"), 1);
}

fn ask_for(proxy: &mut Connection, client: &str) -> Response {
    let field = format!("X-Forwarded-For: 198.51.100.1, {client}");
    proxy.ask("GET", "/healthz", &[&field], b"")
}

#[test]
fn limits_hold_for_the_clients_behind_a_proxy() {
    let encke = Encke::start(&[
        "--trust",
        "127.0.0.9",
        "--exempt",
        "127.0.0.1",
        "--request-rate",
        "1",
        "--tuning",
        "request-burst=5",
        "--connections-per-address",
        "3",
    ]);
    let bystanders = Bystanders::of(&encke);
    let mut proxy = encke.connect_from(9);
    let mut served = |client: &str| {
        (0..10)
            .filter(|_| {
                let answer = ask_for(&mut proxy, client);
                assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                assert!(!answer.closes());
                answer.status == 200
            })
            .count()
    };
    // Each has its own rate, over the same connection.
    for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
        let count = served(client);
        assert!((5..=7).contains(&count), "{client}: {count}");
    }
    let neighbour = served("2001:db8::2");
    assert!(neighbour <= 2, "the same /64: {neighbour}");
    // Without a client's address, the proxy is the client; it has no limit.
    for _ in 0..20 {
        assert_eq!(proxy.ask("GET", "/healthz", &[], b"").status, 200);
    }
    // Connections count for the client that they were used for last.
    let mut proxies: Vec<Connection> = (0..4).map(|_| encke.connect_from(9)).collect();
    let statuses: Vec<u16> = proxies
        .iter_mut()
        .map(|proxy| ask_for(proxy, "192.0.2.77").status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    assert_eq!(encke.refused("connections_per_address"), 1);
    assert_eq!(ask_for(&mut proxies[0], "192.0.2.78").status, 200);
    assert_eq!(ask_for(&mut proxies[3], "192.0.2.77").status, 200);
    // A proxy that is not trusted is counted by its own address, whatever it sends.
    let mut liar = encke.connect_from(5);
    let lies = (0..10).filter(|number| {
        let answer = ask_for(&mut liar, &format!("192.0.2.{}", 100 + number));
        answer.status == 200
    });
    assert!(lies.count() <= 6);
    drop(proxies);
    drop((proxy, liar));
    eventually("all are forgotten", || {
        encke.metric("encke_addresses", "") == 0.0
    });
    bystanders.were_not_disturbed();
}

/// Version 2 of the header: IPv4, TCP, and one field.
fn header_2(client: [u8; 4], field: &[u8]) -> Vec<u8> {
    let length = (12 + field.len()) as u16;
    [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11".as_slice(),
        &length.to_be_bytes(),
        &client,
        &[127, 0, 0, 1, 0x12, 0x34, 0x11, 0x55],
        field,
    ]
    .concat()
}

#[test]
fn connections_that_begin_with_a_proxy_header() {
    let encke = Encke::start(&[
        "--proxy-protocol",
        "--trust",
        "127.0.0.9",
        "--connections-per-address",
        "2",
    ]);
    let ask = request("GET", "/healthz", &[], b"");
    let line = b"PROXY TCP4 192.0.2.1 127.0.0.1 5000 80\r\n".as_slice();
    let second = header_2([192, 0, 2, 2], b"");
    let unknown = b"PROXY UNKNOWN\r\n".as_slice();
    let itself = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00".as_slice();
    // In one piece, byte by byte, with the request or before it.
    let of_unix = [b"\r\n\r\n\0\r\nQUIT\n\x21\x31\x00\xd8", &[0; 216][..]].concat();
    for header in [line, &second, unknown, itself, &of_unix] {
        for way in 0..3 {
            let mut proxy = encke.connect_from(9);
            match way {
                0 => proxy.send(&[header, &ask].concat()),
                1 => {
                    for byte in [header, &ask].concat() {
                        proxy.send(&[byte]);
                    }
                }
                _ => {
                    proxy.send(header);
                    std::thread::sleep(Duration::from_millis(30));
                    proxy.send(&ask);
                }
            }
            assert_eq!(proxy.answer().status, 200, "{header:?}");
            // It comes once: behind it, it is garbage.
            proxy.send(&ask);
            assert_eq!(proxy.answer().status, 200);
            proxy.send(header);
            assert_eq!(proxy.answer().status, 400);
        }
    }
    // Limits count the client that the header names.
    let open = |header: &[u8]| {
        let mut proxy = encke.connect_from(9);
        proxy.send(&[header, &ask].concat());
        let status = proxy.answer().status;
        (proxy, status)
    };
    eventually("the others are gone", || {
        open(line).1 == 200 && open(&second).1 == 200
    });
    let mut inside = Vec::new();
    eventually("both find room", || {
        let (proxy, status) = open(line);
        if status == 200 {
            inside.push(proxy);
        }
        inside.len() == 2
    });
    let (mut third, status) = open(line);
    assert_eq!(status, 429);
    third.expect_end();
    // Its request is refused when it comes, or after a second; an EventSource comes back.
    let mut silent = encke.connect_from(9);
    silent.send(line);
    let refused = silent.answer();
    assert_eq!((refused.status, refused.closes()), (429, true));
    let mut source = encke.connect_from(9);
    source.send(line);
    let fields = ["Accept: text/event-stream", "Cache-Control: no-cache"];
    source.send(&request("GET", "/v1/stream/s?live=sse", &fields, b""));
    let refused = source.answer();
    assert_eq!((refused.status, refused.closes()), (200, true));
    assert!(refused.body.starts_with(b"retry: "), "{refused:?}");
    assert_eq!(open(&second).1, 200);
    assert_eq!(open(itself).1, 200);
    // The client's TLS shows in `Location`.
    let tls = header_2([192, 0, 2, 3], &[0x20, 0, 5, 1, 0, 0, 0, 0]);
    let mut proxy = encke.connect_from(9);
    // And the fields of a client count for nothing, though its proxy is trusted.
    let fields = [
        JSON,
        "X-Forwarded-Host: evil.example",
        "X-Forwarded-For: 192.0.2.99",
    ];
    proxy.send(&[tls, request("PUT", &path("s"), &fields, b"")].concat());
    let answer = proxy.answer();
    assert_eq!(
        answer.field("Location"),
        Some("https://encke.localhost/v1/stream/s")
    );
}

#[test]
fn headers_of_strangers_and_garbage() {
    let mut encke = Encke::start(&[
        "--proxy-protocol",
        "--trust",
        "127.0.0.9",
        "--admin-listen",
        "127.0.0.1:0",
        "--tuning",
        "request-timeout=400ms",
    ]);
    let mut stdout = encke.take_stdout();
    let operators = operators_address(&mut stdout);
    let count = |reason: &str| {
        let shown = Connection::open(operators).ask("GET", "/metrics", &[], b"");
        let text = String::from_utf8(shown.body).expect("metrics are text");
        let key = format!("encke_refused_total{{reason=\"{reason}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&key)?.parse().ok())
            .unwrap_or(0)
    };
    // An untrusted address is refused, even with a valid header.
    for bytes in [
        b"PROXY TCP4 192.0.2.1 127.0.0.1 5000 80\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"",
    ] {
        let mut stranger = encke.connect_from(2);
        stranger.send_anyway(bytes);
        let answer = stranger.answer();
        assert_eq!(answer.status, 403, "{answer:?}");
        assert!(answer.closes());
        stranger.expect_end();
    }
    assert_eq!(count("proxy_untrusted"), 3);
    // Garbage is refused even from trusted addresses.
    let mut long = b"PROXY UNKNOWN ".to_vec();
    long.resize(200, b'x');
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(),
        b"PROXY TCP4 192.0.2.1 127.0.0.1 5000 99999\r\n",
        b"PROXY TCP4 192.0.2.1\r\n",
        b"\r\n\r\n\0\r\nQUIX",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\x00\x00",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"\x16\x03\x01\x02\x00",
        &long,
    ] {
        let mut proxy = encke.connect_from(9);
        proxy.send_anyway(bytes);
        let answer = proxy.answer();
        assert_eq!(answer.status, 400, "{bytes:?}: {answer:?}");
        assert_eq!(answer.error_code(), "proxy_protocol", "{bytes:?}");
        assert!(answer.closes());
        proxy.expect_end();
    }
    assert_eq!(count("proxy_protocol"), 8);
    // Slow headers time out: nothing, a part, and a byte now and then.
    let begin = Instant::now();
    let mut slow: Vec<Connection> = (0..3).map(|_| encke.connect_from(9)).collect();
    slow[1].send(b"PROXY TC");
    for byte in b"PROXY TCP4 192.0." {
        slow[2].send_anyway(&[*byte]);
        std::thread::sleep(Duration::from_millis(40));
    }
    for proxy in &mut slow {
        let answer = proxy.answer();
        assert_eq!(answer.status, 408, "{answer:?}");
        proxy.expect_end();
    }
    assert!(begin.elapsed() >= Duration::from_millis(350));
    assert_eq!(count("timeout"), 3);
}

#[test]
fn a_header_where_none_is_expected() {
    let encke = Encke::start(&["--trust", "127.0.0.9"]);
    for client in [2, 9] {
        for header in [
            b"PROXY TCP4 192.0.2.1 127.0.0.1 5000 80\r\n".to_vec(),
            header_2([192, 0, 2, 1], b""),
        ] {
            let mut connection = encke.connect_from(client);
            connection.send_anyway(&[header, request("GET", "/healthz", &[], b"")].concat());
            let answer = connection.answer();
            assert_eq!(answer.status, 400, "{answer:?}");
            connection.expect_end();
        }
    }
}
