//! All subscriptions, and the rules by which they wake.
//!
//! `state.rs` is what the machine has, `requests.rs` and `turns.rs` are its entry points. The rules are in files of their own:
//! `create.rs` and `look_ups.rs` (subscriptions and what they follow), `observe.rs` and `event_streams.rs` (commits of streams), `wakes.rs` (the begin and the end of wakes),
//! `reports.rs` (claims and reports of workers), `deliveries.rs` and `calls.rs` (webhooks), `commit.rs` (commands and their outcomes),
//! `segments.rs` (the journal), `replay.rs` and `compare.rs` (a start). `subscription.rs`, `current_wake.rs`, `links/` and `live.rs` are the state of one subscription.

mod calls;
mod commit;
mod compare;
mod create;
mod current_wake;
mod decision;
mod deliveries;
mod event_streams;
mod links;
mod live;
mod look_ups;
mod observe;
mod op;
mod replay;
mod replay_error;
mod reports;
mod requests;
mod segments;
mod state;
mod subscription;
mod turns;
mod wakes;
mod warning;

pub use look_ups::LookUpError;
pub use replay_error::SubscriptionReplayError;
pub use state::{SubscriptionCounts, SubscriptionEffect, SubscriptionMachine};
