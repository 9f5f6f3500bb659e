//! Answers to paths at which there is nothing, and what was probably meant.

use encke_access::PathError;

use crate::problem::error;
use crate::response::Response;

/// The answer to a path, in its canonical form, that no protocol has.
pub(crate) fn not_found(path: &str) -> Response {
    let hint = listing(path).unwrap_or(
        "a stream is /v1/stream/NAME, a pool /v1/pool/NAME, several streams are /v1/events",
    );
    let why = format!("there is nothing at {path}: {hint}");
    error(404, "not_found", why)
}

/// The answer to a path, as it was sent, that has no canonical form.
pub(crate) fn bad_path(raw: &str, why: &PathError) -> Response {
    let hint = match why {
        PathError::EmptySegment => raw.strip_suffix('/').and_then(listing),
        _ => None,
    };
    let why = match hint {
        Some(hint) => format!("{why}; {hint}"),
        None => why.to_string(),
    };
    error(400, "bad_path", why)
}

/// What lists the things whose names would be below a path.
fn listing(path: &str) -> Option<&'static str> {
    match path {
        "/v1/stream" => Some(
            "GET /v1/stream lists the streams, and GET /v1/events?stream=PREFIX/** has the records of all below a prefix",
        ),
        "/v1/pool" => Some("GET /v1/pool lists the pools"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::message;

    #[test]
    fn what_looks_for_a_list_is_led_to_it() {
        let bad = |path| message(&bad_path(path, &PathError::EmptySegment));
        assert_eq!(
            bad("/v1/pool/"),
            "the path has an empty segment: a slash at its end, or two in a row; GET /v1/pool lists the pools"
        );
        assert!(bad("/v1/stream/").contains("GET /v1/events?stream=PREFIX/**"));
        assert!(bad("/v1/stream/news/").ends_with("two in a row"));
        let here = message(&not_found("/v1/streams"));
        assert!(here.ends_with("several streams are /v1/events"), "{here}");
    }
}
