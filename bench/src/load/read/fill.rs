//! Appends a number of bodies to a stream over several connections at a time.

use crate::BenchError;
use crate::load::clock::SECOND_NS;
use crate::load::create;
use crate::load::requests::{self, Mode, RequestPlan, Traffic};
use crate::load::socket::Sources;
use crate::load::wire::target::{Requests, ServerUrl, Streams};
use std::sync::atomic::{AtomicBool, Ordering};

/// The content type of the streams.
const CONTENT_TYPE: &str = "application/octet-stream";

/// Connections, but so few that not more than `IN_FLIGHT_BYTES_MAX` are on their way.
const CONNECTIONS_MAX: u64 = 64;
const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;

/// Creates the stream `name` and appends `count` bodies of `size` bytes, which `write` makes from their numbers, in any order.
pub(super) fn fill(
    server: &ServerUrl,
    name: &str,
    (count, size): (u64, usize),
    write: impl Fn(u64, &mut Vec<u8>),
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    let requests = Requests::new(server, &Streams::one(name), CONTENT_TYPE)?;
    create::create(server, &requests, 1, stop)?;
    let lines = (IN_FLIGHT_BYTES_MAX / size as u64).clamp(1, CONNECTIONS_MAX.min(count)) as usize;
    let mut appends = Appends {
        requests: &requests,
        write,
        count,
        next: 0,
        again: Vec::new(),
        in_flight: vec![0; lines],
        acknowledged: 0,
        failure: None,
        body: Vec::with_capacity(size),
    };
    let plan = RequestPlan {
        servers: vec![server.address],
        sources: Sources::new(server.address, lines as u32),
        lines,
        depth: 1,
        rate: None,
        duration_ns: u64::MAX,
        mode: Mode::KeepAlive {
            reconnect_timeout_ns: 3 * SECOND_NS,
        },
        grace_ns: SECOND_NS,
    };
    let outcome = requests::run(plan, &mut appends, stop)?;
    if stop.load(Ordering::Relaxed) {
        return Err(BenchError::Interrupted);
    }
    let (acknowledged, failure) = (appends.acknowledged, appends.failure);
    if acknowledged < count {
        return Err(BenchError::Refused {
            refused: count - acknowledged,
            records: count,
            first: failure
                .or(outcome.last_error)
                .unwrap_or_else(|| "none".into()),
        });
    }
    Ok(())
}

struct Appends<'a, W> {
    requests: &'a Requests,
    write: W,
    count: u64,
    next: u64,
    /// Bodies for which the server had no room.
    again: Vec<u64>,
    /// What each connection waits for.
    in_flight: Vec<u64>,
    acknowledged: u64,
    failure: Option<String>,
    body: Vec<u8>,
}

impl<W: Fn(u64, &mut Vec<u8>)> Traffic for Appends<'_, W> {
    fn next(&mut self, line: usize, _due_ns: u64, out: &mut Vec<u8>) -> bool {
        let number = match self.again.pop() {
            Some(number) => number,
            None if self.next < self.count && self.failure.is_none() => {
                self.next += 1;
                self.next - 1
            }
            None => return false,
        };
        self.in_flight[line] = number;
        self.body.clear();
        (self.write)(number, &mut self.body);
        self.requests.append(0, &self.body, out);
        true
    }

    fn done(&mut self, line: usize, status: u16, _now_ns: u64) {
        match status {
            200..300 => self.acknowledged += 1,
            429 | 503 => self.again.push(self.in_flight[line]),
            _ => {
                self.failure.get_or_insert(format!("status {status}"));
            }
        }
    }

    /// Nothing says whether the append was made, and a second one would be a record too many.
    fn lost(&mut self, _line: usize) {
        self.failure.get_or_insert("connection lost".into());
    }
}
