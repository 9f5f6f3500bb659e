//! `fanout`: one event to 5,000 subscribers, beside a bare loop of send(2) over as many sockets.

use crate::load::{FloodArgs, FloodReport};
use crate::units::{bytes, count, micros, per_second};
use serde::Serialize;

use super::{DURATION, cpu, kept, pick, rate, run_one};
use crate::experiment::lab::Lab;
use crate::experiment::past::NONE;
use crate::experiment::serving::Level;
use crate::report::figures;
use crate::{BenchError, Goal, Section, Table};

/// The results of the experiment.
#[derive(Debug, Serialize)]
struct FanoutFindings {
    subscribers: u64,
    /// One run for each of [`RATES`].
    runs: Vec<FloodReport>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let subscribers = lab.scaled(SUBSCRIBERS, SUBSCRIBERS_MIN);
    let mut runs = Vec::new();
    for publish in RATES {
        lab.say(&format!(
            "{} to {} subscribers",
            pace(publish),
            count(subscribers)
        ));
        let flood = FloodArgs {
            subscribers: u32::try_from(subscribers).unwrap_or(u32::MAX),
            one: Some("fanout".into()),
            publish: Some(publish),
            // Few events leave no work for many connections.
            publishers: if publish < 100.0 { 1 } else { PUBLISHERS },
            duration: Some(lab.duration(DURATION)),
            floor: publish.is_finite().then(|| lab.duration(DURATION)),
            receive_buffer: publish.is_infinite().then_some(RECEIVE_BUFFER),
            ..FloodArgs::default()
        };
        let name = format!("fanout-{}", runs.len());
        runs.push(run_one(lab, &name, Level::Synced, flood)?);
    }
    Ok(FanoutFindings { subscribers, runs }.section())
}

impl FanoutFindings {
    fn section(&self) -> Section {
        Section {
            name: "fanout",
            title: "one event to many",
            story: format!(
                "{} subscribers follow one stream. Events of {} go to all of them, 20 and 1,000 a second, and as fast as {} \
                 publishers have each the last one acknowledged (saturated), at level synced. The floor is a loop of send(2) \
                 of as many bytes over as many sockets, in the same run: no server that sends each event to each socket can cost less.",
                count(self.subscribers),
                self.runs.first().map_or(String::new(), |run| {
                    bytes(run.publishing.as_ref().map_or(0, |p| p.size as u64))
                }),
                PUBLISHERS
            ),
            in_short: Vec::new(),
            tables: vec![self.table()],
            targets: self.targets(),
            notes: vec![
                "The server's processor time is its user and system time from the first publishing to the last delivery, with publishing, the log and its syncs, divided by the deliveries."
                    .to_owned(),
                "The subscribers run on the same cores. What the generator can't read in time waits in the sockets' \
                 buffers, and is in the latency."
                    .to_owned(),
                format!(
                    "When saturated, the receive buffers are {} (SO_RCVBUF), because a server can't see data that waits in a client's kernel.",
                    bytes(u64::from(RECEIVE_BUFFER))
                ),
            ],
            figures: figures(self),
            plot: None,
        }
    }

    fn table(&self) -> Table {
        let names = RATES.map(pace);
        let mut columns = vec![""];
        columns.extend(names.iter().map(String::as_str));
        let mut table = Table::new("", columns);
        let mut row = |name: &str, figure: &dyn Fn(&FloodReport) -> String| {
            let figures: Vec<_> = self.runs.iter().map(figure).collect();
            table.row(name, figures);
        };
        row("published", &|run| per_second(rate(run)));
        row("delivered", &|run| count(run.deliveries.messages));
        row("delivered per second", &|run| {
            per_second(run.deliveries.per_second)
        });
        row("server processor time of a delivery", &|run| {
            cpu(delivery_us(run))
        });
        row("floor: processor time of a send(2)", &|run| {
            cpu(run.floor.map(|floor| floor.cpu_per_send_us))
        });
        row("a delivery by a send(2)", &|run| {
            ratio(run).map_or(NONE.into(), |ratio| format!("{ratio:.2}"))
        });
        row("what the generator takes to read one", &|run| {
            cpu(run.deliveries.generator_cpu_us)
        });
        row("delivered after, p50", &|run| {
            pick(run.latency.live, |p| p.p50_us)
        });
        row("p99", &|run| pick(run.latency.live, |p| p.p99_us));
        row("at the latest", &|run| pick(run.latency.live, |p| p.max_us));
        row("acknowledged after, p50", &|run| {
            let publishing = run.publishing.as_ref();
            pick(publishing.and_then(|p| p.acknowledgement), |p| p.p50_us)
        });
        row("server memory with all subscribers, at most", &|run| {
            run.server.as_ref().map_or(NONE.into(), |server| {
                format!(
                    "{}, {}",
                    bytes(server.memory_open.rss_anon_bytes),
                    bytes(server.rss_anon_bytes_max)
                )
            })
        });
        table
    }

    fn targets(&self) -> Vec<Goal> {
        let mut targets = Vec::new();
        for (publish, run) in RATES.into_iter().zip(&self.runs) {
            let pace = pace(publish);
            targets.push(kept(&pace, run));
            if publish == RATES[0]
                && let Some(ratio) = ratio(run)
            {
                targets.push(Goal::speed(
                    format!("{pace}: processor time of a delivery by that of a send(2)"),
                    format!("at most {RATIO_MAX}"),
                    format!("{ratio:.2}"),
                    ratio <= RATIO_MAX,
                ));
            }
            if publish == RATES[1]
                && let Some(us) = delivery_us(run)
            {
                targets.push(Goal::speed(
                    format!("{pace}: processor time of a delivery"),
                    format!("at most {DELIVERY_US_MAX} µs"),
                    cpu(Some(us)),
                    us <= DELIVERY_US_MAX,
                ));
            }
            if publish.is_infinite()
                && let Some(live) = run.latency.live
            {
                targets.push(Goal::speed(
                    format!("{pace}: the latest delivery"),
                    format!("within {}", micros(LAG_US_MAX)),
                    micros(live.max_us),
                    live.max_us <= LAG_US_MAX,
                ));
            }
        }
        targets
    }
}

fn delivery_us(run: &FloodReport) -> Option<f64> {
    run.server.as_ref()?.cpu_per_delivery_us
}

fn ratio(run: &FloodReport) -> Option<f64> {
    run.floor.and_then(|floor| floor.ratio)
}

fn pace(publish: f64) -> String {
    match publish.is_finite() {
        true => per_second(publish),
        false => "saturated".to_owned(),
    }
}

const SUBSCRIBERS: u64 = 5_000;
const SUBSCRIBERS_MIN: u64 = 10;

/// Connections to publish over.
const PUBLISHERS: u32 = 64;

/// The subscribers' receive buffers while publishers are not limited, in bytes.
const RECEIVE_BUFFER: u32 = 32 << 10;

/// Events per second: those of a news ticker, those of a busy market, and as many as are acknowledged.
const RATES: [f64; 3] = [20.0, 1_000.0, f64::INFINITY];

/// How much more than the bare system call a delivery may take, when each event is sent by itself.
const RATIO_MAX: f64 = 1.2;

/// The allowed cost of a delivery when all that waits for a socket goes out at once, in microseconds.
const DELIVERY_US_MAX: f64 = 0.2;

/// How far deliveries may be behind saturated publishers.
const LAG_US_MAX: f64 = 1e6;
