//! The thread that tells clients and the log what happens to channels.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_net::{BroadcastInlet, now};
use encke_presence::Presence;
use encke_protocol::{AppReporter, AppWebhook};
use encke_stream::{Data, Offset};

use super::report_log::{Reached, ReportLog};
use super::shared::{Leads, SharedReports, WebhookProgress};
use crate::metrics::PusherMetrics;

/// What the thread works with.
pub(super) struct ReportWork {
    apps: Vec<ReportedApp>,
    shared: Arc<SharedReports>,
    tools: ReportTools,
}

/// What all apps are reported with.
pub(super) struct ReportTools {
    pub(super) log: ReportLog,
    pub(super) leads: Leads,
    pub(super) metrics: PusherMetrics,
}

struct ReportedApp {
    reporter: AppReporter,
    /// While this node writes: since which change of that, and up to where it has read the log.
    reached: Option<(u64, Offset)>,
    /// Webhooks that begin.
    beginning: Vec<BeginningWebhook>,
    /// The progress of each webhook.
    progress: Vec<WebhookProgress>,
    throttle: PublicThrottle,
    /// Its log could not be read or written: it is left alone until then.
    failed_until: Option<SteadyTime>,
}

/// A webhook of which the log does not say how far it is.
struct BeginningWebhook {
    number: usize,
    /// Where it begins.
    at: Offset,
    /// When that was written for the last time.
    written: Option<SteadyTime>,
}

impl ReportWork {
    pub(super) fn new(
        apps: Vec<(AppReporter, Vec<WebhookProgress>)>,
        shared: Arc<SharedReports>,
        tools: ReportTools,
    ) -> Self {
        let apps = apps.into_iter().map(|(reporter, progress)| ReportedApp {
            reporter,
            reached: None,
            beginning: Vec::new(),
            progress,
            throttle: PublicThrottle::default(),
            failed_until: None,
        });
        ReportWork {
            apps: apps.collect(),
            shared,
            tools,
        }
    }

    pub(super) fn run(&mut self, registry: &Presence, broadcast: &BroadcastInlet) {
        while !self.shared.end() {
            let events = std::mem::take(&mut *self.shared.events.lock());
            let now = now();
            for app in &mut self.apps {
                app.reporter.observe(&events, now.steady);
                let mut unreadable = None;
                let find = |name: &str| {
                    let found = self.tools.log.archive.find(name);
                    found.unwrap_or_else(|error| {
                        unreadable = Some(error);
                        None
                    })
                };
                let views = self.tools.log.sequencers.views();
                for message in app.reporter.messages((registry, views), find, now) {
                    broadcast.receive(message);
                }
                if let Some(error) = unreadable {
                    tracing::error!(error, "some clients are not told of changes");
                }
                if app.failed_until.is_some_and(|until| now.steady < until) {
                    continue;
                }
                let is_new = app.failed_until.take().is_none();
                if let Err(error) = app.report(&self.tools, now.steady) {
                    app.failed_until = Some(now.steady.after(PAUSE));
                    if is_new {
                        tracing::error!(error, "the log of webhooks can't be read or written");
                    }
                }
            }
            std::thread::park_timeout(TURN);
        }
    }

    /// Writes what clients did until the last of them was gone.
    pub(super) fn write_rest(&self) {
        for app in &self.apps {
            if let Err(error) = app.write_of_clients(&self.tools) {
                tracing::error!(error, "webhooks miss the last events of clients");
            }
        }
    }
}

impl ReportedApp {
    /// Writes what is to be written.
    fn report(&mut self, tools: &ReportTools, now: SteadyTime) -> Result<(), String> {
        if self.reporter.log().is_none() {
            return Ok(());
        }
        let (leads, change) = (tools.leads)();
        match self.reached {
            _ if !leads => {
                self.reached = None;
                self.beginning.clear();
                self.reporter.end();
            }
            Some((since, at)) if since == change => {
                let read = self.read(&tools.log, at, now)?;
                self.reached = Some((change, read.at));
            }
            _ => {
                self.beginning = self.webhooks_without_place(&tools.log)?;
                self.reporter.begin();
                let read = self.read(&tools.log, Offset::START, now)?;
                if !self.reporter.restored(read.has_gap, now) {
                    tools.metrics.gaps.inc();
                    tracing::warn!("the log of webhooks has forgotten a part of what was told");
                }
                self.reached = Some((change, read.at));
            }
        }
        self.begin_webhooks(&tools.log, now)?;
        // What happens to channels is compared and written again if there is no room.
        let public_max = self.public_max(&tools.log, now)?;
        let of_channels = self.reporter.of_channels(public_max, now);
        self.write(&tools.log, of_channels)?;
        self.write_of_clients(tools)?;
        let repeated = self.reporter.repeated(now);
        let written = self.write(&tools.log, repeated);
        if !matches!(written, Ok(true)) {
            self.reporter.repeat_anew(now);
        }
        written.map(drop)
    }

    /// The number of events of public channels that may be written now. Clients cause them with the app key, which is public, so that they wait
    /// while all webhooks are behind: a backlog would delay the events of private channels, and the log keeps 128 MiB.
    fn public_max(&mut self, log: &ReportLog, now: SteadyTime) -> Result<usize, String> {
        let Some(stream) = self.reporter.log() else {
            return Ok(0);
        };
        let accepted = self.progress.iter().map(|accepted| *accepted.lock()).max();
        let tail = log.tail(&stream)?;
        Ok(self.throttle.allowed(tail, accepted.unwrap_or(tail), now))
    }

    /// False: there was no room for all of them.
    fn write(&self, log: &ReportLog, appends: Vec<Data>) -> Result<bool, String> {
        let stream = self.reporter.log();
        let mut written = appends.into_iter().zip(stream.iter().cycle());
        written.try_fold(true, |all, (data, stream)| {
            Ok(log.append(stream, data)? && all)
        })
    }

    /// Writes what clients did.
    fn write_of_clients(&self, tools: &ReportTools) -> Result<(), String> {
        let Some(stream) = self.reporter.log() else {
            return Ok(());
        };
        let dropped = &tools.metrics.dropped_events;
        dropped.inc_by(self.reporter.take_dropped());
        let mut result = Ok(());
        for data in self.reporter.of_clients() {
            let events = u64::from(data.units);
            let written = tools.log.append(&stream, data);
            if !matches!(written, Ok(true)) {
                dropped.inc_by(events);
            }
            result = result.and(written.map(drop));
        }
        result
    }

    /// The webhooks of which the log does not say how far they are.
    fn webhooks_without_place(&self, log: &ReportLog) -> Result<Vec<BeginningWebhook>, String> {
        let mut beginning = Vec::new();
        for (number, webhook) in self.reporter.webhooks().iter().enumerate() {
            if log.reached(webhook)?.is_none() {
                beginning.push(BeginningWebhook {
                    number,
                    at: log.tail(&webhook.log())?,
                    written: None,
                });
            }
        }
        Ok(beginning)
    }

    /// A new webhook begins where the log ended when this node began to report. That is written until the log has it.
    fn begin_webhooks(&mut self, log: &ReportLog, now: SteadyTime) -> Result<(), String> {
        let webhooks = Arc::clone(self.reporter.webhooks());
        let mut left = Vec::new();
        for mut beginning in std::mem::take(&mut self.beginning) {
            let webhook = &webhooks[beginning.number];
            if log.reached(webhook)?.is_some() {
                continue;
            }
            if beginning
                .written
                .is_none_or(|at| at.after(BEGIN_PAUSE) <= now)
            {
                log.append(&webhook.reached(), AppWebhook::reached_record(beginning.at))?;
                beginning.written = Some(now);
            }
            left.push(beginning);
        }
        self.beginning = left;
        Ok(())
    }

    /// Reads what is in the log behind a position.
    fn read(&mut self, log: &ReportLog, from: Offset, now: SteadyTime) -> Result<Reached, String> {
        let webhooks = Arc::clone(self.reporter.webhooks());
        let Some(webhook) = webhooks.first() else {
            return Ok(Reached {
                from,
                at: from,
                has_gap: false,
            });
        };
        log.read(&webhook.log(), from, |item| {
            self.reporter.told(item, now);
            ControlFlow::Continue(())
        })
    }
}

/// Stops the reports of public channels while even the fastest webhook of an app is behind.
#[derive(Debug, Default)]
struct PublicThrottle {
    /// The end of the log at a time, until the fastest webhook has accepted all events before it.
    mark: Option<(SteadyTime, Offset)>,
}

impl PublicThrottle {
    /// The number of events of public channels that may be written behind `tail` now. The fastest webhook has accepted all events before
    /// `accepted`.
    fn allowed(&mut self, tail: Offset, accepted: Offset, now: SteadyTime) -> usize {
        self.mark = self.mark.filter(|(_, at)| accepted < *at);
        if accepted < tail {
            self.mark.get_or_insert((now, tail));
        }
        match self.mark {
            Some((since, _)) if since.after(BEHIND) <= now => 0,
            _ => PUBLIC_EVENTS_MAX,
        }
    }
}

/// The most events of public channels that are written in a turn.
const PUBLIC_EVENTS_MAX: usize = 100;

/// The fastest webhook may take so long to accept all events before the mark.
const BEHIND: Duration = Duration::from_secs(2);

/// How often it looks what has happened.
const TURN: Duration = Duration::from_millis(100);

/// When it is written again where a webhook begins.
const BEGIN_PAUSE: Duration = Duration::from_secs(10);

/// How long it waits after an error.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_public_channels_wait_while_every_webhook_is_behind() {
        let mut throttle = PublicThrottle::default();
        let at = SteadyTime::from_ms;
        let [one, two, three] = [1, 2, 3].map(Offset::behind);
        assert_eq!(throttle.allowed(one, one, at(0)), PUBLIC_EVENTS_MAX);
        assert_eq!(throttle.allowed(two, one, at(100)), PUBLIC_EVENTS_MAX);
        assert_eq!(throttle.allowed(three, one, at(2_000)), PUBLIC_EVENTS_MAX);
        assert_eq!(throttle.allowed(three, one, at(2_100)), 0);
        // The next mark is set then.
        assert_eq!(throttle.allowed(three, two, at(2_200)), PUBLIC_EVENTS_MAX);
        assert_eq!(throttle.allowed(three, two, at(4_200)), 0);
        assert_eq!(throttle.allowed(three, three, at(9_000)), PUBLIC_EVENTS_MAX);
    }
}
