//! HTTP/1.1 framing: heads, chunked bodies, responses. The protocols interpret the requests.

pub(crate) mod body;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod differential;
pub(crate) mod framing;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub(crate) mod head;
pub(crate) mod response;
pub(crate) mod take;
pub(crate) mod target;

use std::borrow::Cow;

use encke_protocol::{Response, problem};

/// Why a request is refused. The connection is closed after the response, because the beginning of the next request is not
/// known (RFC 9112, section 6.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) status: u16,
    /// The label in metrics, and the error's code.
    pub(crate) reason: &'static str,
    /// What was wrong and what is allowed.
    pub(crate) message: Cow<'static, str>,
    /// After how many seconds the client may try again; 0 if the time does not matter.
    pub(crate) retry_s: u64,
    /// Further fields that such a response must have.
    pub(crate) fields: &'static [(&'static str, &'static str)],
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
            fields: &[],
        }
    }

    /// The response to the request.
    pub(crate) fn response(&self) -> Response {
        let response = problem::rejected(self.status, self.reason, &self.message, self.retry_s);
        let fields = self.fields.iter();
        fields.fold(response, |response, (name, value)| {
            response.field(name, value)
        })
    }

    /// Says when the client may try again.
    pub(crate) fn retry(self, retry_s: u64) -> Self {
        Rejection { retry_s, ..self }
    }

    /// Adds fields that such a response must have.
    pub(crate) fn fields(self, fields: &'static [(&'static str, &'static str)]) -> Self {
        Rejection { fields, ..self }
    }
}
