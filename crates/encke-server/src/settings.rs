//! The settings of what runs beside the reactor. Every bound has a name and a default.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use encke_client::ClientRules;
use encke_jobs::PoolLimits;
use encke_net::now;
use encke_stream::Eviction;
use encke_subscriptions::{
    AllowedAddresses, Deliverer, DelivererContext, PublishedSubscriptions, ReportResult,
    SubscriptionLimits, SystemNames, WebhookCaller,
};

use crate::health::HealthSettings;

/// Settings of the server beside those of the reactor, [`encke_net::NetSettings`].
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where plain requests are redirected to https, if anywhere. Only with TLS.
    pub redirect_http: Option<SocketAddr>,
    /// Threads that read what is not in memory.
    pub readers: usize,
    /// Commands that wait for the sequencer; more are refused with 503.
    pub mailbox_items_max: usize,
    /// Bytes of the commands that wait for the sequencer.
    pub mailbox_bytes_max: usize,
    /// Messages that wait for the dispatcher; more are refused with 503.
    pub pool_mailbox_items_max: usize,
    /// Bytes of the messages that wait for the dispatcher.
    pub pool_mailbox_bytes_max: usize,
    /// Bounds of the pools.
    pub pools: PoolLimits,
    /// Bounds of the subscriptions, and how webhooks are called.
    pub subscriptions: SubscriptionSettings,
    /// How often records are synced that were acknowledged before.
    pub sync_every: Duration,
    /// Which streams stay in memory.
    pub eviction: Eviction,
    /// Bounds of the health probe.
    pub health: HealthSettings,
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings {
            redirect_http: None,
            readers: 2,
            mailbox_items_max: 65_536,
            mailbox_bytes_max: 64 << 20,
            pool_mailbox_items_max: 65_536,
            pool_mailbox_bytes_max: 64 << 20,
            pools: PoolLimits::default(),
            subscriptions: SubscriptionSettings::default(),
            sync_every: Duration::from_secs(1),
            eviction: Eviction::default(),
            health: HealthSettings::default(),
        }
    }
}

/// Settings of the subscriptions.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionSettings {
    /// Their bounds.
    pub limits: SubscriptionLimits,
    /// The rules of calls of webhooks.
    pub client: ClientRules,
    /// Their state as the protocols see it.
    pub published: Arc<PublishedSubscriptions>,
}

impl SubscriptionSettings {
    /// What calls URLs that the operator has configured, wherever they lead.
    pub(crate) fn caller(&self) -> WebhookCaller {
        let allowed = AllowedAddresses::everything();
        WebhookCaller::new(allowed, Arc::new(SystemNames::default()), &self.client)
    }

    /// What calls webhooks.
    pub(crate) fn deliverer(&self, report: ReportResult) -> Deliverer {
        Deliverer::new(DelivererContext {
            threads_max: self.limits.deliveries_max,
            allowed_addresses: self.limits.allowed_addresses.clone(),
            names: Arc::new(SystemNames::default()),
            client: self.client.clone(),
            clock: now,
            report,
        })
    }
}
