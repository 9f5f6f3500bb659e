//! Copies the log of a running node to another one, over the connections that both have to the brokers.
//!
//! The copying node asks (`fetch.rs`), the other one answers (`source.rs`): it takes a snapshot of its log, then gives its
//! files piece by piece (`protocol.rs`). No more than [`protocol::REQUESTS_AT_ONCE`] pieces are on their way, so neither side needs
//! more memory for a larger log. The order goes on meanwhile, and the copy continues with it from its last mark.

mod fetch;
mod protocol;
mod source;

pub use fetch::{CopyLogError, CopyProgress, LogCopier};
pub(crate) use protocol::subject;
pub(crate) use source::CopySource;
