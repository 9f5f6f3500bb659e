//! The repair of segments: the last one is cut, or new segments are written.

use crate::diagnosis::Diagnosis;
use crate::diagnosis::ranges::Range;
use crate::disk::file_name;
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::sort::Sorted;
use crate::history::verify::inspect::ReadWhole;
use crate::ids::Sequence;
use crate::options::Options;
use crate::repair::damaged_log::{DamagedLog, aside_path};
use crate::repair::rewrite::{self, Sources};
use crate::retention::LogRetention;
use crate::superblock::statement::{LastSegment, StatedHistory, Statement};
use crate::superblock::{Superblock, Superblocks};
use std::collections::BTreeSet;

/// Lets the log continue after `upto`: sets segments aside, and cuts the last one or begins a new one.
pub(crate) fn continue_after<D: Disk>(
    log: &DamagedLog<'_, D>,
    (upto, last, cut): (Sequence, Option<usize>, Option<u64>),
    statement: Option<Statement>,
    aside: &[usize],
) -> Result<(), OpenError> {
    let segment = last.and_then(|last| log.surveyed[last].segment.as_ref());
    let stated = match segment {
        Some(segment) => {
            set_aside(log, aside)?;
            let bytes = cut.map_or(segment.bytes, |cut| cut.min(segment.bytes));
            if let Some(mut statement) = statement {
                statement.last = Some(LastSegment {
                    number: segment.number,
                    first: segment.first,
                    bytes,
                });
                statement.durable_upto = upto;
                log.state(statement)?;
            }
            if bytes < segment.bytes {
                let cut = segment.file.truncate(bytes);
                let cut = cut.and_then(|()| segment.file.sync());
                let path = log.disk.path(&segment.name);
                cut.map_err(|e| OpenError::io(&path, "truncate", e))?;
            }
            return Ok(());
        }
        None => statement,
    };
    // A new segment begins after everything that is settled.
    let mut statement = match stated {
        Some(statement) => statement,
        None => log.new_statement()?,
    };
    statement.durable_upto = upto;
    replace_segments(log, None, statement, (upto + 1, upto), upto + 1)
}

/// Writes new segments with all records from the one after `base` to `upto`; the log continues at `next`.
pub(crate) fn rewrite_segments<D: Disk>(
    log: &DamagedLog<'_, D>,
    mut statement: Statement,
    (base, upto, next): (Sequence, Sequence, Sequence),
) -> Result<(), OpenError> {
    let marks = log.diagnosis.marks;
    if marks.history_upto < base
        && let Some(history) = &mut statement.history
    {
        ingest_upto(log, statement.log_id, history, base)?;
        history.history_upto = base;
        log.state(statement.clone())?;
    }
    statement.durable_upto = next - 1;
    if upto == base
        && let Some(history) = &mut statement.history
    {
        // All records in between are lost, so the state is the same after them.
        (history.history_upto, history.checkpoint_upto) = (next - 1, next - 1);
    }
    // The repair may have changed history since the diagnosis.
    let diagnosis = Diagnosis::of(log.disk, ReadWhole::Unknown)?;
    replace_segments(log, diagnosis.history(), statement, (base + 1, upto), next)
}

/// Writes new segments in place of all old ones, and states them.
pub(crate) fn replace_segments<D: Disk>(
    log: &DamagedLog<'_, D>,
    history: Option<&History>,
    mut statement: Statement,
    range: Range,
    next: Sequence,
) -> Result<(), OpenError> {
    let sources = Sources {
        history,
        surveyed: log.surveyed,
    };
    let number = log.next_number();
    let numbers = (statement.log_id, number);
    statement.last = Some(rewrite::rewrite(log.disk, &sources, range, numbers, next)?);
    rewrite::mark_complete(log.disk, number, &statement)?;
    put_rewritten_in_place(log.disk, number, statement)
}

/// Ingests the records of the segments up to `upto` into history.
fn ingest_upto<D: Disk>(
    log: &DamagedLog<'_, D>,
    log_id: u64,
    stated: &mut StatedHistory,
    upto: Sequence,
) -> Result<(), OpenError> {
    let path = log.history_path();
    let failed = |e: HistoryError| e.on_open(&path, "write to");
    let cache_bytes = Options::default().history_cache_bytes;
    let history = History::open(path.clone(), cache_bytes, stated.times())?;
    for found in log.surveyed {
        let end = found.end.min(upto + 1);
        let wanted = end > found.first && end - 1 > stated.history_upto;
        let Some(segment) = found.segment.as_ref().filter(|_| wanted) else {
            continue;
        };
        let mut sorted = Sorted::of(segment, end).map_err(failed)?;
        if !sorted.is_empty() {
            let (retention, times) = (LogRetention::default(), sorted.times());
            let ingested =
                history.ingest_records(&retention, segment.first, times, |put| sorted.put(put));
            ingested.map_err(failed)?;
        }
    }
    let identified = stated.keyspaces.iter().map(|one| one.id).collect();
    let keyspaces = history.stated_keyspaces((log_id, stated.id), &identified);
    stated.keyspaces = keyspaces.map_err(failed)?;
    history.close();
    Ok(())
}

fn set_aside<D: Disk>(log: &DamagedLog<'_, D>, aside: &[usize]) -> Result<(), OpenError> {
    // The newest first: after an interruption, the rest has no gap that looks sound.
    let names = log.disk.names();
    let names = names.map_err(|e| OpenError::io(&log.disk.path(""), "list", e))?;
    for i in aside.iter().rev() {
        let name = &log.surveyed[*i].name;
        log.disk
            .rename(name, &file_name::aside(&names, name))
            .map_err(|e| OpenError::io(&log.disk.path(name), "rename", e))?;
    }
    log.sync_names()
}

/// Puts new segments in their places, and states them. A history that is not stated any more is set aside.
pub(crate) fn put_rewritten_in_place<D: Disk>(
    disk: &D,
    first_number: u64,
    statement: Statement,
) -> Result<(), OpenError> {
    rewrite::put_in_place(disk, first_number)?;
    let history = disk
        .history()
        .filter(|path| path.symlink_metadata().is_ok());
    if let (Some(path), None) = (history, &statement.history) {
        std::fs::rename(&path, aside_path(&path))
            .and_then(|()| disk.sync_names())
            .map_err(|e| OpenError::io(&path, "rename", e))?;
    }
    let found = Superblocks::read(disk, &BTreeSet::from([statement.log_id]))?;
    Superblock::write(disk, found, statement)?;
    rewrite::finish(disk)
}
