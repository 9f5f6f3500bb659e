//! The access log: one line for each request, written by a thread of its own.
//!
//! A shard keeps what the line needs while a request is open (`open_requests`, `requests`), and hands finished entries to a bounded mailbox
//! once a turn. The writer (`writer`) formats them (`format`) and writes them. A shard never waits for the log: entries for which
//! the mailbox has no room are dropped and counted.
//!
//! The one invariant: **a line ends where the server ends it.** Whatever a client sends is escaped and cut to a bound.

mod entry;
mod format;
mod ids;
mod open_requests;
mod requests;
mod secrets;
mod writer;

pub(crate) use entry::{AccessEntry, COMPLETE, NO_RESPONSE, RequestText};
pub use format::AccessLogFormat;
use format::hex_escaped;
pub(crate) use format::json_text;
pub(crate) use ids::RequestIds;
use ids::{request_id, trace_parent};
pub(crate) use open_requests::{OpenRequest, OpenRequests};
pub(crate) use secrets::without_secrets;
pub(crate) use writer::{AccessLogQueue, AccessLogSender, AccessLogThread, access_log};
