//! One turn of a server: its answers, from the creation of their streams to the last reader that has learned of the end.

use super::appends::{AppendCounts, TokenAppends};
use super::plan::{AnswersPlan, READERS};
use super::tokens::{TokenFaults, TokenReaders};
use crate::BenchError;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::cost::CostMeter;
use crate::load::create;
use crate::load::event_source::{EventSourcePlan, EventSources};
use crate::load::probe::Probe;
use crate::load::progress::{Progress, Speed};
use crate::load::report::answers::{AnswersTurn, AppendFigures, MemoryOfAnswers, OwnFigures};
use crate::load::requests;
use crate::load::servers::MeasuredServer;
use crate::load::socket::Sources;
use crate::units::{count, per_second};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Measures one server once.
pub(super) fn run_turn(
    plan: &AnswersPlan,
    server: &MeasuredServer,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Result<AnswersTurn, BenchError> {
    let probe = server.probe.as_ref();
    let memory_before = memory(probe)?;
    create::create(&server.url, &plan.requests, plan.answers, stop)?;
    let mut readers = Readers::new(plan, server, stop)?;
    readers.open()?;
    if probe.is_some() {
        readers.look_on(SETTLE_NS)?;
    }
    let memory_open = memory(probe)?;

    let meter = CostMeter::begin(probe)?;
    let mut appends = TokenAppends::new(plan);
    let gauge = appends.gauge();
    let requests_plan = plan.requests_plan(&server.url);
    let (over, end) = (AtomicBool::new(false), AtomicBool::new(false));
    let outcome = std::thread::scope(|scope| {
        let producers = scope.spawn(|| {
            let outcome = requests::run(requests_plan, &mut appends, &end);
            over.store(true, Ordering::Relaxed);
            outcome
        });
        let followed = readers.follow(&over, &gauge, progress);
        end.store(true, Ordering::Relaxed);
        let outcome = producers
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        followed.and(outcome)
    })?;
    let cost = meter.end()?;

    let acknowledged = appends.acknowledged();
    let AppendCounts {
        tokens,
        appends,
        refused,
        repeated,
        acknowledgement,
        lateness,
        last_ns,
    } = appends.into_counts();
    let seconds = last_ns.saturating_sub(outcome.started_ns) as f64 / SECOND_NS as f64;
    let Readers {
        sources,
        tokens: mut received,
        ..
    } = readers;
    received.settle(&acknowledged);
    let counts = sources.counts();
    let all = plan.answers * READERS;
    Ok(AnswersTurn {
        seconds,
        appended: AppendFigures {
            tokens,
            tokens_wanted: u64::from(plan.tokens) * u64::from(plan.answers),
            tokens_per_second: tokens as f64 / seconds.max(1e-9),
            appends,
            acknowledgement: acknowledgement.percentiles(),
            refused,
            repeated,
            connections_lost: outcome.lost,
        },
        delivered: received.delivered,
        caught_up: received.caught_up,
        latency: received.live.percentiles(),
        first_events: received.first_events.percentiles(),
        later_first_events: received.later_first_events.percentiles(),
        cuts: counts.hung_up,
        subscriptions_lost: counts.lost,
        subscription_failures: counts.reasons.clone(),
        faults: TokenFaults {
            without_end: u64::from(all - counts.complete),
            ..received.faults
        },
        memory: memory_before
            .zip(memory_open)
            .map(|(before_bytes, open_bytes)| MemoryOfAnswers {
                before_bytes,
                open_bytes,
            }),
        cost,
        own: OwnFigures {
            appends_late: lateness.percentiles(),
            batches: sources.batches().percentiles(),
        },
    })
}

fn memory(probe: Option<&Probe>) -> Result<Option<u64>, BenchError> {
    probe.map(Probe::rss_anon_bytes).transpose()
}

/// The readers and their loop.
struct Readers<'a> {
    plan: &'a AnswersPlan,
    stop: &'a AtomicBool,
    sources: EventSources,
    tokens: TokenReaders<'a>,
}

impl<'a> Readers<'a> {
    /// The readers that are there from the beginning, not connected yet.
    fn new(
        plan: &'a AnswersPlan,
        server: &MeasuredServer,
        stop: &'a AtomicBool,
    ) -> Result<Self, BenchError> {
        let all = plan.answers * READERS;
        Ok(Self {
            sources: EventSources::new(EventSourcePlan {
                clients: plan.answers * (READERS - 1),
                later_clients: plan.answers,
                servers: vec![server.url.address],
                sources: Sources::new(server.url.address, all).resetting(),
                opening_max: OPENING_MAX,
                away_ns: AWAY_NS,
            })?,
            tokens: TokenReaders::new(plan),
            plan,
            stop,
        })
    }

    /// Connects them.
    fn open(&mut self) -> Result<(), BenchError> {
        while !self.sources.is_settled() {
            self.turn(monotonic_ns() + LOOK_NS)?;
        }
        let failed = self.sources.counts().over;
        if failed > 0 {
            let reasons: Vec<_> = self.sources.counts().reasons.keys().cloned().collect();
            return Err(BenchError::Server(format!(
                "refused {failed} readers: {}",
                reasons.join(", ")
            )));
        }
        Ok(())
    }

    fn look_on(&mut self, ns: u64) -> Result<(), BenchError> {
        let until_ns = monotonic_ns() + ns;
        while monotonic_ns() < until_ns {
            self.turn(until_ns)?;
        }
        Ok(())
    }

    /// Reads until all have learned of the end of their answers, or nothing has come for a while after the last append.
    fn follow(
        &mut self,
        over: &AtomicBool,
        appended: &Arc<AtomicU64>,
        progress: &mut Progress,
    ) -> Result<(), BenchError> {
        let all = self.plan.answers * READERS;
        let (mut appending, mut delivering) = (Speed::new(), Speed::new());
        let mut over_ns = None;
        while self.sources.counts().complete < all {
            let now_ns = monotonic_ns();
            self.turn(now_ns + LOOK_NS)?;
            progress.when_due(|| {
                let appended = appended.load(Ordering::Relaxed);
                format!(
                    "appended {} at {}  delivered {} at {}",
                    count(appended),
                    per_second(appending.of(appended)),
                    count(self.tokens.delivered),
                    per_second(delivering.of(self.tokens.delivered))
                )
            });
            if over_ns.is_none() && over.load(Ordering::Relaxed) {
                over_ns = Some(now_ns);
            }
            let heard_ns = over_ns.map(|over_ns| over_ns.max(self.tokens.last_ns));
            if heard_ns.is_some_and(|heard_ns| now_ns > heard_ns + self.plan.drain_ns) {
                break;
            }
        }
        Ok(())
    }

    fn turn(&mut self, until_ns: u64) -> Result<(), BenchError> {
        self.sources.turn(until_ns, &mut self.tokens)?;
        for reader in self.tokens.joins.drain(..) {
            self.sources.open(reader);
        }
        match self.stop.load(Ordering::Relaxed) {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        }
    }
}

/// How many readers may be connecting at a time.
const OPENING_MAX: u32 = 256;

/// How long a reader that was cut stays away.
const AWAY_NS: u64 = 100 * MILLISECOND_NS;

/// How long everything is left alone before memory is read.
const SETTLE_NS: u64 = SECOND_NS;

/// How often the loop looks at its flags when nothing happens.
const LOOK_NS: u64 = 20 * MILLISECOND_NS;
