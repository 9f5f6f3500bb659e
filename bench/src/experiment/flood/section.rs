//! The section of the flood: figures beside those of the field report, targets, and curves.

use crate::load::{HangUps, chart};
use crate::units::{bytes, count, micros, per_second};

use super::{Figures, FloodFindings};
use crate::experiment::past::{NONE, NOW, REPORTS, TODAY};
use crate::report::figures;
use crate::{Goal, Section, Table};

impl FloodFindings {
    pub(super) fn section(&self) -> Section {
        let runs: Vec<_> = self.runs.iter().map(Figures::connections).collect();
        Section {
            name: "flood",
            title: "connections, and what each costs",
            story: format!(
                "The report: 10,000, then 1,000,000 HTTP streaming clients, each logged in to a router under an id; 1,000 \
                 messages a second to random ids for a day. Now, for {}: {} subscribers, each on a stream of its own, {} to \
                 random ones at level synced; every second ten clients hang up and come back.",
                self.runs
                    .first()
                    .map_or(String::new(), |held| length(held.published_seconds)),
                runs.join(", then "),
                per_second(self.runs.first().map_or(0.0, Figures::rate))
            ),
            in_short: self.in_short(),
            tables: vec![self.beside_the_report(), self.of_these_runs()],
            targets: self.runs.iter().flat_map(Figures::targets).collect(),
            notes: self.notes(),
            plot: Some(chart::draw(self.runs.iter().map(|held| {
                (format!("{}: ", held.connections()), &held.flood.samples[..])
            }))),
            figures: figures(self),
        }
    }

    fn in_short(&self) -> Vec<[String; 3]> {
        let last = self.runs.last();
        let memory = last.and_then(Figures::user_bytes).unwrap_or(NONE.into());
        let noticed = last.map_or(NONE.into(), |held| noticed(&held.flood.endurance.hang_ups));
        vec![
            [
                "user memory of an idle subscriber, without its stream".into(),
                "45 KB; 8 KB hibernating; 2 KB in C".into(),
                memory,
            ],
            [
                "an idle client's hang-up is noticed".into(),
                "at the next write".into(),
                noticed,
            ],
        ]
    }

    fn beside_the_report(&self) -> Table {
        let mut columns = vec![String::new(), REPORTS.to_owned(), TODAY.to_owned()];
        let runs = self.runs.iter();
        columns.extend(runs.map(|held| format!("{NOW}, {}", held.connections())));
        let mut table = Table {
            columns,
            ..Table::default()
        };
        let mut row = |name: &str, report: &str, today: &str, now: fn(&Figures) -> String| {
            let mut row = vec![name.to_owned(), report.to_owned(), today.to_owned()];
            row.extend(self.runs.iter().map(now));
            table.rows.push(row);
        };
        row(
            "user memory of an idle subscriber, without its stream",
            "45 KB; 8 KB hibernating; 2 KB in C",
            "7.8 KB",
            |held| held.user_bytes().unwrap_or(NONE.into()),
        );
        row("with its stream", NONE, NONE, |held| {
            let server = held.flood.server.as_ref();
            server.map_or(NONE.into(), |server| {
                format!("{:.0} B", server.bytes_per_connection_and_stream)
            })
        });
        row("with the kernel's part", "10 KB in C", NONE, |held| {
            held.with_kernel().unwrap_or(NONE.into())
        });
        row(
            "memory over the run",
            "90 to 250 MB in a day",
            NONE,
            |held| {
                let server = held.flood.server.as_ref();
                server.map_or(NONE.into(), |server| {
                    format!(
                        "{} to {} in {}",
                        bytes(server.memory_open.rss_anon_bytes),
                        bytes(server.memory_after.rss_anon_bytes),
                        length(held.published_seconds)
                    )
                })
            },
        );
        row(
            "an idle client's hang-up is noticed",
            NONE,
            "at the next write",
            |held| noticed(&held.flood.endurance.hang_ups),
        );
        table
    }

    fn of_these_runs(&self) -> Table {
        let mut table = Table {
            title: "These runs".into(),
            ..Table::default()
        };
        table.columns.push(String::new());
        let runs = self.runs.iter();
        table.columns.extend(runs.map(Figures::connections));
        let mut row = |name: &str, figure: &dyn Fn(&Figures) -> Option<String>| {
            let figures: Vec<_> = self.runs.iter().map(figure).collect();
            if figures.iter().any(Option::is_some) {
                let figures = figures.into_iter().map(|f| f.unwrap_or(NONE.into()));
                let row = std::iter::once(name.to_owned()).chain(figures);
                table.rows.push(row.collect());
            }
        };
        row("messages delivered", &|held| {
            Some(count(held.flood.deliveries.messages))
        });
        row("delivery p50", &|held| {
            Some(micros(held.flood.latency.live?.p50_us))
        });
        row("delivery p99", &|held| {
            Some(micros(held.flood.latency.live?.p99_us))
        });
        row("server memory before, and with all connections", &|held| {
            let server = held.flood.server.as_ref()?;
            Some(format!(
                "{}, {}",
                bytes(server.memory_before.rss_anon_bytes),
                bytes(server.memory_open.rss_anon_bytes)
            ))
        });
        row("memory drift over the last nine tenths", &|held| {
            Some(format!("{:+.1} %", held.flood.endurance.drift_percent?))
        });
        row("the kernel's", &|held| {
            Some(format!(
                "{:+.1} %",
                held.flood.endurance.kernel_drift_percent?
            ))
        });
        row("open files before, with all, at the end, closed", &|held| {
            let endurance = &held.flood.endurance;
            let at = [
                endurance.descriptors_before?,
                endurance.descriptors_open?,
                endurance.descriptors_after?,
                endurance.descriptors_closed?,
            ];
            Some(at.map(|at| count(at.all)).join("; "))
        });
        row("hang-ups noticed, p50, p99, the last", &|held| {
            let after = held.flood.endurance.hang_ups.after?;
            Some(format!(
                "{}, {}, {}, {}",
                count(after.count),
                micros(after.p50_us),
                micros(after.p99_us),
                micros(after.max_us)
            ))
        });
        row("all of them at once, after", &|held| {
            Some(format!("{:.0} ms", held.noticed_seconds * 1e3))
        });
        row("processor time per connection", &|held| {
            Some(micros(held.flood.server.as_ref()?.cpu_per_connection_us))
        });
        row("processor time per message", &|held| {
            Some(micros(held.flood.server.as_ref()?.cpu_per_message_us?))
        });
        table
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "Memory per connection is the growth of the server's anonymous memory from when the streams were there to when \
             all subscribers were; below some thousands of connections it is the grain of the allocator that shows. The \
             kernel's part is half of what its slabs and TCP buffers grew by, because both ends are on this machine."
                .to_owned(),
            "In a run of seconds memory grows while the recent records fill up (--ring); whether it stays flat is shown by \
             runs of hours: --hours, or `make flood-hour`."
                .to_owned(),
        ];
        notes.extend(self.fewer.clone());
        notes
    }
}

impl Figures {
    fn connections(&self) -> String {
        count(self.flood.opening.opened)
    }

    fn rate(&self) -> f64 {
        self.flood.publishing.as_ref().map_or(0.0, |p| p.rate)
    }

    fn user_bytes(&self) -> Option<String> {
        let server = self.flood.server.as_ref()?;
        Some(format!("{:.0} B", server.bytes_per_connection))
    }

    /// With few connections, what else happens on the machine is more than what they take.
    fn with_kernel(&self) -> Option<String> {
        let server = self.flood.server.as_ref()?;
        let all = server.bytes_per_connection + server.kernel_bytes_per_connection / 2.0;
        (self.flood.opening.opened >= KERNEL_SHOWS).then(|| format!("{:.1} KB", all / 1e3))
    }

    fn targets(&self) -> Vec<Goal> {
        let flood = &self.flood;
        let faults = &flood.faults;
        let of = |what: &str| format!("{} connections: {what}", self.connections());
        let wrong = faults.missing.count + faults.duplicates.count + faults.reordered.count;
        let refused = flood.opening.failed + flood.connections.given_up;
        let left = flood.endurance.sockets_left().unwrap_or(0);
        let mut targets = Vec::new();
        for (what, number) in [
            ("messages missing, doubled or out of order", wrong),
            ("held after all had hung up", self.still_held),
            ("sockets left open", left),
            ("refused or given up", refused),
        ] {
            targets.push(Goal::none(of(what), number));
        }
        let hang_ups = &flood.endurance.hang_ups;
        if hang_ups.made > 0 {
            let late = hang_ups.late + hang_ups.unnoticed + hang_ups.unmeasured;
            targets.push(Goal::speed(
                of("hang-ups noticed within 100 ms"),
                "all",
                format!(
                    "{} of {}",
                    count(hang_ups.made - late),
                    count(hang_ups.made)
                ),
                late == 0,
            ));
        }
        if let Some(server) = &flood.server {
            let each = server.bytes_per_connection;
            targets.push(Goal::speed(
                of("user memory of an idle subscriber, without its stream"),
                "under 256 B",
                format!("{each:.0} B"),
                each < 256.0,
            ));
        }
        if let Some(drift) = flood.endurance.drift_percent
            && self.published_seconds >= FLAT_AFTER_SECONDS
        {
            targets.push(Goal::speed(
                of("memory drift over the last nine tenths"),
                "at most 2 %",
                format!("{drift:+.1} %"),
                drift <= 2.0,
            ));
        }
        targets
    }
}

fn noticed(hang_ups: &HangUps) -> String {
    match (&hang_ups.after, hang_ups.unnoticed) {
        (Some(after), 0) => format!(
            "after {}, at most {}",
            micros(after.p50_us),
            micros(after.max_us)
        ),
        (_, 0) => NONE.to_owned(),
        (_, missed) => format!("not {} of {}", count(missed), count(hang_ups.made)),
    }
}

/// A time as people say it.
fn length(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 600.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3_600.0),
    }
}

/// From this number of connections on, the kernel's part shows.
const KERNEL_SHOWS: u64 = 1_000;

/// From so long a run on, memory must be flat: what is meant to fill up has filled up in its first tenth.
const FLAT_AFTER_SECONDS: f64 = 1_800.0;
