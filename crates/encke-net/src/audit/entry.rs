//! What a line of the audit log says.

use encke_protocol::AuditNote;

/// A line of the log.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// The address of the client.
    pub(crate) client: Box<str>,
    pub(crate) status: u16,
    pub(crate) note: Box<AuditNote>,
}
