//! The bounds of requests, and the limits that an operator can set.

use std::time::Duration;

use crate::webhook::addresses::AllowedAddresses;

/// The longest id of a subscription.
pub const ID_BYTES_MAX: usize = 256;

/// The longest name of a stream that a subscription can have, as long as that of any stream.
pub const STREAM_NAME_BYTES_MAX: usize = 1_024;

/// The longest name of a worker.
pub const WORKER_BYTES_MAX: usize = 200;

/// The longest description.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// The default of a lease, in milliseconds.
pub const LEASE_MS: u64 = 30_000;

/// The shortest lease, in milliseconds.
pub const LEASE_MS_LEAST: u64 = 1_000;

/// The longest lease, in milliseconds.
pub const LEASE_MS_MAX: u64 = 600_000;

/// The most requests that wait for one subscription, while a request before them is on its way to the log.
pub const HELD_REQUESTS_MAX: usize = 64;

/// The most requests in all that wait until the machine knows what was acknowledged before them.
pub const CATCH_UPS_MAX: usize = 10_000;

/// The bytes of a stream's name for which a link counts once: their number bounds memory and calls, which have the names.
pub const LINK_NAME_BYTES: usize = 128;

/// How much a link to a stream of that name counts.
pub(crate) fn link_weight(name: &str) -> usize {
    name.len().div_ceil(LINK_NAME_BYTES).max(1)
}

/// The limits of all subscriptions, and what they may reach.
#[derive(Clone, Debug)]
pub struct SubscriptionLimits {
    /// The maximum number of subscriptions.
    pub subscriptions_max: usize,
    /// The maximum number of streams that one subscription follows: each call and each claim lists all of them. A stream counts once for
    /// each [`LINK_NAME_BYTES`] begun of its name.
    pub links_max: usize,
    /// The maximum number of streams that all subscriptions follow, a stream counted as above for each.
    pub links_in_all_max: usize,
    /// The maximum number of calls of webhooks at a time. 0: this server calls none, and refuses to create such subscriptions.
    pub deliveries_max: usize,
    /// The maximum number of calls at a time to the same scheme, name and port.
    pub deliveries_to_receiver_max: usize,
    /// How long a call may take. A shorter lease also ends it.
    pub delivery_timeout: Duration,
    /// The addresses that webhooks may have.
    pub allowed_addresses: AllowedAddresses,
    /// Where clients reach the root of the streams, such as `https://example.com/v1/stream`. None: as the creator of a subscription has
    /// reached it.
    pub public_root: Option<Box<str>>,
    /// The bytes after which a journal segment is rotated.
    pub segment_bytes: u64,
    /// The size at which decisions, or a snapshot, continue in another record.
    pub record_bytes: usize,
}

impl SubscriptionLimits {
    /// The maximum number of calls at a time to receivers of which it is not known that they respond quickly, so that they leave room for
    /// others.
    pub(crate) fn doubtful_calls_max(&self) -> usize {
        self.deliveries_max.div_ceil(2)
    }
}

impl Default for SubscriptionLimits {
    fn default() -> Self {
        SubscriptionLimits {
            subscriptions_max: 10_000,
            links_max: 10_000,
            links_in_all_max: 250_000,
            deliveries_max: 32,
            deliveries_to_receiver_max: 8,
            delivery_timeout: Duration::from_secs(30),
            allowed_addresses: AllowedAddresses::default(),
            public_root: None,
            segment_bytes: 8 << 20,
            record_bytes: 256 << 10,
        }
    }
}
