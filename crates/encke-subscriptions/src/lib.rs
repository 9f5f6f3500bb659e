//! Subscriptions of Durable Streams (`__ds`): workers learn that streams have new records, by a call of a webhook or by an event in a
//! stream (pull-wake), read the streams themselves, and acknowledge how far they have got.
//!
//! [`SubscriptionMachine`] holds the rules. It is deterministic: requests, commits of streams, outcomes of commands, results of calls
//! and the time go in; commands for the log, look-ups, calls and responses come out. [`Deliverer`] makes the calls, in threads of its
//! own.
//!
//! # Terms
//!
//! A **link** is a stream that a subscription follows, with a cursor: the position up to which it is done. It is *explicit*, by the
//! stream's name, or made by the subscription's pattern ([`Glob`]). A link is *pending* if its stream has records behind the cursor. A
//! **wake** tells workers that something is pending. A subscription has at most one at a time, with a number, its **generation**, and
//! the tails that it has found. A **lease** says until when a worker has the wake. A wake ends when its worker says that it is done or
//! gives it back, or with its lease; then the next one begins, if something is pending.
//!
//! # The one invariant
//!
//! **Everything that anyone learns of is in the log before.** A decision takes effect, is answered, and leads to a call or an event only
//! when its record is synced. So a crash repeats a wake at most, under its old number and with its old token, and never gives a number
//! to two wakes; a cursor that was acknowledged goes back only if its stream has lost records or was replaced; and a report counts only
//! for the wake that its token names, while that is the current one.
//!
//! # The records
//!
//! One journal has the decisions of all subscriptions, and the secrets of the server: the key that signs calls, and that of the tokens.
//! It is a stream under a name that no client can use. While a decision about a subscription is on its way, everything else about that
//! one waits; the state changes by its entries (`SubscriptionEntry`) alone, live as after a start. When the journal is long, a new
//! *segment* begins with the state of all subscriptions. What commits of streams change is not a decision: it is written with the next
//! one, and a start finds it again by comparing the links with the streams.
//!
//! # How it is driven
//!
//! The dispatcher of `encke-jobs` drives the machine in its thread, beside the pools (`subscriptions/` there), and everything comes to it
//! through the dispatcher's mailbox. A turn is: hand in what has come, [`SubscriptionMachine::tick`], [`SubscriptionMachine::flush`], then
//! carry out [`SubscriptionMachine::take_effects`] until there are none. [`SubscriptionMachine::next_due`] says when the next turn is due
//! at the latest.
//!
//! **Commits.** The threads that publish commits ask [`SubscriptionIndex::concerns`] about each stream of a batch, after its records are
//! visible in the view, and send a [`StreamChange`](encke_stream::StreamChange) for each record of those that it names: in the order of
//! the log, each once. It may name others, too, when their names take too long to compare with the patterns. In a turn the outcomes of a batch are handed in before its changes.
//!
//! **Creation without a race.** The machine adds the pattern and the names to the index first, then asks for a look-up
//! ([`SubscriptionEffect::LookUp`]), which a thread that may read files carries out: streams in memory first, then those at rest. A
//! commit is visible to the look-up, or it is reported, or both. The result takes the way of the changes, through the mailbox.
//!
//! **Claims see what was acknowledged before them.** When a request depends on that, the machine asks to be caught up
//! ([`SubscriptionEffect::CatchUp`]). A command that changes nothing (`Barrier`) goes to each log; when all have come back, behind the
//! changes before them, the machine is told. Look-ups wait for such a round, too.
//!
//! **A fleet.** All nodes have the journal, and the node that dispatches the jobs of the pools also runs the subscriptions and calls the
//! webhooks. Requests reach it through the relays of the other nodes. The order refuses the journal's records of any other node
//! ([`JOURNAL_PREFIXES`](encke_stream::JOURNAL_PREFIXES)); in a series the record comes last, so that it decides about the event before
//! it. A node that takes over puts the index of its new machine in use ([`PublishedSubscriptions::begin`]), then calls
//! [`SubscriptionMachine::replay`] and [`SubscriptionMachine::number_from`]. One that has lost its turn drops the deliverer, which
//! interrupts its calls.
//!
//! **A stop.** [`SubscriptionMachine::stop`], then [`Deliverer::stop`], then turns until [`SubscriptionMachine::is_idle`].
//!
//! **Settings** are in [`SubscriptionLimits`] and [`DelivererContext`]; [`SubscriptionCounts`] has the figures for metrics.
//!
//! # Where to start reading
//!
//! `request.rs` and `response.rs` have the interface, `machine/state.rs` the effects. `machine/observe.rs`, `machine/wakes.rs`,
//! `machine/deliveries.rs` and `machine/reports.rs` are a wake's way, `machine/commit.rs` writes decisions, `entry.rs` is the format.
//! `machine/create.rs` and `machine/look_ups.rs` have the begin of a subscription, `machine/replay.rs` recovers all of it. `glob.rs` and
//! `index/` are the patterns, `webhook/` has what is needed for calls, `key.rs` and `token.rs` the secrets.

mod bounds;
mod config;
mod entry;
mod error;
mod glob;
mod index;
mod key;
mod machine;
mod names;
mod published;
mod record;
mod request;
mod response;
mod subscribed_streams;
mod token;
mod webhook;

pub use bounds::{
    CATCH_UPS_MAX, DESCRIPTION_BYTES_MAX, HELD_REQUESTS_MAX, ID_BYTES_MAX, LEASE_MS,
    LEASE_MS_LEAST, LEASE_MS_MAX, LINK_NAME_BYTES, STREAM_NAME_BYTES_MAX, SubscriptionLimits,
    WORKER_BYTES_MAX,
};
pub use config::{SubscriptionConfig, SubscriptionKind};
/// How names are looked up, for [`DelivererContext`].
pub use encke_threads::{ResolveNames, SystemNames};
pub use error::SubscriptionError;
pub use glob::{
    BadGlob, Glob, PATTERN_BYTES_MAX, PATTERN_SEGMENTS_MAX, PATTERN_WILDCARDS_MAX, RESERVED_SEGMENT,
};
pub use index::SubscriptionIndex;
pub use key::{KEY_BYTES, KeySeed, code};
pub use machine::{
    LookUpError, SubscriptionCounts, SubscriptionEffect, SubscriptionMachine,
    SubscriptionReplayError,
};
pub use names::{stream_name, subscription_id};
pub use published::PublishedSubscriptions;
pub use record::BadSubscriptionRecord;
pub use request::{ReportKind, RequestNo, StreamAck, SubscriptionRequest, WakeReport};
pub use response::{
    ClaimedWake, LinkStatus, SubscriptionResponse, SubscriptionStatus, shown_offset,
};
pub use subscribed_streams::SubscribedStreams;
pub use webhook::addresses::{AllowedAddresses, is_public};
pub use webhook::caller::{RESPONSE_BYTES_MAX, WebhookCaller};
pub use webhook::deliverer::{Deliverer, DelivererContext, ReportResult};
pub use webhook::delivery::{DeliveryResult, WakeNotice, WebhookDelivery};
pub use webhook::signature::{PublicWebhookKey, SignedBody, WebhookKey, jwk_set};
pub use webhook::url::{BadWebhookUrl, URL_BYTES_MAX, WebhookUrl};
