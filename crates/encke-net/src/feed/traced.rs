//! Deliveries of records whose requests are traced: a span for each record and topic, from the commit to the last subscriber's write.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use encke_log::StreamNo;
use encke_stream::Batch;
use encke_trace::CommandTrace;

use super::topics::{Round, Topics};

/// The traced records that wait for rounds of a shard. Empty unless requests are traced.
#[derive(Debug)]
pub(crate) struct TracedDeliveries {
    shard: u16,
    waiting: VecDeque<TracedRecord>,
    /// Subscribers that the present round has come to.
    seen: u64,
}

#[derive(Debug)]
struct TracedRecord {
    trace: Arc<CommandTrace>,
    topic: u32,
    /// The topic's stream or pattern; the number of a topic is used again.
    no: StreamNo,
    /// Rounds that end until the record is delivered.
    rounds: u8,
    taken: Instant,
}

impl TracedDeliveries {
    pub(crate) fn new(shard: u16) -> Self {
        TracedDeliveries {
            shard,
            waiting: VecDeque::new(),
            seen: 0,
        }
    }

    /// The topics have taken a commit.
    pub(crate) fn take(&mut self, batch: &Batch, topics: &Topics) {
        if batch.traces.is_empty() {
            return;
        }
        let taken = Instant::now();
        let mut matched = batch.pattern_matches().iter().peekable();
        for (index, trace) in &batch.traces {
            let stream = batch.records[*index as usize].stream;
            while matched.next_if(|matched| matched.index < *index).is_some() {}
            let of_patterns = matched.peek().filter(|matched| matched.index == *index);
            let patterns = of_patterns.map_or(&[][..], |matched| &matched.patterns);
            for no in [stream].iter().chain(patterns) {
                let Some(topic) = topics.find(*no) else {
                    continue;
                };
                if self.waiting.len() >= WAITING_MAX {
                    self.waiting.pop_front();
                }
                self.waiting.push_back(TracedRecord {
                    trace: Arc::clone(trace),
                    topic,
                    no: *no,
                    // Those whom the present round has come to get the record in the next one.
                    rounds: match topics[topic].state {
                        Round::Running | Round::Again => 2,
                        Round::Quiet | Round::Queued => 1,
                    },
                    taken,
                });
            }
        }
    }

    /// A round begins.
    pub(crate) fn begin_round(&mut self) {
        self.seen = 0;
    }

    /// The round has come to a subscriber.
    pub(crate) fn see(&mut self) {
        self.seen += 1;
    }

    /// A round is over; it has found so many subscribers behind.
    pub(crate) fn end_round(&mut self, topic: u32, no: StreamNo, behind: usize) {
        if self.waiting.is_empty() {
            return;
        }
        let (shard, behind) = (self.shard, behind as u64);
        let delivered = self.seen.saturating_sub(behind);
        let written = Instant::now();
        self.waiting.retain_mut(|record| {
            if record.topic != topic {
                return true;
            }
            record.rounds -= 1;
            if record.no == no && record.rounds == 0 {
                let times = (record.taken, written);
                record.trace.delivered(shard, times, delivered, behind);
            }
            record.no == no && record.rounds > 0
        });
    }
}

/// Traced records of a shard that wait for their rounds; above it, the oldest get no span.
const WAITING_MAX: usize = 4_096;
