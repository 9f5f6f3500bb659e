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

use self::calls::WebhookCalls;
use self::report_log::ReportLog;
use self::reports::ReportWork;
use self::shared::{Leads, SharedReports};
use crate::archive::Archive;
use crate::metrics::PusherMetrics;
use crate::presence::PresenceObserver;

/// The running threads.
pub(crate) struct PusherThreads {
    shared: Arc<SharedReports>,
    caller: WebhookCaller,
    threads: Vec<JoinHandle<()>>,
}

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
        let mut threads = PusherThreads {
            shared: Arc::clone(&shared),
            caller: tools.caller.clone(),
            threads: Vec::new(),
        };
        let log = ReportLog {
            archive: tools.archive,
            sequencers: tools.sequencers,
        };
        for webhooks in reporters.iter().map(AppReporter::webhooks) {
            for number in 0..webhooks.len() {
                let calls = WebhookCalls {
                    shared: Arc::clone(&shared),
                    webhooks: Arc::clone(webhooks),
                    number,
                    log: log.clone(),
                    caller: tools.caller.clone(),
                    leads: Arc::clone(&tools.leads),
                    metrics: tools.metrics.clone(),
                };
                threads.spawn("pusher-webhook", move || calls.run())?;
            }
        }
        let mut work = ReportWork::new(reporters, shared, log, tools.leads, tools.metrics);
        let (registry, broadcast) = (tools.registry, tools.broadcast);
        threads.spawn("pusher", move || work.run(&registry, &broadcast))?;
        Ok(Some(threads))
    }

    /// Takes what happens to subscribers.
    pub(crate) fn observer(&self) -> PresenceObserver {
        let shared = Arc::clone(&self.shared);
        Box::new(move |events| shared.events.lock().extend_from_slice(events))
    }

    /// Stops them, and interrupts calls. False if one of them panicked.
    pub(crate) fn stop(self) -> bool {
        self.shared.ends.store(true, Ordering::Release);
        self.caller.shut_down();
        let ends = self.threads.into_iter().map(|thread| {
            thread.thread().unpark();
            thread.join().is_ok()
        });
        // All are waited for, whatever becomes of one.
        ends.fold(true, |all, end| all & end)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        self.threads.push(thread);
        Ok(())
    }
}
