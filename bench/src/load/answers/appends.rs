//! The producers: each appends the tokens of its answer one after the other, exactly once, and closes the stream.
//!
//! An append carries its number, and the next one follows when it is acknowledged. What is not acknowledged is sent again as it
//! was, so that the server can tell a repetition from news.

use super::plan::AnswersPlan;
use crate::BenchError;
use crate::load::clock::monotonic_ns;
use crate::load::latency::Latencies;
use crate::load::requests::Traffic;
use crate::load::wire::payload::{Format, Message};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The producers of all answers.
#[derive(Debug)]
pub(super) struct TokenAppends<'a> {
    plan: &'a AnswersPlan,
    answers: Vec<Answer>,
    /// For each connection, which of its answers is next.
    round: Vec<u32>,
    /// For each connection, the answers of its requests that have no response, and when each was sent.
    in_flight: Vec<VecDeque<(u32, u64)>>,
    counts: AppendCounts,
    /// Tokens acknowledged, for other threads.
    gauge: Arc<AtomicU64>,
    body: Vec<u8>,
}

/// What became of the appends.
#[derive(Debug)]
pub(super) struct AppendCounts {
    /// Tokens and appends that were acknowledged.
    pub(super) tokens: u64,
    pub(super) appends: u64,
    /// Responses that were no acknowledgements, by status.
    pub(super) refused: BTreeMap<u16, u64>,
    /// Requests that were sent again.
    pub(super) repeated: u64,
    /// From the sending of an append to its response.
    pub(super) acknowledgement: Latencies,
    /// From when an append was due to when it was sent.
    pub(super) lateness: Latencies,
    /// The time of the last acknowledgement of tokens.
    pub(super) last_ns: u64,
}

/// One answer.
#[derive(Debug, Clone, Copy, Default)]
struct Answer {
    /// Tokens and appends that are acknowledged.
    tokens: u32,
    appends: u32,
    stage: Stage,
    /// When the append that has no acknowledgement was first sent.
    first_sent_ns: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// It may append, or close.
    #[default]
    Free,
    /// A request of it is in flight.
    Waiting,
    /// It is closed, or refused for good.
    Over,
}

impl<'a> TokenAppends<'a> {
    pub(super) fn new(plan: &'a AnswersPlan) -> Self {
        let lines = plan.connections as usize;
        Self {
            answers: vec![Answer::default(); plan.answers as usize],
            round: vec![0; lines],
            in_flight: vec![VecDeque::new(); lines],
            counts: AppendCounts {
                tokens: 0,
                appends: 0,
                refused: BTreeMap::new(),
                repeated: 0,
                acknowledgement: Latencies::new(),
                lateness: Latencies::new(),
                last_ns: 0,
            },
            gauge: Arc::default(),
            body: Vec::new(),
            plan,
        }
    }

    /// Tokens acknowledged so far, updated after each batch of responses.
    pub(super) fn gauge(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.gauge)
    }

    /// How many tokens of each answer are acknowledged.
    pub(super) fn acknowledged(&self) -> Vec<u32> {
        self.answers.iter().map(|answer| answer.tokens).collect()
    }

    pub(super) fn into_counts(self) -> AppendCounts {
        self.counts
    }

    /// The next answer of a connection that may send something.
    fn choose(&mut self, line: usize) -> Option<u32> {
        let connections = self.plan.connections;
        let own = (self.plan.answers - line as u32).div_ceil(connections);
        (0..own).find_map(|_| {
            let turn = self.round[line] % own;
            self.round[line] = turn + 1;
            let number = line as u32 + turn * connections;
            let is_free = self.answers[number as usize].stage == Stage::Free;
            is_free.then_some(number)
        })
    }

    /// Makes the body of the next append of an answer.
    fn write_tokens(&mut self, number: u32, answer: &Answer, sent_ns: u64) {
        let last = (answer.tokens + self.plan.batch).min(self.plan.tokens);
        let is_list = self.plan.format == Format::Json && last > answer.tokens + 1;
        self.body.clear();
        for token in answer.tokens..last {
            if is_list {
                self.body
                    .push(if token == answer.tokens { b'[' } else { b',' });
            }
            let message = Message {
                producer: number.into(),
                sequence: token.into(),
                sent_ns,
            };
            self.plan
                .format
                .write(&message, self.plan.size, &mut self.body);
        }
        if is_list {
            self.body.push(b']');
        }
    }
}

impl Traffic for TokenAppends<'_> {
    fn next(&mut self, line: usize, due_ns: u64, out: &mut Vec<u8>) -> bool {
        let Some(number) = self.choose(line) else {
            return false;
        };
        let now_ns = monotonic_ns();
        let mut answer = self.answers[number as usize];
        answer.stage = Stage::Waiting;
        if answer.tokens == self.plan.tokens {
            self.plan.requests.close(number, out);
        } else {
            match answer.first_sent_ns {
                None => self.counts.lateness.record(now_ns.saturating_sub(due_ns)),
                Some(_) => self.counts.repeated += 1,
            }
            let sent_ns = *answer.first_sent_ns.get_or_insert(now_ns);
            self.write_tokens(number, &answer, sent_ns);
            let sequence = answer.appends.into();
            self.plan
                .requests
                .append_once(number, sequence, &self.body, out);
        }
        self.answers[number as usize] = answer;
        self.in_flight[line].push_back((number, now_ns));
        true
    }

    fn done(&mut self, line: usize, status: u16, now_ns: u64) {
        let Some((number, sent_ns)) = self.in_flight[line].pop_front() else {
            return;
        };
        let answer = &mut self.answers[number as usize];
        if !(200..300).contains(&status) {
            *self.counts.refused.entry(status).or_default() += 1;
            // A server without room may have some later; all else stays as it is.
            let is_temporary = matches!(status, 429 | 503);
            answer.stage = if is_temporary {
                Stage::Free
            } else {
                Stage::Over
            };
            return;
        }
        if answer.tokens == self.plan.tokens {
            answer.stage = Stage::Over;
            return;
        }
        let tokens = self.plan.batch.min(self.plan.tokens - answer.tokens);
        *answer = Answer {
            tokens: answer.tokens + tokens,
            appends: answer.appends + 1,
            ..Answer::default()
        };
        self.counts.tokens += u64::from(tokens);
        self.counts.appends += 1;
        self.counts
            .acknowledgement
            .record(now_ns.saturating_sub(sent_ns));
        self.counts.last_ns = now_ns;
    }

    fn lost(&mut self, line: usize) {
        for (number, _) in std::mem::take(&mut self.in_flight[line]) {
            self.answers[number as usize].stage = Stage::Free;
        }
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        self.gauge.store(self.counts.tokens, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::args::TrustArgs;
    use crate::load::wire::target::{Requests, ServerUrl, Streams};

    fn plan(answers: u32, connections: u32, batch: u32, content_type: &str) -> AnswersPlan {
        let server = ServerUrl::parse("http://127.0.0.1:1", &TrustArgs::default()).unwrap();
        let streams = Streams::numbered("a", answers);
        AnswersPlan {
            requests: Requests::new(&server, &streams, content_type).unwrap(),
            answers,
            tokens: 3,
            batch,
            format: Format::of(content_type),
            size: 0,
            connections,
            appends_per_second: 1.0,
            duration_ns: 1,
            drain_ns: 1,
        }
    }

    /// The stream, the number and the tokens of the next append of a connection, `None` for the tokens of a close.
    fn next(appends: &mut TokenAppends<'_>, line: usize) -> Option<(String, Option<String>)> {
        let mut out = Vec::new();
        appends.next(line, 0, &mut out).then(|| {
            let text = String::from_utf8(out).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let stream = head.split([' ', '/']).nth(2).unwrap();
            let number = head
                .lines()
                .find_map(|line| line.strip_prefix("Producer-Seq: "));
            let is_close = head.contains("Stream-Closed: true");
            assert_eq!(is_close, number.is_none());
            let number = number.unwrap_or("close");
            (
                format!("{stream} {number}"),
                (!is_close).then(|| body.into()),
            )
        })
    }

    fn tokens(body: &str) -> Vec<u64> {
        let mut tokens = Vec::new();
        let mut add = |message: Message| tokens.push(message.sequence);
        let strangers = match body.starts_with(['{', '[']) {
            true => crate::load::wire::payload::scan_json(body.as_bytes(), add),
            false => {
                let lines = body.lines().map(str::as_bytes);
                let parsed = lines.map(crate::load::wire::payload::parse_line);
                parsed.for_each(|message| add(message.unwrap()));
                0
            }
        };
        assert_eq!(strangers, 0, "{body}");
        tokens
    }

    #[test]
    fn an_answer_is_appended_in_order_and_closed() {
        for (batch, content_type, expected) in [
            (1, "application/json", vec![vec![0], vec![1], vec![2]]),
            (2, "application/json", vec![vec![0, 1], vec![2]]),
            (2, "text/plain", vec![vec![0, 1], vec![2]]),
            (9, "text/plain", vec![vec![0, 1, 2]]),
        ] {
            let plan = plan(1, 1, batch, content_type);
            let mut appends = TokenAppends::new(&plan);
            for (number, expected) in (0..).zip(&expected) {
                let (name, body) = next(&mut appends, 0).unwrap();
                assert_eq!(name, format!("a0 {number}"));
                assert_eq!(&tokens(&body.unwrap()), expected);
                assert_eq!(next(&mut appends, 0), None, "one is in flight");
                appends.done(0, 200, monotonic_ns());
            }
            assert_eq!(next(&mut appends, 0).unwrap(), ("a0 close".into(), None));
            appends.done(0, 204, monotonic_ns());
            assert_eq!(next(&mut appends, 0), None);
            assert_eq!(appends.acknowledged(), [3]);
            let counts = appends.into_counts();
            assert_eq!((counts.tokens, counts.appends), (3, expected.len() as u64));
            assert_eq!(
                (counts.repeated, counts.lateness.count()),
                (0, counts.appends)
            );
        }
    }

    #[test]
    fn what_was_lost_or_found_no_room_is_sent_again_as_it_was() {
        let plan = plan(1, 1, 2, "application/json");
        let mut appends = TokenAppends::new(&plan);
        let first = next(&mut appends, 0).unwrap();
        appends.lost(0);
        assert_eq!(next(&mut appends, 0).unwrap(), first);
        appends.done(0, 503, monotonic_ns());
        assert_eq!(next(&mut appends, 0).unwrap(), first);
        appends.done(0, 204, monotonic_ns());
        assert_eq!(next(&mut appends, 0).unwrap().0, "a0 1");
        appends.done(0, 409, monotonic_ns());
        assert_eq!(next(&mut appends, 0), None, "it is refused for good");
        assert_eq!(appends.acknowledged(), [2]);
        let counts = appends.into_counts();
        assert_eq!((counts.repeated, counts.appends), (2, 1));
        assert_eq!(counts.refused, BTreeMap::from([(409, 1), (503, 1)]));
    }

    #[test]
    fn answers_take_turns_on_the_connections_that_they_share() {
        let plan = plan(5, 2, 3, "text/plain");
        let mut appends = TokenAppends::new(&plan);
        let mut names = |line| next(&mut appends, line).map(|(name, _)| name);
        assert_eq!(
            [0, 0, 0].map(&mut names),
            ["a0 0", "a2 0", "a4 0"].map(|n| Some(n.into()))
        );
        assert_eq!(names(0), None);
        assert_eq!(
            [1, 1].map(&mut names),
            ["a1 0", "a3 0"].map(|n| Some(n.into()))
        );
        appends.done(0, 200, 1);
        let closed = next(&mut appends, 0).unwrap();
        assert_eq!(closed, ("a0 close".into(), None));
        appends.turn().unwrap();
        assert_eq!(appends.gauge().load(Ordering::Relaxed), 3);
    }
}
