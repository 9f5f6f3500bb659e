//! Checks a log that is not open.

use crate::diagnosis::Diagnosis;
use crate::diagnosis::survey::{self, Problem, Surveyed};
use crate::disk::Disk;
use crate::disk::files::{FileAccess, Files};
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::stored::{self, of_record_key, view};
use crate::history::verify::inspect::{HistoryHealth, ReadWhole};
use crate::ids::Sequence;
use crate::repair::plan::Plan;
use crate::segments::frame::Parsed;
use crate::start;
use fjall::Keyspace;
use std::path::Path;

/// The result of [`check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The number of segments.
    pub segments: usize,
    /// Sound records in the segments.
    pub records: u64,
    /// The oldest and the last sound record in the segments; `None` when there is none.
    pub sequences: Option<(Sequence, Sequence)>,
    /// Whether the last segment ends in a torn batch. That is no damage: the next open cuts it off.
    pub torn: bool,
    /// Records in history, counted once for each of their streams.
    pub history_records: u64,
    /// Entries of the state store in history.
    pub states: u64,
    /// Streams that have a floor in history.
    pub floors: u64,
    /// Every record up to this one is in history.
    pub history_upto: Sequence,
    /// The state store holds the state after this record.
    pub checkpoint_upto: Sequence,
    /// All problems; empty when the log is sound.
    pub problems: Vec<Problem>,
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'p> {
    /// Segments are being read, in order.
    Segments {
        /// The current segment.
        name: &'p str,
        /// How many bytes of all segments are read.
        done_bytes: u64,
        /// The size of all segments in bytes.
        total_bytes: u64,
    },
    /// The tables of history are being read.
    History {
        /// How many entries are read.
        entries: u64,
    },
}

/// Compares a log with its superblock, and verifies every frame, position and checksum, that history has the records of
/// the segments, and every table of history. Then it asks what a start asks, so that a log without problems is one that opens. Calls
/// `progress` from time to time. The log must not be open. Nothing in its directory is changed.
///
/// # Errors
/// The directory can't be read, holds no log, is in use, or holds another format. Damage is in the report.
pub fn check(
    directory: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<CheckReport, OpenError> {
    check_on(
        &Files::lock_existing(directory, FileAccess::Read)?,
        progress,
    )
}

/// [`check`] on any disk.
///
/// # Errors
/// As [`check`].
pub fn check_on<D: Disk>(
    disk: &D,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<CheckReport, OpenError> {
    let diagnosis = Diagnosis::of(disk, ReadWhole::All)?;
    let mut report = CheckReport {
        history_upto: diagnosis.marks.history_upto,
        checkpoint_upto: diagnosis.marks.checkpoint_upto,
        ..CheckReport::default()
    };
    let problems = diagnosis.problems.iter().map(|(file, what)| Problem {
        file: file.clone(),
        position: 0,
        sequence: 0,
        what: what.clone(),
    });
    report.problems.extend(problems);
    let sound = diagnosis
        .history()
        .filter(|_| diagnosis.problems.is_empty());
    let surveyed = survey_all(disk, &diagnosis, sound, &mut report, progress)?;
    if diagnosis.health < HistoryHealth::Unusable {
        let plan = Plan::new(disk, &diagnosis, &surveyed);
        report.problems.extend(plan.missing);
    }
    if let Some(history) = diagnosis.history() {
        check_tables(disk, history, &mut report, progress);
    }
    if report.problems.is_empty() {
        // What this check does not know keeps a start from succeeding all the same.
        match start::rehearse(disk) {
            Ok(()) => {}
            Err(error @ OpenError::Io { .. }) => return Err(error),
            Err(refusal) => report.problems.push(Problem {
                file: disk.path(""),
                position: 0,
                sequence: 0,
                what: format!("a start is refused: {refusal}"),
            }),
        }
    }
    Ok(report)
}

/// Reads every entry of history, and counts them.
fn check_tables<D: Disk>(
    disk: &D,
    history: &History,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(Progress<'_>),
) {
    let read = read_all_tables(history, &mut |entries| {
        progress(Progress::History { entries });
    });
    match read {
        Ok(counts) => {
            (report.history_records, report.states, report.floors) = counts;
        }
        Err(error) => report
            .problems
            .push(problem_of_history(disk, 0, error.reason)),
    }
}

/// Reads all segments, and looks their records up in history.
fn survey_all<D: Disk>(
    disk: &D,
    diagnosis: &Diagnosis<D>,
    history: Option<&History>,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Surveyed<D::File>>, OpenError> {
    let mut missing = None;
    let mut value = Vec::new();
    let history_upto = report.history_upto;
    let mut next_progress_bytes = 0;
    let statement = diagnosis.directory.statement.as_ref();
    let surveyed = survey::survey(disk, statement, &mut |frame, seen| {
        report.records += 1;
        let oldest = report
            .sequences
            .map_or(frame.sequence, |(oldest, _)| oldest);
        report.sequences = Some((oldest, frame.sequence));
        if seen.done_bytes >= next_progress_bytes {
            next_progress_bytes = seen.done_bytes + PROGRESS_BYTES;
            progress(Progress::Segments {
                name: seen.name,
                done_bytes: seen.done_bytes,
                total_bytes: seen.total_bytes,
            });
        }
        let in_history = frame.sequence <= history_upto && missing.is_none();
        if let Some(history) = history.filter(|_| in_history) {
            let problem = record_problem((history, diagnosis.retention_floor), frame, &mut value);
            missing = problem.map(|what| (frame.sequence, what));
        }
    })?;
    report.segments = surveyed.len();
    report.torn = surveyed.iter().any(|found| found.torn);
    for found in &surveyed {
        let problems = [&found.problem, &found.broken_chain];
        report
            .problems
            .extend(problems.into_iter().flatten().cloned());
    }
    if let Some((sequence, what)) = missing {
        report
            .problems
            .push(problem_of_history(disk, sequence, what));
    }
    Ok(surveyed)
}

/// What is wrong with a record in history, in the first of its streams with a problem.
fn record_problem(
    history: (&History, Sequence),
    frame: &Parsed<'_>,
    value: &mut Vec<u8>,
) -> Option<String> {
    value.clear();
    stored::record_value(frame, value);
    frame.streams.iter().find_map(|(stream, _)| {
        let held = check_record(history, stream, frame.sequence, value);
        held.err().map(|what| format!("stream {stream}: {what}"))
    })
}

/// Whether history has a record unchanged, unless it is below its stream's floor.
fn check_record(
    (history, retention_floor): (&History, Sequence),
    stream: u64,
    sequence: Sequence,
    value: &[u8],
) -> Result<(), String> {
    let failed = |e: HistoryError| e.reason;
    match history.record(stream, sequence).map_err(failed)? {
        Some(held) if held == value => Ok(()),
        Some(_) => Err("history has another record than the segment".to_owned()),
        None if sequence <= history.floor(stream).map_err(failed)? => Ok(()),
        None if sequence <= retention_floor => Ok(()),
        None => Err("history does not have the record".to_owned()),
    }
}

fn problem_of_history<D: Disk>(disk: &D, sequence: Sequence, what: String) -> Problem {
    Problem {
        file: disk.history().unwrap_or_else(|| disk.path("")),
        position: 0,
        sequence,
        what,
    }
}

/// Reads every entry of every keyspace, and so verifies every block. Returns the number of records, counted once for
/// each of their streams, of states and of floors. Calls `progress` after every few thousand entries.
fn read_all_tables(
    history: &History,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, u64, u64), HistoryError> {
    let mut entries = 0;
    let mut count = |keyspace: &Keyspace, sound: &dyn Fn(&[u8], &[u8]) -> bool| {
        let mut count = 0;
        for pair in keyspace.iter() {
            let (key, value) = pair.into_inner()?;
            if !sound(&key, &value) {
                let (name, key) = (keyspace.name(), &*key);
                let reason = format!("the entry {key:02x?} in {name} is malformed");
                return Err(HistoryError::from(reason));
            }
            count += 1;
            entries += 1;
            if entries % PROGRESS_ENTRIES == 0 {
                progress(entries);
            }
        }
        Ok(count)
    };
    history.with(|open| {
        let generations = open.records.read().clone();
        let mut records = 0;
        for keyspace in generations.keyspaces() {
            records += count(keyspace, &|key, value| {
                of_record_key(key).is_some_and(|(stream, _)| view(stream, key, value).is_some())
            })?;
        }
        let states = count(&open.states, &|_, _| true)?;
        let floors = count(&open.floors, &|key, value| {
            key.len() == 8 && matches!(value.len(), 8 | 16)
        })?;
        count(&open.marks, &|_, _| true)?;
        Ok((records, states, floors))
    })
}

/// Progress is reported after this many bytes of segments.
const PROGRESS_BYTES: u64 = 4 << 20;
/// Progress is reported after this many entries of history.
const PROGRESS_ENTRIES: u64 = 16 << 10;
