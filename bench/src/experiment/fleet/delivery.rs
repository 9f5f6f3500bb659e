//! How long a record takes to a subscriber at another node than its publisher's.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::experiment::lab::Lab;
use crate::load::clock::monotonic_ns;
use crate::load::wire::sse::EventData;
use crate::load::{Latencies, Percentiles};
use crate::{BenchError, HttpClient};

/// Appends records at one server, at a steady pace, and receives them at another. Returns the time from the writing of an
/// append to the arrival of its event.
pub(super) fn measure(
    lab: &Lab<'_>,
    (publisher, subscriber): (SocketAddr, SocketAddr),
    stream: &str,
) -> Result<Percentiles, BenchError> {
    let path = format!("/v1/stream/{stream}");
    let mut publisher = HttpClient::connect(publisher)?;
    publisher.succeed("PUT", &path, b"")?;
    let live = format!("{path}?offset=-1&live=sse");
    let mut events = HttpClient::connect(subscriber)?.subscribe(&live)?;
    let records = lab.scaled(RECORDS, RECORDS_MIN);
    let receive = move || {
        let mut latencies = Latencies::new();
        let mut quiet = Instant::now();
        while latencies.count() < records && quiet.elapsed() < QUIET {
            events.events(LOOK, |event, _| {
                let now_ns = monotonic_ns();
                // An event has all records that were there, each a line.
                let mut take = |line: &[u8]| {
                    let sent_ns = std::str::from_utf8(line).ok().and_then(|n| n.parse().ok());
                    if let Some(sent_ns) = sent_ns {
                        latencies.record(now_ns.saturating_sub(sent_ns));
                        quiet = Instant::now();
                    }
                };
                match event.data {
                    EventData::None => {}
                    EventData::Line(line) => take(line),
                    EventData::Lines(block) => block.data().for_each(take),
                }
            })?;
        }
        Ok(latencies)
    };
    let latencies = std::thread::scope(|scope| {
        let receiver = scope.spawn(receive);
        let mut publish = || {
            for _ in 0..records {
                lab.sleep(PACE)?;
                let record = format!("{}\n", monotonic_ns());
                publisher.succeed("POST", &path, record.as_bytes())?;
            }
            Ok::<_, BenchError>(())
        };
        let published = publish();
        let received = receiver.join();
        published.and(received.unwrap_or(Err(BenchError::Thread("subscriber"))))
    })?;
    match latencies.percentiles() {
        Some(percentiles) if percentiles.count == records => Ok(percentiles),
        _ => Err(BenchError::Server(format!(
            "delivered {} of {records} records",
            latencies.count()
        ))),
    }
}

const RECORDS: u64 = 500;
const RECORDS_MIN: u64 = 20;

/// The time between two appends.
const PACE: Duration = Duration::from_millis(10);

/// After so long without a record the rest is missing.
const QUIET: Duration = Duration::from_secs(20);

const LOOK: Duration = Duration::from_millis(100);
