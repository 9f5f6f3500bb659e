//! All metrics of the server, in one registry. Each part has a struct of its own.

mod access;
mod logs;
mod pools;
mod presence;
mod probes;
mod process;
mod pusher;
mod registrar;
mod streams;
mod subscriptions;
mod traces;

use std::sync::Arc;

use encke_mailbox::Gauge;
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, IntCounterVec, Registry, TextEncoder};

pub(crate) use self::access::AccessMetrics;
pub(crate) use self::logs::LogMetrics;
pub(crate) use self::pools::{PoolMetrics, RelayMetrics};
pub(crate) use self::presence::PresenceMetrics;
pub(crate) use self::probes::ProbeMetrics;
use self::process::ProcessMetrics;
pub(crate) use self::pusher::PusherMetrics;
use self::registrar::Registrar;
pub(crate) use self::streams::StreamMetrics;
pub(crate) use self::subscriptions::SubscriptionMetrics;
pub(crate) use self::traces::TraceMetrics;

type Refresh = Box<dyn Fn(&ServerMetrics) + Send>;

/// All metrics of the server, in one registry. Clones share them.
#[derive(Clone)]
pub struct ServerMetrics {
    registry: Registry,
    process: ProcessMetrics,
    /// These update the gauges before they are rendered.
    gauges: Arc<Mutex<Vec<Refresh>>>,
    pub(crate) reactor: encke_net::Metrics,
    pub(crate) streams: StreamMetrics,
    pub(crate) log: LogMetrics,
    pub(crate) access: AccessMetrics,
    pub(crate) pools: PoolMetrics,
    pub(crate) subscriptions: SubscriptionMetrics,
    pub(crate) probes: ProbeMetrics,
    pub(crate) presence: PresenceMetrics,
    pub(crate) pusher: PusherMetrics,
    pub(crate) traces: TraceMetrics,
}

impl ServerMetrics {
    /// Metrics that have counted nothing.
    ///
    /// # Errors
    /// Two metrics have the same name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let build_info = Registrar(&registry).gauges(
            "encke_build_info",
            "1; the version of this server.",
            &["version"],
        )?;
        let version = env!("CARGO_PKG_VERSION");
        build_info.with_label_values(&[version]).set(1);
        Ok(ServerMetrics {
            reactor: encke_net::Metrics::new(&registry)?,
            streams: StreamMetrics::new(&registry)?,
            log: LogMetrics::new(&registry)?,
            access: AccessMetrics::new(&registry)?,
            pools: PoolMetrics::new(&registry)?,
            subscriptions: SubscriptionMetrics::new(&registry)?,
            probes: ProbeMetrics::new(&registry)?,
            presence: PresenceMetrics::new(&registry)?,
            pusher: PusherMetrics::new(&registry)?,
            traces: TraceMetrics::new(&registry)?,
            process: ProcessMetrics::new(&registry)?,
            gauges: Arc::default(),
            registry,
        })
    }

    /// Where others register their metrics.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Shows a queue that is not the server's: the state of its mailbox, and the items that it has dropped.
    ///
    /// # Errors
    /// Another metric has the name of `dropped`.
    pub fn show_queue(
        &self,
        dropped: &IntCounterVec,
        gauge: impl Fn() -> Gauge + Send + 'static,
    ) -> Result<(), prometheus::Error> {
        self.registry.register(Box::new(dropped.clone()))?;
        self.on_render(move |metrics| {
            let gauge = gauge();
            metrics.reactor.mailbox(gauge.name, &gauge);
        });
        Ok(())
    }

    /// All metrics, with gauges that show the present state.
    pub(crate) fn gather(&self) -> Vec<MetricFamily> {
        self.process.refresh();
        for refresh in self.gauges.lock().iter() {
            refresh(self);
        }
        self.registry.gather()
    }

    /// All metrics in the Prometheus text format.
    pub fn render(&self) -> Vec<u8> {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be written");
        }
        text
    }

    /// Calls `refresh` to update gauges before each rendering.
    pub(crate) fn on_render(&self, refresh: impl Fn(&ServerMetrics) + Send + 'static) {
        self.gauges.lock().push(Box::new(refresh));
    }

    /// Drops all refresh functions and what they hold.
    pub(crate) fn forget(&self) {
        self.gauges.lock().clear();
    }
}
