//! How many requests a connection may carry.

use super::close::CloseReason;
use super::context::Context;

/// Counts a request of a connection. Whether another one may follow.
pub(crate) fn count_request(requests: &mut u16, cx: &Context<'_>) -> bool {
    *requests = requests.saturating_add(1);
    last_reason(*requests, cx) == CloseReason::Done
}

/// The reason for closing a connection after a response.
pub(crate) fn last_reason(requests: u16, cx: &Context<'_>) -> CloseReason {
    let requests_max = cx.settings.requests_per_connection;
    match requests_max > 0 && requests >= requests_max {
        true => CloseReason::RequestsPerConnection,
        false => CloseReason::Done,
    }
}
