//! What a line of the audit log says.

use encke_clock::WallTime;
use encke_protocol::AuditNote;

/// A line of the log.
#[derive(Debug)]
pub(crate) struct AuditEntry {
    /// The time of day.
    pub(crate) at: WallTime,
    /// The address of the client.
    pub(crate) client: Box<str>,
    pub(crate) status: u16,
    pub(crate) note: Box<AuditNote>,
}

/// Bytes of a text in a line, before they are escaped; what follows is left out.
pub(super) const TEXT_BYTES_MAX: usize = 256;
pub(super) const PATH_BYTES_MAX: usize = 2_048;
