//! The head of a response as `h2` takes it.

use encke_protocol::{Body, CrossOriginFields, Response};
use http::header::{CONTENT_LENGTH, DATE, STRICT_TRANSPORT_SECURITY};
use http::{HeaderName, HeaderValue, StatusCode};

/// What a head says beside the response of the protocol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadShape<'a> {
    /// The request was HEAD.
    pub(crate) head_only: bool,
    pub(crate) cross_origin: CrossOriginFields<'a>,
    /// The value of Strict-Transport-Security.
    pub(crate) hsts: Option<&'a str>,
    /// The id that the client gave the request.
    pub(crate) request_id: Option<&'a str>,
}

/// Builds the head. None for a status or a field that HTTP does not have, which no protocol sends.
pub(crate) fn head(
    response: &Response,
    shape: HeadShape<'_>,
    date: &str,
) -> Option<http::Response<()>> {
    let mut head = http::Response::new(());
    *head.status_mut() = StatusCode::from_u16(response.status).ok()?;
    let headers = head.headers_mut();
    headers.insert(DATE, HeaderValue::from_str(date).ok()?);
    let mut of_origins = Vec::new();
    response
        .cross_origin
        .write(shape.cross_origin, &mut of_origins);
    for lines in [&response.fields[..], &of_origins] {
        for line in lines.split(|byte| *byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\r") else {
                continue;
            };
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = HeaderName::from_bytes(&line[..colon]).ok()?;
            let value = line[colon + 1..].trim_ascii();
            headers.append(name, HeaderValue::from_bytes(value).ok()?);
        }
    }
    if let Some(hsts) = shape.hsts {
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_str(hsts).ok()?);
    }
    if let Some(id) = shape.request_id {
        headers.insert("x-request-id", HeaderValue::from_str(id).ok()?);
    }
    let body = response.body.as_ref();
    let sized = !matches!(response.body, Body::Open(_) | Body::Parts(_));
    // As in HTTP/1.1: these have no body, and so no length.
    let bodiless = matches!(response.status, 204 | 304) || shape.head_only && body.is_empty();
    if sized && !bodiless {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use encke_protocol::{CrossOrigin, OriginReader};

    use super::*;

    fn text(
        response: &Response,
        head_only: bool,
        reader: &OriginReader,
        id: Option<&str>,
    ) -> Vec<String> {
        let shape = HeadShape {
            head_only,
            cross_origin: CrossOriginFields {
                reader,
                any: false,
                vary: false,
            },
            hsts: None,
            request_id: id,
        };
        let head = head(response, shape, "now").unwrap();
        let mut fields: Vec<String> = head
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        fields.sort();
        fields.insert(0, head.status().as_str().into());
        fields
    }

    #[test]
    fn fields_are_those_of_the_response_in_lower_case_and_none_of_a_connection() {
        let response = Response::new(200)
            .field("Content-Type", "text/plain")
            .field("Link", "</a>")
            .field("Link", "</b>")
            .body("abc");
        assert_eq!(
            text(&response, false, &OriginReader::Unnamed, Some("id-1")),
            [
                "200",
                "content-length: 3",
                "content-type: text/plain",
                "date: now",
                "link: </a>",
                "link: </b>",
                "x-request-id: id-1"
            ]
        );
    }

    #[test]
    fn a_length_is_given_where_there_is_one() {
        let has_length = |response: &Response, head_only| {
            let fields = text(response, head_only, &OriginReader::Unnamed, None);
            fields
                .iter()
                .any(|field| field.starts_with("content-length"))
        };
        assert!(has_length(&Response::new(200).body("abc"), false));
        assert!(has_length(&Response::new(200).body("abc"), true));
        assert!(has_length(&Response::new(404), false));
        assert!(!has_length(&Response::new(204), false));
        assert!(!has_length(&Response::new(200), true));
        let open = Response::new(200).body(Body::Open(b"abc".to_vec()));
        assert!(!has_length(&open, false));
    }

    #[test]
    fn scripts_of_other_origins_may_read_what_the_response_says() {
        let response = Response {
            cross_origin: CrossOrigin::WhenAsked,
            ..Response::new(204)
        };
        let allows = |reader| {
            let fields = text(&response, false, &reader, None);
            fields
                .iter()
                .any(|field| field == "access-control-allow-origin: *")
        };
        assert!(allows(OriginReader::Any) && !allows(OriginReader::Unnamed));
    }
}
