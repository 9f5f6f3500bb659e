//! HTTP/1.1 framing: heads, chunked bodies, responses. What a request means is the router' business.

pub(crate) mod body;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod differential;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod head;
pub(crate) mod response;
pub(crate) mod take;
pub(crate) mod target;

use std::borrow::Cow;

/// Why a request can't be taken. The connection is closed after the answer, because where the next
/// request would begin is not known (RFC 9112, section 6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) status: u16,
    /// What metrics count it as.
    pub(crate) reason: &'static str,
    /// What was wrong and what is allowed.
    pub(crate) message: Cow<'static, str>,
    /// In how many seconds it may be taken; 0 if the time does not matter.
    pub(crate) retry_s: u64,
}

impl Rejection {
    pub(crate) fn new(
        status: u16,
        reason: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Rejection {
            status,
            reason,
            message: message.into(),
            retry_s: 0,
        }
    }

    /// Says when to come back.
    pub(crate) fn retry(self, retry_s: u64) -> Self {
        Rejection { retry_s, ..self }
    }
}
