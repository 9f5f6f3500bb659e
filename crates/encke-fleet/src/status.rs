//! What a node knows of its fleet, for health checks and metrics.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use encke_stream::OrderStatus;
use parking_lot::Mutex;

use crate::peers::{NodeTips, OrderTip, PeerTip, PeerTips};

/// What a node knows of the order of one log.
#[derive(Debug)]
pub struct LogStatus {
    order: Arc<OrderStatus>,
    /// When the order was created, in nanoseconds since 1970.
    created_ns: i64,
    silence_max: Duration,
    state: Mutex<State>,
    peers: Mutex<PeerTips>,
    commands_in_flight: AtomicU64,
    retries: AtomicU64,
    given_up: AtomicU64,
}

#[derive(Debug)]
struct State {
    heard_at: Instant,
    /// What was heard since then, if it does not count.
    unheard: Option<String>,
    /// Where the order ended when this node first heard of it. It is not ready before it is there.
    first_last: Option<u64>,
    last: u64,
    round_trip: Duration,
    /// Refusals of the brokers since they last confirmed a message.
    refused: Option<Refusals>,
    /// Positions that the order had, and since when, as long as the node has not applied them.
    behind: VecDeque<(Instant, u64)>,
}

/// Messages that brokers did not store.
#[derive(Debug)]
struct Refusals {
    first: Instant,
    last: Instant,
    /// Why the last one was not stored.
    reason: String,
}

/// Figures of the order of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFigures {
    /// The last position that the brokers have confirmed or reported.
    pub last: u64,
    /// The last position that this node has applied.
    pub applied: u64,
    /// For how long this node lacks the oldest position that it has not applied.
    pub lag: Duration,
    /// How long the last batch took to be confirmed.
    pub round_trip: Duration,
    /// How long no broker has answered about the order.
    pub silence: Duration,
    /// Commands of the batch that is in flight.
    pub commands_in_flight: u64,
    /// Batches that were applied since the start.
    pub batches: u64,
    /// Messages that were sent again since the start.
    pub retries: u64,
    /// Batches that were not confirmed in time since the start.
    pub given_up: u64,
}

impl LogStatus {
    pub(crate) fn new(order: Arc<OrderStatus>, created_ns: i64, silence_max: Duration) -> Self {
        LogStatus {
            order,
            created_ns,
            silence_max,
            peers: Mutex::default(),
            state: Mutex::new(State {
                heard_at: Instant::now(),
                unheard: None,
                first_last: None,
                last: 0,
                round_trip: Duration::ZERO,
                refused: None,
                behind: VecDeque::new(),
            }),
            commands_in_flight: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    /// The figures now.
    pub fn figures(&self) -> LogFigures {
        let applied = self.order.applied().position.max(self.idle_position());
        let state = self.state.lock();
        LogFigures {
            last: state.last.max(applied),
            applied,
            lag: state.lag(applied),
            round_trip: state.round_trip,
            silence: state.heard_at.elapsed(),
            commands_in_flight: self.commands_in_flight.load(Ordering::Relaxed),
            batches: self.order.batches(),
            retries: self.retries.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
        }
    }

    /// The position up to which there is nothing left to apply.
    fn idle_position(&self) -> u64 {
        self.order.settled()
    }

    /// Why this node must not serve. None: it is ready.
    pub fn unready(&self) -> Option<String> {
        if let Some(reason) = self.order.trouble() {
            return Some(format!("this node does not follow its fleet: {reason}"));
        }
        let figures = self.figures();
        let max = self.silence_max;
        if figures.silence > max {
            let reason = self.state.lock().unheard.clone();
            return Some(format!(
                "no broker has answered about the order for {} s (fleet-silence-max is {} s): {}",
                figures.silence.as_secs(),
                max.as_secs(),
                reason.as_deref().unwrap_or("it is not connected")
            ));
        }
        let first_last = self.state.lock().first_last;
        if first_last.is_none_or(|last| figures.applied < last) {
            return Some(format!(
                "this node has started, and has followed the order to {} of {}",
                figures.applied, figures.last
            ));
        }
        (figures.lag > max).then(|| {
            format!(
                "this node is {} s behind its fleet (fleet-silence-max is {} s)",
                figures.lag.as_secs(),
                max.as_secs()
            )
        })
    }

    /// Why the brokers do not store what this node sends, if they have refused it for a while and until now. It is no reason to close
    /// subscribers: other nodes have the same brokers.
    pub fn unstored(&self) -> Option<String> {
        let state = self.state.lock();
        let Refusals {
            first,
            last,
            reason,
        } = state.refused.as_ref()?;
        let counts = first.elapsed() >= REFUSED_FOR && last.elapsed() < REFUSAL_COUNTS;
        counts.then(|| format!("the brokers do not store what this node sends: {reason}"))
    }

    /// The order of the log.
    pub fn order(&self) -> &Arc<OrderStatus> {
        &self.order
    }

    /// When the order was created, in nanoseconds since 1970.
    pub(crate) fn created_ns(&self) -> i64 {
        self.created_ns
    }

    /// What this node announces to the others.
    pub(crate) fn tip(&self) -> OrderTip {
        OrderTip::new(self.created_ns, self.order.applied())
    }

    /// Records what another node announces, if that is about the same order. `log` is the index of the log.
    pub(crate) fn record_peer(&self, log: usize, tips: &NodeTips) {
        let tip = tips.logs.get(log);
        if let Some(tip) = tip.and_then(|tip| tip.in_order(self.created_ns)) {
            self.peers.lock().record(&tips.node, tip);
        }
    }

    /// What the furthest of the other nodes has applied.
    pub(crate) fn furthest_peer(&self) -> Option<PeerTip> {
        self.peers.lock().furthest()
    }

    /// What other nodes have applied, up to where this node is, as far as it is not compared with the order yet.
    pub(crate) fn uncompared_peers(&self) -> Vec<PeerTip> {
        let applied = self.order.applied().position;
        self.peers.lock().uncompared(applied)
    }

    /// Notes that the order has the same message as another node has applied.
    pub(crate) fn mark_compared(&self, peer: &PeerTip) {
        self.peers.lock().mark_compared(peer);
    }

    /// The last position that a broker has confirmed or reported.
    pub(crate) fn last(&self) -> u64 {
        self.state.lock().last
    }

    pub(crate) fn begin(&self, commands: usize) {
        self.commands_in_flight
            .store(commands as u64, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.commands_in_flight.store(0, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gave_up(&self) {
        self.given_up.fetch_add(1, Ordering::Relaxed);
    }

    /// A broker does not store a message of this node.
    pub(crate) fn refused(&self, reason: String) {
        let mut state = self.state.lock();
        let last = Instant::now();
        let first = state.refused.as_ref().map_or(last, |refused| refused.first);
        state.refused = Some(Refusals {
            first,
            last,
            reason,
        });
    }

    /// A broker has confirmed a message of this node.
    pub(crate) fn confirmed(&self, took: Duration, position: u64) {
        let mut state = self.state.lock();
        state.round_trip = took;
        state.refused = None;
        drop(state);
        self.heard(position);
    }

    /// No broker has answered, or with what does not count.
    pub(crate) fn not_heard(&self, reason: String) {
        self.state.lock().unheard = Some(reason);
    }

    /// A broker has answered: the order ends at `last`.
    pub(crate) fn heard(&self, last: u64) {
        let applied = self.order.settled();
        let mut state = self.state.lock();
        let now = Instant::now();
        state.heard_at = now;
        state.unheard = None;
        state.last = state.last.max(last);
        state.first_last.get_or_insert(last);
        state.forget(applied);
        let newest = state.behind.back();
        let known = newest.is_some_and(|(at, position)| {
            *position >= last || now.duration_since(*at) < SAMPLE_EVERY
        });
        if last > applied && !known {
            state.behind.push_back((now, last));
        }
    }
}

impl State {
    fn forget(&mut self, applied: u64) {
        while self
            .behind
            .front()
            .is_some_and(|(_, position)| *position <= applied)
        {
            self.behind.pop_front();
        }
    }

    fn lag(&self, applied: u64) -> Duration {
        let mut behind = self.behind.iter();
        let oldest = behind.find(|(_, position)| *position > applied);
        oldest.map_or(Duration::ZERO, |(since, _)| since.elapsed())
    }
}

/// A message that is refused for a shorter time, such as while the brokers elect a leader, is sent again and stored.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// How long a refusal counts while nothing is sent. Questions for readiness let something be sent more often.
const REFUSAL_COUNTS: Duration = Duration::from_secs(60);

/// Positions are noted at most this often, so that a node that is far behind notes few.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
