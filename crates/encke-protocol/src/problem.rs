//! Errors as responses: the one place that writes them as JSON, by RFC 9457.

use encke_access::{Quota, QuotaExceeded};
use encke_stream::{Outcome, Refusal, StorageLimit};
use serde_json::Value;

use crate::action::Failure;
use crate::response::Response;
use crate::status::phrase;

/// A response that says what was wrong, for browsers of all origins.
pub(crate) fn error(status: u16, code: &'static str, message: impl AsRef<str>) -> Response {
    Response::shared(status)
        .field("Content-Type", MEDIA_TYPE)
        .field("Cache-Control", "no-store")
        .body(problem(status, code, message.as_ref()).to_string())
}

/// The same, with further members of `error` for programs.
pub(crate) fn error_with<const N: usize>(
    status: u16,
    code: &'static str,
    message: impl AsRef<str>,
    members: [(&str, Value); N],
) -> Response {
    let mut problem = problem(status, code, message.as_ref());
    for (name, value) in members {
        problem["error"][name] = value;
    }
    error(status, code, message).body(problem.to_string())
}

/// A response to a request that reaches no protocol, because of its transport or a limit. With `retry_s` above 0 the client
/// may try again after that many seconds.
pub fn rejected(status: u16, code: &'static str, message: &str, retry_s: u64) -> Response {
    error(status, code, message).field_if("Retry-After", (retry_s > 0).then_some(retry_s))
}

/// The response to a request that exceeds a quota of its caller.
pub fn quota_exceeded(exceeded: &QuotaExceeded) -> Response {
    let why = exceeded.to_string();
    let response = match exceeded.quota {
        Quota::Appends => error(429, "quota_appends_per_second", why),
        Quota::Subscribers => error(429, "quota_subscribers", why),
        Quota::Streams => error(429, "quota_streams", why),
        Quota::StoredBytes => error(429, "quota_stored_bytes", why),
        Quota::Accounts => error(429, "quota_accounts_max", why),
    };
    let retry_s = exceeded.retry.map_or(QUOTA_RETRY_S, |time| {
        time.as_millis().div_ceil(1_000) as u64
    });
    response.field("Retry-After", retry_s)
}

/// The quota that bounds what an account stores.
pub fn quota_of(limit: StorageLimit) -> Quota {
    match limit {
        StorageLimit::Streams => Quota::Streams,
        StorageLimit::Bytes => Quota::StoredBytes,
    }
}

/// The response to a request whose continuation cannot be resumed.
pub fn failed(failure: Failure) -> Response {
    match failure {
        Failure::Overloaded => error(503, "overloaded", "too many requests wait; try again")
            .field("Retry-After", RETRY_AFTER_S),
        Failure::NoLongerKept => error(
            410,
            "no_longer_kept",
            "the requested records are no longer kept; -1 returns what is left",
        ),
        Failure::Unreadable => error(
            500,
            "unreadable",
            "the data could not be read; the server's log says why",
        ),
        Failure::Stopping => error(503, "stopping", "the server stops; try again")
            .field("Retry-After", RETRY_AFTER_S),
    }
}

/// The response to a command that was refused.
pub(crate) fn refused(refusal: &Refusal) -> Response {
    let (status, code) = match refusal {
        Refusal::NotFound => (404, "not_found"),
        Refusal::Gone => (410, "gone"),
        Refusal::NameKept => (409, "name_kept"),
        Refusal::NotOwner => (403, "not_owner"),
        Refusal::Differs { .. } => (409, "config_differs"),
        Refusal::Closed { .. } => (409, "closed"),
        Refusal::TailDiffers { .. } => (412, "tail_differs"),
        Refusal::TypeDiffers { .. } => (409, "type_differs"),
        Refusal::WriterSeq { .. } => (409, "stream_seq"),
        Refusal::StaleEpoch { .. } => (403, "stale_epoch"),
        Refusal::EpochStart { .. } => (400, "epoch_start"),
        Refusal::SeqGap { .. } => (409, "sequence_gap"),
        Refusal::SourceNotFound => (404, "source_not_found"),
        Refusal::SourceGone => (409, "source_gone"),
        Refusal::BeyondTail { .. } | Refusal::TruncateBeyondTail { .. } => (400, "beyond_tail"),
        Refusal::BeforeStart { .. } => (400, "before_start"),
        Refusal::NoLongerKept { .. } => (410, "no_longer_kept"),
        Refusal::TooDeep { .. } => (409, "fork_too_deep"),
        Refusal::TooLarge { .. } => (413, "too_large"),
        Refusal::NoSpace => (507, "disk_full"),
        Refusal::Stalled(_) => (503, "log_stalled"),
        Refusal::Evicted => (503, "let_go"),
        Refusal::NameBusy => (503, "name_busy"),
        Refusal::LogFailed(_) => (503, "log_failed"),
        Refusal::ForkElsewhere => (400, "fork_elsewhere"),
        Refusal::Unknown(_) => (503, "unconfirmed"),
        Refusal::NotDispatcher => (503, "dispatcher_moved"),
        Refusal::StorageExceeded(exceeded) => {
            return quota_exceeded(&QuotaExceeded {
                quota: quota_of(exceeded.limit),
                max: exceeded.max,
                retry: None,
            });
        }
    };
    let response = error(status, code, refusal.to_string());
    match refusal {
        Refusal::Closed { tail, end } => response
            .field("Stream-Closed", "true")
            .field("Stream-Next-Offset", tail)
            .field_if("Encke-End-Reason", *end),
        Refusal::TailDiffers { tail, .. } => response.field("Stream-Next-Offset", tail),
        Refusal::StaleEpoch { current } => response.field("Producer-Epoch", current),
        Refusal::SeqGap { expected, received } => response
            .field("Producer-Expected-Seq", expected)
            .field("Producer-Received-Seq", received),
        Refusal::Stalled(_) | Refusal::Evicted | Refusal::NameBusy | Refusal::NotDispatcher => {
            response.field("Retry-After", RETRY_AFTER_S)
        }
        _ => response,
    }
}

/// The response to an outcome that is no success: a refusal, or the outcome of another kind of command.
pub fn unexpected(outcome: &Outcome) -> Response {
    match outcome {
        Outcome::Refused(refusal) => refused(refusal),
        other => error(
            500,
            "internal",
            format!("internal error: a command of another kind has the outcome {other:?}"),
        ),
    }
}

/// The response to a request that has waited for the order in vain. Nothing was sent for it yet.
pub fn order_unknown(outcome: &Outcome) -> Response {
    match outcome {
        Outcome::Refused(Refusal::Unknown(reason)) => {
            let message = format!(
                "this node cannot tell what its fleet has acknowledged ({reason}); nothing was changed"
            );
            error(503, "unconfirmed", message).field("Retry-After", RETRY_AFTER_S)
        }
        other => unexpected(other),
    }
}

/// Refuses a method that is not one of these.
pub(crate) fn check_method(method: &str, methods: &[&str]) -> Result<(), Response> {
    match methods.contains(&method) {
        true => Ok(()),
        false => Err(not_allowed(method, methods)),
    }
}

/// The response to a method that is none of those of its path.
pub(crate) fn not_allowed(method: &str, methods: &[&str]) -> Response {
    let methods = methods.join(", ");
    let why = format!("{method} is not allowed here, only {methods}");
    error(405, "method_not_allowed", why).field("Allow", methods)
}

/// What a response of [`error`] says.
pub(crate) fn message(response: &Response) -> String {
    code_and_message(response).1
}

/// The code of a response of [`error`], and what it says.
pub(crate) fn code_and_message(response: &Response) -> (String, String) {
    let body: Value = serde_json::from_slice(response.body.as_ref()).unwrap_or_default();
    let member = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
    (member("code"), member("message"))
}

/// Seconds after which the client of a refused request may try again, if the response says it.
pub(crate) fn retry_after_s(response: &Response) -> Option<u64> {
    let fields = String::from_utf8_lossy(&response.fields);
    let mut lines = fields.lines();
    let seconds = lines.find_map(|line| line.strip_prefix("Retry-After: "));
    seconds.and_then(|seconds| seconds.parse().ok())
}

/// The type of the problem is left out: it is `about:blank`, and says no more than the status. The code does.
fn problem(status: u16, code: &str, message: &str) -> Value {
    serde_json::json!({
        "title": phrase(status),
        "status": status,
        "detail": message,
        "error": { "code": code, "message": message },
    })
}

const MEDIA_TYPE: &str = "application/problem+json";

/// Seconds after which a request may be tried again that exceeds a number of something.
const QUOTA_RETRY_S: u64 = 5;

const RETRY_AFTER_S: u32 = 1;
