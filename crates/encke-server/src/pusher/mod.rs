//! What runs beside the reactor for the Pusher protocol: a thread that tells clients and the log what happens to channels, and one for each
//! webhook, which calls it.
//!
//! On a node of a fleet each thread knows whether its node is the one that dispatches the jobs of the pools: that one writes what happens to
//! channels, and calls webhooks.

mod calls;
mod report_log;
mod reports;
mod shared;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use encke_net::BroadcastInlet;
use encke_presence::Presence;
use encke_protocol::AppReporter;
use encke_stream::Sequencers;
use encke_subscriptions::WebhookCaller;
use encke_threads::{spawn_essential, spawn_restarting};

use self::calls::WebhookCalls;
use self::report_log::ReportLog;
use self::reports::{ReportTools, ReportWork};
use self::shared::{Leads, SharedReports, WebhookProgress};
use crate::archive::Archive;
use crate::metrics::PusherMetrics;
use crate::presence::PresenceObserver;

/// The running threads.
pub(crate) struct PusherThreads {
    shared: Arc<SharedReports>,
    caller: WebhookCaller,
    reports: JoinHandle<ReportWork>,
    calls: Vec<JoinHandle<()>>,
}

/// What is left of the threads: the clients whose connections have not ended yet may still do something.
pub(crate) struct StoppedPusher(ReportWork);

/// What the threads work with.
pub(crate) struct PusherTools {
    pub(crate) archive: Archive,
    pub(crate) sequencers: Sequencers,
    pub(crate) registry: Arc<Presence>,
    pub(crate) broadcast: BroadcastInlet,
    pub(crate) caller: WebhookCaller,
    /// Whether this node writes and calls, and since which change of that.
    pub(crate) leads: Leads,
    pub(crate) metrics: PusherMetrics,
}

impl PusherThreads {
    /// Starts the threads. `None`: no app needs any.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(
        reporters: Vec<AppReporter>,
        tools: PusherTools,
    ) -> std::io::Result<Option<Self>> {
        if reporters.is_empty() {
            return Ok(None);
        }
        let shared = Arc::new(SharedReports::default());
        let mut calls = Vec::new();
        let caller = tools.caller.clone();
        match start_threads(reporters, tools, &shared, &mut calls) {
            Ok(reports) => Ok(Some(PusherThreads {
                shared,
                caller,
                reports,
                calls,
            })),
            Err(error) => {
                shared.ends.store(true, Ordering::Release);
                end_calls(calls);
                Err(error)
            }
        }
    }

    /// Takes what happens to subscribers.
    pub(crate) fn observer(&self) -> PresenceObserver {
        let shared = Arc::clone(&self.shared);
        Box::new(move |events| shared.events.lock().extend_from_slice(events))
    }

    /// Stops them, and interrupts calls. `None` if one of them panicked.
    pub(crate) fn stop(self) -> Option<StoppedPusher> {
        self.shared.ends.store(true, Ordering::Release);
        self.caller.shut_down();
        self.reports.thread().unpark();
        let reports = self.reports.join();
        let is_calm = end_calls(self.calls);
        reports.ok().filter(|_| is_calm).map(StoppedPusher)
    }
}

impl StoppedPusher {
    /// Writes what clients have done in the meantime. To be called when the last one is gone, and before the log closes.
    pub(crate) fn write_rest(&self) {
        self.0.write_rest();
    }
}

/// Starts the threads that call webhooks, which are added to `calls`, and the thread that makes the reports.
fn start_threads(
    reporters: Vec<AppReporter>,
    tools: PusherTools,
    shared: &Arc<SharedReports>,
    calls: &mut Vec<JoinHandle<()>>,
) -> std::io::Result<JoinHandle<ReportWork>> {
    let log = ReportLog {
        archive: tools.archive,
        sequencers: tools.sequencers,
    };
    let mut apps = Vec::new();
    for reporter in reporters {
        let webhooks = reporter.webhooks();
        let progress: Vec<WebhookProgress> = webhooks
            .iter()
            .map(|_| WebhookProgress::default())
            .collect();
        for (number, progress) in progress.iter().enumerate() {
            let webhook = WebhookCalls {
                shared: Arc::clone(shared),
                webhooks: Arc::clone(webhooks),
                number,
                progress: Arc::clone(progress),
                log: log.clone(),
                caller: tools.caller.clone(),
                leads: Arc::clone(&tools.leads),
                metrics: tools.metrics.clone(),
            };
            calls.push(spawn_restarting("pusher-webhook", move || webhook.run())?);
        }
        apps.push((reporter, progress));
    }
    let report_tools = ReportTools {
        log,
        leads: tools.leads,
        metrics: tools.metrics,
    };
    let mut work = ReportWork::new(apps, Arc::clone(shared), report_tools);
    let (registry, broadcast) = (tools.registry, tools.broadcast);
    spawn_essential("pusher", move || {
        work.run(&registry, &broadcast);
        work
    })
}

/// Waits for the threads that call webhooks, which were told to end. False: one of them panicked.
fn end_calls(calls: Vec<JoinHandle<()>>) -> bool {
    let ends = calls.into_iter().map(|thread| {
        thread.thread().unpark();
        thread.join().is_ok()
    });
    // All are waited for, whatever becomes of one.
    ends.fold(true, |all, end| all & end)
}
