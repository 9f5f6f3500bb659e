//! What the health probe has found, and whether another one is wanted.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_net::now;
use encke_protocol::ReadyState;
use parking_lot::{Condvar, Mutex};

/// Bounds of the health probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// How long an outcome counts, at least a second: questions in this time make no other probe.
    pub every: Duration,
    /// How long a record may take until each shard has delivered it.
    pub wait_max: Duration,
}

impl Default for HealthSettings {
    fn default() -> Self {
        HealthSettings {
            every: Duration::from_secs(5),
            wait_max: Duration::from_secs(3),
        }
    }
}

/// What the health probe has found. Clones share it.
#[derive(Clone)]
pub struct DeliveryHealth {
    pub(super) shared: Arc<Shared>,
}

/// What those who ask and the thread that probes share.
pub(super) struct Shared {
    pub(super) settings: HealthSettings,
    pub(super) state: Mutex<State>,
    /// A probe is wanted, or the thread is to end.
    pub(super) called: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// From the first question that no outcome answers until the outcome of a probe.
    pub(super) is_wanted: bool,
    pub(super) is_stopping: bool,
    last: Option<LastProbe>,
}

#[derive(Debug)]
struct LastProbe {
    ended: SteadyTime,
    /// What stalled, if anything did.
    stalled: Option<String>,
}

impl DeliveryHealth {
    /// No probe was made yet.
    pub fn new(settings: HealthSettings) -> Self {
        DeliveryHealth {
            shared: Arc::new(Shared {
                settings,
                state: Mutex::default(),
                called: Condvar::new(),
            }),
        }
    }

    /// What the last probe found. If that is too old, another one is made, unless one is in work. It does not block.
    pub fn readiness(&self) -> ReadyState {
        self.readiness_at(now().steady)
    }

    /// What stalled at the last probe, if that is not long ago. It asks for no other one: a page that is open makes no records.
    pub fn stalled(&self) -> Option<String> {
        self.stalled_at(now().steady)
    }

    /// The server is not ready from now on, because it stops. No further probe is made.
    pub fn end_readiness(&self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.called.notify_one();
    }

    fn stalled_at(&self, now: SteadyTime) -> Option<String> {
        let state = self.shared.state.lock();
        let last = state.last.as_ref()?;
        let is_recent = now.since(last.ended) < STALL_SHOWN.max(self.shared.settings.every);
        Some(stall(last.stalled.as_ref().filter(|_| is_recent)?))
    }

    fn readiness_at(&self, now: SteadyTime) -> ReadyState {
        let mut state = self.shared.state.lock();
        if state.is_stopping {
            return ReadyState::NotReady("the server stops".into());
        }
        match &state.last {
            Some(last) if now.since(last.ended) < self.shared.settings.every => {
                match &last.stalled {
                    None => ReadyState::Ready,
                    Some(why) => ReadyState::NotReady(stall(why)),
                }
            }
            _ => {
                state.is_wanted = true;
                self.shared.called.notify_one();
                ReadyState::Probing
            }
        }
    }
}

fn stall(why: &str) -> String {
    format!("deliveries stall: {why}")
}

impl Shared {
    /// Waits until a probe is wanted. False: the thread is to end.
    pub(super) fn await_question(&self) -> bool {
        let mut state = self.state.lock();
        while !state.is_wanted && !state.is_stopping {
            self.called.wait(&mut state);
        }
        !state.is_stopping
    }

    /// Notes the outcome of a probe.
    pub(super) fn end(&self, stalled: Option<String>, ended: SteadyTime) {
        let mut state = self.state.lock();
        state.is_wanted = false;
        state.last = Some(LastProbe { ended, stalled });
    }
}

/// How long a stall is shown to operators if no further probe is made.
const STALL_SHOWN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> SteadyTime {
        SteadyTime::from_ms(ms)
    }

    #[test]
    fn an_outcome_counts_for_as_long_as_the_setting_says() {
        let health = DeliveryHealth::new(HealthSettings::default());
        assert_eq!(health.readiness_at(ms(1_000)), ReadyState::Probing);
        assert_eq!(health.readiness_at(ms(1_000)), ReadyState::Probing);
        assert!(health.shared.state.lock().is_wanted);
        health.shared.end(None, ms(2_000));
        assert!(!health.shared.state.lock().is_wanted);
        assert_eq!(health.readiness_at(ms(6_999)), ReadyState::Ready);
        assert!(
            !health.shared.state.lock().is_wanted,
            "nothing was asked of the thread"
        );
        assert_eq!(health.readiness_at(ms(7_000)), ReadyState::Probing);
        health
            .shared
            .end(Some("shard 1 delivers nothing".into()), ms(8_000));
        let why = "deliveries stall: shard 1 delivers nothing".to_owned();
        assert_eq!(health.stalled_at(ms(67_999)), Some(why.clone()));
        assert_eq!(health.stalled_at(ms(68_000)), None);
        assert_eq!(health.readiness_at(ms(8_001)), ReadyState::NotReady(why));
        assert_eq!(health.readiness_at(ms(13_000)), ReadyState::Probing);
    }
}
