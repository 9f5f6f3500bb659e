//! Producers: traffic that appends numbered messages to streams and accounts for them.
//!
//! Every producer has streams of its own where there are enough of them; where there are fewer
//! streams than producers, every producer has one stream and shares it with others. So there are
//! as many pairs of producer and stream as there are of the more numerous of the two, each pair
//! with its own sequence, and a subscriber knows which messages it must get.

use crate::BenchError;
use crate::load::ack_log::AckLog;
use crate::load::clock::monotonic_ns;
use crate::load::latency::Latencies;
use crate::load::random::Random;
use crate::load::requests::Traffic;
use crate::load::wire::payload::{Format, Message, producer_number};
use crate::load::wire::target::{Requests, Streams};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The plan of the appends.
#[derive(Debug, Clone)]
pub(crate) struct ProducerPlan {
    /// The number of the run: see [`producer_number`].
    pub(crate) run: u32,
    /// How many producers, each with a connection.
    pub(crate) producers: u32,
    /// The streams.
    pub(crate) streams: Streams,
    /// How requests are written.
    pub(crate) requests: Requests,
    /// How messages are written.
    pub(crate) format: Format,
    /// Bytes per message.
    pub(crate) size: usize,
    /// Which stream is next.
    pub(crate) choice: Choice,
    /// How many messages in all; `None` for no such limit.
    pub(crate) messages: Option<u64>,
}

/// Which of its streams a producer appends to next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Any, with equal chances.
    Random,
    /// One after the other.
    RoundRobin,
}

/// An append that has no answer yet.
#[derive(Debug, Clone, Copy)]
struct Append {
    pair: u32,
    sequence: u64,
    sent_ns: u64,
}

/// The producers of a run.
#[derive(Debug)]
pub(crate) struct Producers {
    orders: ProducerPlan,
    random: Random,
    /// For each pair, the sequence number that comes next.
    next: Vec<u64>,
    /// For each producer, where its round through its streams stands.
    round: Vec<u32>,
    in_flight: Vec<VecDeque<Append>>,
    body: Vec<u8>,
    log: Option<AckLog>,
    account: Account,
    gauge: Arc<Gauge>,
}

/// Counters of the producers, readable by other threads.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    acknowledged: AtomicU64,
    refused: AtomicU64,
}

impl Gauge {
    /// Messages acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Messages refused or left without an answer so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

/// A number for a run that no other run of these days will have.
pub(crate) fn new_run() -> u32 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let seed = since_epoch.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    Random::new(seed).bits() as u32
}

/// The results of the appends.
#[derive(Debug)]
pub(crate) struct Account {
    /// Messages handed to the system.
    pub(crate) sent: u64,
    /// Messages acknowledged.
    pub(crate) acknowledged: u64,
    /// Answers that were no acknowledgements, by status.
    pub(crate) refused: BTreeMap<u16, u64>,
    /// Messages whose answer was lost with the connection.
    pub(crate) unanswered: u64,
    /// From the request's writing to the answer's end.
    pub(crate) latency: Latencies,
    /// From when the rate wanted a request to when it was written.
    pub(crate) lateness: Latencies,
    /// For each pair, the numbers that were used but never acknowledged.
    unacknowledged: BTreeMap<u32, Vec<u64>>,
}

/// The messages of one producer on one stream that subscribers must get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    /// The stream's index.
    pub(crate) stream: u32,
    /// The producer's number.
    pub(crate) producer: u64,
    /// One more than the highest number that was acknowledged.
    pub(crate) count: u64,
    /// Numbers that were not acknowledged, ascending: they may be there or not.
    pub(crate) excused: Vec<u64>,
}

impl Producers {
    /// Producers that carry out `orders`, noting acknowledgements in `log`.
    pub(crate) fn new(orders: ProducerPlan, log: Option<AckLog>) -> Self {
        let producers = orders.producers as usize;
        let pairs = orders.producers.max(orders.streams.count()) as usize;
        Self {
            random: Random::new(u64::from(orders.run)),
            next: vec![0; pairs],
            round: vec![0; producers],
            in_flight: vec![VecDeque::new(); producers],
            body: Vec::new(),
            log,
            account: Account {
                sent: 0,
                acknowledged: 0,
                refused: BTreeMap::new(),
                unanswered: 0,
                latency: Latencies::new(),
                lateness: Latencies::new(),
                unacknowledged: BTreeMap::new(),
            },
            gauge: Arc::default(),
            orders,
        }
    }

    /// The account so far.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Counters for other threads, updated after each batch of responses.
    pub(crate) fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }

    /// The messages that subscribers of all streams must get.
    pub(crate) fn expected(&self) -> Vec<Expected> {
        let mut all = Vec::new();
        for (pair, &next) in self.next.iter().enumerate() {
            let pair = pair as u32;
            let mut excused = self
                .account
                .unacknowledged
                .get(&pair)
                .cloned()
                .unwrap_or_default();
            // Appends without a response are still in its queue, and are not acknowledged.
            let (producer, stream) = self.parties(pair);
            let open = self.in_flight[producer].iter();
            let open = open.filter(|append| append.pair == pair);
            excused.extend(open.map(|append| append.sequence));
            excused.sort_unstable();
            excused.dedup();
            // A tail that was not acknowledged is not waited for; it stays excused, because it can still come.
            let mut count = next;
            for &sequence in excused.iter().rev() {
                if sequence + 1 == count {
                    count = sequence;
                }
            }
            // With nothing acknowledged nothing is waited for, but what comes has gaps that are excused.
            if next > 0 {
                let producer = producer_number(self.orders.run, producer as u32);
                all.push(Expected {
                    stream,
                    producer,
                    count,
                    excused,
                });
            }
        }
        all
    }

    /// The producer and the stream of a pair.
    fn parties(&self, pair: u32) -> (usize, u32) {
        (
            (pair % self.orders.producers) as usize,
            pair % self.orders.streams.count(),
        )
    }

    /// The pair that producer `line` serves next.
    fn choose(&mut self, line: usize) -> u32 {
        let producers = self.orders.producers;
        let pairs = self.next.len() as u32;
        // The pairs of a producer are its own number and every `producers`-th after it.
        let own = (pairs - line as u32).div_ceil(producers);
        let step = match self.orders.choice {
            Choice::Random => self.random.below(u64::from(own)) as u32,
            Choice::RoundRobin => {
                let step = self.round[line] % own;
                self.round[line] = step + 1;
                step
            }
        };
        line as u32 + step * producers
    }

    fn write(&mut self, line: usize, append: Append, out: &mut Vec<u8>) {
        let (producer, stream) = self.parties(append.pair);
        let message = Message {
            producer: producer_number(self.orders.run, producer as u32),
            sequence: append.sequence,
            sent_ns: append.sent_ns,
        };
        self.body.clear();
        self.orders
            .format
            .write(&message, self.orders.size, &mut self.body);
        self.orders.requests.append(stream, &self.body, out);
        self.in_flight[line].push_back(append);
    }

    /// An append was not acknowledged.
    fn miss(&mut self, append: Append) {
        let missed = self.account.unacknowledged.entry(append.pair);
        missed.or_default().push(append.sequence);
    }
}

impl Traffic for Producers {
    fn next(&mut self, line: usize, due_ns: u64, out: &mut Vec<u8>) -> bool {
        let now_ns = monotonic_ns();
        if self
            .orders
            .messages
            .is_some_and(|messages| self.account.sent >= messages)
        {
            return false;
        }
        let pair = self.choose(line);
        let sequence = self.next[pair as usize];
        self.next[pair as usize] += 1;
        self.account.sent += 1;
        self.account.lateness.record(now_ns.saturating_sub(due_ns));
        self.write(
            line,
            Append {
                pair,
                sequence,
                sent_ns: now_ns,
            },
            out,
        );
        true
    }

    fn done(&mut self, line: usize, status: u16, now_ns: u64) {
        let Some(append) = self.in_flight[line].pop_front() else {
            return;
        };
        if !(200..300).contains(&status) {
            *self.account.refused.entry(status).or_default() += 1;
            return self.miss(append);
        }
        self.account.acknowledged += 1;
        self.account
            .latency
            .record(now_ns.saturating_sub(append.sent_ns));
        if self.log.is_some() {
            let (producer, stream) = self.parties(append.pair);
            let producer = producer_number(self.orders.run, producer as u32);
            let name = self.orders.streams.name(stream);
            if let Some(log) = &mut self.log {
                log.record(&name, producer, append.sequence);
            }
        }
    }

    fn lost(&mut self, line: usize) {
        for append in std::mem::take(&mut self.in_flight[line]) {
            self.account.unanswered += 1;
            self.miss(append);
        }
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        let Account {
            acknowledged,
            unanswered,
            refused,
            ..
        } = &self.account;
        self.gauge
            .acknowledged
            .store(*acknowledged, Ordering::Relaxed);
        let refused = refused.values().sum::<u64>() + unanswered;
        self.gauge.refused.store(refused, Ordering::Relaxed);
        self.log.as_mut().map_or(Ok(()), AckLog::flush)
    }
}
