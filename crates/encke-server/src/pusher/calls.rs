//! The thread of a webhook: it sends what is in the log, in order, and again until the receiver accepts it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_net::wall_time;
use encke_protocol::{AppWebhook, WebhookBatch};
use encke_stream::Offset;
use encke_subscriptions::WebhookCaller;

use super::report_log::ReportLog;
use super::shared::{Leads, SharedReports};
use crate::metrics::PusherMetrics;

/// What the thread works with.
pub(super) struct WebhookCalls {
    pub(super) shared: Arc<SharedReports>,
    pub(super) webhooks: Arc<[AppWebhook]>,
    /// Which of them it is.
    pub(super) number: usize,
    pub(super) log: ReportLog,
    pub(super) caller: WebhookCaller,
    pub(super) leads: Leads,
    pub(super) metrics: PusherMetrics,
}

impl WebhookCalls {
    pub(super) fn run(&self) {
        let mut failures = 0;
        // While this node calls: since which change of that, and up to where the receiver was told.
        let mut reached: Option<(u64, Offset)> = None;
        while !self.shared.end() {
            let (leads, change) = (self.leads)();
            if !leads {
                reached = None;
                self.pause(IDLE_PAUSE);
                continue;
            }
            let from = match reached {
                Some((since, at)) if since == change => Ok(Some(at)),
                _ => self.restore(),
            };
            let called = from.and_then(|from| from.map(|from| self.call(from)).transpose());
            match called {
                Ok(called) => {
                    reached = called.map(|(at, _)| (change, at));
                    if std::mem::take(&mut failures) > 0 {
                        tracing::info!(
                            receiver = self.webhook().receiver(),
                            "a webhook accepts events again"
                        );
                    }
                    // There may be more.
                    if !called.is_some_and(|(_, is_told)| is_told) {
                        self.pause(TURN);
                    }
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(
                            receiver = self.webhook().receiver(),
                            error,
                            "a webhook does not accept events; it is tried again until it does"
                        );
                    }
                    self.pause(pause_after(failures));
                    failures += 1;
                }
            }
        }
    }

    /// Sends the next batch for the receiver behind a position. Returns up to where it was told, and whether there was anything.
    fn call(&self, from: Offset) -> Result<(Offset, bool), String> {
        let webhook = self.webhook();
        let mut batch = webhook.batch();
        let read = self
            .log
            .read(&webhook.log(), from, |item| batch.add(item))?;
        if read.has_gap {
            self.metrics.gaps.inc();
            tracing::warn!(
                receiver = webhook.receiver(),
                "events were removed that a webhook was not told of"
            );
        }
        let is_told = batch.events() > 0;
        if is_told {
            self.send(webhook, &batch)?;
            let record = AppWebhook::reached_record(read.at);
            // Without it the receiver is told again after a restart.
            self.log.append(&webhook.reached(), record)?;
        }
        Ok((read.at, is_told))
    }

    fn send(&self, webhook: &AppWebhook, batch: &WebhookBatch<'_>) -> Result<(), String> {
        let body = batch.body(wall_time().as_ms());
        let fields = webhook.fields(&body);
        let fields = fields.each_ref().map(|(name, value)| (*name, &**value));
        let sent = self.caller.post(webhook.url(), &fields, &body, TIMEOUT);
        self.metrics.called(sent.is_ok());
        sent?;
        self.metrics.accepted_events.inc_by(batch.events() as u64);
        Ok(())
    }

    /// Up to where the receiver was told. `None`: that is not written yet.
    fn restore(&self) -> Result<Option<Offset>, String> {
        let mut last = None;
        self.log
            .read(&self.webhook().reached(), Offset::START, |item| {
                last = AppWebhook::parse_reached(item.data).or(last);
                true
            })?;
        Ok(last)
    }

    /// Waits, but not beyond the end.
    fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.shared.end() {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return;
            };
            std::thread::park_timeout(left);
        }
    }

    fn webhook(&self) -> &AppWebhook {
        &self.webhooks[self.number]
    }
}

/// How long a webhook is left alone after so many failures in a row.
fn pause_after(failures: u32) -> Duration {
    (TRY_PAUSE * 2_u32.saturating_pow(failures.min(16))).min(TRY_PAUSE_MAX)
}

/// How often the log is looked at.
const TURN: Duration = Duration::from_millis(100);

/// How often a node looks whether it is the one that calls.
const IDLE_PAUSE: Duration = Duration::from_millis(500);

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a failure. It doubles with each further one.
const TRY_PAUSE: Duration = Duration::from_secs(1);

const TRY_PAUSE_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let pauses: Vec<u64> = (0..9)
            .map(|failures| pause_after(failures).as_secs())
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause_after(u32::MAX).as_secs(), 60);
    }
}
