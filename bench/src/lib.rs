//! The instruments of Encke: load tools, and the experiments of the field reports.
//!
//! - [`load`] has the tools: `flood` (subscribers), `storm` (reconnects), `spray` (producers), `read` (readers that catch up),
//!   `answers` (tokens of language models) and `verify` (what a server kept). They measure any Durable Streams server.
//! - [`experiment`] repeats the five field reports that Encke answers, and four experiments without a report.
//! - [`million`] holds a million connections to as many nodes of a fleet as that takes.
//! - [`report`] is the model of all reports, and their text, Markdown and HTML.
//! - [`HttpClient`] is a plain client for tools and tests.
//!
//! # The invariant
//!
//! **Every figure is measured on what the server itself runs, and can be checked.** Each message carries its producer, its
//! number and its time, so a lost, doubled or reordered message shows. An experiment that loses a record or exceeds a bound
//! says so in its [`Goal`]s and in its exit code. Figures that are quoted, not measured, are in `experiment/past.rs` only.
//!
//! # Where to start reading
//!
//! `main.rs` has the commands. `load/flood/mod.rs` leads a flood from beginning to end; `load/requests/` is the engine of
//! everything that makes requests. Each experiment is a module with its name.

#[cfg(test)]
mod alone;
mod client;
mod error;
pub mod experiment;
pub mod load;
mod machine;
pub mod million;
mod proc;
pub mod report;
mod signals;
pub mod units;

pub use client::HttpClient;
pub use error::BenchError;
pub use load::wire::http::WireError;
pub use machine::MachineInfo;
pub use report::{Goal, Report, Section, Table};
pub use signals::stop_flag;
