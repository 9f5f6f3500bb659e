//! Latencies at the network: pings, and live deliveries to one subscriber.
//!
//! The publishers of what is delivered take turns, so that the pace holds although each waits for its acknowledgement, on a
//! slow disk too: else a stall would hold up its own measurement.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::load::wire::sse::{Event, EventData};

use crate::BenchError;
use crate::client::{HttpClient, Subscription};

/// How long something took, and when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// When, in nanoseconds since the probes were started.
    pub(super) at_ns: u64,
    /// How long, in nanoseconds.
    pub(super) took_ns: u64,
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
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Probes {
    /// Makes the probes' stream and starts them.
    pub(super) fn start(server: SocketAddr) -> Result<Self, BenchError> {
        let mut client = HttpClient::connect(server)?;
        client.succeed("PUT", PATH, b"")?;
        let shared = Arc::new(Shared {
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            expected: AtomicU64::new(u64::MAX),
            last_ping_ns: AtomicU64::new(0),
            last_delivery_ns: AtomicU64::new(0),
        });
        let live = format!("{PATH}?offset=-1&live=sse");
        let events = HttpClient::connect(server)?.subscribe(&live)?;
        let publishers = (0..PUBLISHERS)
            .map(|turn| {
                let client = HttpClient::connect(server)?;
                spawn("publisher", &shared, move |shared| {
                    publish(client, turn, shared)
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            ping: spawn("ping", &shared, move |shared| ping(client, shared))?,
            publishers,
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
fn ping(mut client: HttpClient, shared: &Shared) -> Result<Vec<Reading>, BenchError> {
    let mut readings = Vec::new();
    let mut pace = Pace::new(shared.now_ns(), PING_EVERY);
    while !shared.is_stopped() {
        let at_ns = pace.next(shared);
        client.succeed("HEAD", PATH, b"")?;
        readings.push(Reading {
            at_ns,
            took_ns: shared.now_ns() - at_ns,
        });
        shared.last_ping_ns.store(at_ns, Ordering::Relaxed);
    }
    Ok(readings)
}

/// Publishes the time at a steady pace. `turn` says which of the publishers it is: each takes its turn.
fn publish(mut client: HttpClient, turn: u32, shared: &Shared) -> Result<u64, BenchError> {
    let mut published = 0;
    let first_ns = shared.now_ns() + (PUBLISH_EVERY * turn).as_nanos() as u64;
    let mut pace = Pace::new(first_ns, PUBLISH_EVERY * PUBLISHERS);
    loop {
        let at_ns = pace.next(shared);
        if shared.is_stopped() {
            return Ok(published);
        }
        client.succeed("POST", PATH, format!("{at_ns:020}\n").as_bytes())?;
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

    /// The time from which the next one counts. What is late because the one before it was counts from when it was due, so
    /// that a stall is not one long reading but as many as it has held up; what this thread's own sleep has made late
    /// counts from when it is really sent.
    fn next(&mut self, shared: &Shared) -> u64 {
        let due_ns = self.due_ns;
        self.due_ns += self.every_ns;
        let now_ns = shared.now_ns();
        if now_ns >= due_ns {
            return due_ns;
        }
        std::thread::sleep(Duration::from_nanos(due_ns - now_ns));
        shared.now_ns()
    }
}

/// Notes every delivery until all that was published is here, or nothing more comes.
fn follow(mut events: Subscription, shared: &Shared) -> Result<Vec<Reading>, BenchError> {
    let mut readings = Vec::new();
    let mut quiet_since = Instant::now();
    loop {
        let expected = shared.expected.load(Ordering::Relaxed);
        let given_up = expected != u64::MAX && quiet_since.elapsed() > DRAIN_WAIT;
        if readings.len() as u64 >= expected || given_up {
            return Ok(readings);
        }
        let any = events.events(LOOK, |event, now| {
            let now_ns = (now - shared.begun).as_nanos() as u64;
            times(event, |at_ns| {
                readings.push(Reading {
                    at_ns,
                    took_ns: now_ns.saturating_sub(at_ns),
                });
                shared.last_delivery_ns.store(at_ns, Ordering::Relaxed);
            });
        })?;
        if any {
            quiet_since = Instant::now();
        }
    }
}

/// The times that an event carries: one for each record, each on a line of its own.
fn times(event: Event<'_>, mut each: impl FnMut(u64)) {
    if event.kind != b"data" {
        return;
    }
    let mut line = |line: &[u8]| {
        let text = std::str::from_utf8(line).ok();
        if let Some(at_ns) = text.and_then(|text| text.parse().ok()) {
            each(at_ns);
        }
    };
    match event.data {
        EventData::None => {}
        EventData::Line(one) => line(one),
        EventData::Lines(block) => block.data().for_each(line),
    }
}

/// The probes' stream.
const PATH: &str = "/v1/stream/probe";

/// The pace of pings, and of appends in all.
const PING_EVERY: Duration = Duration::from_millis(2);
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
    fn every_record_of_an_event_has_its_time() {
        let mut found = Vec::new();
        let mut splitter = Splitter::default();
        let text = b"event: data\ndata:00000000000000000007\ndata:\n\n\
            event: control\ndata:{\"streamNextOffset\":\"1\"}\n\n\
            event: data\ndata:00000000000000000008\ndata:00000000000000000009\ndata:\n\n";
        splitter
            .feed(text, |event| {
                times(event, |at_ns| found.push(at_ns));
                Ok(())
            })
            .unwrap();
        assert_eq!(found, [7, 8, 9]);
    }
}
