//! The readers of all answers: which tokens each has got, and how soon.

use super::plan::{AnswersPlan, READERS};
use crate::load::event_source::Audience;
use crate::load::latency::Latencies;
use crate::load::wire::payload::{Format, Message, parse_line, scan_json};
use crate::load::wire::sse::EventData;
use serde::Serialize;

/// Tokens that readers did not get as they should.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TokenFaults {
    /// Tokens that were acknowledged to their producer and that a reader did not get, or got behind a later one.
    pub missing: u64,
    /// Tokens that a reader got again, or behind a later one.
    pub repeated: u64,
    /// Values that are no tokens of the reader's answer.
    pub strangers: u64,
    /// Readers that did not learn of the end of their answer.
    pub without_end: u64,
}

/// The readers. Reader `n` follows answer `n % answers`: the first ones are always there, those behind them are cut in the middle
/// three fifths of the answer, and the last ones join in its middle fifth.
#[derive(Debug)]
pub(super) struct TokenReaders<'a> {
    plan: &'a AnswersPlan,
    readers: Vec<Progress>,
    /// The lines of an event.
    lines: Vec<u8>,
    /// Readers that are to join now.
    pub(super) joins: Vec<u32>,
    /// Tokens that arrived.
    pub(super) delivered: u64,
    /// Of these, the ones that had been sent before their reader was there.
    pub(super) caught_up: u64,
    /// The latencies of all others.
    pub(super) live: Latencies,
    /// How long it took readers from their attempt to connect to their first event: at the beginning, later.
    pub(super) first_events: Latencies,
    pub(super) later_first_events: Latencies,
    /// When the last token arrived.
    pub(super) last_ns: u64,
    pub(super) faults: TokenFaults,
}

/// How far a reader is.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    /// The number of the next token.
    next: u64,
    /// Since when it has been there.
    since_ns: u64,
    /// It has been cut, or has had another one join.
    has_turned: bool,
}

impl<'a> TokenReaders<'a> {
    pub(super) fn new(plan: &'a AnswersPlan) -> Self {
        Self {
            readers: vec![Progress::default(); (plan.answers * READERS) as usize],
            lines: Vec::new(),
            joins: Vec::new(),
            delivered: 0,
            caught_up: 0,
            live: Latencies::new(),
            first_events: Latencies::new(),
            later_first_events: Latencies::new(),
            last_ns: 0,
            faults: TokenFaults::default(),
            plan,
        }
    }

    /// Counts what has not come of the tokens that each answer has.
    pub(super) fn settle(&mut self, acknowledged: &[u32]) {
        for (reader, progress) in self.readers.iter_mut().enumerate() {
            let tokens = u64::from(acknowledged[reader % acknowledged.len()]);
            self.faults.missing += tokens.saturating_sub(progress.next);
            progress.next = progress.next.max(tokens);
        }
    }

    /// Whether a reader has come so far in its answer: `from`, and up to `length` more the higher the answer's number is.
    fn has_reached(&self, reader: u32, from: f64, length: f64) -> bool {
        let AnswersPlan {
            answers, tokens, ..
        } = *self.plan;
        let share = f64::from(reader % answers) / f64::from(answers);
        let at = f64::from(tokens) * (from + length * share);
        self.readers[reader as usize].next as f64 > at
    }

    fn token(&mut self, reader: u32, token: &Message, now_ns: u64) {
        let progress = &mut self.readers[reader as usize];
        if token.producer != u64::from(reader % self.plan.answers) {
            self.faults.strangers += 1;
            return;
        }
        if token.sequence < progress.next {
            self.faults.repeated += 1;
            return;
        }
        self.faults.missing += token.sequence - progress.next;
        progress.next = token.sequence + 1;
        self.delivered += 1;
        self.last_ns = now_ns;
        if token.sent_ns < progress.since_ns {
            self.caught_up += 1;
        } else {
            self.live.record(now_ns.saturating_sub(token.sent_ns));
        }
        let answers = self.plan.answers;
        if reader < answers && !progress.has_turned && self.has_reached(reader, 0.4, 0.2) {
            self.readers[reader as usize].has_turned = true;
            self.joins.push(reader + (READERS - 1) * answers);
        }
    }

    /// Takes one line of data, or all lines of an event of JSON.
    fn content(&mut self, reader: u32, content: &[u8], now_ns: u64) {
        let strangers = match self.plan.format {
            Format::Json => scan_json(content, |token| self.token(reader, &token, now_ns)),
            // The line end of a token is the end of an event's line: behind it there is an empty one.
            Format::Line if content.is_empty() => 0,
            Format::Line => match parse_line(content) {
                Some(token) => {
                    self.token(reader, &token, now_ns);
                    0
                }
                None => 1,
            },
        };
        self.faults.strangers += strangers;
    }
}

impl Audience for TokenReaders<'_> {
    fn target(&self, client: u32, offset: Option<&[u8]>, out: &mut Vec<u8>) {
        let offset = offset.and_then(|offset| std::str::from_utf8(offset).ok());
        let answer = client % self.plan.answers;
        self.plan
            .requests
            .read_target(answer, offset.unwrap_or("-1"), "&live=sse", out);
    }

    fn subscribed(&mut self, client: u32, took_ns: u64, now_ns: u64) {
        let progress = &mut self.readers[client as usize];
        progress.since_ns = now_ns;
        let is_first = client < self.plan.answers * (READERS - 1) && progress.next == 0;
        match is_first {
            true => self.first_events.record(took_ns),
            false => self.later_first_events.record(took_ns),
        }
    }

    fn hangs_up(&mut self, client: u32) -> bool {
        let is_cut = client / self.plan.answers == 1;
        let progress = &self.readers[client as usize];
        let hangs_up = is_cut && !progress.has_turned && self.has_reached(client, 0.2, 0.6);
        self.readers[client as usize].has_turned |= hangs_up;
        hangs_up
    }

    fn record(&mut self, client: u32, data: EventData<'_>, now_ns: u64) {
        match (data, self.plan.format) {
            (EventData::None, _) => {}
            (EventData::Line(line), _) => self.content(client, line, now_ns),
            (EventData::Lines(block), Format::Line) => {
                block
                    .data()
                    .for_each(|line| self.content(client, line, now_ns));
            }
            (EventData::Lines(block), Format::Json) => {
                // Taken out for the time being, because the rest is needed for the tokens.
                let mut lines = std::mem::take(&mut self.lines);
                lines.clear();
                for line in block.data() {
                    lines.extend_from_slice(line);
                    lines.push(b'\n');
                }
                self.content(client, &lines, now_ns);
                self.lines = lines;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::args::TrustArgs;
    use crate::load::wire::sse::Splitter;
    use crate::load::wire::target::{Requests, ServerUrl, Streams};

    fn plan(content_type: &str) -> AnswersPlan {
        let server = ServerUrl::parse("http://127.0.0.1:1", &TrustArgs::default()).unwrap();
        AnswersPlan {
            requests: Requests::new(&server, &Streams::numbered("a", 2), content_type).unwrap(),
            answers: 2,
            tokens: 9,
            batch: 1,
            format: Format::of(content_type),
            size: 0,
            connections: 1,
            appends_per_second: 1.0,
            duration_ns: 1,
            drain_ns: 1,
        }
    }

    /// Has a reader receive tokens of an answer, each sent at 100, in one event at 150.
    fn receive(readers: &mut TokenReaders<'_>, reader: u32, answer: u64, tokens: &[u64]) {
        let mut content = Vec::new();
        for (place, &sequence) in tokens.iter().enumerate() {
            if readers.plan.format == Format::Json {
                content.push(if place == 0 { b'[' } else { b',' });
            }
            let token = Message {
                producer: answer,
                sequence,
                sent_ns: 100,
            };
            readers.plan.format.write(&token, 0, &mut content);
        }
        if readers.plan.format == Format::Json {
            content.push(b']');
        }
        let content = String::from_utf8(content).unwrap();
        let lines: String = content
            .split('\n')
            .map(|line| format!("data: {line}\n"))
            .collect();
        let mut splitter = Splitter::default();
        let fed = splitter.feed(format!("event: data\n{lines}\n").as_bytes(), |event| {
            readers.record(reader, event.data, 150);
            Ok(())
        });
        fed.unwrap();
    }

    #[test]
    fn each_fault_is_counted_in_both_formats() {
        for content_type in ["application/json", "text/plain"] {
            let plan = plan(content_type);
            let mut readers = TokenReaders::new(&plan);
            receive(&mut readers, 0, 0, &[0, 1, 2]);
            receive(&mut readers, 0, 0, &[2]);
            receive(&mut readers, 0, 0, &[5, 4]);
            receive(&mut readers, 0, 1, &[6]);
            let faults = TokenFaults {
                missing: 2,
                repeated: 2,
                strangers: 1,
                without_end: 0,
            };
            assert_eq!(readers.faults, faults, "{content_type}");
            assert_eq!(readers.delivered, 4);
            // Of reader 0 three more, of the two others of the answer all, and of answer 1 none.
            readers.settle(&[9, 0]);
            assert_eq!(readers.faults.missing, 2 + 3 + 9 + 9);
        }
    }

    #[test]
    fn only_tokens_that_were_sent_to_a_reader_that_was_there_have_a_latency() {
        let plan = plan("application/json");
        let mut readers = TokenReaders::new(&plan);
        readers.subscribed(1, 7, 50);
        receive(&mut readers, 1, 1, &[0, 1]);
        assert_eq!((readers.live.count(), readers.caught_up), (2, 0));
        assert_eq!(readers.live.percentiles().unwrap().max_us, 0.05);
        readers.subscribed(1, 7, 120);
        receive(&mut readers, 1, 1, &[2]);
        readers.subscribed(5, 7, 120);
        receive(&mut readers, 5, 1, &[0]);
        assert_eq!((readers.live.count(), readers.caught_up), (2, 2));
        let joined = [&readers.first_events, &readers.later_first_events].map(Latencies::count);
        assert_eq!(joined, [1, 2]);
        assert_eq!(readers.faults, TokenFaults::default());
    }

    #[test]
    fn one_reader_is_cut_and_one_joins_in_the_middle_once() {
        let plan = plan("text/plain");
        let mut readers = TokenReaders::new(&plan);
        // Of nine tokens of answer 1, half of the way from a fifth to four fifths, and from two fifths to three.
        let mut turns = Vec::new();
        for sequence in 0..9 {
            receive(&mut readers, 1, 1, &[sequence]);
            receive(&mut readers, 3, 1, &[sequence]);
            let hang_ups = [1, 3, 5].map(|reader| readers.hangs_up(reader));
            turns.push((hang_ups, std::mem::take(&mut readers.joins)));
        }
        let mut expected = vec![([false; 3], vec![]); 9];
        expected[4] = ([false, true, false], vec![5]);
        assert_eq!(turns, expected);
    }

    #[test]
    fn readers_ask_for_their_answer() {
        let plan = plan("text/plain");
        let readers = TokenReaders::new(&plan);
        let target = |client, offset: Option<&[u8]>| {
            let mut out = Vec::new();
            readers.target(client, offset, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(target(4, None), "/a0?offset=-1&live=sse");
        assert_eq!(target(3, Some(b"1_2")), "/a1?offset=1_2&live=sse");
    }
}
