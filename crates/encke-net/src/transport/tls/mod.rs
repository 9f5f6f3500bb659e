//! TLS 1.3 and 1.2 for the connections of a shard.
//!
//! A handshake runs in a thread of its own (`handshakes`), so that none delays a delivery. Then the shard gets a `session` that
//! takes about a kilobyte while it is idle: rustls hands over the secrets and what it needs for changes of keys, and its provider
//! protects the records. docs/decisions/0027-tls.md has the alternatives and the figures.
//!
//! `record` finds the frames of records, `keys` has the keys and ciphers of one direction, and `session` states at its top what a
//! session must keep: sequence numbers, limits of keys, changes of keys, padding, ends, zeroing. `session_tests.rs` runs it against a client
//! of rustls.

mod client_certificate;
#[cfg(test)]
mod client_tests;
mod fault;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod handshake;
mod handshaken;
mod handshakes;
mod keys;
mod metrics;
mod moved;
mod record;
mod session;
#[cfg(test)]
mod session_tests;
mod shares;
#[cfg(test)]
mod testing;
mod watcher;

pub use self::files::{CertificateWarning, TlsError, check_tls};

pub(crate) use self::fault::TlsFault;
pub(crate) use self::files::Certificates;
pub(crate) use self::handshake::Established;
pub(crate) use self::handshaken::Handshaken;
pub(crate) use self::handshakes::{HandshakeBounds, HandshakeGauges, HandshakeTask, Handshakes};
pub(crate) use self::metrics::HandshakeMetrics;
pub(crate) use self::moved::MovedSession;
pub(crate) use self::session::{ReadOutcome, TlsSession};
pub(crate) use self::watcher::FileWatcher;
