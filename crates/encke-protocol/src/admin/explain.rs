//! The body of `POST /v1/admin/explain`: a request that is explained with a credential, and not made.

use super::inquiry::ExplainedRequest;
use crate::problem::error;
use crate::response::Response;

impl ExplainedRequest {
    /// Reads the body of a request.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Response> {
        serde_json::from_slice(body).map_err(|why| {
            // The place and not the text, which may be a part of the token.
            let why = match why.classify() {
                serde_json::error::Category::Data => {
                    "a member is missing, unknown or not a text".to_owned()
                }
                _ => format!("it is no JSON from column {} on", why.column()),
            };
            let why = format!(
                "the body is JSON with the members token, method and path, such as {EXAMPLE}: {why}"
            );
            error(400, "bad_explanation", why)
        })
    }
}

const EXAMPLE: &str = r#"{"token":"eyJ…","method":"GET","path":"/v1/stream/a"}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::message;

    #[test]
    fn a_body_is_read_and_its_token_is_never_shown() {
        let body = br#"{"token":"secret-token","path":"/v1/stream/a?offset=-1"}"#;
        let read = ExplainedRequest::parse(body).unwrap();
        assert_eq!((&*read.method, &*read.token), ("GET", "secret-token"));
        assert!(!format!("{read:?}").contains("secret"));
        for wrong in [
            &br#"{"token":"secret-token"}"#[..],
            br#"{"token":["secret-token"],"path":"/"}"#,
            br#"{"secret-token":"","path":"/"}"#,
            br#"{"token":"secret-token"#,
            b"",
        ] {
            let why = message(&ExplainedRequest::parse(wrong).unwrap_err());
            assert!(
                why.contains("token, method and path") && !why.contains("secret"),
                "{why}"
            );
        }
    }
}
