//! The counts of a worker: messages, bytes, latencies by kind, and faults of order.

use super::traits::Traits;
use crate::load::kinds::SubscriberKind;
use crate::load::latency::Latencies;
use crate::load::sequence::{Arrival, Ledger, Seen};
use crate::load::wire::payload::{Message, run_of};

/// A worker's books, and what subscribers need to know of the run.
#[derive(Debug)]
pub(crate) struct Tally {
    /// The run whose producers are expected to be seen from their first message on.
    pub(crate) run: u32,
    /// Whether this run's producers have started.
    pub(crate) publishing: bool,
    /// Messages sent from the first time to the second found slow subscribers pausing.
    pub(crate) pause_ns: std::ops::Range<u64>,
    /// When the bytes at hand were read.
    pub(crate) now_ns: u64,
    /// Subscribers that have received an offset.
    pub(crate) ready: u64,
    /// Bytes of bodies.
    pub(crate) bytes: u64,
    /// Messages that arrived, those that came again included.
    pub(crate) events: u64,
    /// When the last message arrived.
    pub(crate) last_event_ns: u64,
    /// Gaps, duplicates, reorderings.
    pub(crate) ledger: Ledger,
    /// Room for an event's joined lines.
    pub(crate) joined: Vec<u8>,
    /// Latencies of messages that were sent while their subscriber was there and read.
    pub(crate) live: Latencies,
    /// Of these, the ones sent while slow subscribers paused.
    pub(crate) paused: Latencies,
    /// Latencies of slow subscribers.
    pub(crate) slow: Latencies,
    /// Latencies of messages sent while their subscriber was away.
    pub(crate) returned: Latencies,
    /// The same as `live` and `events` by kind of subscriber, where there are several.
    pub(crate) by_kind: Option<Box<[KindTally; SubscriberKind::COUNT]>>,
}

/// The messages of subscribers of one kind.
#[derive(Debug)]
pub(crate) struct KindTally {
    pub(crate) events: u64,
    pub(crate) live: Latencies,
}

impl Tally {
    /// Empty books. `is_mixed`: there are several kinds of subscribers.
    pub(crate) fn new(run: u32, is_mixed: bool) -> Self {
        let empty = |_| KindTally {
            events: 0,
            live: Latencies::new(),
        };
        Self {
            run,
            publishing: false,
            pause_ns: 0..0,
            now_ns: 0,
            ready: 0,
            bytes: 0,
            events: 0,
            last_event_ns: 0,
            ledger: Ledger::default(),
            joined: Vec::new(),
            live: Latencies::new(),
            paused: Latencies::new(),
            slow: Latencies::new(),
            returned: Latencies::new(),
            by_kind: is_mixed.then(|| Box::new(std::array::from_fn(empty))),
        }
    }

    /// Enters one message.
    pub(crate) fn message(
        &mut self,
        subscriber: u32,
        seen: &mut Seen,
        traits: Traits,
        returned_ns: u64,
        message: &Message,
    ) {
        let Message {
            producer,
            sequence,
            sent_ns,
        } = *message;
        self.events += 1;
        self.last_event_ns = self.now_ns;
        let mut of_kind = self
            .by_kind
            .as_mut()
            .map(|kinds| &mut kinds[traits.kind as usize]);
        if let Some(kind) = &mut of_kind {
            kind.events += 1;
        }
        let from_start = traits.from_start && run_of(producer) == u64::from(self.run);
        let arrival = Arrival {
            subscriber,
            producer,
            sequence,
            from_start,
        };
        if !self.ledger.arrived(seen, &arrival) {
            return;
        }
        let latency_ns = self.now_ns.saturating_sub(sent_ns);
        if traits.slow {
            self.slow.record(latency_ns);
        } else if sent_ns < returned_ns {
            self.returned.record(latency_ns);
        } else {
            self.live.record(latency_ns);
            if let Some(kind) = of_kind {
                kind.live.record(latency_ns);
            }
            if self.pause_ns.contains(&sent_ns) {
                self.paused.record(latency_ns);
            }
        }
    }
}
