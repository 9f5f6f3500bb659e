//! Sets the gauges of all parts when metrics are rendered.

use std::sync::Arc;

use encke_access::Access;
use encke_jobs::DispatcherSender;
use encke_log::Reader;
use encke_mailbox::Gauge;
use encke_net::{Inspector, ReactorGauges, Readers};
use encke_presence::Presence;
use encke_stream::{Logs, RunCache, Sequencers};
use encke_trace::Tracer;

use crate::dispatcher::{DispatchGauges, PublishedStates};
use crate::metrics::ServerMetrics;
use crate::sequencer_threads::numbered;

/// What the gauges are read from. It holds senders, so a stop drops it before it waits for their receivers.
pub(crate) struct ServerGauges {
    pub(crate) reactor: ReactorGauges,
    pub(crate) access: Option<Arc<Access>>,
    /// By the logs' indices, as all that follows about logs.
    pub(crate) logs: Vec<Reader>,
    pub(crate) sequencers: Sequencers,
    pub(crate) seals: Vec<MailboxGauge>,
    pub(crate) readers: Readers,
    pub(crate) runs: Arc<RunCache>,
    pub(crate) inspector: Inspector,
    pub(crate) dispatcher: DispatcherSender,
    pub(crate) published: PublishedStates,
    pub(crate) dispatching: DispatchGauges,
    pub(crate) presence: Arc<Presence>,
    pub(crate) tracer: Option<Tracer>,
}

type MailboxGauge = Box<dyn Fn() -> Gauge + Send>;

/// The mailboxes of the threads that bring sealed segments into history.
pub(crate) fn seals(logs: &Logs) -> Vec<MailboxGauge> {
    let logs = logs.logs.iter();
    logs.map(|(_, log)| Box::new(log.background()) as MailboxGauge)
        .collect()
}

impl ServerGauges {
    /// Sets the gauges.
    pub(crate) fn show(&self, metrics: &ServerMetrics) {
        self.reactor.show();
        if let Some(access) = &self.access {
            metrics.access.show(&access.counts());
        }
        let views = self.sequencers.views();
        metrics.streams.show(views.totals());
        metrics.streams.show_runs(&self.runs);
        metrics.log.show_acknowledged(views);
        for (number, log) in self.logs.iter().enumerate() {
            let (health, floor) = (log.health(), log.retention_floor());
            metrics.log.show(number, &health, floor);
        }
        metrics.pools.show(&self.published.pools);
        metrics
            .subscriptions
            .show(self.published.subscriptions.counts());
        metrics.presence.show(&self.presence.figures());
        self.dispatching.show(&metrics.reactor);
        let mailbox = |name: &str, gauge: Gauge| metrics.reactor.mailbox(name, &gauge);
        mailbox("dispatcher", self.dispatcher.gauge());
        mailbox("inspector", self.inspector.gauge());
        for (number, gauge) in self.readers.gauges().enumerate() {
            mailbox(&format!("reader-{number}"), gauge);
        }
        if let Some(tracer) = &self.tracer {
            metrics.traces.show(tracer.counts());
            mailbox("traces", tracer.watch()());
        }
        let logs = self.logs.len();
        for (number, gauge) in self.sequencers.gauges().enumerate() {
            mailbox(&numbered("sequencer", number, logs), gauge);
        }
        for (number, gauge) in self.seals.iter().enumerate() {
            mailbox(&numbered("seal", number, logs), gauge());
        }
    }
}
