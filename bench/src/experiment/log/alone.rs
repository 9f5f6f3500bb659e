//! The log by itself: the cost of a single record beside a bare write and sync, and the rate of full batches beside the disk's.

use std::path::Path;
use std::time::Instant;

use crate::load::{Latencies, Percentiles};
use encke_log::{Frame, Log, Options};
use serde::Serialize;

use encke_clock::WallTime;

use crate::BenchError;
use crate::experiment::lab::Lab;
use crate::machine::BareFile;

/// The measurements of the log by itself.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Alone {
    /// A write and fdatasync of as many bytes, in a file that was reserved.
    pub(super) bare: Percentiles,
    /// A record alone in its batch: encoded, written, synced, shown to readers.
    pub(super) record: Percentiles,
    /// Bytes of a record in the file.
    pub(super) frame_bytes: usize,
    /// Records in each of the full batches: one of each of the report's producers.
    pub(super) batch_records: u64,
    /// A bare write and fdatasync of as many bytes as a full batch has.
    pub(super) bare_batch: Percentiles,
    /// Records per second in such batches, each synced.
    pub(super) batched_per_second: f64,
}

impl Alone {
    /// Measures `lone` records alone, turn by turn with bare syncs, then `batched` records in batches.
    pub(super) fn measure(
        lab: &Lab<'_>,
        record_bytes: usize,
        lone: u32,
        batched: u64,
    ) -> Result<Self, BenchError> {
        let scratch = lab.scratch("alone")?;
        let payload = vec![b'x'; record_bytes];
        let mut log = open(&scratch.path().join("log"))?;
        let (mut bare, mut record) = (Latencies::new(), Latencies::new());
        let rounds = lone.div_ceil(TURN);
        let mut file = None;
        let mut frame_bytes = 0;
        for _ in 0..rounds {
            for _ in 0..TURN {
                let begun = Instant::now();
                append(&mut log, &payload)?;
                frame_bytes = log.batch_bytes();
                log.write()?;
                log.sync()?;
                log.publish();
                record.record(begun.elapsed().as_nanos() as u64);
            }
            let file = match &mut file {
                Some(file) => file,
                none => {
                    let bytes = frame_bytes as u64 * u64::from(rounds * TURN);
                    none.insert(BareFile::new(scratch.path(), bytes)?)
                }
            };
            file.syncs(frame_bytes, TURN, &mut bare)?;
        }
        log.close()?;
        drop(file);
        let mut bare_batch = Latencies::new();
        let batch_bytes = frame_bytes * BATCH_RECORDS as usize;
        let syncs = batched.div_ceil(BATCH_RECORDS).min(BARE_BATCHES_MAX) as u32;
        BareFile::new(scratch.path(), batch_bytes as u64 * u64::from(syncs))?.syncs(
            batch_bytes,
            syncs,
            &mut bare_batch,
        )?;
        Ok(Self {
            bare: bare.percentiles().ok_or_else(nothing)?,
            record: record.percentiles().ok_or_else(nothing)?,
            frame_bytes,
            batch_records: BATCH_RECORDS,
            bare_batch: bare_batch.percentiles().ok_or_else(nothing)?,
            batched_per_second: batches(&scratch.path().join("batches"), &payload, batched)?,
        })
    }

    /// Records per second if a full batch took nothing but a bare write and fdatasync of its bytes.
    pub(super) fn disk_per_second(&self) -> f64 {
        self.batch_records as f64 * 1e6 / self.bare_batch.mean_us
    }
}

/// Records per second in full batches.
fn batches(folder: &Path, payload: &[u8], records: u64) -> Result<f64, BenchError> {
    let mut log = open(folder)?;
    let batches = records.div_ceil(BATCH_RECORDS);
    let begun = Instant::now();
    for _ in 0..batches {
        for _ in 0..BATCH_RECORDS {
            append(&mut log, payload)?;
        }
        log.write()?;
        log.sync()?;
        log.publish();
    }
    let seconds = begun.elapsed().as_secs_f64();
    log.close()?;
    Ok((batches * BATCH_RECORDS) as f64 / seconds)
}

fn open(folder: &Path) -> Result<Log, BenchError> {
    std::fs::create_dir(folder).map_err(BenchError::file("make", folder))?;
    Ok(Log::open(folder, Options::default(), &mut |_| {})?)
}

fn append(log: &mut Log, payload: &[u8]) -> Result<(), BenchError> {
    let frame = Frame {
        kind: KIND,
        time: WallTime::default(),
        streams: &[1],
        payload: &[payload],
    };
    log.append(&frame)
        .map(drop)
        .map_err(|_| BenchError::Option("a record must fit into a segment of the log".into()))
}

/// Any kind will do: these records are not read.
const KIND: u8 = 1;

/// Records in a full batch.
const BATCH_RECORDS: u64 = 1_000;

/// Full batches' bytes that are written bare: 90 MB at the most.
const BARE_BATCHES_MAX: u64 = 500;

/// Lone records between bare syncs: the disk's moods meet both.
const TURN: u32 = 50;

fn nothing() -> BenchError {
    BenchError::Option("at least one record is needed".into())
}
