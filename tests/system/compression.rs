//! Compressed catch-up reads: what a client asks for is what it gets, and it decodes to what was appended.

use std::io::Read;

use crate::rig::{Encke, Incompressible, Response, eventually, path, request};

const BYTES: &str = "Content-Type: application/octet-stream";
const TEXT: &str = "Content-Type: text/plain";

/// A stream with that content, appended in parts.
fn stream(encke: &Encke, name: &str, media: &str, content: &[u8]) {
    let made = encke.ask("PUT", &path(name), &[media], b"");
    assert_eq!(made.status, 201, "{made:?}");
    let mut connection = encke.connect();
    for part in content.chunks(1 << 20) {
        let appended = connection.ask("POST", &path(name), &[media], part);
        assert_eq!(appended.status, 204, "{appended:?}");
    }
}

fn read(encke: &Encke, name: &str, fields: &[&str]) -> Response {
    encke.ask("GET", &format!("{}?offset=-1", path(name)), fields, b"")
}

/// The body as it was before its coding, which must be the expected one.
fn decoded(response: &Response, coding: Option<&str>) -> Vec<u8> {
    assert_eq!(response.status, 200, "{:?}", response.fields);
    assert_eq!(
        response.field("Content-Encoding"),
        coding,
        "{:?}",
        response.fields
    );
    let mut out = Vec::new();
    match coding {
        None => out.clone_from(&response.body),
        Some("gzip") => {
            let mut decoder = flate2::read::GzDecoder::new(&response.body[..]);
            decoder.read_to_end(&mut out).expect("it is gzip");
            assert!(decoder.into_inner().is_empty(), "nothing is behind it");
        }
        Some(_) => {
            zstd::stream::copy_decode(&response.body[..], &mut out).expect("it is zstd");
        }
    }
    out
}

fn text(bytes: usize) -> Vec<u8> {
    let lines = (0..).map(|number| format!("line {number} of a text that repeats itself\n"));
    let mut text: Vec<u8> = lines.take(bytes / 30 + 1).collect::<String>().into_bytes();
    text.truncate(bytes);
    text
}

#[test]
fn every_coding_is_negotiated_by_its_weight() {
    let encke = Encke::start(&[]);
    let content = text(5000);
    stream(&encke, "s", TEXT, &content);
    for (fields, coding) in [
        (&[][..], None),
        (&["Accept-Encoding:"], None),
        (&["Accept-Encoding: br, deflate"], None),
        (&["Accept-Encoding: gzip, deflate, br"], Some("gzip")),
        (&["Accept-Encoding: gzip, deflate, br, zstd"], Some("zstd")),
        (&["Accept-Encoding: zstd;q=0.5, gzip;q=0.8"], Some("gzip")),
        (
            &["Accept-Encoding: br", "Accept-Encoding: X-GZIP"],
            Some("gzip"),
        ),
        (&["Accept-Encoding: gzip;q=0"], None),
        (&["Accept-Encoding: *;q=0.1"], Some("zstd")),
        (&["Accept-Encoding: *, zstd;q=0"], Some("gzip")),
        (&["Accept-Encoding: identity, gzip;q=0.5"], None),
        (&["Accept-Encoding: gzip, identity;q=0"], Some("gzip")),
        // A part of a body cannot be asked for: the whole comes, as without the field.
        (&["Accept-Encoding: gzip", "Range: bytes=0-9"], Some("gzip")),
    ] {
        let response = read(&encke, "s", fields);
        assert_eq!(decoded(&response, coding), content, "{fields:?}");
        assert_eq!(response.vary(), "Accept-Encoding, Origin");
        let etag = response.field("ETag").expect("a tag");
        assert_eq!(etag.starts_with("W/\""), coding.is_some(), "{etag}");
        let length = response.field("Content-Length").expect("a length");
        assert_eq!(length, response.body.len().to_string());
    }
    for refused in ["identity;q=0", "*;q=0", "br, *;q=0"] {
        let response = read(&encke, "s", &[&format!("Accept-Encoding: {refused}")]);
        assert_eq!(
            (response.status, &*response.error_code()),
            (406, "not_acceptable")
        );
        assert_eq!(response.vary(), "Accept-Encoding");
    }
    // Media that are compressed already, and short bodies, are worth no coding unless nothing else is acceptable.
    stream(&encke, "image", "Content-Type: image/png", &content);
    stream(&encke, "short", TEXT, b"short");
    for (name, content) in [("image", &content[..]), ("short", b"short")] {
        assert_eq!(
            decoded(&read(&encke, name, &["Accept-Encoding: gzip"]), None),
            content
        );
        let only = "Accept-Encoding: gzip, identity;q=0";
        assert_eq!(decoded(&read(&encke, name, &[only]), Some("gzip")), content);
    }
}

#[test]
fn bodies_of_any_length_decode_to_what_was_appended() {
    let encke = Encke::start(&[]);
    let mut random = Incompressible::default();
    for (number, bytes) in [0_usize, 1, 1023, 1024, 32 << 10, 65_537, 300_000, 5 << 20]
        .into_iter()
        .enumerate()
    {
        // Half of each byte of the random text is random; the other kind is wholly so.
        let hex = random.text(bytes.next_multiple_of(16));
        let digits = hex.as_bytes()[..bytes].iter();
        let noise: Vec<u8> = digits
            .enumerate()
            .map(|(at, digit)| digit.wrapping_mul(31).wrapping_add((at * at % 251) as u8))
            .collect();
        for (kind, content) in [("text", text(bytes)), ("noise", noise)] {
            let name = format!("{kind}-{number}");
            stream(&encke, &name, BYTES, &content);
            for coding in ["gzip", "zstd"] {
                let response = read(&encke, &name, &[&format!("Accept-Encoding: {coding}")]);
                let shown = response.field("Content-Encoding").map(str::to_owned);
                assert!(
                    decoded(&response, shown.as_deref()) == content,
                    "{name} {coding}"
                );
                if kind == "text" && bytes >= 1024 {
                    assert_eq!(shown.as_deref(), Some(coding), "{name}");
                    assert!(response.body.len() * 2 < bytes, "{name} {coding}");
                }
                assert_eq!(
                    response.field("Transfer-Encoding").is_some(),
                    response.field("Content-Length").is_none()
                );
            }
        }
    }
    encke.wait_for_metric("encke_compressing", 0.0);
    assert!(encke.metric("encke_compressions_total", "gzip") > 0.0);
    assert!(encke.metric("encke_compressed_bytes_total", "") > 0.0);
}

#[test]
fn tags_work_in_every_form() {
    let encke = Encke::start(&[]);
    stream(&encke, "s", TEXT, &text(5000));
    let coded = read(&encke, "s", &["Accept-Encoding: gzip"]);
    let plain = read(&encke, "s", &[]);
    let (weak, strong) = (
        coded.field("ETag").expect("a tag"),
        plain.field("ETag").expect("a tag"),
    );
    assert_eq!(weak, format!("W/{strong}"));
    for tag in [weak, strong] {
        for fields in [&[][..], &["Accept-Encoding: gzip"]] {
            let asks = format!("If-None-Match: \"other\", {tag}");
            let response = read(&encke, "s", &[&[&*asks], fields].concat());
            assert_eq!((response.status, response.body.len()), (304, 0));
            // It is the tag of what the client has.
            assert_eq!(response.field("ETag"), Some(tag));
            assert_eq!(response.vary(), "Accept-Encoding, Origin");
            assert_eq!(response.field("Content-Encoding"), None);
        }
    }
    encke.ask("POST", &path("s"), &[TEXT], b"more");
    let asks = format!("If-None-Match: {weak}");
    let changed = read(&encke, "s", &[&asks, "Accept-Encoding: gzip"]);
    assert_eq!(decoded(&changed, Some("gzip")).len(), 5004);
}

#[test]
fn other_requests_are_not_compressed() {
    let encke = Encke::start(&[]);
    stream(&encke, "s", TEXT, &text(5000));
    let accept = "Accept-Encoding: gzip, zstd";
    let with = encke.ask("HEAD", &path("s"), &[accept], b"");
    let without = encke.ask("HEAD", &path("s"), &[], b"");
    let fields = |response: &Response| {
        let fields = response.fields.iter().filter(|(name, _)| name != "Date");
        fields.cloned().collect::<Vec<_>>()
    };
    assert_eq!(fields(&with), fields(&without));
    for query in ["offset=now", "offset=-1&live=long-poll"] {
        let target = format!("{}?{query}", path("s"));
        let response = encke.ask("GET", &target, &[accept], b"");
        assert_eq!(
            (response.status, response.field("Content-Encoding")),
            (200, None)
        );
    }
    let mut connection = encke.connect();
    let target = format!("{}?offset=-1&live=sse", path("s"));
    connection.send(&request("GET", &target, &[accept], b""));
    let head = connection.head();
    assert_eq!((head.status, head.field("Content-Encoding")), (200, None));
    assert_eq!(encke.metric("encke_compressions_total", ""), 0.0);
}

#[test]
fn clients_of_http_1_0_get_compressed_bodies_too() {
    let encke = Encke::start(&[]);
    for (name, bytes) in [("whole", 5000), ("long", 300_000)] {
        let content = text(bytes);
        stream(&encke, name, TEXT, &content);
        let mut connection = encke.connect();
        let asks = format!(
            "GET {}?offset=-1 HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n",
            path(name)
        );
        connection.send(asks.as_bytes());
        let all = connection.rest();
        let head = all
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head")
            + 4;
        let fields = String::from_utf8_lossy(&all[..head]);
        assert!(
            fields.contains("\r\nContent-Encoding: gzip\r\n"),
            "{fields}"
        );
        assert!(!fields.contains("chunked"), "{fields}");
        let mut out = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&all[head..]);
        decoder.read_to_end(&mut out).expect("it is complete");
        assert!(out == content);
    }
}

#[test]
fn beyond_the_bound_responses_are_sent_as_they_are() {
    let encke = Encke::start(&["--tuning", "compressions-max=1"]);
    // What does not fit into the socket of a client that reads nothing.
    let content = Incompressible::default().text(16 << 20).into_bytes();
    stream(&encke, "long", TEXT, &content);
    stream(&encke, "s", TEXT, &text(5000));
    let mut slow = crate::rig::Connection::open_narrow(encke.address);
    let target = format!("{}?offset=-1", path("long"));
    slow.send(&request("GET", &target, &["Accept-Encoding: gzip"], b""));
    encke.wait_for_metric("encke_compressing", 1.0);
    let refused = || encke.metric("encke_compressions_refused_total", "");
    assert!(encke.metric("encke_buffered_bytes", "") >= 704.0 * 1024.0);
    let plain = read(&encke, "s", &["Accept-Encoding: gzip"]);
    assert_eq!(decoded(&plain, None), text(5000));
    assert_eq!(refused(), 1.0);
    assert!(decoded(&read(&encke, "long", &["Accept-Encoding: zstd"]), None) == content);
    assert_eq!(refused(), 2.0);
    let only = ["Accept-Encoding: gzip, identity;q=0"];
    for name in ["s", "long"] {
        let response = read(&encke, name, &only);
        assert_eq!(
            (response.status, &*response.error_code()),
            (503, "overloaded")
        );
    }
    // The slow client gets all of it, and then there is room again.
    let response = slow.answer();
    assert!(decoded(&response, Some("gzip")) == content);
    eventually("there is room", || {
        read(&encke, "s", &["Accept-Encoding: gzip"])
            .field("Content-Encoding")
            .is_some()
    });
    // A client that hangs up gives its place back.
    let mut gone = crate::rig::Connection::open_narrow(encke.address);
    gone.send(&request("GET", &target, &["Accept-Encoding: zstd"], b""));
    encke.wait_for_metric("encke_compressing", 1.0);
    drop(gone);
    encke.wait_for_metric("encke_compressing", 0.0);

    let none = Encke::start(&["--tuning", "compressions-max=0"]);
    stream(&none, "s", TEXT, &text(5000));
    assert_eq!(
        decoded(&read(&none, "s", &["Accept-Encoding: gzip"]), None),
        text(5000)
    );
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let encke = Encke::start(&[]);
    let (short, long) = (text(5000), text(400_000));
    stream(&encke, "short", TEXT, &short);
    stream(&encke, "long", TEXT, &long);
    let mut connection = encke.connect();
    let mut all = Vec::new();
    for round in 0..12 {
        let name = if round % 2 == 0 { "short" } else { "long" };
        let accept = ["Accept-Encoding: gzip", "Accept-Encoding: zstd", "X: y"][round % 3];
        all.extend(request(
            "GET",
            &format!("{}?offset=-1", path(name)),
            &[accept],
            b"",
        ));
    }
    connection.send(&all);
    for round in 0..12 {
        let coding = [Some("gzip"), Some("zstd"), None][round % 3];
        let content = if round % 2 == 0 { &short } else { &long };
        assert!(decoded(&connection.answer(), coding) == *content, "{round}");
    }
}

#[test]
fn curl_decodes_what_it_asks_for() {
    let encke = Encke::start(&[]);
    for (name, bytes) in [("short", 10), ("whole", 5000), ("long", 700_000)] {
        let content = text(bytes);
        stream(&encke, name, TEXT, &content);
        let url = format!("http://{}{}?offset=-1", encke.address, path(name));
        let output = std::process::Command::new("curl")
            .args(["--silent", "--fail", "--compressed", &url])
            .output()
            .expect("curl is there");
        assert!(
            output.status.success() && output.stdout == content,
            "{name}"
        );
    }
    assert_eq!(encke.metric("encke_compressions_total", ""), 2.0);
}
