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
use crate::units::count;
use encke_log::Options;
use minijinja::context;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;

use crate::client::HttpClient;
use crate::experiment::lab::Lab;
use crate::experiment::serving::{Disk, Level, Serving, scrape, streams_url};
use crate::{BenchError, Section};

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
    let missing = |round: &Round| records.abs_diff(round.acknowledged);
    let derived = context! {
        missing => found.rounds.iter().map(missing).sum::<u64>(),
        reads => READS.min(streams),
        record_bytes => RECORD_BYTES,
    };
    Ok(Section::from_template("streams", &found, derived, None))
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
