//! Checking a log that is not open.

use crate::Sequence;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::files::Files;
use crate::frame::Parsed;
use crate::history::{History, HistoryError};
use crate::look::{HistoryHealth, Look};
use crate::plan::Plan;
use crate::retention::{Class, class_of};
use crate::stored::{self, of_record_key, view};
use crate::survey::{self, Problem, Surveyed};
use fjall::Keyspace;
use std::path::Path;

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// How many segments there are.
    pub segments: usize,
    /// Sound records in the segments.
    pub records: u64,
    /// The oldest and the last sound record in the segments; `None` when there is none.
    pub sequences: Option<(Sequence, Sequence)>,
    /// Whether the last segment ends in a batch that a crash tore. That is no damage, and the next open cuts it off.
    pub torn: bool,
    /// Records in history, once for each of their streams.
    pub history_records: u64,
    /// Entries of the state store in history.
    pub states: u64,
    /// Streams that have a floor in history.
    pub floors: u64,
    /// Every record up to this one is in history.
    pub history_upto: Sequence,
    /// The state store is that after this record.
    pub checkpoint_upto: Sequence,
    /// Everything that is wrong; empty when the log is sound.
    pub problems: Vec<Problem>,
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'p> {
    /// Segments are read, one after the other.
    Segments {
        /// The one that is being read.
        name: &'p str,
        /// How many bytes of all segments were read.
        done_bytes: u64,
        /// How many bytes all segments have.
        total_bytes: u64,
    },
    /// Every table of history is read.
    History {
        /// How many of its entries were read.
        entries: u64,
    },
}

/// Compares a log with its superblock, verifies every frame, every position and every checksum, that history has what the segments say
/// it has, and every table of history; `progress` hears from time to time how far it has come. The log must not be open. Nothing in its
/// directory is changed.
///
/// # Errors
/// The directory can't be read, holds no log, is in use, or holds another format. What is damaged is in the report.
pub fn check(
    directory: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<CheckReport, OpenError> {
    check_on(&Files::lock_existing(directory)?, progress)
}

/// [`check`] on any disk.
///
/// # Errors
/// As [`check`].
pub fn check_on<D: Disk>(
    disk: &D,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<CheckReport, OpenError> {
    let look = Look::at(disk)?;
    let mut report = CheckReport {
        history_upto: look.marks.history_upto,
        checkpoint_upto: look.marks.checkpoint_upto,
        ..CheckReport::default()
    };
    let problems = look.problems.iter().map(|(file, what)| Problem {
        file: file.clone(),
        position: 0,
        sequence: 0,
        what: what.clone(),
    });
    report.problems.extend(problems);
    let sound = look.history().filter(|_| look.problems.is_empty());
    let surveyed = survey_all(disk, &look, sound, &mut report, progress)?;
    if look.health < HistoryHealth::Unusable {
        let plan = Plan::new(disk, &look, &surveyed);
        report.problems.extend(plan.missing);
    }
    let Some(history) = look.history() else {
        return Ok(report);
    };
    let read = history.read_all_tables(&mut |entries| {
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
    Ok(report)
}

/// Reads all segments, and looks up in history what should be there.
fn survey_all<D: Disk>(
    disk: &D,
    look: &Look<D>,
    history: Option<&History>,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Surveyed<D::File>>, OpenError> {
    let mut missing = None;
    let mut value = Vec::new();
    let history_upto = report.history_upto;
    let mut told_bytes = 0;
    let statement = look.opening.statement.as_ref();
    let surveyed = survey::survey(disk, statement, &mut |frame, seen| {
        report.records += 1;
        let oldest = report
            .sequences
            .map_or(frame.sequence, |(oldest, _)| oldest);
        report.sequences = Some((oldest, frame.sequence));
        if seen.done_bytes >= told_bytes {
            told_bytes = seen.done_bytes + PROGRESS_BYTES;
            progress(Progress::Segments {
                name: seen.name,
                done_bytes: seen.done_bytes,
                total_bytes: seen.total_bytes,
            });
        }
        let in_history = frame.sequence <= history_upto && missing.is_none();
        if let Some(history) = history.filter(|_| in_history) {
            let lacks = lacks((history, &look.class_floors), frame, &mut value);
            missing = lacks.map(|what| (frame.sequence, what));
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

/// What is wrong with a record in history, in the first of its streams with which something is.
fn lacks(
    history: (&History, &[(Class, Sequence)]),
    frame: &Parsed<'_>,
    value: &mut Vec<u8>,
) -> Option<String> {
    value.clear();
    stored::record_value(frame, value);
    frame.streams.iter().find_map(|(stream, _)| {
        let held = holds(history, stream, frame.sequence, value);
        held.err().map(|what| format!("stream {stream}: {what}"))
    })
}

/// Whether history has a record as it was, unless it is below its stream's floor.
fn holds(
    (history, class_floors): (&History, &[(Class, Sequence)]),
    stream: u64,
    sequence: Sequence,
    value: &[u8],
) -> Result<(), String> {
    let of_class = || {
        let mut floors = class_floors.iter();
        let of_class = floors.find(|(class, _)| *class == class_of(stream));
        of_class.map_or(0, |(_, floor)| *floor)
    };
    let failed = |e: HistoryError| e.reason;
    match history.record(stream, sequence).map_err(failed)? {
        Some(held) if held == value => Ok(()),
        Some(_) => Err("history has another record than the segment".to_owned()),
        None if sequence <= history.floor(stream).map_err(failed)? => Ok(()),
        None if sequence <= of_class() => Ok(()),
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

impl History {
    /// Reads every entry of every keyspace, and so verifies every block. Says how many records there are, each counted once
    /// for each of its streams, how many states and how many floors; `progress` is told after every few thousand entries.
    fn read_all_tables(
        &self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(u64, u64, u64), HistoryError> {
        let mut entries = 0;
        let mut count = |keyspace: &Keyspace, sound: &dyn Fn(&[u8], &[u8]) -> bool| {
            let mut count = 0;
            for pair in keyspace.iter() {
                let (key, value) = pair.into_inner()?;
                if !sound(&key, &value) {
                    let (name, key) = (keyspace.name(), &*key);
                    let reason =
                        format!("the entry {key:02x?} in {name} is not one that was written");
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
        self.with(|open| {
            let generations = open.records.read().clone();
            let mut records = 0;
            for generation in generations.all() {
                records += count(&generation.keyspace, &|key, value| {
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
}

/// After how many bytes of segments progress is told again.
const PROGRESS_BYTES: u64 = 4 << 20;
/// After how many entries of history it is told again.
const PROGRESS_ENTRIES: u64 = 16 << 10;
