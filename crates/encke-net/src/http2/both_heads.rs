//! What HTTP/1.1 and HTTP/2 accept in the head of a request: the same, but for what only one of them has.

use std::time::Duration;

use super::frames::{Http2Frames, PREFACE};
use super::request::Http2Request;
use crate::http::head::FIELDS_MAX;
use crate::http::take::{RequestLimits, take};
use crate::settings::NetSettings;

/// A request: method, target, host, other fields.
struct Case<'a> {
    method: &'a str,
    target: &'a [u8],
    host: Option<&'a str>,
    fields: &'a [(&'a str, &'a [u8])],
}

/// What a protocol sees of a request: method, path, query, and the fields.
type Seen = (String, String, Option<String>, Vec<(String, Vec<u8>)>);

const GET: Case<'static> = Case {
    method: "GET",
    target: b"/a",
    host: Some("x"),
    fields: &[],
};

fn sorted(fields: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    let fields = fields.iter();
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
        .collect();
    fields.sort();
    fields
}

/// What is seen of a request of HTTP/1.1; `Err`: it is refused.
fn by_http1(case: &Case<'_>) -> Result<Seen, String> {
    let mut bytes = [case.method.as_bytes(), b" ", case.target, b" HTTP/1.1\r\n"].concat();
    let host = case.host.map(|host| ("Host", host.as_bytes()));
    for (name, value) in host.iter().chain(case.fields) {
        bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    bytes.extend(b"\r\n");
    let limits = RequestLimits {
        head_bytes_max: 16 << 10,
        body_bytes_max: 1 << 20,
    };
    let mut seen = Err("no request".to_owned());
    let step = take(&mut None, &mut &bytes[..], limits, |head, fields, _| {
        let query = head.query.map(str::to_owned);
        seen = Ok((head.method.into(), head.path.into(), query, sorted(fields)));
    });
    match step {
        Ok(_) => seen,
        Err(rejection) => Err(rejection.reason.to_owned()),
    }
}

/// What is seen of a request of HTTP/2; `Err`: it is refused.
fn by_http2(case: &Case<'_>) -> Result<Seen, String> {
    let mut block = Vec::new();
    let mut field = |name: &[u8], value: &[u8]| {
        // A literal, not to be remembered, without Huffman codes.
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "the length takes one byte");
            block.push(text.len() as u8);
            block.extend_from_slice(text);
        }
    };
    field(b":method", case.method.as_bytes());
    field(b":scheme", b"https");
    if let Some(host) = case.host {
        field(b":authority", host.as_bytes());
    }
    field(b":path", case.target);
    for (name, value) in case.fields {
        field(name.to_ascii_lowercase().as_bytes(), value);
    }
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut bytes = [PREFACE, &settings].concat();
    bytes.extend((block.len() as u32).to_be_bytes().split_first().unwrap().1);
    // HEADERS, the end of both the head and the stream, stream 1.
    bytes.extend([1, 5, 0, 0, 0, 1]);
    bytes.extend(block);
    let mut connection = Http2Frames::new(&NetSettings::default(), 0);
    connection.receive(&bytes, Duration::ZERO).unwrap();
    connection.poll();
    let (request, _respond) = connection.take_accepted().pop().ok_or("malformed")?;
    let (request, _body) = Http2Request::of(request);
    let (head, fields) = (request.head(), request.fields());
    request
        .check(&fields, 64 << 10)
        .map_err(|rejection| rejection.reason.to_owned())?;
    let query = head.query.map(str::to_owned);
    Ok((head.method.into(), head.path.into(), query, sorted(&fields)))
}

/// How the two versions differ in a request, unless it is one that only HTTP/2 refuses.
fn differ(case: &Case<'_>) -> Option<String> {
    let (first, second) = (by_http1(case), by_http2(case));
    let alike = match (&first, &second) {
        (Ok(first), Ok(second)) => first == second,
        (Err(_), Err(_)) => true,
        (Ok(_), Err(why)) => why == "malformed" && is_stricter_in_http2(case),
        (Err(_), Ok(_)) => false,
    };
    let target = String::from_utf8_lossy(case.target);
    (!alike).then(|| {
        format!(
            "{} {target:?} {:?} {:?}: {first:?}, {second:?}",
            case.method, case.host, case.fields
        )
    })
}

/// Requests that `h2` resets, and HTTP/1.1 allows.
fn is_stricter_in_http2(case: &Case<'_>) -> bool {
    // RFC 9113, section 8.3.1: an :authority is not empty, and RFC 9112 says nothing of blanks around one.
    let host = case
        .host
        .is_some_and(|host| host.is_empty() || host.trim() != host);
    // Quotes have no place in a URL, and stand in that of some old clients.
    let quotes = case.target.contains(&b'"');
    // RFC 9113, section 8.2.1: there are no blanks around a value.
    let mut fields = case.fields.iter();
    let length =
        fields.any(|(name, value)| *name == "Content-Length" && value.trim_ascii() != *value);
    host || quotes || length
}

#[test]
fn every_byte_means_the_same_in_a_path_a_query_a_value_and_a_host() {
    let mut differences = Vec::new();
    for byte in 0..=255_u8 {
        // A blank ends the target of HTTP/1.1, and a line end the line.
        if matches!(byte, b'\r' | b'\n') {
            continue;
        }
        let path = [b"/a", &[byte][..], b"b"].concat();
        let query = [b"/a?q=", &[byte][..], b"b"].concat();
        let value = [b"a", &[byte][..], b"b"].concat();
        let around = [&[byte], &b"a"[..], &[byte]].concat();
        let fields = [("x", &value[..])];
        let surrounded = [("x", &around[..])];
        let mut cases = vec![
            Case {
                target: &path,
                ..GET
            },
            Case {
                target: &query,
                ..GET
            },
            Case {
                fields: &fields,
                ..GET
            },
            Case {
                fields: &surrounded,
                ..GET
            },
        ];
        let text = format!("x{}", char::from(byte));
        if byte.is_ascii() {
            cases.push(Case {
                host: Some(&text),
                ..GET
            });
            cases.push(Case {
                method: &text,
                ..GET
            });
        }
        differences.extend(cases.iter().filter_map(differ));
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn heads_mean_the_same_in_both_versions() {
    let targets: [&[u8]; 16] = [
        b"",
        b"/",
        b"*",
        b"**",
        b"a",
        b"?a",
        b"//a//b/../c",
        b"/%2e%00%zz",
        b"/a?b?c&d=e/f",
        b"/a?",
        b"/a?b#c",
        b"/a#b?c",
        b"/#",
        b"ftp://x/a",
        b"http://y/a",
        "/\u{e9}".as_bytes(),
    ];
    let methods = ["GET", "get", "OPTIONS", "QUERY", "CONNECT", "", "A\u{e9}"];
    let hosts = [
        "x:80",
        "X.example.",
        "u@x",
        "x:",
        "x:a",
        "[::1]:1",
        "[::1",
        "x, y",
        "x/y",
        "",
    ];
    let hosts = hosts.map(Some).into_iter().chain([None]);
    let field = ("a", &b"x"[..]);
    let fields: [&[(&str, &[u8])]; 13] = [
        &[("Expect", b"miracles")],
        &[("Expect", b"100-continue")],
        &[("Content-Length", b"0"), ("Content-Length", b"0")],
        &[("Content-Length", b"+0")],
        &[("Content-Length", b"")],
        &[("Content-Length", b"0, 0")],
        &[("Content-Length", b" 0 ")],
        &[("A", b"1"), ("a", b"2"), ("A", b"")],
        &[("A b", b"1")],
        &[("", b"1")],
        &[("Content-Type", b"\t application/json \t")],
        &[field; FIELDS_MAX - 1],
        &[field; FIELDS_MAX],
    ];
    let mut cases = Vec::new();
    for method in methods {
        cases.extend(targets.map(|target| Case {
            method,
            target,
            ..GET
        }));
    }
    cases.extend(hosts.map(|host| Case { host, ..GET }));
    cases.extend(fields.map(|fields| Case { fields, ..GET }));
    let differences: Vec<_> = cases.iter().filter_map(differ).collect();
    assert!(differences.is_empty(), "{differences:#?}");
}
