//! A response as bytes.

use std::io::Write;

use encke_face::{Body, Response};

/// How a response is framed: what the request and the connection say about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The request was HEAD: no body, whatever the fields say.
    pub(crate) head_only: bool,
    /// The connection is kept after it.
    pub(crate) keep_alive: bool,
}

/// Writes a response. `date` is the Date field's value.
pub(crate) fn encode(response: &Response, shape: Shape, date: &str, out: &mut Vec<u8>) {
    let status = response.status;
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 {status} {}\r\nDate: {date}\r\n",
        phrase(status)
    );
    out.extend_from_slice(&response.fields);
    let open = matches!(response.body, Body::Open(_));
    if !shape.keep_alive || open {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let body = response.body.as_ref();
    // These have no body, and so no length (RFC 9110, section 8.6).
    let bodiless = matches!(status, 204 | 304);
    if !bodiless && !open && !(shape.head_only && body.is_empty()) {
        let _ = write!(out, "Content-Length: {}\r\n", body.len());
    }
    out.extend_from_slice(b"\r\n");
    if !shape.head_only && !bodiless {
        out.extend_from_slice(body);
    }
}

fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
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
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        _ => "",
    }
}
