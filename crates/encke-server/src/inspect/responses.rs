//! Answers as responses, for pages of the server itself only.

use encke_net::{RefusalEntry, ShardSilent};
use encke_protocol::{Response, problem};
use serde_json::{Value, json};

/// A response with an answer.
pub(super) fn json_response(answer: &Value) -> Response {
    json_body(answer.to_string())
}

/// A response whose body is JSON already.
pub(super) fn json_body(text: String) -> Response {
    Response::new(200)
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store")
        .field("X-Content-Type-Options", "nosniff")
        .body(text)
}

/// A question that can't be answered.
pub(super) fn failure(status: u16, code: &'static str, why: &str) -> Response {
    let retry_s = if status == 503 { RETRY_S } else { 0 };
    problem::rejected(status, code, why, retry_s)
}

/// A shard does not answer.
pub(super) fn silent(shard: &ShardSilent) -> Response {
    failure(503, "shard_silent", &shard.to_string())
}

/// The last refusals.
pub(super) fn refusals(refusals: &[RefusalEntry]) -> Value {
    let refusals = refusals.iter().map(|one| {
        json!({
            "at": one.at.as_ms(),
            "client": one.client,
            "caller": Some(&one.caller).filter(|caller| !caller.is_empty()),
            "method": one.method,
            "path": one.path,
            "status": one.status,
            "reason": one.reason,
            "count": one.count,
        })
    });
    json!({ "refusals": refusals.collect::<Vec<_>>() })
}

/// Seconds after which a question may be asked again.
const RETRY_S: u64 = 1;
