//! A response as bytes.

use std::io::Write;

use encke_protocol::{Body, Response};

/// How a response is framed: what the request and the connection say about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The request was HEAD: no body, whatever the fields say.
    pub(crate) head_only: bool,
    /// The connection is kept after it.
    pub(crate) keep_alive: bool,
    /// The client reads chunks; one of HTTP/1.0 reads to the connection's end.
    pub(crate) chunks: bool,
}

/// Writes a response. `date` is the Date field's value.
pub(crate) fn encode(response: &Response, shape: Shape, date: &str, out: &mut Vec<u8>) {
    let status = response.status;
    // Put together by hand: every request is answered, and formatting takes several times as long.
    out.extend_from_slice(b"HTTP/1.1 ");
    decimal(usize::from(status), out);
    out.push(b' ');
    out.extend_from_slice(phrase(status).as_bytes());
    out.extend_from_slice(b"\r\nDate: ");
    out.extend_from_slice(date.as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(&response.fields);
    let parts = matches!(response.body, Body::Parts(_));
    let open = matches!(response.body, Body::Open(_)) || parts && !shape.chunks;
    let chunked = parts && shape.chunks;
    if !shape.keep_alive || open {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let body = response.body.as_ref();
    // These have no body, and so no length (RFC 9110, section 8.6).
    let bodiless = matches!(status, 204 | 304);
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if !(bodiless || open || shape.head_only && body.is_empty()) {
        out.extend_from_slice(b"Content-Length: ");
        decimal(body.len(), out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    if shape.head_only || bodiless {
        return;
    }
    if chunked {
        chunk(body, out);
    } else {
        out.extend_from_slice(body);
    }
}

/// Writes a number in decimal digits.
fn decimal(number: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let mut rest = number;
    loop {
        out.push(b'0' + (rest % 10) as u8);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out[start..].reverse();
}

/// Writes a part in the chunked coding. An empty one would end the body, so it is left out.
pub(crate) fn chunk(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    // Writing to a vector does not fail.
    let _ = write!(out, "{:x}\r\n", bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// What ends a body in the chunked coding (RFC 9112, section 7.1).
pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_everywhere() {
        for number in [0, 1, 9, 10, 99, 100, 204, 65_536, usize::MAX] {
            let mut out = b"n: ".to_vec();
            decimal(number, &mut out);
            assert_eq!(String::from_utf8(out), Ok(format!("n: {number}")));
        }
    }
}
