//! Webhooks: what servers of an app are told of its channels.
//!
//! Each event is a record of the stream `app/{id}/#webhooks`, whose name no channel has, before anybody is told: `event` is its form. One node
//! writes what happens to channels: [`ChannelReports`] compares what the log says with who is subscribed (`channel_state`), so that a node that
//! takes over writes what the last one could not, and says again what the log would forget (`repetition`). What clients do ([`WebhookQueue`])
//! is written by the node that they are connected to. [`WebhookBatch`] is what one call says.

mod batch;
mod channel_state;
mod event;
mod kind;
mod queue;
mod repetition;
mod reports;

pub use self::batch::WebhookBatch;
pub use self::kind::{BadWebhookKind, WebhookKind};
pub(super) use self::queue::WebhookQueue;
pub(super) use self::reports::{COUNT_PAUSE, ChannelReports, RETURN_PAUSE};

pub(super) use self::event::WebhookEvent;
