//! Responses to requests.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::Offset;
use serde::{Deserialize, Serialize};

use crate::config::SubscriptionConfig;
use crate::error::SubscriptionError;
use crate::webhook::signature::PublicWebhookKey;

/// A response to a [`SubscriptionRequest`](crate::SubscriptionRequest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubscriptionResponse {
    /// The subscription exists.
    Created {
        /// It existed before, with the same configuration.
        existed: bool,
        /// The subscription.
        subscription: Box<SubscriptionStatus>,
    },
    /// The subscription.
    Described(Box<SubscriptionStatus>),
    /// There is no such subscription any more.
    Deleted,
    /// The streams are followed, or the stream is followed no more.
    LinksChanged,
    /// The worker has the wake.
    Claimed(Box<ClaimedWake>),
    /// The report counts.
    Reported {
        /// The wake is over, and the next one has begun.
        next_wake: bool,
    },
    /// The wake was given back.
    Released,
    /// The public keys that sign calls.
    Keys(Vec<PublicWebhookKey>),
    /// Nothing has changed.
    Refused(SubscriptionError),
}

impl SubscriptionResponse {
    /// The bytes of content that it holds, for a queue that is bounded by bytes.
    pub fn content_bytes(&self) -> usize {
        let links = match self {
            SubscriptionResponse::Created { subscription, .. }
            | SubscriptionResponse::Described(subscription) => &subscription.links,
            SubscriptionResponse::Claimed(wake) => &wake.links,
            _ => return 0,
        };
        // Their names are shared with the machine.
        links.len() * size_of::<LinkStatus>()
    }
}

/// A subscription as clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// Its id.
    pub id: Arc<str>,
    /// Its configuration. The list of streams is empty; `links` has what it follows.
    pub config: SubscriptionConfig,
    /// The streams that it follows, by their names.
    pub links: Vec<LinkStatus>,
    /// When it was created.
    pub created: WallTime,
    /// The last attempt to wake has failed, and the next one waits.
    pub failed: bool,
    /// Where its clients reach the root of the streams.
    pub root: Arc<str>,
    /// The name of the key that signs its calls.
    pub kid: Box<str>,
}

/// A stream that a subscription follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The stream.
    pub stream: Arc<str>,
    /// Whether it is followed by its name, and not by the pattern alone.
    pub explicit: bool,
    /// Up to where it is done.
    pub acked: Offset,
    /// Where it ends.
    pub tail: Offset,
    /// Whether it has records beyond what is done.
    pub has_pending: bool,
}

/// The wake that a worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedWake {
    /// Its name.
    pub wake_id: Box<str>,
    /// Its number.
    pub generation: u64,
    /// The credential for reports on it.
    pub token: Box<str>,
    /// The streams, by their names.
    pub links: Vec<LinkStatus>,
    /// How long the worker has it, unless it reports.
    pub lease_ms: u64,
}

/// An offset as a request or a response of subscriptions has it: `-1` is the beginning of a stream.
pub fn shown_offset(offset: Offset) -> String {
    match offset {
        Offset::START => "-1".to_owned(),
        offset => offset.to_string(),
    }
}
