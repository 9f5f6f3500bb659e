//! A response as bytes.

use encke_protocol::{Body, CrossOriginFields, Response, phrase};

use super::framing::ResponseFraming;

/// How a response is framed: what the request and the connection say about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    /// The request was HEAD: no body, whatever the fields say.
    pub(crate) head_only: bool,
    /// The connection is kept after it.
    pub(crate) keep_alive: bool,
    /// The value of Strict-Transport-Security.
    pub(crate) hsts: Option<&'a str>,
    /// What the response says about origins.
    pub(crate) cross_origin: CrossOriginFields<'a>,
    /// How a body without a length is framed.
    pub(crate) framing: ResponseFraming,
    /// The id that the client gave the request, which the response repeats.
    pub(crate) request_id: Option<&'a str>,
}

/// Writes a response. `date` is the Date field's value. Returns the length of the head.
pub(crate) fn encode(
    response: &Response,
    shape: Shape<'_>,
    date: &str,
    out: &mut Vec<u8>,
) -> usize {
    let start = out.len();
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
    response.cross_origin.write(shape.cross_origin, out);
    if let Some(hsts) = shape.hsts {
        out.extend_from_slice(b"Strict-Transport-Security: ");
        out.extend_from_slice(hsts.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if let Some(id) = shape.request_id {
        out.extend_from_slice(b"X-Request-Id: ");
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    let unsized_body = matches!(response.body, Body::Open(_) | Body::Parts(_));
    let chunked = unsized_body && shape.framing == ResponseFraming::Chunks;
    let to_the_end = unsized_body && !chunked;
    // Not of a body in chunks, also where the connection closes behind it: clients such as Node's `fetch` take the end of a
    // connection that closes for the end of its body, and a cut would be no error for them (docs/decisions/0023).
    if to_the_end || !shape.keep_alive && !chunked {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let body = response.body.as_ref();
    // These have no body, and so no length (RFC 9110, section 8.6).
    let bodiless = matches!(status, 204 | 304);
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if !(bodiless || to_the_end || shape.head_only && body.is_empty()) {
        out.extend_from_slice(b"Content-Length: ");
        decimal(body.len(), out);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    let head_bytes = out.len() - start;
    if shape.head_only || bodiless {
        return head_bytes;
    }
    if chunked {
        shape.framing.part(body, out);
    } else {
        out.extend_from_slice(body);
    }
    head_bytes
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

#[cfg(test)]
mod tests {
    use encke_protocol::{CrossOrigin, OriginReader};

    use super::*;

    #[test]
    fn numbers_are_written_as_everywhere() {
        for number in [0, 1, 9, 10, 99, 100, 204, 65_536, usize::MAX] {
            let mut out = b"n: ".to_vec();
            decimal(number, &mut out);
            assert_eq!(String::from_utf8(out), Ok(format!("n: {number}")));
        }
    }

    fn encoded(response: &Response, shape: Shape<'_>) -> String {
        let mut out = Vec::new();
        encode(response, shape, "now", &mut out);
        String::from_utf8(out).expect("it is text")
    }

    const SHAPE: Shape<'_> = Shape {
        head_only: false,
        hsts: None,
        keep_alive: true,
        cross_origin: CrossOriginFields {
            reader: &OriginReader::Unnamed,
            any: false,
            vary: false,
        },
        framing: ResponseFraming::Chunks,
        request_id: None,
    };

    #[test]
    fn the_length_of_the_head_is_returned_and_an_id_is_repeated() {
        let response = Response::new(200).body("abc");
        let shape = Shape {
            request_id: Some("id-1"),
            ..SHAPE
        };
        let mut out = b"before".to_vec();
        let head_bytes = encode(&response, shape, "now", &mut out);
        let (head, body) = out[6..].split_at(head_bytes);
        assert!(head.ends_with(b"\r\n\r\n"));
        assert_eq!(body, b"abc");
        assert!(encoded(&response, shape).contains("\r\nX-Request-Id: id-1\r\n"));
        assert!(!encoded(&response, SHAPE).contains("X-Request-Id"));
    }

    #[test]
    fn scripts_of_allowed_origins_may_read_what_the_response_says() {
        let listed = OriginReader::Origin("https://a.example".into());
        let star = "Access-Control-Allow-Origin: *\r\n";
        let named = "Access-Control-Allow-Origin: https://a.example\r\nAccess-Control-Allow-Credentials: true\r\n";
        use CrossOrigin::{Cacheable, Never, WhenAsked};
        for (cross_origin, reader, any, vary, expected) in [
            (Never, &OriginReader::Any, true, false, ""),
            (Never, &listed, false, true, ""),
            (WhenAsked, &OriginReader::Unnamed, true, false, ""),
            (WhenAsked, &OriginReader::Unnamed, false, true, ""),
            (WhenAsked, &OriginReader::Any, true, false, star),
            (WhenAsked, &listed, false, true, named),
            (Cacheable, &OriginReader::Unnamed, true, false, star),
            (Cacheable, &OriginReader::Any, true, false, star),
            (Cacheable, &OriginReader::Unnamed, false, true, ""),
            (Cacheable, &listed, false, true, named),
            // No origin is allowed: what a cache may keep names none either.
            (Cacheable, &OriginReader::Unnamed, false, false, ""),
        ] {
            let response = Response {
                cross_origin,
                ..Response::new(204)
            };
            let fields = CrossOriginFields { reader, any, vary };
            let shape = Shape {
                cross_origin: fields,
                ..SHAPE
            };
            let text = encoded(&response, shape);
            let case = format!("{cross_origin:?} {reader:?} {vary}: {text}");
            assert_eq!(
                text.contains("Access-Control-Allow"),
                !expected.is_empty(),
                "{case}"
            );
            assert!(text.contains(expected), "{case}");
            assert_eq!(
                text.contains("Expose-Headers: "),
                !expected.is_empty(),
                "{case}"
            );
            // A cache must not give one origin's response to another.
            let varies = vary && (cross_origin == Cacheable || expected == named);
            assert_eq!(text.contains("Vary: Origin"), varies, "{case}");
        }
    }

    #[test]
    fn a_subscription_is_in_chunks_or_ends_with_the_connection() {
        let response = Response::new(200).body(Body::Open(b"abc".to_vec()));
        for keep_alive in [true, false] {
            let shape = Shape {
                keep_alive,
                ..SHAPE
            };
            let text = encoded(&response, shape);
            assert!(text.contains("Transfer-Encoding: chunked\r\n"), "{text}");
            assert!(!text.contains("Connection"), "{text}");
            assert!(text.ends_with("\r\n\r\n3\r\nabc\r\n"), "{text}");
            let text = encoded(&Response::new(200).body("abc"), shape);
            let closes = text.contains("Connection: close\r\n");
            assert_eq!(closes, !keep_alive, "{text}");
        }
        let framing = ResponseFraming::Connection;
        let text = encoded(&response, Shape { framing, ..SHAPE });
        assert!(!text.contains("Transfer-Encoding"), "{text}");
        assert!(text.ends_with("Connection: close\r\n\r\nabc"), "{text}");
    }
}
