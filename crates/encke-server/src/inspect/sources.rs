//! What only the program knows: its configuration, its machine and its fleet.

use encke_protocol::ExplainedRequest;
use serde_json::Value;

/// Where answers come from that this crate can't make. They run on the thread that answers operators, and may wait.
pub struct InspectionSources {
    /// Why the server is not ready; `None` if it is.
    pub unready: Box<dyn Fn() -> Option<String> + Send>,
    /// The settings, and where each comes from.
    pub configuration: Box<dyn Fn() -> Value + Send>,
    /// Checks the machine and the data directory. The error says why there is no report.
    pub doctor: Box<dyn Fn() -> Result<Value, String> + Send>,
    /// What the node knows of its fleet.
    pub fleet: Box<dyn Fn() -> Value + Send>,
    /// Explains a request with a credential. The error says why that can't be said now.
    pub explain: Box<dyn Explain>,
}

/// Explains requests.
pub trait Explain: Send {
    /// Why a request with a credential would be allowed or refused. The error says why that can't be said now.
    fn explain(&self, request: &ExplainedRequest) -> Result<Explanation, String>;
}

/// What is said of a request with a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Lines of text, for people.
    pub text: String,
    /// Whether the request would be allowed.
    pub is_allowed: bool,
}
