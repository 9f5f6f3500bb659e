//! What the dispatcher runs.

use encke_subscriptions::SubscriptionMachine;

use crate::machine::JobMachine;

/// The pools and the subscriptions.
#[derive(Debug)]
pub struct DispatcherMachines {
    /// The pools.
    pub jobs: JobMachine,
    /// The subscriptions.
    pub subscriptions: SubscriptionMachine,
}
