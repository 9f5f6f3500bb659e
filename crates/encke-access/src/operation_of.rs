//! Which operation a request to the HTTP interface is, for explanations of a token.

use crate::operation::Operation;
use crate::path::segments;

/// The operation that a request needs, and on which path. `None`: it needs none, such as `/healthz`.
///
/// A request to `/v1/events` reads the streams that its parameters name, each a path of its own.
pub fn operation_of(method: &str, path: &str) -> Option<Operation> {
    let parts: Vec<&str> = segments(path).collect();
    match parts[..] {
        ["v1", "stream", ..] | ["v1", "events"] => match method {
            "GET" | "HEAD" => Some(Operation::Read),
            "PUT" => Some(Operation::Create),
            "DELETE" => Some(Operation::Delete),
            _ => Some(Operation::Append),
        },
        ["v1", "pool"] => Some(Operation::List),
        ["v1", "pool", _, "work"] | ["v1", "pool", _, "job", _, _] => Some(Operation::Work),
        ["v1", "pool", ..] => match method {
            "GET" | "HEAD" => Some(Operation::Read),
            "PUT" => Some(Operation::Create),
            "DELETE" => Some(Operation::Delete),
            _ => Some(Operation::Post),
        },
        ["v1", "admin", ..] | ["metrics"] => Some(Operation::Admin),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_operations() {
        for (method, path, expected) in [
            ("GET", "/v1/stream/a/b", Some(Operation::Read)),
            ("HEAD", "/v1/stream/a", Some(Operation::Read)),
            ("PUT", "/v1/stream/a", Some(Operation::Create)),
            ("POST", "/v1/stream/a", Some(Operation::Append)),
            ("DELETE", "/v1/stream/a", Some(Operation::Delete)),
            ("GET", "/v1/events", Some(Operation::Read)),
            ("GET", "/v1/pool", Some(Operation::List)),
            ("POST", "/v1/pool/p", Some(Operation::Post)),
            ("GET", "/v1/pool/p/work", Some(Operation::Work)),
            ("POST", "/v1/pool/p/work", Some(Operation::Work)),
            ("POST", "/v1/pool/p/job/1/ack", Some(Operation::Work)),
            ("GET", "/v1/pool/p/job/1", Some(Operation::Read)),
            ("POST", "/v1/admin/revoke", Some(Operation::Admin)),
            ("GET", "/metrics", Some(Operation::Admin)),
            ("GET", "/healthz", None),
        ] {
            assert_eq!(operation_of(method, path), expected, "{method} {path}");
        }
    }
}
