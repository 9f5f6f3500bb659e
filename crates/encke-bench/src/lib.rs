//! The instruments of Encke: load tools and experiments.

mod client;
mod error;
pub mod experiment;
pub mod load;
mod machine;
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
