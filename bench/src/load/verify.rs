//! Verify: every acknowledged message must be there, in order, once.
//!
//! Every stream of an acknowledgement log is read back over HTTP from its beginning. A message that
//! was not acknowledged may be there, because its response may have been lost.

use crate::BenchError;
use crate::load::ack_log::{self, Promises};
use crate::load::args::VerifyArgs;
use crate::load::clock::SECOND_NS;
use crate::load::report::verify::{Finding, Findings, VerifyReport};
use crate::load::requests::{self, Mode, RequestPlan, Traffic};
use crate::load::socket::{Sources, check_descriptors, raise_descriptor_limit};
use crate::load::wire::http::Head;
use crate::load::wire::payload::{Format, JsonPieces, Lines, Message};
use crate::load::wire::target::ServerUrl;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicBool;

/// How often the reading of one stream is begun.
const TRIES_MAX: u32 = 20;

/// The most bytes of a body that are held because they are no messages of ours.
const HELD_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long a connection is tried for again when it breaks.
const RECONNECT_TIMEOUT_NS: u64 = 5 * SECOND_NS;

/// Reads back everything that the log names. SIGINT ends it early, which counts as a failure.
///
/// # Errors
///
/// When the log can't be read or the run can't be made. What is not as it should be is in the
/// report; [`VerifyReport::exit_code`] sums it up.
pub fn verify(args: &VerifyArgs, stop: &AtomicBool) -> Result<VerifyReport, BenchError> {
    check_descriptors(raise_descriptor_limit(), u64::from(args.connections))?;
    let target = ServerUrl::parse(&args.url, &args.trust)?;
    let promises = ack_log::read(&args.ack_log)?;
    let streams = promises.len() as u64;
    let producers = promises
        .values()
        .flat_map(|stream| stream.keys())
        .collect::<HashSet<_>>()
        .len();
    let acknowledged = promises
        .values()
        .flat_map(BTreeMap::values)
        .map(|sequences| sequences.len() as u64)
        .sum();
    let lines = (args.connections as usize).min(promises.len()).max(1);
    let mut reading = Reading {
        target: &target,
        format: Format::of(&args.content_type),
        waiting: promises.keys().map(String::as_str).rev().collect(),
        promises: &promises,
        lines: (0..lines).map(|_| None).collect(),
        findings: Findings::default(),
        streams_read: 0,
    };
    let plan = RequestPlan {
        servers: vec![target.address],
        sources: Sources::new(target.address, lines as u32).encrypting(target.tls.as_ref()),
        lines,
        depth: 1,
        rate: None,
        duration_ns: u64::MAX,
        mode: Mode::KeepAlive {
            reconnect_timeout_ns: RECONNECT_TIMEOUT_NS,
        },
        grace_ns: SECOND_NS,
    };
    let outcome = requests::run(plan, &mut reading, stop)?;
    Ok(VerifyReport {
        url: args.url.clone(),
        ack_log: args.ack_log.clone(),
        streams,
        streams_read: reading.streams_read,
        producers: producers as u64,
        acknowledged,
        findings: reading.findings,
        seconds: (outcome.ended_ns - outcome.started_ns) as f64 / SECOND_NS as f64,
        last_error: outcome.last_error,
    })
}

struct Reading<'a> {
    target: &'a ServerUrl,
    format: Format,
    promises: &'a Promises,
    /// Streams that are still to be read.
    waiting: Vec<&'a str>,
    /// What each connection reads.
    lines: Vec<Option<Stream<'a>>>,
    findings: Findings,
    streams_read: u64,
}

/// A stream that is being read.
struct Stream<'a> {
    name: &'a str,
    offset: String,
    next_offset: Option<String>,
    up_to_date: bool,
    success: bool,
    tries: u32,
    json: JsonPieces,
    text: Lines,
    check: Check<'a>,
}

impl<'a> Stream<'a> {
    fn new(name: &'a str, promised: &'a BTreeMap<u64, Vec<u64>>) -> Self {
        Self {
            name,
            offset: "-1".into(),
            next_offset: None,
            up_to_date: false,
            success: false,
            tries: 1,
            json: JsonPieces::default(),
            text: Lines::default(),
            check: Check::new(promised),
        }
    }
}

impl Reading<'_> {
    /// Restarts a stream, or gives it up.
    fn retry(&mut self, line: usize, reason: String) {
        let Some(stream) = self.lines[line].take() else {
            return;
        };
        if stream.tries >= TRIES_MAX {
            *self.findings.unreadable.entry(reason).or_default() += 1;
            return;
        }
        let fresh = Stream::new(stream.name, &self.promises[stream.name]);
        self.lines[line] = Some(Stream {
            tries: stream.tries + 1,
            ..fresh
        });
    }

    fn finish(&mut self, line: usize) {
        if let Some(stream) = self.lines[line].take() {
            self.streams_read += 1;
            stream.check.finish(stream.name, &mut self.findings);
        }
    }
}

impl Traffic for Reading<'_> {
    fn next(&mut self, line: usize, _due_ns: u64, out: &mut Vec<u8>) -> bool {
        if self.lines[line].is_none() {
            let Some(name) = self.waiting.pop() else {
                return false;
            };
            self.lines[line] = Some(Stream::new(name, &self.promises[name]));
        }
        if let Some(stream) = &self.lines[line] {
            self.target.read(stream.name, &stream.offset, out);
        }
        true
    }

    fn head(&mut self, line: usize, head: &Head<'_>) {
        if let Some(stream) = &mut self.lines[line] {
            stream.success = head.status == 200;
            stream.next_offset = head.next_offset.map(str::to_owned);
            stream.up_to_date = head.up_to_date;
        }
    }

    fn body(&mut self, line: usize, piece: &[u8]) {
        let Some(stream) = self.lines[line].as_mut().filter(|stream| stream.success) else {
            return;
        };
        let Stream {
            check, json, text, ..
        } = stream;
        match self.format {
            Format::Json if json.held_bytes() > HELD_BYTES_MAX => stream.success = false,
            Format::Json => json.feed(piece, |message| check.see(message)),
            Format::Line => check.strangers += text.feed(piece, |message| check.see(message)),
        }
    }

    fn done(&mut self, line: usize, status: u16, _now_ns: u64) {
        let Some(stream) = &mut self.lines[line] else {
            return;
        };
        match status {
            200 if !stream.success => {
                stream.tries = TRIES_MAX;
                return self.retry(line, "too much that is no message".into());
            }
            200 => {
                let Stream { check, json, .. } = stream;
                let mut strangers = 0;
                if self.format == Format::Json {
                    strangers = json.finish(|message| check.see(message));
                }
                check.strangers += strangers;
            }
            // A stream that is not there has lost all that was promised.
            404 | 410 => return self.finish(line),
            _ => return self.retry(line, format!("status {status}")),
        }
        match stream.next_offset.take() {
            Some(next) if !stream.up_to_date && next != stream.offset => stream.offset = next,
            Some(_) if stream.up_to_date => self.finish(line),
            _ => self.retry(
                line,
                "an answer that is neither up to date nor goes on".into(),
            ),
        }
    }

    fn lost(&mut self, line: usize) {
        self.retry(line, "connection lost".into());
    }
}

/// What a stream should hold, and what of it was seen.
struct Check<'a> {
    producers: HashMap<u64, Producer<'a>>,
    duplicates: Vec<(u64, u64)>,
    reordered: Vec<(u64, u64)>,
    found: u64,
    extra: HashSet<(u64, u64)>,
    strangers: u64,
}

#[derive(Default)]
struct Producer<'a> {
    promised: &'a [u64],
    seen: Vec<bool>,
    highest: Option<u64>,
}

impl<'a> Check<'a> {
    fn new(promised: &'a BTreeMap<u64, Vec<u64>>) -> Self {
        let producer = |promised: &'a Vec<u64>| Producer {
            promised,
            seen: vec![false; promised.len()],
            highest: None,
        };
        Self {
            producers: promised
                .iter()
                .map(|(&number, all)| (number, producer(all)))
                .collect(),
            duplicates: Vec::new(),
            reordered: Vec::new(),
            found: 0,
            extra: HashSet::new(),
            strangers: 0,
        }
    }

    fn see(&mut self, message: Message) {
        let Message {
            producer: number,
            sequence,
            ..
        } = message;
        let producer = self.producers.entry(number).or_default();
        let news = match producer.promised.binary_search(&sequence) {
            Ok(index) => {
                let news = !std::mem::replace(&mut producer.seen[index], true);
                self.found += u64::from(news);
                news
            }
            Err(_) => self.extra.insert((number, sequence)),
        };
        if !news {
            self.duplicates.push((number, sequence));
        } else if producer.highest.is_some_and(|highest| sequence < highest) {
            self.reordered.push((number, sequence));
        }
        producer.highest = producer.highest.max(Some(sequence));
    }

    fn finish(self, stream: &str, findings: &mut Findings) {
        findings.found += self.found;
        findings.unacknowledged += self.extra.len() as u64;
        findings.strangers += self.strangers;
        let finding = |(producer, sequence)| Finding {
            stream: stream.to_owned(),
            producer,
            sequence,
        };
        self.duplicates
            .into_iter()
            .for_each(|one| findings.duplicates.add(finding(one)));
        self.reordered
            .into_iter()
            .for_each(|one| findings.reordered.add(finding(one)));
        // In the order of producers, so that the examples of two checks are the same.
        let mut producers: Vec<_> = self.producers.into_iter().collect();
        producers.sort_unstable_by_key(|(number, _)| *number);
        for (number, producer) in producers {
            let both = producer.promised.iter().zip(&producer.seen);
            for (&sequence, _) in both.filter(|(_, seen)| !**seen) {
                findings.missing.add(finding((number, sequence)));
            }
        }
    }
}
