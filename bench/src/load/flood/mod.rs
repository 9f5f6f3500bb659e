//! The coordinator of a flood: plans it, runs its phases, and assembles the report.

mod connections;
mod counters;
pub(crate) mod floor;
mod leaving;
mod marks;
mod plan;
mod subscriber;
mod tally;
mod traits;
mod watch;
mod worker;

use crate::BenchError;
use crate::load::args::FloodArgs;
use crate::load::chart;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, duration_ns, monotonic_ns};
use crate::load::create;
use crate::load::hostile::{self, Hostiles};
use crate::load::produce::Producers;
use crate::load::report::endurance::HangUps;
use crate::load::report::flood::{
    Connections, Deliveries, FloodReport, KindOfSubscribers, Latency, Opening, Publishing,
};
use crate::load::report::hostile::Hostile;
use crate::load::report::spray::NotAcknowledged;
use crate::load::requests::{self, Outcome};
use counters::Counters;
use marks::Marks;
use plan::Plan;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tally::Tally;
use watch::Watch;
use worker::{Command, Handle, Worker};

/// How often the coordinator looks at the run.
const LOOK: Duration = Duration::from_millis(20);

/// How long connections and memory are left alone before they are measured.
const SETTLE_NS: u64 = SECOND_NS;

/// How far ahead the beginning of publishing is announced, so that the subscribers' thread knows in time.
const ANNOUNCE_NS: u64 = 100 * MILLISECOND_NS;

/// Floods until the duration is over or SIGINT or SIGTERM arrives; either way ends with the report.
///
/// Progress goes to standard error. A second signal ends the process.
///
/// # Errors
///
/// When the run can't be made at all. What goes wrong between the server and its clients is in
/// the report; [`FloodReport::exit_code`] sums it up.
pub fn flood(args: &FloodArgs, stop: &AtomicBool) -> Result<FloodReport, BenchError> {
    let plan = Plan::new(args)?;
    let mut run = Run {
        watch: Watch::new(args)?,
        args,
        stop,
        subscribers: None,
        ended: Counters::default(),
        hostile: HostilePhase::None,
        plan,
    };
    let report = run.lead()?;
    if let Some(path) = &args.plot {
        let plot = chart::draw([(String::new(), &report.samples[..])]);
        std::fs::write(path, plot).map_err(BenchError::file("write", path))?;
    }
    Ok(report)
}

/// Hostile clients, if there are any.
enum HostilePhase {
    None,
    Prepared(Box<hostile::HostilePlan>),
    There(Hostiles),
}

struct Run<'a> {
    args: &'a FloodArgs,
    stop: &'a AtomicBool,
    plan: Plan,
    watch: Watch,
    /// The thread of the subscribers, while it runs.
    subscribers: Option<Handle>,
    /// Its counts when it does not.
    ended: Counters,
    hostile: HostilePhase,
}

/// The results of the run's own producers.
struct Published {
    producers: Producers,
    outcome: Outcome,
}

impl Run<'_> {
    fn lead(&mut self) -> Result<FloodReport, BenchError> {
        let mut marks = Marks {
            before: self.watch.mark()?,
            ..Marks::default()
        };
        let create_seconds = self.create_streams()?;
        marks.created = self.watch.mark()?;
        if self.args.hostile > 0 {
            self.watch.say("preparing for hostile clients");
            let plan = &self.plan;
            self.hostile = HostilePhase::Prepared(Box::new(hostile::HostilePlan::new(
                &plan.target,
                plan.run,
                self.args.hostile,
                self.args.hostile_kind,
            )?));
        }
        let opening_ns = monotonic_ns();
        self.subscribers = Some(Handle::start(Worker::new(&self.plan, self.args)?));
        let opened = self.open()?;
        marks.connected = self.watch.mark()?;
        if self.watch.is_probing() {
            self.hold(SETTLE_NS)?;
        }
        marks.open = self.watch.mark()?;
        let begin_ns = monotonic_ns();
        let before_main = self.counters();
        let main_from = self.watch.seconds();
        let published = self.main_phase()?;
        let main_phase = (main_from, self.watch.seconds());
        let mut worker = self.finish(published.as_ref())?;
        marks.after = self.watch.mark()?;
        let deeds = match std::mem::replace(&mut self.hostile, HostilePhase::None) {
            HostilePhase::There(hostiles) => Some(hostiles.end()),
            _ => None,
        };
        let faults = worker.settle();
        let Worker {
            counters,
            tally,
            leaving,
            subscribers,
            ..
        } = worker;
        // Closes all connections.
        drop(subscribers);
        self.ended = Counters {
            active: 0,
            ..counters.clone()
        };
        if self.watch.is_probing() {
            // The server needs a moment to close what is gone, after a run that was stopped as well.
            self.hold_on(SETTLE_NS, &AtomicBool::new(false))?;
        }
        marks.closed = self.watch.mark()?;

        let start_ns = match &published {
            Some(published) => published.outcome.started_ns,
            None => begin_ns,
        };
        let events = counters.events - before_main.events;
        let bytes = counters.bytes - before_main.bytes;
        let own_us = (counters.cpu_ns - before_main.cpu_ns) as f64 / 1e3;
        let spent_ns = counters.last_event_ns.saturating_sub(start_ns).max(1);
        let publishing = published.map(|published| self.publishing_report(&published));
        let hang_ups = HangUps {
            made: counters.hung_up,
            unnoticed: counters.unnoticed,
            unmeasured: counters.unmeasured,
            ..HangUps::new(&leaving.notices, duration_ns(self.args.notice))
        };
        // What is counted apart is either the time of the pause or that of the hostile clients.
        let (paused, hostile) = match deeds {
            None => (tally.paused.percentiles(), None),
            Some(deeds) => {
                let mut before = tally.live.clone();
                before.subtract(&tally.paused);
                let beside = tally.paused.percentiles();
                (
                    None,
                    Some(Hostile::new(deeds, before.percentiles(), beside)),
                )
            }
        };
        let mut report = FloodReport {
            url: self.args.url.clone(),
            streams: self.plan.streams.count(),
            seconds: 0.0,
            stolen_percent: 0.0,
            create_seconds,
            opening: Opening {
                asked: self.args.subscribers,
                opened: opened.opened,
                failed: u64::from(self.args.subscribers) - opened.opened,
                seconds: opened.settled_ns.saturating_sub(opening_ns) as f64 / SECOND_NS as f64,
            },
            kinds: self.kinds(&tally),
            connections: Connections {
                active: counters.active,
                closed: counters.closed,
                hung_up: counters.hung_up,
                returned: counters.returned,
                failures: counters.reasons,
                given_up: counters.given_up,
                over: counters.over,
            },
            deliveries: Deliveries {
                messages: counters.events,
                bytes: counters.bytes,
                per_second: events as f64 * SECOND_NS as f64 / spent_ns as f64,
                generator_cpu_us: (events > 0).then(|| own_us / events as f64),
            },
            latency: Latency {
                live: tally.live.percentiles(),
                while_slow_pause: paused,
                slow: tally.slow.percentiles(),
                missed_while_away: tally.returned.percentiles(),
            },
            hostile,
            faults,
            publishing,
            server: None,
            floor: None,
            endurance: marks.endurance(self.args, hang_ups),
            samples: Vec::new(),
        };
        report.server = marks.server(&report, &self.watch, events);
        self.measure_floor(&mut report, events, bytes)?;
        report.seconds = self.watch.seconds();
        report.stolen_percent = self.watch.stolen_percent();
        report.samples = self.watch.take_samples();
        report
            .endurance
            .cut(&report.samples, main_phase.0, main_phase.1);
        Ok(report)
    }

    /// The subscribers of each kind.
    fn kinds(&self, tally: &Tally) -> Vec<KindOfSubscribers> {
        let mut kinds: Vec<KindOfSubscribers> = Vec::new();
        for number in 0..self.args.subscribers {
            let kind = self.plan.kind_of(number);
            if let Some(known) = kinds.iter_mut().find(|known| known.kind == kind.name()) {
                known.subscribers += 1;
                continue;
            }
            let of_kind = tally.by_kind.as_ref().map(|all| &all[kind as usize]);
            let (messages, live) = match of_kind {
                Some(one) => (one.events, &one.live),
                None => (tally.events, &tally.live),
            };
            kinds.push(KindOfSubscribers {
                kind: kind.name(),
                subscribers: 1,
                messages,
                live: live.percentiles(),
            });
        }
        kinds
    }

    fn create_streams(&self) -> Result<Option<f64>, BenchError> {
        if self.args.no_create {
            return Ok(None);
        }
        let count = self.plan.streams.count();
        self.watch.say(&format!("creating {count} streams"));
        create::create(&self.plan.target, &self.plan.requests, count, self.stop).map(Some)
    }

    /// Waits until every subscriber is connected or has failed to.
    fn open(&mut self) -> Result<Counters, BenchError> {
        loop {
            let counters = self.look()?;
            if counters.pending == 0 || self.is_over(self.stop) {
                return Ok(counters);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Publishes, or only listens, for as long as the run is to last.
    fn main_phase(&mut self) -> Result<Option<Published>, BenchError> {
        let Some(orders) = self.plan.publishing.clone() else {
            self.hold(self.args.duration.map_or(u64::MAX, duration_ns))?;
            return Ok(None);
        };
        let start_ns = monotonic_ns() + ANNOUNCE_NS;
        let pause_from_ns = match self.args.slow {
            0 => u64::MAX,
            _ => start_ns.saturating_add(duration_ns(self.args.pause_after)),
        };
        let pause_from_ns = match std::mem::replace(&mut self.hostile, HostilePhase::None) {
            HostilePhase::Prepared(orders) => {
                let half_ns = self.args.duration.map_or(0, duration_ns) / 2;
                let from_ns = start_ns.saturating_add(half_ns);
                self.hostile = HostilePhase::There(Hostiles::start(*orders, from_ns));
                from_ns
            }
            _ => pause_from_ns,
        };
        let pause_to_ns = match self.hostile {
            HostilePhase::There(_) => u64::MAX,
            _ => pause_from_ns.saturating_add(duration_ns(self.args.pause)),
        };
        self.send(Command::Publishing(pause_from_ns..pause_to_ns));
        self.hold(ANNOUNCE_NS)?;
        let mut producers = Producers::new(orders, None);
        let gauge = producers.gauge();
        self.watch.gauge = Some(gauge);
        let plan = self.plan.requests_plan(self.args);
        // Not the run's own flag: producers must also end when the subscribers have failed.
        let end = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| requests::run(plan, &mut producers, &end));
            let mut trouble = Ok(());
            while !publisher.is_finished() {
                if trouble.is_ok() {
                    trouble = self.look().map(|_| ());
                }
                if trouble.is_err() || self.is_over(self.stop) {
                    end.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(LOOK);
            }
            let outcome = publisher
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            trouble.and(outcome)
        })?;
        Ok(Some(Published { producers, outcome }))
    }

    /// Waits for what is still on its way and ends the thread of the subscribers.
    fn finish(&mut self, published: Option<&Published>) -> Result<Worker, BenchError> {
        let expected = published.map_or(Vec::new(), |published| published.producers.expected());
        let quiet_ns = match expected.is_empty() {
            true => 0,
            false => duration_ns(self.args.drain),
        };
        self.send(Command::Finish { expected, quiet_ns });
        while self
            .subscribers
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
        {
            self.look()?;
            std::thread::sleep(LOOK);
        }
        let thread = self.subscribers.take();
        thread.ok_or(BenchError::Thread("subscriber"))?.join()
    }

    fn measure_floor(
        &self,
        report: &mut FloodReport,
        events: u64,
        bytes: u64,
    ) -> Result<(), BenchError> {
        let (Some(duration), Some(publishing)) = (self.args.floor, &report.publishing) else {
            return Ok(());
        };
        if events == 0 || publishing.acknowledged == 0 {
            return Ok(());
        }
        self.watch.say("measuring the floor");
        let sends_per_event = (events as f64 / publishing.acknowledged as f64).round() as u32;
        let mut floor = floor::measure(
            &floor::FloorPlan {
                sockets: report.connections.active.clamp(1, u64::from(u32::MAX)) as u32,
                bytes: (bytes / events) as usize,
                rate: publishing.rate,
                sends_per_event: sends_per_event.max(1),
                duration_ns: duration_ns(duration),
            },
            self.stop,
        )?;
        let delivery_us = report
            .server
            .as_ref()
            .and_then(|server| server.cpu_per_delivery_us);
        floor.ratio = delivery_us.map(|us| us / floor.cpu_per_send_us);
        report.floor = Some(floor);
        Ok(())
    }

    fn publishing_report(&self, published: &Published) -> Publishing {
        let Published { producers, outcome } = published;
        let account = producers.account();
        let seconds = (outcome.ended_ns - outcome.started_ns) as f64 / SECOND_NS as f64;
        let rate_asked = self.args.publish.filter(|rate| rate.is_finite());
        Publishing {
            publishers: self.args.publishers,
            rate_asked,
            rate: account.acknowledged as f64 / seconds.max(1e-9),
            seconds,
            size: self.args.size,
            acknowledged: account.acknowledged,
            refused: NotAcknowledged::new(account, outcome),
            acknowledgement: account.latency.percentiles(),
            lateness: rate_asked.and_then(|_| account.lateness.percentiles()),
        }
    }

    /// Waits, looking after everything, until so much time has passed or the run is stopped.
    fn hold(&mut self, ns: u64) -> Result<(), BenchError> {
        self.hold_on(ns, self.stop)
    }

    /// As [`Self::hold`], ended by another flag than the run's.
    fn hold_on(&mut self, ns: u64, stop: &AtomicBool) -> Result<(), BenchError> {
        let until_ns = monotonic_ns().saturating_add(ns);
        while monotonic_ns() < until_ns && !self.is_over(stop) {
            self.look()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether the run was stopped, or its subscribers have failed.
    fn is_over(&self, stop: &AtomicBool) -> bool {
        let failed = self.subscribers.as_ref().is_some_and(Handle::is_finished);
        failed || stop.load(Ordering::Relaxed)
    }

    /// Takes a sample and prints a line of progress, each when it is due.
    fn look(&mut self) -> Result<Counters, BenchError> {
        let counters = self.counters();
        self.watch.look(&counters)?;
        Ok(counters)
    }

    fn counters(&self) -> Counters {
        let running = self.subscribers.as_ref().map(Handle::counters);
        running.unwrap_or_else(|| self.ended.clone())
    }

    fn send(&self, command: Command) {
        if let Some(thread) = &self.subscribers {
            thread.send(command);
        }
    }
}
