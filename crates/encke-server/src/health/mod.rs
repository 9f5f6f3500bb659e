//! Whether records reach subscribers: a probe that goes the whole way of a client's request and of its delivery.
//!
//! [`DeliveryHealth`] (`delivery_health`) says what the last probe found, and has its thread (`prober`) make another one when that is too old. Between
//! two questions nothing happens. `probe` is one probe: it subscribes on each shard, appends a record, and waits until each shard has
//! delivered it. `link` is one of its connections.

mod delivery_health;
mod link;
mod probe;
mod prober;

pub use delivery_health::{DeliveryHealth, HealthSettings};
pub(crate) use probe::{OUTCOMES, ProbeReport};
pub(crate) use prober::Prober;
