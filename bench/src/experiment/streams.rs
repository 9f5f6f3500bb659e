//! `streams`: ten records in each of a million streams, killed, and opened again.
//!
//! It measures the whole server: its log, its streams, and reads over HTTP. Unread records and unused streams take no memory;
//! a start reads only the latest changes; and old records are read together, because history keeps the records of a stream in
//! one place.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::load::{Latencies, Percentiles, SprayArgs, spray};
use crate::units::{bytes, count, micros, per_second};
use encke_log::Options;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use crate::client::HttpClient;
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Disk, Level, Serving, scrape, streams_url};
use crate::report::figures;
use crate::{BenchError, Goal, Section, Table};

/// The results of the experiment.
#[derive(Debug, Serialize)]
struct StreamsFindings {
    streams: u64,
    /// Records that are appended in each round.
    records: u64,
    rounds: Vec<Round>,
}

/// Records appended, the server killed and opened again, and some streams read.
#[derive(Debug, Serialize)]
struct Round {
    /// Appends that were acknowledged.
    acknowledged: u64,
    acknowledged_per_second: f64,
    /// From the start of the killed server's successor until it listens, in seconds.
    opened_s: f64,
    /// The successor's own memory when it listens.
    opened_bytes: u64,
    /// Until everything that the crash had left was in history, in seconds.
    settled_s: f64,
    /// The server's own memory a while after one more start, before anything was read, with a segment that has just begun:
    /// what one that is being filled holds costs memory until it is in history.
    at_rest_bytes: u64,
    /// All records of a stream, with nothing of them in any cache; then the same streams again.
    cold: Percentiles,
    warm: Percentiles,
    /// Records that were in the streams that were read.
    read: u64,
}

/// Runs the experiment.
pub(crate) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    let streams = lab.scaled(STREAMS, STREAMS_MIN);
    let records = lab.scaled(RECORDS, RECORDS_MIN);
    let data = lab.scratch("streams")?;
    let rounds = ["once", "twice"];
    let rounds = (rounds.iter().zip(0..))
        .map(|(name, number)| Round::make(lab, data.path(), (name, number), streams, records))
        .collect::<Result<_, _>>()?;
    let found = StreamsFindings {
        streams,
        records,
        rounds,
    };
    Ok(found.section())
}

impl Round {
    fn make(
        lab: &Lab<'_>,
        data: &Path,
        (name, number): (&str, u64),
        streams: u64,
        records: u64,
    ) -> Result<Self, BenchError> {
        let start = || Serving::start(lab, data, Level::Synced, Disk::Own, &[]);
        lab.say(&format!(
            "streams, {name}: {} records into {} streams",
            count(records),
            count(streams)
        ));
        let server = start()?;
        let args = SprayArgs {
            url: streams_url(server.address()),
            producers: PRODUCERS,
            pipeline: PIPELINE,
            streams: u32::try_from(streams).unwrap_or(u32::MAX),
            prefix: PREFIX.into(),
            // They are there already.
            no_create: number > 0,
            content_type: "text/plain".into(),
            size: RECORD_BYTES,
            messages: Some(records),
            ..SprayArgs::default()
        };
        let sprayed = spray(&args, lab.stop())?;
        lab.check()?;
        // Killed.
        drop(server);
        lab.say(&format!("streams, {name}: opened again"));
        let begun = Instant::now();
        let server = start()?;
        let opened_s = begun.elapsed().as_secs_f64();
        let opened_bytes = server.memory_bytes()?;
        wait_for_history(lab, server.address())?;
        let settled_s = begun.elapsed().as_secs_f64();
        fill_segment(lab, server.address())?;
        server.stop()?;
        evict(data).map_err(BenchError::file("put out of the page cache", data))?;
        lab.say(&format!("streams, {name}: reading"));
        let server = start()?;
        lab.sleep(AT_REST)?;
        let at_rest_bytes = server.memory_bytes()?;
        let mut client = HttpClient::connect(server.address())?;
        let (cold, read_cold) = read(lab, &mut client, streams)?;
        let (warm, _) = read(lab, &mut client, streams)?;
        server.stop()?;
        Ok(Self {
            acknowledged: sprayed.acknowledged,
            acknowledged_per_second: sprayed.acknowledged_per_second,
            opened_s,
            opened_bytes,
            settled_s,
            at_rest_bytes,
            cold,
            warm,
            read: read_cold,
        })
    }
}

/// Has the log begin another segment, so that none of the records that were appended before is in the one being filled.
fn fill_segment(lab: &Lab<'_>, server: SocketAddr) -> Result<(), BenchError> {
    let args = SprayArgs {
        url: streams_url(server),
        producers: 1,
        one: Some(FILLER.into()),
        content_type: "text/plain".into(),
        size: FILLER_RECORD_BYTES as usize,
        messages: Some(Options::default().segment_bytes / FILLER_RECORD_BYTES + 1),
        ..SprayArgs::default()
    };
    spray(&args, lab.stop())?;
    wait_for_history(lab, server)
}

/// Waits until every segment that is full is in history.
fn wait_for_history(lab: &Lab<'_>, server: SocketAddr) -> Result<(), BenchError> {
    while scrape(server)?.value("encke_log_segments_waiting") > 0.0 {
        lab.sleep(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Reads streams spread over all, each whole and once, always the same ones. Also returns the number of their records.
fn read(
    lab: &Lab<'_>,
    client: &mut HttpClient,
    streams: u64,
) -> Result<(Percentiles, u64), BenchError> {
    let mut latencies = Latencies::new();
    let mut read = 0;
    for turn in 0..READS.min(streams) {
        lab.check()?;
        let stream = turn * FAR_APART % streams;
        let path = format!("/v1/stream/{PREFIX}{stream}?offset=-1");
        let begun = Instant::now();
        let records = client.succeed("GET", &path, b"")?;
        latencies.record(begun.elapsed().as_nanos() as u64);
        read += records.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    let percentiles = latencies.percentiles();
    let percentiles =
        percentiles.ok_or_else(|| BenchError::Server("was asked for no stream".into()))?;
    Ok((percentiles, read))
}

/// Puts everything in a directory out of the page cache.
fn evict(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            evict(&path)?;
        } else {
            let file = File::open(&path)?;
            // Only pages that are on the disk can leave memory.
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}

impl StreamsFindings {
    fn section(&self) -> Section {
        Section {
            name: "streams",
            title: "a million streams, killed and opened again",
            story: format!(
                "{} records of {RECORD_BYTES} bytes go to {} streams at random, each acknowledged at level synced. Then the \
                 server is killed and started again; and after a start with nothing in the page cache, {} streams are read \
                 whole, over HTTP. Then all of it once more, on top of what is there.",
                count(self.records),
                count(self.streams),
                count(READS.min(self.streams))
            ),
            in_short: Vec::new(),
            tables: vec![self.table()],
            targets: self.targets(),
            notes: vec![
                "A read of a stream at rest brings the stream itself into memory, too. Memory is anonymous memory \
                 (RssAnon), without the cache that the kernel keeps of files."
                    .to_owned(),
                format!(
                    "The streams that were read had {} records in all.",
                    count(self.rounds.iter().map(|round| round.read).sum())
                ),
            ],
            figures: figures(self),
            plot: None,
        }
    }

    fn table(&self) -> Table {
        let names: Vec<_> = (1..=self.rounds.len() as u64)
            .map(|n| format!("{} records", count(n * self.records)))
            .collect();
        let columns: Vec<_> = std::iter::once("")
            .chain(names.iter().map(String::as_str))
            .collect();
        let mut table = Table::new("", columns);
        let mut row = |name: &str, figure: &dyn Fn(&Round) -> String| {
            let cells: Vec<_> = self.rounds.iter().map(figure).collect();
            table.row(name, cells);
        };
        let seconds = |seconds: f64| format!("{seconds:.2} s");
        let pair = |p: Percentiles| format!("{}, {}", micros(p.p50_us), micros(p.p99_us));
        row("appended", &|round| {
            per_second(round.acknowledged_per_second)
        });
        row("after kill -9: until it listens", &|round| {
            seconds(round.opened_s)
        });
        row("its memory then", &|round| bytes(round.opened_bytes));
        row("until all is in history", &|round| seconds(round.settled_s));
        row("memory after one more start", &|round| {
            bytes(round.at_rest_bytes)
        });
        row("a stream cold, p50 and p99", &|round| pair(round.cold));
        row("the same warm", &|round| pair(round.warm));
        table
    }

    fn targets(&self) -> Vec<Goal> {
        let most = |figure: fn(&Round) -> f64| self.rounds.iter().map(figure).fold(0.0, f64::max);
        let speed = |name: &str, wanted: f64, measured: f64, shown: fn(f64) -> String| {
            let wanted_text = format!("at most {}", shown(wanted));
            Goal::speed(
                name.to_owned(),
                wanted_text,
                shown(measured),
                measured <= wanted,
            )
        };
        let megabytes = |n: f64| bytes(n as u64);
        let missing: u64 = (self.rounds.iter())
            .map(|round| self.records.abs_diff(round.acknowledged))
            .sum();
        let grown = match &self.rounds[..] {
            [once, .., twice] => twice.at_rest_bytes.saturating_sub(once.at_rest_bytes),
            _ => 0,
        };
        vec![
            Goal::none("appends that were not acknowledged", missing),
            speed(
                "opened after kill -9",
                OPENED_S_MAX,
                most(|round| round.opened_s),
                |s| format!("{s:.2} s"),
            ),
            speed(
                "memory then",
                MEMORY_BYTES_MAX as f64,
                most(|round| round.opened_bytes as f64),
                megabytes,
            ),
            speed(
                "a stream cold, p50",
                COLD_US_MAX,
                most(|round| round.cold.p50_us),
                micros,
            ),
            speed(
                "a stream warm, p50",
                WARM_US_MAX,
                most(|round| round.warm.p50_us),
                micros,
            ),
            speed(
                "memory that a record costs at rest: that of as many more, each",
                1.0,
                grown as f64 / self.records as f64,
                |n| format!("{n:.2} B"),
            ),
        ]
    }
}

/// The sizes: ten records for each stream.
const RECORDS: u64 = 10_000_000;
const STREAMS: u64 = 1_000_000;
const RECORDS_MIN: u64 = 1_000;
const STREAMS_MIN: u64 = 100;
const RECORD_BYTES: usize = 128;

/// Connections, and appends that each has in flight.
const PRODUCERS: u32 = 32;
const PIPELINE: u32 = 32;

/// Streams that are read.
const READS: u64 = 2_000;

/// The distance of streams that are read one after the other: a prime, so that none comes twice.
const FAR_APART: u64 = 2_654_435_761;

/// The streams' names begin so.
const PREFIX: &str = "many/";

/// The stream that fills up a segment; it is not read.
const FILLER: &str = "filler";
const FILLER_RECORD_BYTES: u64 = 256 << 10;

/// How long a server is left alone before its memory is said to be at rest. Its allocator gives back what the start has used
/// within a second.
const AT_REST: Duration = Duration::from_secs(3);

/// The targets.
const OPENED_S_MAX: f64 = 2.0;
const MEMORY_BYTES_MAX: u64 = 64 << 20;
const COLD_US_MAX: f64 = 1_000.0;
const WARM_US_MAX: f64 = 150.0;
