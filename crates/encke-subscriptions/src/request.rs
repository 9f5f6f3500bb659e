//! Requests to the subscriptions.

use encke_stream::Viewer;
use serde::{Deserialize, Serialize};

use crate::config::SubscriptionConfig;

/// The number by which the driver of the machine knows a request, and hands back its response.
pub type RequestNo = u64;

/// A request, about one subscription or all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubscriptionRequest {
    /// Create a subscription. An existing one with the same configuration is success.
    Create {
        /// Its id.
        id: Box<str>,
        /// Its configuration, [checked](SubscriptionConfig::checked).
        config: SubscriptionConfig,
        /// Where its client has reached the root of the streams, such as `https://example.com/v1/stream`.
        root: Box<str>,
    },
    /// Describe a subscription.
    Describe {
        /// Its id.
        id: Box<str>,
    },
    /// Delete a subscription, if there is one.
    Delete {
        /// Its id.
        id: Box<str>,
        /// Whose subscriptions the caller may change.
        viewer: Viewer,
    },
    /// Follow more streams.
    Link {
        /// The subscription.
        id: Box<str>,
        /// The [names](crate::stream_name) of the streams, which need not exist.
        streams: Vec<Box<str>>,
        /// Whose subscriptions the caller may change.
        viewer: Viewer,
    },
    /// Follow a stream no more, unless the pattern includes it.
    Unlink {
        /// The subscription.
        id: Box<str>,
        /// The [name](crate::stream_name) of the stream.
        stream: Box<str>,
        /// Whose subscriptions the caller may change.
        viewer: Viewer,
    },
    /// Claim the wake of a pull-wake subscription.
    Claim {
        /// The subscription.
        id: Box<str>,
        /// The name of the worker.
        worker: Box<str>,
    },
    /// Report on a wake, at one of three places.
    Report(WakeReport),
    /// The public keys that sign calls.
    Keys,
}

/// A report on a wake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeReport {
    /// The subscription.
    pub id: Box<str>,
    /// What kind of report it is.
    pub kind: ReportKind,
    /// The token of the wake.
    pub token: Box<str>,
    /// The name of the wake. A report without it is about no wake.
    pub wake_id: Option<Box<str>>,
    /// The number of the wake. A report without it is about no wake.
    pub generation: Option<u64>,
    /// Up to where streams are done. All count or none.
    pub acks: Vec<StreamAck>,
    /// The wake is over. Otherwise its lease begins anew.
    pub done: bool,
}

/// What kind of report it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportKind {
    /// Of the receiver of a call. Workers of pull-wake may use it as well.
    Callback,
    /// Of a worker of pull-wake.
    Ack,
    /// A worker of pull-wake gives its wake back. Acknowledgements do not count.
    Release,
}

/// Up to where a stream is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamAck {
    /// The name of the stream, as the worker wrote it.
    pub stream: Box<str>,
    /// The position, as the worker wrote it.
    pub offset: Box<str>,
}

impl SubscriptionRequest {
    /// The id of the subscription, if the request is about one.
    pub(crate) fn id(&self) -> Option<&str> {
        match self {
            SubscriptionRequest::Create { id, .. }
            | SubscriptionRequest::Describe { id }
            | SubscriptionRequest::Delete { id, .. }
            | SubscriptionRequest::Link { id, .. }
            | SubscriptionRequest::Unlink { id, .. }
            | SubscriptionRequest::Claim { id, .. } => Some(id),
            SubscriptionRequest::Report(report) => Some(&report.id),
            SubscriptionRequest::Keys => None,
        }
    }

    /// Whose subscriptions its caller may change, if it changes one that exists.
    pub(crate) fn viewer(&self) -> Option<&Viewer> {
        match self {
            SubscriptionRequest::Delete { viewer, .. }
            | SubscriptionRequest::Link { viewer, .. }
            | SubscriptionRequest::Unlink { viewer, .. } => Some(viewer),
            _ => None,
        }
    }

    /// The bytes of content that it holds, for a queue that is bounded by bytes.
    pub fn content_bytes(&self) -> usize {
        let names = |names: &[Box<str>]| names.iter().map(|name| name.len() + NAME_BYTES).sum();
        match self {
            SubscriptionRequest::Create { config, .. } => names(&config.streams),
            SubscriptionRequest::Link { streams, .. } => names(streams),
            SubscriptionRequest::Report(report) => {
                let acks = report.acks.iter();
                acks.map(|ack| ack.stream.len() + ack.offset.len() + 2 * NAME_BYTES)
                    .sum()
            }
            _ => 0,
        }
    }
}

/// What a name takes beside its characters.
const NAME_BYTES: usize = size_of::<Box<str>>();
