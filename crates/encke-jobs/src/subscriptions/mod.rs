//! The subscriptions of Durable Streams in the dispatcher's thread: its machine is `encke-subscriptions`.
//!
//! `driver.rs` carries out what the machine wants done. Some of it must wait until the dispatcher has got everything that was
//! acknowledged before: `barriers.rs`. Streams are looked up by a thread of its own, because that may read files: `look_ups.rs`.

mod barriers;
mod context;
mod driver;
mod look_ups;

pub use context::{BuildDeliverer, SubscriptionsContext};

pub(crate) use driver::{DriverWork, SubscriptionDriver};
pub(crate) use look_ups::{LookUp, look_up_all};
