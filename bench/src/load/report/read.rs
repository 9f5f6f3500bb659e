//! The report of catch-up reads.

use crate::load::cost::{Cost, ServerCost};
use crate::load::latency::Percentiles;
use crate::load::read::RecordFaults;
use crate::load::servers::letter;
use crate::report::Table;
use crate::units::{bytes, count, micros};
use serde::Serialize;

/// What catch-up reads have found out.
#[derive(Debug, Clone, Serialize)]
pub struct ReadReport {
    /// The servers: URLs, or the commands that started them.
    pub servers: Vec<String>,
    /// Bytes per record.
    pub record_bytes: u64,
    /// Records of the stream.
    pub records: u64,
    /// Their bytes.
    pub stream_bytes: u64,
    /// Whether other data was appended behind them, and sorted into history.
    pub is_old: bool,
    /// Readers at a time.
    pub readers: u32,
    /// How often each reads the stream in a turn.
    pub times: u32,
    /// What the first read of each server found, which checks every byte.
    pub first_reads: Vec<RecordFaults>,
    /// Each round: a turn of each server.
    pub rounds: Vec<Vec<ReadTurn>>,
}

/// One turn of a server.
#[derive(Debug, Clone, Serialize)]
pub struct ReadTurn {
    /// Bytes of bodies that were read.
    pub bytes: u64,
    /// Responses, of which a read has several if the server answers in pages.
    pub responses: u64,
    /// Reads that had another number of bytes than the stream.
    pub wrong: u64,
    /// The rate.
    pub bytes_per_second: f64,
    /// The time of a whole read.
    pub read: Option<Percentiles>,
    /// Processor time and memory.
    pub cost: Cost,
}

impl ReadTurn {
    /// A processor time in seconds per gigabyte (10^9 bytes).
    fn per_gigabyte(&self, cpu_s: f64) -> f64 {
        cpu_s * GIGABYTE / self.bytes.max(1) as f64
    }

    /// The server's processor time in seconds per gigabyte, if its process is known.
    pub fn server_cpu_s_per_gigabyte(&self) -> Option<f64> {
        let server = self.cost.server.as_ref()?;
        Some(self.per_gigabyte(server.cpu_s))
    }
}

impl ReadReport {
    /// 0 when every read had every byte, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        let clean = RecordFaults::default();
        let first = self.first_reads.iter().all(|faults| *faults == clean);
        let others = self.rounds.iter().flatten().all(|turn| turn.wrong == 0);
        u8::from(!first || !others)
    }

    /// How many times the second server's figure the first one's is, in the middle round; `None` without two figures.
    pub fn middle_ratio(&self, figure: impl Fn(&ReadTurn) -> Option<f64>) -> Option<f64> {
        let ratio = |turns: &Vec<ReadTurn>| match &turns[..] {
            [first, second] => Some(figure(first)? / figure(second)?),
            _ => None,
        };
        let mut ratios: Vec<f64> = self.rounds.iter().filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    }

    /// The report as tables.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let mut table = Table::default();
        let t = &mut table;
        let age = if self.is_old { "old" } else { "recent" };
        t.line(
            "read",
            format!(
                "{} {age} records of {}, {} in all; {} readers at a time, each {} times",
                count(self.records),
                bytes(self.record_bytes),
                bytes(self.stream_bytes),
                count(self.readers.into()),
                count(self.times.into())
            ),
        );
        for (server, name) in self.servers.iter().enumerate() {
            t.line(format!("  {}", letter(server)), name);
        }
        for (server, faults) in self.first_reads.iter().enumerate() {
            if *faults != RecordFaults::default() {
                let RecordFaults {
                    missing,
                    repeated,
                    damaged,
                } = *faults;
                t.line(
                    format!("FAULT of {}", letter(server)),
                    format!(
                        "{} records missing, {} repeated, {} damaged",
                        count(missing),
                        count(repeated),
                        count(damaged)
                    ),
                );
            }
        }
        let mut tables = vec![table, self.turns()];
        if self.servers.len() == 2 {
            tables.push(self.ratios());
        }
        tables
    }

    fn turns(&self) -> Table {
        let columns = [
            "turn",
            "rate",
            "server cpu",
            "anonymous before",
            "at most",
            "resident at most",
            "a read p50",
            "p99",
            "own cpu",
            "others",
            "stolen",
        ];
        let mut table = Table::new("", columns);
        for (round, turns) in (1..).zip(&self.rounds) {
            for (server, turn) in turns.iter().enumerate() {
                table.row(format!("{round} {}", letter(server)), turn.cells());
            }
        }
        table
    }

    fn ratios(&self) -> Table {
        let mut table = Table::default();
        let rate = |turn: &ReadTurn| Some(turn.bytes_per_second);
        let memory = |pick: fn(&ServerCost) -> u64| {
            move |turn: &ReadTurn| Some(turn.cost.server.as_ref().map(pick)? as f64)
        };
        let figures = [
            ("rate", self.middle_ratio(rate)),
            (
                "server cpu",
                self.middle_ratio(ReadTurn::server_cpu_s_per_gigabyte),
            ),
            (
                "anonymous",
                self.middle_ratio(memory(|server| server.rss_anon_bytes_max)),
            ),
            (
                "resident",
                self.middle_ratio(memory(|server| server.rss_bytes_max)),
            ),
        ];
        let known = figures
            .iter()
            .filter_map(|(name, ratio)| Some((name, (*ratio)?)));
        let text: Vec<_> = known
            .map(|(name, ratio)| format!("{name} {ratio:.2}"))
            .collect();
        table.line("A/B", format!("{} in the middle round", text.join(", ")));
        table
    }
}

impl ReadTurn {
    fn cells(&self) -> [String; 10] {
        let gigabyte = |cpu_s| format!("{:.3} s/GB", self.per_gigabyte(cpu_s));
        let server = |figure: &dyn Fn(&ServerCost) -> String| {
            let server = self.cost.server.as_ref();
            server.map_or_else(|| "-".into(), figure)
        };
        let time = |pick: fn(&Percentiles) -> f64| {
            let read = self.read.as_ref();
            read.map_or_else(|| "-".into(), |read| micros(pick(read)))
        };
        let percent = |percent: f64| format!("{percent:.0} %");
        let mut rate = format!("{:.2} GB/s", self.bytes_per_second / GIGABYTE);
        if self.wrong > 0 {
            rate += &format!(" (FAULT: {} reads of another length)", count(self.wrong));
        }
        [
            rate,
            server(&|server| gigabyte(server.cpu_s)),
            server(&|server| bytes(server.rss_anon_bytes_before)),
            server(&|server| bytes(server.rss_anon_bytes_max)),
            server(&|server| bytes(server.rss_bytes_max)),
            time(|read| read.p50_us),
            time(|read| read.p99_us),
            gigabyte(self.cost.own_cpu_s),
            self.cost.others_percent.map_or_else(|| "-".into(), percent),
            percent(self.cost.stolen_percent),
        ]
    }
}

const GIGABYTE: f64 = 1e9;
