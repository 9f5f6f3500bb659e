//! The thread of a webhook: it sends what is in the log, in order, and again until the receiver accepts it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_net::wall_time;
use encke_protocol::{AppWebhook, WebhookBatch};
use encke_stream::Offset;
use encke_subscriptions::WebhookCaller;

use super::report_log::ReportLog;
use super::shared::{Leads, SharedReports, WebhookProgress};
use crate::metrics::PusherMetrics;

/// What the thread works with.
pub(super) struct WebhookCalls {
    pub(super) shared: Arc<SharedReports>,
    pub(super) webhooks: Arc<[AppWebhook]>,
    /// Which of them it is.
    pub(super) number: usize,
    pub(super) progress: WebhookProgress,
    pub(super) log: ReportLog,
    pub(super) caller: WebhookCaller,
    pub(super) leads: Leads,
    pub(super) metrics: PusherMetrics,
}

/// Where a webhook is while this node calls it.
struct WebhookPlace {
    /// Since which change of who calls.
    since: u64,
    /// Up to where the receiver was told.
    at: Offset,
    /// Up to where the log says so, and since when.
    stored: Offset,
    stored_at: Instant,
}

impl WebhookCalls {
    pub(super) fn run(&self) {
        let mut failures = 0;
        let mut place: Option<WebhookPlace> = None;
        while !self.shared.end() {
            let (leads, change) = (self.leads)();
            if !leads {
                place = None;
                self.pause(IDLE_PAUSE);
                continue;
            }
            match self.go_on(&mut place, change) {
                Ok(is_told) => {
                    if std::mem::take(&mut failures) > 0 {
                        tracing::info!(
                            receiver = self.webhook().receiver(),
                            "a webhook accepts events again"
                        );
                    }
                    // There may be more.
                    if !is_told {
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

    /// Sends the next batch for the receiver. False: there was nothing.
    fn go_on(&self, place: &mut Option<WebhookPlace>, change: u64) -> Result<bool, String> {
        if place.as_ref().is_none_or(|place| place.since != change) {
            let reached = self.log.reached(self.webhook())?;
            *place = reached.map(|at| WebhookPlace {
                since: change,
                at,
                stored: at,
                stored_at: Instant::now(),
            });
        }
        place.as_mut().map_or(Ok(false), |place| self.call(place))
    }

    /// Sends the next batch for the receiver behind its place. False: there was nothing.
    fn call(&self, place: &mut WebhookPlace) -> Result<bool, String> {
        let webhook = self.webhook();
        let mut batch = webhook.batch();
        let read = self
            .log
            .read(&webhook.log(), place.at, |item| batch.add(item))?;
        if read.has_gap {
            // Said once, whatever becomes of the call.
            place.at = read.from;
            self.metrics.gaps.inc();
            tracing::warn!(
                receiver = webhook.receiver(),
                "events were removed that a webhook was not told of"
            );
        }
        let is_told = batch.events() > 0;
        if is_told {
            self.send(webhook, &batch)?;
        }
        place.at = read.at;
        *self.progress.lock() = place.at;
        let is_old = place.stored_at.elapsed() > STORE_PAUSE && place.at != place.stored;
        if is_told || is_old {
            place.stored = place.at;
            place.stored_at = Instant::now();
            // Without it the receiver is told again after a restart.
            let record = AppWebhook::reached_record(place.at);
            if let Err(error) = self.log.append(&webhook.reached(), record) {
                tracing::warn!(
                    receiver = webhook.receiver(),
                    error,
                    "it can't be stored how far a webhook is"
                );
            }
        }
        Ok(is_told)
    }

    fn send(&self, webhook: &AppWebhook, batch: &WebhookBatch<'_>) -> Result<(), String> {
        let body = batch.body(wall_time().as_ms());
        let fields = webhook.fields(&body);
        let fields = fields.each_ref().map(|(name, value)| (*name, &**value));
        let sent = self.caller.tell(webhook.url(), &fields, &body, TIMEOUT);
        self.metrics.called(sent.is_ok());
        sent?;
        self.metrics.accepted_events.inc_by(batch.events() as u64);
        Ok(())
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

/// How often it is stored how far a webhook is of which nothing in the log is for it.
const STORE_PAUSE: Duration = Duration::from_secs(60);

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
