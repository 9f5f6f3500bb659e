//! Reasons for refusals.

use std::borrow::Cow;

use encke_stream::Refusal;
use serde::{Deserialize, Serialize};

use crate::bounds::{
    DESCRIPTION_BYTES_MAX, ID_BYTES_MAX, LEASE_MS_LEAST, LEASE_MS_MAX, LINK_NAME_BYTES,
    STREAM_NAME_BYTES_MAX, WORKER_BYTES_MAX,
};
use crate::glob::BadGlob;
use crate::webhook::url::BadWebhookUrl;

/// Why a request was refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SubscriptionError {
    /// The id is none.
    #[error("an id has 1 to {ID_BYTES_MAX} bytes, and neither a slash nor a control character")]
    BadId,
    /// No stream can have that name.
    #[error(
        "{0:?} is not the name of a stream: it has 1 to {STREAM_NAME_BYTES_MAX} bytes in segments, none of which is empty, `.` or `..`, no control character, and does not begin with __ds"
    )]
    BadStreamName(Box<str>),
    /// The pattern is none.
    #[error(transparent)]
    Pattern(#[from] BadGlob),
    /// There is neither a pattern nor a list of streams.
    #[error("a subscription needs `pattern` or `streams`")]
    NothingToFollow,
    /// A pull-wake subscription has no stream for its events.
    #[error("a pull-wake subscription needs `wake_stream`")]
    NoWakeStream,
    /// A subscription cannot follow the stream of its own events.
    #[error("{0:?} is the `wake_stream` of the subscription, which it cannot follow")]
    OwnWakeStream(Box<str>),
    /// The lease is out of range.
    #[error("lease_ttl_ms is {0}, expected {LEASE_MS_LEAST} to {LEASE_MS_MAX}")]
    Lease(u64),
    /// The description is too long.
    #[error("the description has {0} bytes, at most {DESCRIPTION_BYTES_MAX} are allowed")]
    Description(usize),
    /// The name of a worker is missing or too long.
    #[error("`worker` has 1 to {WORKER_BYTES_MAX} bytes")]
    BadWorker,
    /// Webhooks are off.
    #[error("this server calls no webhooks")]
    NoWebhooks,
    /// The URL of a webhook is refused.
    #[error(transparent)]
    Webhook(#[from] BadWebhookUrl),
    /// There is no such subscription.
    #[error("there is no such subscription; PUT creates it")]
    NotFound,
    /// The subscription exists with another configuration.
    #[error("the subscription exists with another configuration; DELETE it first")]
    Exists,
    /// The request is for subscriptions of the other type.
    #[error("this request is for pull-wake subscriptions; this one calls a webhook")]
    WrongType,
    /// The token is none of this server, or of another subscription.
    #[error("the token is not one of this subscription")]
    TokenInvalid,
    /// The wake is over.
    #[error("the wake is over: its generation or wake_id is not the current one")]
    Fenced,
    /// A worker has the wake.
    #[error("the wake is claimed by {holder:?}")]
    AlreadyClaimed {
        /// The worker.
        holder: Box<str>,
        /// The number of the wake.
        generation: u64,
    },
    /// No stream has anything new.
    #[error("no stream has records beyond what was acknowledged")]
    NoPendingWork,
    /// An acknowledged position is wrong.
    #[error(
        "{0:?} cannot be acknowledged there: the subscription does not follow it, or the offset is not one that reads of it gave, from the last acknowledged one to its end"
    )]
    InvalidOffset(Box<str>),
    /// The maximum number of subscriptions exists.
    #[error("there are {0} subscriptions, which is the maximum")]
    TooManySubscriptions(usize),
    /// The subscription would follow more streams than allowed.
    #[error(
        "the subscription would follow more than {0} streams, which is the maximum; a stream counts once for each {LINK_NAME_BYTES} bytes begun of its name"
    )]
    TooManyLinks(usize),
    /// All subscriptions would follow more streams than allowed.
    #[error(
        "all subscriptions together would follow more than {0} streams, which is the maximum; a stream counts once for each {LINK_NAME_BYTES} bytes begun of its name"
    )]
    TooManyLinksInAll(usize),
    /// The log of the dispatcher has a retention. Only a node of an earlier version answers this.
    #[error(
        "the node that runs the subscriptions has an earlier version, which has none with --retention-age or --retention-size: upgrade it"
    )]
    RetentionIsSet,
    /// Too many requests wait, or the log has no room for more commands.
    #[error("the server is overloaded; try again")]
    Overloaded,
    /// The log refused the record.
    #[error(transparent)]
    Log(#[from] Refusal),
    /// Streams could not be looked up.
    #[error("the streams cannot be looked up: {0}")]
    LookUp(Cow<'static, str>),
    /// The server is stopping.
    #[error("the server is stopping; try again")]
    Stopping,
}
