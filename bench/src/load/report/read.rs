//! The report of catch-up reads.

use crate::load::cost::{Cost, ServerCost};
use crate::load::latency::Percentiles;
use crate::load::read::RecordFaults;
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

/// A figure of a turn, if it is known.
type Figure = dyn Fn(&ReadTurn) -> Option<f64>;

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

    /// The [`middle_ratio`](Self::middle_ratio) of each figure that both servers have.
    pub(super) fn middle_ratios(&self) -> Vec<(&'static str, f64)> {
        let memory = |pick: fn(&ServerCost) -> u64| {
            move |turn: &ReadTurn| Some(turn.cost.server.as_ref().map(pick)? as f64)
        };
        let figures: [(_, &Figure); 4] = [
            ("rate", &|turn| Some(turn.bytes_per_second)),
            ("server cpu", &ReadTurn::server_cpu_s_per_gigabyte),
            ("anonymous", &memory(|server| server.rss_anon_bytes_max)),
            ("resident", &memory(|server| server.rss_bytes_max)),
        ];
        let known = figures.into_iter();
        known
            .filter_map(|(name, figure)| Some((name, self.middle_ratio(figure)?)))
            .collect()
    }
}

const GIGABYTE: f64 = 1e9;
