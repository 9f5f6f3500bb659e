//! Creates the streams of a run, many at a time.

use crate::BenchError;
use crate::load::clock::SECOND_NS;
use crate::load::requests::{self, Mode, RequestPlan, Traffic};
use crate::load::socket::Sources;
use crate::load::wire::target::{Requests, ServerUrl};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

/// Over how many connections streams are created.
const LINES: usize = 32;

/// How many creations are in flight on each.
const DEPTH: usize = 16;

/// How often the creation of one stream is tried: a server may be short of room for a moment, or
/// close a connection, and creating is idempotent.
const TRIES_MAX: u8 = 100;

/// Creates streams 0 to `count` - 1. Those that exist already with the same content type are fine.
///
/// Returns how long it took, in seconds.
pub(crate) fn create(
    target: &ServerUrl,
    requests: &Requests,
    count: u32,
    stop: &AtomicBool,
) -> Result<f64, BenchError> {
    let lines = LINES.min(count as usize).max(1);
    let mut creation = Creation {
        requests,
        count,
        next: 0,
        again: Vec::new(),
        in_flight: vec![VecDeque::new(); lines],
        created: 0,
        failure: None,
    };
    let plan = RequestPlan {
        servers: vec![target.address],
        sources: Sources::new(target.address, lines as u32).encrypting(target.tls.as_ref()),
        lines,
        depth: DEPTH,
        rate: None,
        duration_ns: u64::MAX,
        mode: Mode::KeepAlive {
            reconnect_timeout_ns: 3 * SECOND_NS,
        },
        grace_ns: SECOND_NS,
    };
    let outcome = requests::run(plan, &mut creation, stop)?;
    let stopped = stop.load(std::sync::atomic::Ordering::Relaxed);
    if creation.created < u64::from(count) && !stopped {
        return Err(BenchError::Create {
            failed: u64::from(count) - creation.created,
            asked: u64::from(count),
            first: creation
                .failure
                .or(outcome.last_error)
                .unwrap_or_else(|| "none".into()),
        });
    }
    Ok((outcome.ended_ns - outcome.started_ns) as f64 / SECOND_NS as f64)
}

struct Creation<'a> {
    requests: &'a Requests,
    count: u32,
    next: u32,
    /// Streams to be tried again, each with how often it was tried.
    again: Vec<(u32, u8)>,
    in_flight: Vec<VecDeque<(u32, u8)>>,
    created: u64,
    failure: Option<String>,
}

impl Creation<'_> {
    fn fail(&mut self, (stream, tries): (u32, u8), reason: String) {
        if tries < TRIES_MAX {
            self.again.push((stream, tries + 1));
        } else {
            self.failure.get_or_insert(reason);
        }
    }
}

impl Traffic for Creation<'_> {
    fn next(&mut self, line: usize, _due_ns: u64, out: &mut Vec<u8>) -> bool {
        let one = match self.again.pop() {
            Some(one) => one,
            None if self.next < self.count => {
                self.next += 1;
                (self.next - 1, 1)
            }
            None => return false,
        };
        self.requests.create(one.0, out);
        self.in_flight[line].push_back(one);
        true
    }

    fn done(&mut self, line: usize, status: u16, _now_ns: u64) {
        let Some(one) = self.in_flight[line].pop_front() else {
            return;
        };
        match status {
            200..300 => self.created += 1,
            429 | 500..600 => self.fail(one, format!("status {status}")),
            _ => {
                self.failure.get_or_insert(format!("status {status}"));
            }
        }
    }

    fn lost(&mut self, line: usize) {
        for one in std::mem::take(&mut self.in_flight[line]) {
            self.fail(one, "connection lost".into());
        }
    }
}
