//! The streams of a run.

/// The stream that all clients follow.
pub(super) const COMMON: &str = "everyone";

/// The streams of one client. A pattern, because nothing is stored for clients that never get a message.
pub(super) fn pattern(client: u32) -> String {
    format!("to/{client}/*")
}

/// A stream of one client.
pub(super) fn inbox(client: u32) -> String {
    format!("to/{client}/inbox")
}
