//! The thread that tells clients and the log what happens to channels.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_net::{BroadcastInlet, now};
use encke_presence::Presence;
use encke_protocol::{AppReporter, AppWebhook};
use encke_stream::Offset;

use super::report_log::ReportLog;
use super::shared::{Leads, SharedReports};
use crate::metrics::PusherMetrics;

/// What the thread works with.
pub(super) struct ReportWork {
    apps: Vec<ReportedApp>,
    shared: Arc<SharedReports>,
    log: ReportLog,
    leads: Leads,
    metrics: PusherMetrics,
}

struct ReportedApp {
    reporter: AppReporter,
    /// While this node writes: since which change of that, and up to where it has read the log.
    reached: Option<(u64, Offset)>,
}

impl ReportWork {
    pub(super) fn new(
        reporters: Vec<AppReporter>,
        shared: Arc<SharedReports>,
        log: ReportLog,
        leads: Leads,
        metrics: PusherMetrics,
    ) -> Self {
        let apps = reporters.into_iter().map(|reporter| ReportedApp {
            reporter,
            reached: None,
        });
        ReportWork {
            apps: apps.collect(),
            shared,
            log,
            leads,
            metrics,
        }
    }

    pub(super) fn run(&mut self, registry: &Presence, broadcast: &BroadcastInlet) {
        while !self.shared.end() {
            let events = std::mem::take(&mut *self.shared.events.lock());
            let now = now();
            for app in &mut self.apps {
                app.reporter.observe(&events, now.steady);
                let views = self.log.sequencers.views();
                for message in app.reporter.messages(registry, views, now) {
                    broadcast.receive(message);
                }
                if let Err(error) = app.report(&self.log, &self.leads, &self.metrics, now.steady) {
                    tracing::error!(
                        error,
                        "what happens to channels can't be written to the log of webhooks"
                    );
                    std::thread::park_timeout(PAUSE);
                }
            }
            std::thread::park_timeout(TURN);
        }
    }
}

impl ReportedApp {
    /// Writes what is to be written.
    fn report(
        &mut self,
        log: &ReportLog,
        leads: &Leads,
        metrics: &PusherMetrics,
        now: SteadyTime,
    ) -> Result<(), String> {
        if self.reporter.log().is_none() {
            return Ok(());
        }
        let (leads, change) = leads();
        match self.reached {
            _ if !leads => {
                if self.reached.take().is_some() {
                    self.reporter.end();
                }
            }
            Some((since, at)) if since == change => {
                let at = self.read(log, at, now)?;
                self.reached = Some((change, at));
            }
            _ => {
                self.begin_webhooks(log)?;
                self.reporter.begin();
                let at = self.read(log, Offset::START, now)?;
                self.reporter.is_restored(now);
                self.reached = Some((change, at));
            }
        }
        metrics.dropped_events.inc_by(self.reporter.take_dropped());
        let appends = self.reporter.to_write(now);
        let Some(stream) = self.reporter.log() else {
            return Ok(());
        };
        for data in appends {
            let events = u64::from(data.units);
            // What happens to channels is compared and written again.
            if !log.append(&stream, data)? {
                metrics.dropped_events.inc_by(events);
            }
        }
        Ok(())
    }

    /// A new webhook begins where the log ends now.
    fn begin_webhooks(&self, log: &ReportLog) -> Result<(), String> {
        for webhook in self.reporter.webhooks().iter() {
            if log.tail(&webhook.reached())?.is_none() {
                let tail = log.tail(&webhook.log())?.unwrap_or(Offset::START);
                log.append(&webhook.reached(), AppWebhook::reached_record(tail))?;
            }
        }
        Ok(())
    }

    /// Reads what is in the log behind a position.
    fn read(&mut self, log: &ReportLog, from: Offset, now: SteadyTime) -> Result<Offset, String> {
        let webhooks = Arc::clone(self.reporter.webhooks());
        let Some(webhook) = webhooks.first() else {
            return Ok(from);
        };
        let reached = log.read(&webhook.log(), from, |item| {
            self.reporter.told(item, now);
            true
        })?;
        Ok(reached.at)
    }
}

/// How often it looks what has happened.
const TURN: Duration = Duration::from_millis(100);

/// How long it waits after an error.
const PAUSE: Duration = Duration::from_secs(1);
