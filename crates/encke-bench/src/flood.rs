//! `flood`: connections, messages to random ones, and hang-ups.
//!
//! `encke flood` is the tool for this experiment, over hours and up to a million connections; here it is run for a few
//! seconds at a size that the limit on open files allows, against a server of its own, so that the report has all five.

use std::time::{Duration, Instant};

use encke_flood::units::{bytes, count, micros, per_second};
use encke_flood::{FloodArgs, FloodReport, chart, flood_until};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::lab::Lab;
use crate::past::{NONE, NOW, REPORTS, TODAY};
use crate::report::figures;
use crate::serving::{Disk, Level, Serving, scrape};
use crate::{BenchError, Section, Table, Target};

/// What the experiment has found.
#[derive(Debug, Clone, Serialize)]
struct Held {
    flood: FloodReport,
    /// Connections that the server still counted, a while after all clients had hung up.
    still_held: u64,
    /// How long it took until it counted none, or was given up, in seconds.
    noticed_seconds: f64,
    /// Why there were fewer connections than the size asks for, if so.
    fewer: Option<String>,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let asked = lab.scaled(CONNECTIONS, CONNECTIONS_MIN);
    let files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let room = files.saturating_sub(FILES_RESERVED).max(CONNECTIONS_MIN);
    let connections = asked.min(room);
    let fewer = (connections < asked).then(|| {
        format!(
            "A process may open {} files here, so {} connections were made instead of {}.",
            count(files),
            count(connections),
            count(asked)
        )
    });
    let data = lab.scratch("flood")?;
    let server = Serving::start(lab, data.path(), Level::Synced, Disk::Own)?;
    let args = FloodArgs {
        url: format!("http://{}/v1/stream", server.address()),
        subscribers: u32::try_from(connections).unwrap_or(u32::MAX),
        rate: OPENED_PER_SECOND,
        publish: Some(lab.scaled(PUBLISHED_PER_SECOND, PUBLISHED_PER_SECOND_MIN) as f64),
        duration: Some(Duration::from_secs_f64(SECONDS * lab.size.min(1.0)).max(DURATION_MIN)),
        server_pid: Some(server.pid()),
        ..FloodArgs::default()
    };
    let flood = flood_until(&args, lab.stop())?;
    lab.check()?;
    let hung_up = Instant::now();
    let still_held = loop {
        // The connection that asks is one of them.
        let held = scrape(server.address())?.value("encke_connections") - 1.0;
        if held <= 0.0 || hung_up.elapsed() > NOTICE_WAIT {
            break held.max(0.0) as u64;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let noticed_seconds = hung_up.elapsed().as_secs_f64();
    server.stop()?;
    let held = Held {
        flood,
        still_held,
        noticed_seconds,
        fewer,
    };
    Ok(held.section())
}

impl Held {
    fn section(&self) -> Section {
        let flood = &self.flood;
        Section {
            name: "flood",
            title: "connections, and what each costs",
            story: format!(
                "The report: 10,000, then 1,000,000 HTTP streaming clients, each logged in to a router under an id; 1,000 \
                 messages a second to random ids for a day. Now, for a short while: {} subscribers, each on a stream of its \
                 own, {} to random ones at level «synced».",
                count(flood.opening.opened),
                per_second(flood.publishing.as_ref().map_or(0.0, |p| p.rate))
            ),
            in_short: self.in_short(),
            tables: vec![self.beside_the_report(), self.of_deliveries()],
            targets: self.targets(),
            notes: self.notes(),
            plot: Some(chart::draw(&flood.samples)),
            figures: figures(self),
        }
    }

    fn in_short(&self) -> Vec<[String; 3]> {
        let server = self.flood.server.as_ref();
        vec![[
            "user memory of a connection".into(),
            "45 KB; 8 KB hibernating; 2 KB in C".into(),
            server.map_or(NONE.to_owned(), |server| {
                format!("{:.0} B", server.bytes_per_connection)
            }),
        ]]
    }

    fn beside_the_report(&self) -> Table {
        let mut table = Table::new("", &["", REPORTS, TODAY, NOW]);
        let server = self.flood.server.as_ref();
        let memory = server.map_or(NONE.to_owned(), |server| {
            format!("{:.0} B", server.bytes_per_connection)
        });
        table.row(
            "user memory per connection",
            ["45 KB; 8 KB hibernating; 2 KB in C", "7.8 KB", &memory],
        );
        let noticed = match self.still_held {
            0 => "when it happens".to_owned(),
            held => format!("not of {}", count(held)),
        };
        table.row(
            "an idle client's hang-up is noticed",
            [NONE, "at the next write", &noticed],
        );
        table
    }

    fn of_deliveries(&self) -> Table {
        let flood = &self.flood;
        let mut table = Table::new("This run", &["", NOW]);
        let mut row = |name: &str, figure: String| table.row(name, [figure.as_str()]);
        row("connections", count(flood.opening.opened));
        row("messages delivered", count(flood.deliveries.messages));
        if let Some(live) = &flood.latency.live {
            row("delivery p50", micros(live.p50_us));
            row("delivery p99", micros(live.p99_us));
        }
        if let Some(server) = &flood.server {
            row(
                "server memory, before and with all connections",
                format!(
                    "{}, {}",
                    bytes(server.memory_before.rss_anon_bytes),
                    bytes(server.memory_open.rss_anon_bytes)
                ),
            );
            row(
                "processor time per connection",
                micros(server.cpu_per_connection_us),
            );
            if let Some(us) = server.cpu_per_message_us {
                row("processor time per message", micros(us));
            }
        }
        row(
            "all hang-ups noticed after",
            format!("{:.0} ms", self.noticed_seconds * 1e3),
        );
        table
    }

    fn targets(&self) -> Vec<Target> {
        let flood = &self.flood;
        let faults = &flood.faults;
        let wrong = faults.missing.count + faults.duplicates.count + faults.reordered.count;
        let mut targets = vec![
            Target::promise(
                "messages missing, doubled or out of order",
                "0",
                count(wrong),
                wrong == 0,
            ),
            Target::promise(
                "connections held after all had hung up",
                "0",
                count(self.still_held),
                self.still_held == 0,
            ),
            Target::promise(
                "connections that were refused or given up",
                "0",
                count(flood.opening.failed + flood.connections.given_up),
                flood.opening.failed + flood.connections.given_up == 0,
            ),
        ];
        if let Some(server) = &flood.server {
            let each = server.bytes_per_connection;
            targets.push(Target::speed(
                "user memory per idle connection with a stream of its own",
                "under 256 B",
                format!("{each:.0} B"),
                each < 256.0,
            ));
        }
        targets
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "Memory per connection is the growth of the server's anonymous memory from when the streams were there to when \
             all subscribers were; below some thousands of connections it is the grain of the allocator that shows."
                .to_owned(),
        ];
        notes.extend(self.fewer.clone());
        notes
    }
}

/// The report's first size.
const CONNECTIONS: u64 = 10_000;
const CONNECTIONS_MIN: u64 = 10;

/// Files that are not the server's or the flood's connections.
const FILES_RESERVED: u64 = 1_024;

/// How fast connections are opened.
const OPENED_PER_SECOND: f64 = 5_000.0;

/// The report's rate.
const PUBLISHED_PER_SECOND: u64 = 1_000;
const PUBLISHED_PER_SECOND_MIN: u64 = 50;

/// How long messages are published, at the full size and at least.
const SECONDS: f64 = 8.0;
const DURATION_MIN: Duration = Duration::from_millis(500);

/// How long a hang-up may go unnoticed before it counts as not noticed.
const NOTICE_WAIT: Duration = Duration::from_secs(5);
