//! Load generation and measurement for push servers that speak Durable Streams.
//!
//! Three tools, each a function that takes the arguments of its command line and returns a report:
//!
//! - [`flood`] opens many subscribers (server-sent events or long polls), each on a stream of its
//!   own or all on one, publishes to them if asked to, and reports how late messages arrived, which
//!   were missing, doubled or out of order, and what the server spent on it.
//! - [`spray`] appends over many connections, and reports how long acknowledgements took. It can
//!   write down what was acknowledged, and [`spray_beside`] sets two servers side by side.
//! - [`verify`] reads everything back after a crash, and checks what was written down.
//!
//! Reports implement `Display` for people and `Serialize` for programs; progress goes to standard
//! flood that needs more descriptors than one process may have starts the same program again.
//!
//! # The invariant
//!
//! **The generator's word can be held against the server.** Every message carries its producer, its
//! number and its time. A subscriber that has been told an offset must get every acknowledged
//! message from there on, once and in its producer's order, through pauses, hang-ups and returns;
//! anything else is counted and shown with examples. What is not the server's fault is told apart:
//! messages that were never acknowledged are excused, what a subscriber has to read again after a
//! cut between an event and its offset is a repeat, and what the generator itself sent late is
//! reported as lateness.
//!
//! The generator shares its machine with the server that it measures, so it is built to be light:
//! one epoll loop per worker, no buffer per connection but for half an event, no allocation per
//! message.
//!
//! # Where to start reading
//!
//! `flood/mod.rs` leads a run from beginning to end. `flood/worker.rs` is the loop that holds
//! subscribers, `flood/subscriber.rs` what one of them is, `sequence.rs` how faults are found.
//! `requests.rs` is the engine under everything that makes requests: creating, publishing
//! (`produce.rs`), verifying. `wire/` has the parsers, `plot.rs` draws curves; both, [`Latencies`] and
//! [`units`] serve other measurements too.

mod ack_log;
pub(crate) mod args;
mod beside;
pub(crate) mod chart;
pub(crate) mod clock;
mod create;
mod descriptors;
mod flood;
mod hostile;
mod latency;
mod poller;
mod probe;
mod produce;
mod progress;
mod random;
mod report;
mod requests;
mod sequence;
mod socket;
mod spray;
mod stolen;
mod storm;
mod verify;
pub(crate) mod wire;

pub use args::{FloodArgs, SprayArgs, StormArgs, To, VerifyArgs};
pub use beside::{BesideReport, spray_beside};
pub use descriptors::Descriptors;
pub use flood::flood;
pub use flood::floor::Floor;
pub use latency::{Latencies, Percentiles};
pub use probe::Memory;
pub use report::endurance::{Endurance, HangUps, RunPart};
pub use report::flood::{
    Connections, Deliveries, FloodReport, Latency, Opening, Publishing, Sample, ServerUsage,
};
pub use report::hostile::{Deeds, Hostile};
pub use report::spray::{NotAcknowledged, SprayReport};
pub use report::verify::{Finding, Findings, Found, VerifyReport};
pub use sequence::{Example, Fault, OrderFaults};
pub use spray::spray;
pub use stolen::Stolen;
pub use storm::{Storm, StormReport, storm};
pub use verify::verify;
