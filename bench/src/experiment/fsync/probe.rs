//! Latencies at the network: pings, and live deliveries to one subscriber, each with the times of the threads on its way.
//!
//! The publishers of what is delivered take turns, so that the pace holds although each waits for its acknowledgement, on a
//! slow disk too: else a stall would hold up its own measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::load::wire::sse::{Event, EventData};

use super::run_queue::{Threads, Times};
use crate::BenchError;
use crate::client::{HttpClient, Subscription};
use crate::experiment::serving::Serving;

/// How long something took, and when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// When, in nanoseconds since the probes were started.
    pub(super) at_ns: u64,
    /// How long, in nanoseconds.
    pub(super) took_ns: u64,
    /// The times of the threads on its way: the shard of a ping's connection and the client, or the shards of a
    /// delivery's publisher and subscriber, and the subscriber.
    pub(super) threads: Times,
}

/// The readings of all probes.
#[derive(Debug, Default)]
pub(super) struct Readings {
    /// From the writing of a HEAD of a stream's tail to its answer.
    pub(super) pings: Vec<Reading>,
    /// From the writing of an append to the arrival of its event.
    pub(super) deliveries: Vec<Reading>,
    /// Appends that were acknowledged.
    pub(super) published: u64,
}

/// Probes at work, each on a connection that it keeps.
pub(super) struct Probes {
    shared: Arc<Shared>,
    ping: JoinHandle<Result<Vec<Reading>, BenchError>>,
    publishers: Vec<JoinHandle<Result<u64, BenchError>>>,
    subscriber: JoinHandle<Result<Vec<Reading>, BenchError>>,
}

struct Shared {
    begun: Instant,
    /// No more pings and appends are to be sent.
    stop: AtomicBool,
    /// How many events the subscriber is to wait for; `u64::MAX` until it is known.
    expected: AtomicU64,
    /// When the ping and the delivery began that ended last, in the time of the readings.
    last_ping_ns: AtomicU64,
    last_delivery_ns: AtomicU64,
    path: String,
    shards: Threads,
    /// The shard of the subscriber's connection.
    subscriber_shard: usize,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The times of the shards on the way of a delivery.
    fn times_from(&self, publisher_shard: usize) -> Times {
        let mut times = self.shards.times_of(publisher_shard);
        if publisher_shard != self.subscriber_shard {
            times += self.shards.times_of(self.subscriber_shard);
        }
        times
    }
}

impl Probes {
    /// Makes the stream of these probes, named by `number`, and starts them.
    pub(super) fn start(server: &Serving, number: usize) -> Result<Self, BenchError> {
        let shards = Threads::named(server.pid(), SHARDS)?;
        let server = server.address();
        let path = format!("/v1/stream/probe-{number}");
        HttpClient::connect(server)?.succeed("PUT", &path, b"")?;
        // A connection, and its shard.
        let connect = || {
            let mut client = HttpClient::connect(server)?;
            let mut ask = || client.succeed("HEAD", &path, b"").map(drop);
            let shard = shards.busiest(|| (0..TRIES).try_for_each(|_| ask()))?;
            Ok::<_, BenchError>((client, shard))
        };
        let (events, subscriber_shard) = connect()?;
        let (client, ping_shard) = connect()?;
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|_| connect())
            .collect::<Result<_, _>>()?;
        let events = events.subscribe(&format!("{path}?offset=-1&live=sse"))?;
        let shared = Arc::new(Shared {
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            expected: AtomicU64::new(u64::MAX),
            last_ping_ns: AtomicU64::new(0),
            last_delivery_ns: AtomicU64::new(0),
            path,
            shards,
            subscriber_shard,
        });
        let publisher = |(turn, (client, shard))| {
            spawn("publisher", &shared, move |shared| {
                publish(client, shard, turn, shared)
            })
        };
        Ok(Self {
            publishers: (0..)
                .zip(publishers)
                .map(publisher)
                .collect::<Result<_, _>>()?,
            ping: spawn("ping", &shared, move |shared| {
                ping(client, ping_shard, shared)
            })?,
            subscriber: spawn("subscriber", &shared, move |shared| follow(events, shared))?,
            shared,
        })
    }

    /// Now, in the time of the readings.
    pub(super) fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Whether there is a reading of each kind that began at that time or later.
    pub(super) fn have_read_since(&self, at_ns: u64) -> bool {
        let shared = &self.shared;
        let last = [&shared.last_ping_ns, &shared.last_delivery_ns];
        last.iter()
            .all(|last| last.load(Ordering::Relaxed) >= at_ns)
    }

    /// Ends the probes. Whatever was published is waited for, for a while.
    pub(super) fn end(self) -> Result<Readings, BenchError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let pings = joined(self.ping, "ping");
        let published = self
            .publishers
            .into_iter()
            .map(|publisher| joined(publisher, "publisher"))
            .sum::<Result<u64, BenchError>>();
        // Also when a publisher has failed, so that the subscriber ends.
        let expected = *published.as_ref().unwrap_or(&0);
        self.shared.expected.store(expected, Ordering::Relaxed);
        let deliveries = joined(self.subscriber, "subscriber");
        Ok(Readings {
            pings: pings?,
            published: published?,
            deliveries: deliveries?,
        })
    }
}

fn spawn<R: Send + 'static>(
    name: &str,
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> R + Send + 'static,
) -> Result<JoinHandle<R>, BenchError> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || work(&shared))
        .map_err(BenchError::system("start a thread"))
}

fn joined<R>(
    thread: JoinHandle<Result<R, BenchError>>,
    name: &'static str,
) -> Result<R, BenchError> {
    thread.join().map_err(|_| BenchError::Thread(name))?
}

/// Asks for the tail at a steady pace.
fn ping(mut client: HttpClient, shard: usize, shared: &Shared) -> Result<Vec<Reading>, BenchError> {
    let own = Threads::this_one()?;
    let times = || {
        let mut times = shared.shards.times_of(shard);
        times += own.times();
        times
    };
    let mut readings = Vec::new();
    let mut pace = Pace::new(shared.now_ns(), PING_EVERY);
    let (mut before, mut last) = (times(), Times::default());
    while !shared.is_stopped() {
        let late_since_ns = pace.wait(shared);
        // A late ping was due while the ping before it was on its way, a pace after that one was due. Each of the two threads
        // waited for at most a pace until then, so what is above two falls into this ping.
        let mut threads = last.above(2 * PING_EVERY.as_nanos() as u64);
        if late_since_ns.is_none() {
            (before, threads) = (times(), Times::default());
        }
        let at_ns = late_since_ns.unwrap_or_else(|| shared.now_ns());
        client.succeed("HEAD", &shared.path, b"")?;
        let now = times();
        threads += now - before;
        readings.push(Reading {
            at_ns,
            took_ns: shared.now_ns() - at_ns,
            threads,
        });
        (before, last) = (now, threads);
        shared.last_ping_ns.store(at_ns, Ordering::Relaxed);
    }
    Ok(readings)
}

/// Publishes at a steady pace: the time, its connection's shard, and the times of the shards on the way. `turn` says which of
/// the publishers it is: each takes its turn.
fn publish(
    mut client: HttpClient,
    shard: usize,
    turn: u32,
    shared: &Shared,
) -> Result<u64, BenchError> {
    let mut published = 0;
    let first_ns = shared.now_ns() + (PUBLISH_EVERY * turn).as_nanos() as u64;
    let mut pace = Pace::new(first_ns, PUBLISH_EVERY * PUBLISHERS);
    loop {
        let late_since_ns = pace.wait(shared);
        if shared.is_stopped() {
            return Ok(published);
        }
        let Times { run_ns, wait_ns } = shared.times_from(shard);
        let at_ns = late_since_ns.unwrap_or_else(|| shared.now_ns());
        let record = format!("{at_ns} {shard} {run_ns} {wait_ns}\n");
        client.succeed("POST", &shared.path, record.as_bytes())?;
        published += 1;
    }
}

/// Says when the next one of a row is to be sent, and waits until then.
struct Pace {
    due_ns: u64,
    every_ns: u64,
}

impl Pace {
    fn new(first_ns: u64, every: Duration) -> Self {
        Self {
            due_ns: first_ns,
            every_ns: every.as_nanos() as u64,
        }
    }

    /// Waits until the next request is due. Returns the due time of a request that is late because the previous one took long:
    /// its latency counts from then, so that a stall counts for every request that it delays. A request that is late because
    /// this thread overslept counts from its writing.
    fn wait(&mut self, shared: &Shared) -> Option<u64> {
        let due_ns = self.due_ns;
        self.due_ns += self.every_ns;
        let now_ns = shared.now_ns();
        if now_ns >= due_ns {
            return Some(due_ns);
        }
        std::thread::sleep(Duration::from_nanos(due_ns - now_ns));
        None
    }
}

/// Notes every delivery until all that was published is here, or nothing more comes.
fn follow(mut events: Subscription, shared: &Shared) -> Result<Vec<Reading>, BenchError> {
    let own = Threads::this_one()?;
    let mut own_before = own.times();
    let mut readings = Vec::new();
    let mut quiet_since = Instant::now();
    loop {
        let expected = shared.expected.load(Ordering::Relaxed);
        let given_up = expected != u64::MAX && quiet_since.elapsed() > DRAIN_WAIT;
        if readings.len() as u64 >= expected || given_up {
            return Ok(readings);
        }
        let mut arrived = Vec::new();
        let any = events.events(LOOK, |event, now| {
            let now_ns = (now - shared.begun).as_nanos() as u64;
            records(event, |record| arrived.push((record, now_ns)));
        })?;
        let own_now = own.times();
        for ((at_ns, shard, before), now_ns) in arrived {
            let mut threads = shared.times_from(shard) - before;
            threads += own_now - own_before;
            readings.push(Reading {
                at_ns,
                took_ns: now_ns.saturating_sub(at_ns),
                threads,
            });
            shared.last_delivery_ns.store(at_ns, Ordering::Relaxed);
        }
        own_before = own_now;
        if any {
            quiet_since = Instant::now();
        }
    }
}

/// The records that an event carries, each on a line of its own.
fn records(event: Event<'_>, mut each: impl FnMut((u64, usize, Times))) {
    if event.kind != b"data" {
        return;
    }
    let mut line = |line: &[u8]| {
        let text = std::str::from_utf8(line).unwrap_or_default();
        let numbers: Vec<u64> = text.split(' ').filter_map(|n| n.parse().ok()).collect();
        if let [at_ns, shard, run_ns, wait_ns] = numbers[..] {
            each((at_ns, shard as usize, Times { run_ns, wait_ns }));
        }
    };
    match event.data {
        EventData::None => {}
        EventData::Line(one) => line(one),
        EventData::Lines(block) => block.data().for_each(line),
    }
}

/// How the names of the server's threads begin.
pub(super) const SHARDS: &str = "shard-";
pub(super) const SEQUENCER: &str = "sequencer";

/// Requests that show which shard has a connection.
const TRIES: u32 = 50;

/// The pace of pings, and of appends in all.
const PING_EVERY: Duration = Duration::from_millis(1);
const PUBLISH_EVERY: Duration = Duration::from_millis(5);

/// Publishers that take turns: the turn of each comes every 80 ms, longer than an append takes on a slow disk.
const PUBLISHERS: u32 = 16;

/// How often the subscriber looks whether it may end.
const LOOK: Duration = Duration::from_millis(50);

/// How long nothing may come before what is missing counts as lost.
const DRAIN_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::wire::sse::Splitter;

    #[test]
    fn every_record_of_an_event_is_read() {
        let mut found = Vec::new();
        let mut splitter = Splitter::default();
        let text = b"event: data\ndata:7 0 1 2\ndata:\n\n\
            event: control\ndata:{\"streamNextOffset\":\"1\"}\n\n\
            event: data\ndata:8 1 3 4\ndata:9 1 5 6\ndata:\n\n";
        splitter
            .feed(text, |event| {
                records(event, |(at_ns, shard, threads)| {
                    found.push((at_ns, shard, threads.run_ns, threads.wait_ns));
                });
                Ok(())
            })
            .unwrap();
        assert_eq!(found, [(7, 0, 1, 2), (8, 1, 3, 4), (9, 1, 5, 6)]);
    }
}
