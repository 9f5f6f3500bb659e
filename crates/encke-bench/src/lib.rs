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

pub use error::BenchError;
pub use machine::Machine;
pub use report::{Report, Section, Table, Target};
pub use signals::stop_flag;
