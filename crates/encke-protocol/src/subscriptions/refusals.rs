//! Refusals as responses, with the codes that clients of the protocol know.

use encke_subscriptions::SubscriptionError;
use serde_json::Value;

use crate::problem::{error, error_with, refused};
use crate::response::Response;

/// The response to a request that was refused.
pub(super) fn refusal(why: &SubscriptionError) -> Response {
    let (status, code) = match why {
        SubscriptionError::Log(refusal) => return refused(refusal),
        SubscriptionError::TokenInvalid => return token_invalid(&why.to_string()),
        SubscriptionError::AlreadyClaimed { holder, generation } => {
            let members = [
                ("current_holder", Value::from(&**holder)),
                ("generation", Value::from(*generation)),
            ];
            return error_with(409, "ALREADY_CLAIMED", why.to_string(), members);
        }
        SubscriptionError::BadId
        | SubscriptionError::BadStreamName(_)
        | SubscriptionError::Pattern(_)
        | SubscriptionError::NothingToFollow
        | SubscriptionError::NoWakeStream
        | SubscriptionError::OwnWakeStream(_)
        | SubscriptionError::Lease(_)
        | SubscriptionError::Description(_)
        | SubscriptionError::BadWorker
        | SubscriptionError::NoWebhooks
        | SubscriptionError::WrongType => (400, INVALID_REQUEST),
        SubscriptionError::Webhook(_) => (400, "WEBHOOK_URL_REJECTED"),
        SubscriptionError::NotFound => (404, "SUBSCRIPTION_NOT_FOUND"),
        SubscriptionError::Exists => (409, "SUBSCRIPTION_ALREADY_EXISTS"),
        SubscriptionError::Fenced => (409, "FENCED"),
        SubscriptionError::NoPendingWork => (409, "NO_PENDING_WORK"),
        SubscriptionError::InvalidOffset(_) => (409, "INVALID_OFFSET"),
        SubscriptionError::RetentionIsSet => (403, "retention_is_set"),
        SubscriptionError::TooManySubscriptions(_) => (507, "too_many_subscriptions"),
        SubscriptionError::TooManyLinks(_) | SubscriptionError::TooManyLinksInAll(_) => {
            (507, "too_many_links")
        }
        SubscriptionError::LookUp(_) => (500, "unreadable"),
        SubscriptionError::Overloaded => (503, "overloaded"),
        SubscriptionError::Stopping => (503, "stopping"),
    };
    let response = error(status, code, why.to_string());
    response.field_if("Retry-After", (status == 503).then_some(RETRY_AFTER_S))
}

/// The response to a request that is malformed.
pub(super) fn invalid(why: impl AsRef<str>) -> Response {
    error(400, INVALID_REQUEST, why)
}

/// The response to a report without a token that is good for it.
pub(super) fn token_invalid(why: &str) -> Response {
    let challenge = "Bearer error=\"invalid_token\"";
    error(401, "TOKEN_INVALID", why).field("WWW-Authenticate", challenge)
}

/// The response to a request for a subscription that does not exist.
pub(super) fn not_found() -> Response {
    refusal(&SubscriptionError::NotFound)
}

const INVALID_REQUEST: &str = "INVALID_REQUEST";

const RETRY_AFTER_S: u32 = 1;
