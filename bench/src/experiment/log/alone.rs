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
    /// A record alone in its batch.
    pub(super) lone: Beside,
    /// Full batches: one record of each of the report's producers.
    pub(super) full: Beside,
}

/// Batches of the log, turn by turn with bare syncs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Beside {
    /// A write and fdatasync of as many bytes, in a file that was reserved.
    bare: Percentiles,
    /// A batch: encoded, written, synced, shown to readers.
    pub(super) batch: Percentiles,
    /// Records in each batch.
    records: u64,
    /// Bytes of each batch in the file.
    pub(super) batch_bytes: usize,
}

impl Alone {
    /// Measures `lone` records alone, then `batched` records in full batches.
    pub(super) fn measure(
        lab: &Lab<'_>,
        record_bytes: usize,
        lone: u32,
        batched: u64,
    ) -> Result<Self, BenchError> {
        let scratch = lab.scratch("alone")?;
        let folder = scratch.path();
        let payload = vec![b'x'; record_bytes];
        let mut log = open(&folder.join("log"))?;
        let batches = batched.div_ceil(BATCH_RECORDS) as u32;
        let lone = Beside::measure(folder, &mut log, &payload, (1, lone))?;
        let full = Beside::measure(folder, &mut log, &payload, (BATCH_RECORDS, batches))?;
        log.close()?;
        Ok(Self { lone, full })
    }
}

impl Beside {
    /// Measures `count` batches of `records` each.
    fn measure(
        folder: &Path,
        log: &mut Log,
        payload: &[u8],
        (records, count): (u64, u32),
    ) -> Result<Self, BenchError> {
        let (mut bare, mut batch) = (Latencies::new(), Latencies::new());
        let turns = count.div_ceil(TURN);
        let mut file = None;
        let mut batch_bytes = 0;
        for _ in 0..turns {
            for _ in 0..TURN {
                let begun = Instant::now();
                for _ in 0..records {
                    append(log, payload)?;
                }
                batch_bytes = log.batch_bytes();
                log.write()?;
                log.sync()?;
                log.publish();
                batch.record(begun.elapsed().as_nanos() as u64);
            }
            let file = match &mut file {
                Some(file) => file,
                none => {
                    let bytes = batch_bytes as u64 * u64::from(turns * TURN);
                    none.insert(BareFile::new(folder, bytes)?)
                }
            };
            file.syncs(batch_bytes, TURN, &mut bare)?;
        }
        Ok(Self {
            bare: bare.percentiles().ok_or_else(nothing)?,
            batch: batch.percentiles().ok_or_else(nothing)?,
            records,
            batch_bytes,
        })
    }
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

/// Batches between bare syncs: both are measured while the disk is in the same state.
const TURN: u32 = 50;

fn nothing() -> BenchError {
    BenchError::Option("at least one record is needed".into())
}
