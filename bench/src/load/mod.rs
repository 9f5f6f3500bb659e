//! The load tools for servers that speak Durable Streams.
//!
//! - [`flood`] opens subscribers, publishes to them, and reports deliveries, order, latency and the server's cost.
//! - [`storm`] connects all subscribers at once, repeatedly.
//! - [`spray`] appends over many connections; [`spray_beside`] compares two servers.
//! - [`read`] has readers that catch up from the beginning of a stream, in one server or in two in turn.
//! - [`answers`] streams answers of language models, token by token, to three readers each.
//! - [`verify`] reads everything back and compares it with what was acknowledged.
//!
//! Each takes the options of its command line and a flag that ends it early, and returns a report. Progress goes to standard
//! error.
//!
//! A subscriber that knows an offset must get every acknowledged message from there on, once and in its producer's order,
//! through pauses, hang-ups and returns. Messages that were never acknowledged are excused; messages that a subscriber reads
//! again after a cut between an event and its offset count as repeats; what the generator sent late counts as lateness.
//!
//! The generator shares its machine with the server, so it is light: one epoll loop holds all subscribers, without a buffer
//! per connection except for half an event, and without an allocation per message.

mod ack_log;
mod answers;
pub(crate) mod args;
mod beside;
pub(crate) mod chart;
pub(crate) mod clock;
mod cost;
mod create;
mod descriptors;
pub(crate) mod event_source;
mod flood;
mod hostile;
pub(crate) mod kinds;
mod latency;
mod poller;
pub(crate) mod probe;
mod produce;
pub(crate) mod progress;
mod random;
mod read;
mod report;
mod requests;
pub(crate) mod scrape;
mod sequence;
mod server_process;
mod servers;
pub(crate) mod socket;
mod spray;
mod stolen;
mod storm;
mod verify;
pub(crate) mod wire;

pub use answers::{AnswersArgs, TokenFaults, answers};
pub use args::{FloodArgs, SprayArgs, StormArgs, To, TrustArgs, VerifyArgs};
pub use beside::{BesideReport, spray_beside};
pub use cost::{Cost, ServerCost};
pub use descriptors::Descriptors;
pub use flood::flood;
pub use flood::floor::Floor;
pub use kinds::{HostileKind, SubscriberKind};
pub use latency::{Latencies, Percentiles};
pub use probe::Memory;
pub use read::{ReadArgs, RecordFaults, read};
pub use report::answers::{AnswersReport, AnswersTurn, AppendFigures, MemoryOfAnswers, OwnFigures};
pub use report::endurance::{Endurance, HangUps, RunPart, Sample};
pub use report::flood::{
    Connections, Deliveries, FloodReport, KindOfSubscribers, Latency, Opening, Publishing,
    ServerUsage,
};
pub use report::hostile::{Deeds, Hostile};
pub use report::read::{ReadReport, ReadTurn};
pub use report::spray::{NotAcknowledged, SprayReport};
pub use report::verify::{Finding, Findings, FindingsOfKind, VerifyReport};
pub use sequence::{Example, Fault, OrderFaults};
pub use servers::ServersArgs;
pub use spray::spray;
pub(crate) use spray::spray_counting;
pub use stolen::Stolen;
pub use storm::{Storm, StormReport, storm};
pub use verify::verify;
