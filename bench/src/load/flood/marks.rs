//! Marks: the server's memory and processor time between the phases of a run, and figures derived from them.

use super::watch::{Mark, Watch};
use crate::load::args::FloodArgs;
use crate::load::report::endurance::{Endurance, HangUps};
use crate::load::report::flood::{FloodReport, ServerUsage};

/// The turning points; without a server to measure there is nothing at any.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Before anything was done.
    pub(super) before: Option<Mark>,
    /// When the streams were there.
    pub(super) created: Option<Mark>,
    /// When the last subscriber was connected.
    pub(super) connected: Option<Mark>,
    /// When they had been left alone for a while.
    pub(super) open: Option<Mark>,
    /// When all had arrived, before anybody was closed.
    pub(super) after: Option<Mark>,
    /// When all had been closed for a while.
    pub(super) closed: Option<Mark>,
}

impl Marks {
    /// The server's use of resources; `events` is the number of deliveries while messages were published.
    pub(super) fn server(
        &self,
        report: &FloodReport,
        watch: &Watch,
        events: u64,
    ) -> Option<ServerUsage> {
        let (before, created, connected) = (self.before?, self.created?, self.connected?);
        let (open, after, closed) = (self.open?, self.after?, self.closed?);
        let connections = report.opening.opened.max(1) as f64;
        let grown = |from: u64, to: u64| (to as f64 - from as f64) / connections;
        let user = |from: Mark| grown(from.memory.rss_anon_bytes, open.memory.rss_anon_bytes);
        let cpu_us = |from: Mark, to: Mark| (to.cpu_ns - from.cpu_ns) as f64 / 1e3;
        let spent_us = cpu_us(open, after);
        let messages = report.publishing.as_ref().map_or(0, |p| p.acknowledged);
        let share = |count: u64| (count > 0).then(|| spent_us / count as f64);
        Some(ServerUsage {
            pid: watch.pid(),
            memory_before: before.memory,
            memory_created: created.memory,
            memory_open: open.memory,
            memory_after: after.memory,
            memory_closed: closed.memory,
            rss_anon_bytes_max: watch.rss_anon_bytes_max(),
            bytes_per_connection: user(created),
            bytes_per_connection_and_stream: user(before),
            kernel_bytes_per_connection: grown(
                created.memory.kernel_bytes_all(),
                open.memory.kernel_bytes_all(),
            ),
            cpu_per_connection_us: cpu_us(created, connected) / connections,
            cpu_seconds: spent_us / 1e6,
            cpu_per_delivery_us: share(events),
            cpu_per_message_us: share(messages),
        })
    }

    /// The endurance of the server, except for figures that need samples.
    pub(super) fn endurance(&self, args: &FloodArgs, hang_ups: HangUps) -> Endurance {
        let descriptors = |mark: Option<Mark>| mark.and_then(|mark| mark.descriptors);
        Endurance {
            judged: args.endure,
            drift_percent_max: args.drift_max,
            drift_percent: None,
            kernel_drift_percent: None,
            parts: Vec::new(),
            hang_ups,
            descriptors_before: descriptors(self.before),
            descriptors_open: descriptors(self.open),
            descriptors_after: descriptors(self.after),
            descriptors_closed: descriptors(self.closed),
        }
    }
}
