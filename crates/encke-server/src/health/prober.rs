//! The thread that probes when it is asked to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use encke_net::{ProbeConnector, now};
use encke_threads::spawn_restarting;

use super::delivery_health::DeliveryHealth;
use super::probe::Probe;
use crate::metrics::ProbeMetrics;

/// The running thread.
pub(crate) struct Prober {
    health: DeliveryHealth,
    stops: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Prober {
    /// Starts the thread, for a server with that many logs.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start(
        health: DeliveryHealth,
        connector: ProbeConnector,
        logs: usize,
        metrics: ProbeMetrics,
    ) -> std::io::Result<Self> {
        let stops = Arc::new(AtomicBool::new(false));
        let (shared, stopping) = (Arc::clone(&health.shared), Arc::clone(&stops));
        // A question that a panic has left open is asked again.
        let thread = spawn_restarting("health", move || {
            while shared.await_question() {
                let wait_max = shared.settings.wait_max;
                let connect = |shard| connector.connect(shard);
                let probe = Probe::new(&connect, connector.shards(), logs);
                let report = probe.run(wait_max, &stopping);
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                let stalled = report.stalled(wait_max);
                metrics.show(&report);
                if let Some(why) = &stalled {
                    tracing::warn!(why, "deliveries stall");
                }
                shared.end(stalled, now().steady);
                while !connector.unpark() && !stopping.load(Ordering::Relaxed) {
                    std::thread::sleep(UNPARK_PAUSE);
                }
            }
            // Requests that wait for a probe hear that the server stops.
            connector.unpark();
        })?;
        Ok(Prober {
            health,
            stops,
            thread,
        })
    }

    /// Ends the thread, and with it a probe in work. Questions from now on are answered with that. False if the thread panicked.
    pub(crate) fn stop(self) -> bool {
        self.stops.store(true, Ordering::Relaxed);
        self.health.end_readiness();
        self.thread.join().is_ok()
    }
}

/// A shard without room for an event gets it this much later.
const UNPARK_PAUSE: Duration = Duration::from_millis(20);
