//! What the subscriptions are connected to.

use std::sync::Arc;

use encke_subscriptions::{
    Deliverer, PublishedSubscriptions, ReportResult, SubscribedStreams, SubscriptionMachine,
};

/// Makes what calls webhooks, and hands the results to this.
pub type BuildDeliverer = Box<dyn Fn(ReportResult) -> Deliverer + Send>;

/// The subscriptions and their connections to the rest of the server.
pub struct SubscriptionsContext {
    /// The subscriptions.
    pub machine: SubscriptionMachine,
    /// Where the counts of the machine are published. Its index is the machine's.
    pub published: Arc<PublishedSubscriptions>,
    /// The streams of the server.
    pub streams: Box<dyn SubscribedStreams + Send>,
    /// The number of logs.
    pub logs: usize,
    /// See [`BuildDeliverer`]. It is called when there is a webhook to call.
    pub deliverer: BuildDeliverer,
}
