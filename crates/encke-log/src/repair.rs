//! Repairing a log that is not open: what it takes to make it one that opens, and what that costs.

use crate::Sequence;
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::files::Files;
use crate::history::{History, HistoryError};
use crate::look::{HistoryHealth, Look};
use crate::opening::salt;
use crate::plan::{Action, Plan, Range};
use crate::remake::{self, Sources, remake};
use crate::retention::Retention;
use crate::salvage::{self, Salvaged};
use crate::sort::Sorted;
use crate::statement::{LastSegment, StatedHistory, StatedKeyspace, Statement};
use crate::superblock::{Superblock, Superblocks};
use crate::survey::{self, Surveyed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What a repair costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The first record that is lost.
    pub from: Sequence,
    /// The last record of which there is any trace that is lost. A segment whose head is damaged shows no trace of how many
    /// records it had; `what` says so.
    pub upto: Sequence,
    /// In which way, and why.
    pub what: String,
}

/// What [`repair`] has done or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// What is lost. Nothing else is touched.
    pub losses: Vec<Loss>,
    /// Files that are set aside: they keep their bytes and get a name that the log does not look at.
    pub set_aside: Vec<PathBuf>,
    /// What is done that costs nothing.
    pub notes: Vec<String>,
    /// Whether there is anything to repair.
    pub needed: bool,
    /// Whether it was done; otherwise this is what would be.
    pub done: bool,
}

/// Makes a damaged log one that opens again, and keeps everything that can still be read. `decide` hears what is lost before anything is
/// changed, and nothing is changed unless it returns true; it is not asked when there is nothing to do. The log must not be open.
///
/// Records that are in history are not lost by damage to a segment. A log that is sound, or ends in a torn batch only,
/// loses nothing. What can't be read of a damaged history is taken from segments as far as they have it. When the state store is
/// damaged, everything is made anew if all records can be read.
///
/// # Errors
/// As [`check`](crate::check), or the log can't be repaired, or something could not be written.
pub fn repair(
    directory: &Path,
    decide: &mut dyn FnMut(&RepairReport) -> bool,
) -> Result<RepairReport, OpenError> {
    repair_on(&Files::lock_existing(directory)?, decide)
}

/// [`repair`] on any disk.
///
/// # Errors
/// As [`repair`].
pub fn repair_on<D: Disk>(
    disk: &D,
    decide: &mut dyn FnMut(&RepairReport) -> bool,
) -> Result<RepairReport, OpenError> {
    let path = disk.history();
    let interrupted = path.as_deref().and_then(salvage::interrupted);
    let is_stated = |made: &Path, statement: &Statement| -> Result<bool, OpenError> {
        let now = Superblocks::read(disk, &BTreeSet::from([statement.log_id]))?;
        let id = |statement: &Statement| statement.history.as_ref().map(|history| history.id);
        let same = now.statement().is_some_and(|now| id(now) == id(statement));
        Ok(same && path.as_deref() == Some(made))
    };
    // When the new history is stated, only the mark of its making is left, which the next start removes.
    if let Some((made, statement)) = interrupted
        && !is_stated(&made, &statement)?
    {
        let done = finish_interrupted(disk, &made, statement, decide)?;
        if !done.done {
            return Ok(done);
        }
    }
    if let Some((first_number, statement)) = remake::complete(disk) {
        let done = finish_remade(disk, first_number, statement, decide)?;
        if !done.done {
            return Ok(done);
        }
    }
    let look = Look::at(disk)?;
    let stated = look.opening.statement.as_ref();
    let surveyed = survey::survey(disk, stated, &mut |_, _| {})?;
    let mut repair = Repair::new(disk, &look, &surveyed);
    repair.plan()?;
    let mut report = repair.report();
    if report.needed && decide(&report) {
        repair.carry_out()?;
        report.done = true;
    }
    Ok(report)
}

/// Ends a repair whose new history was complete when it was interrupted.
fn finish_interrupted<D: Disk>(
    disk: &D,
    made: &Path,
    statement: Statement,
    decide: &mut dyn FnMut(&RepairReport) -> bool,
) -> Result<RepairReport, OpenError> {
    let mut report = RepairReport {
        notes: vec!["a repair was interrupted: it is finished first".to_owned()],
        needed: true,
        ..RepairReport::default()
    };
    let path = disk.history().unwrap_or_else(|| made.to_owned());
    let failed = |e| OpenError::io(&path, "finish the repair of", e);
    if decide(&report) {
        if made != path {
            std::fs::rename(made, &path).map_err(failed)?;
            disk.sync_names().map_err(failed)?;
        }
        let found = Superblocks::read(disk, &BTreeSet::from([statement.log_id]))?;
        Superblock::write(disk, found, statement)?;
        salvage::finish(&path).map_err(failed)?;
        report.done = true;
    }
    Ok(report)
}

/// Ends a repair whose new segments were complete when it was interrupted.
fn finish_remade<D: Disk>(
    disk: &D,
    first_number: u64,
    statement: Statement,
    decide: &mut dyn FnMut(&RepairReport) -> bool,
) -> Result<RepairReport, OpenError> {
    let mut report = RepairReport {
        notes: vec!["a repair was interrupted: it is finished first".to_owned()],
        needed: true,
        ..RepairReport::default()
    };
    if decide(&report) {
        put_remade_in_place(disk, first_number, statement)?;
        report.done = true;
    }
    Ok(report)
}

/// Puts new segments in their places, and states that they are there. A history that is not stated any more is set aside.
fn put_remade_in_place<D: Disk>(
    disk: &D,
    first_number: u64,
    statement: Statement,
) -> Result<(), OpenError> {
    remake::put_in_place(disk, first_number)?;
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
    remake::finish(disk)
}

/// A repair that is planned and then carried out.
struct Repair<'r, D: Disk> {
    disk: &'r D,
    look: &'r Look<D>,
    surveyed: &'r [Surveyed<D::File>],
    losses: Vec<Loss>,
    notes: Vec<String>,
    history: HistoryRepair,
    segments: Plan,
}

/// What is done to history.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HistoryRepair {
    Nothing,
    /// It is made anew of what can be read of it and of segments.
    Rebuild {
        aside: PathBuf,
    },
    /// It is made anew by the next start, which replays every record from segments.
    Replay {
        aside: Option<PathBuf>,
        upto: Sequence,
    },
}

impl<'r, D: Disk> Repair<'r, D> {
    fn new(disk: &'r D, look: &'r Look<D>, surveyed: &'r [Surveyed<D::File>]) -> Self {
        Repair {
            disk,
            look,
            surveyed,
            losses: Vec::new(),
            notes: Vec::new(),
            history: HistoryRepair::Nothing,
            segments: Plan::default(),
        }
    }

    /// Finds out what is to be done and what is lost. Nothing is changed.
    fn plan(&mut self) -> Result<(), OpenError> {
        if self.look.health == HistoryHealth::Unusable {
            return self.plan_replay();
        }
        if let Some(history) = self.look.history() {
            self.plan_rebuild(history)
                .map_err(|e| e.on_open(&self.history_path(), "read"))?;
        }
        self.segments = Plan::new(self.disk, self.look, self.surveyed);
        self.losses.append(&mut self.segments.losses);
        let damaged = self
            .surveyed
            .iter()
            .filter_map(|found| found.problem.as_ref());
        let places = damaged.chain(&self.segments.missing);
        self.notes.extend(places.map(ToString::to_string));
        let is_remade = matches!(
            self.segments.action,
            Action::Remake { .. } | Action::GoOn { last: None, .. }
        );
        let opening = &self.look.opening;
        if is_remade && opening.statement.is_none() && opening.history.is_some() {
            // The version of this log kept its marks where a repair does not change them.
            let aside = aside_path(&self.history_path());
            self.history = HistoryRepair::Rebuild { aside };
        }
        Ok(())
    }

    /// Without a state store, or without a statement, everything is replayed, if it is all there.
    fn plan_replay(&mut self) -> Result<(), OpenError> {
        let (place, what) = self.look.problems[0].clone();
        let beyond_repair = |why: &str| OpenError::BeyondRepair {
            place: place.clone(),
            what: format!("{what}; {why}"),
        };
        let opening = &self.look.opening;
        if opening.statement.is_none() && opening.log_ids.len() > 1 {
            return Err(beyond_repair("the directory holds files of several logs"));
        }
        if opening.statement.is_none() && !opening.log_ids.is_empty() && opening.history.is_some() {
            return Err(beyond_repair("nothing else tells what the log held"));
        }
        let whole = crate::plan::available(self.surveyed);
        let reached = whole.last().map_or(0, |(_, last)| *last);
        let top = reached.max(self.look.durable_upto());
        let all_in_segments = self.surveyed.iter().all(|found| found.problem.is_none())
            && crate::plan::contiguous_upto(&whole, 0) == top;
        let upto = if all_in_segments {
            self.notes.push(format!(
                "{what}; the segments have every record, so history is made anew from them"
            ));
            0
        } else {
            let history = self.look.history();
            let history =
                history.ok_or_else(|| beyond_repair("the segments do not have every record"))?;
            let history_upto = self.look.marks.history_upto;
            let absent = salvage::absent(history, self.surveyed, top);
            let absent = absent.map_err(|e| e.on_open(&self.history_path(), "read"))?;
            if history_upto == 0 || !absent.is_empty() {
                return Err(beyond_repair(
                    "the state of streams can be made anew only from all records, and some are gone",
                ));
            }
            self.notes.push(format!(
                "{what}; history and the segments have every record, so both are made anew from them"
            ));
            top
        };
        let aside = (self.look.opening.history.as_ref()).map(|path| aside_path(path));
        self.history = HistoryRepair::Replay { aside, upto };
        Ok(())
    }

    fn plan_rebuild(&mut self, history: &History) -> Result<(), HistoryError> {
        let gaps = salvage::gaps(history)?;
        if gaps.is_empty() && self.look.problems.is_empty() {
            return Ok(());
        }
        let (path, marks) = (self.history_path(), self.look.marks);
        self.history = HistoryRepair::Rebuild {
            aside: aside_path(&path),
        };
        for (place, what) in &self.look.problems {
            let place = place.display();
            self.notes
                .push(format!("the history in {place} is made anew: {what}"));
        }
        for gap in &gaps {
            if gap.is_of_records() {
                self.notes.push(gap.text());
            } else {
                self.losses.push(Loss {
                    from: 1,
                    upto: marks.checkpoint_upto,
                    what: gap.text(),
                });
            }
        }
        if self.look.lacks_records || gaps.iter().any(salvage::Gap::is_of_records) {
            for (from, upto) in salvage::absent(history, self.surveyed, marks.history_upto)? {
                let what =
                    "neither history nor a segment has them; some may have been deleted before";
                self.losses.push(Loss {
                    from,
                    upto,
                    what: what.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn history_path(&self) -> PathBuf {
        self.disk.history().unwrap_or_default()
    }

    fn report(&self) -> RepairReport {
        let mut set_aside: Vec<PathBuf> = match &self.history {
            HistoryRepair::Nothing => Vec::new(),
            HistoryRepair::Rebuild { aside } => vec![aside.clone()],
            HistoryRepair::Replay { aside, .. } => aside.iter().cloned().collect(),
        };
        let names = self.disk.names().unwrap_or_default();
        let segments = self.aside().into_iter();
        let segments = segments.map(|i| remake::aside(&names, &self.surveyed[i].name));
        set_aside.extend(segments.map(|name| self.disk.path(&name)));
        RepairReport {
            losses: self.losses.clone(),
            set_aside,
            notes: self.notes.clone(),
            needed: self.history != HistoryRepair::Nothing || self.segments.is_needed(),
            done: false,
        }
    }

    /// The segments to set aside, by their places.
    fn aside(&self) -> Vec<usize> {
        match self.history {
            HistoryRepair::Replay { upto, .. } if upto > 0 => (0..self.surveyed.len()).collect(),
            _ => self.segments.aside.clone(),
        }
    }

    fn carry_out(&mut self) -> Result<(), OpenError> {
        let stated = self.look.opening.statement.clone();
        let is_stated = stated.is_some() || self.history != HistoryRepair::Nothing;
        let mut statement = match stated {
            Some(statement) => statement,
            None => self.unstated()?,
        };
        match self.history.clone() {
            HistoryRepair::Nothing => {}
            HistoryRepair::Rebuild { aside } => self.rebuild(&mut statement, &aside)?,
            HistoryRepair::Replay { aside, upto } => {
                return self.replay(statement, aside.as_deref(), upto);
            }
        }
        match self.segments.action {
            Action::Nothing => Ok(()),
            // A log of a version that stated nothing needs no statement to open again.
            Action::GoOn { upto, last, cut } => {
                self.go_on((upto, last, cut), is_stated.then_some(statement))
            }
            Action::Remake { base, upto, next } => self.remake(statement, (base, upto, next)),
        }
    }

    /// The statement of a log that has none.
    fn unstated(&self) -> Result<Statement, OpenError> {
        let of_segments = self.surveyed.iter().rev();
        let segments = of_segments.filter_map(|found| found.segment.as_ref());
        let id = segments
            .clone()
            .map(|segment| segment.log_id)
            .find(|id| *id != 0);
        let log_id = match id {
            Some(id) => id,
            None => salt(self.disk)?,
        };
        let identified_from = segments.clone().find(|segment| segment.log_id == 0);
        let marks = self.look.marks;
        let history = self.look.history().map(|_| StatedHistory {
            history_upto: marks.history_upto,
            checkpoint_upto: marks.checkpoint_upto,
            class_floors: self.look.class_floors.clone(),
            keyspaces: (self.look.unstated_times.iter())
                .map(|(name, times_ms)| StatedKeyspace {
                    name: name.clone(),
                    times_ms: Some(*times_ms),
                    ..StatedKeyspace::default()
                })
                .collect(),
            ..StatedHistory::default()
        });
        Ok(Statement {
            log_id,
            identified_from: identified_from.map_or(1, |segment| segment.number + 1),
            last: None,
            durable_upto: 0,
            history,
        })
    }

    fn rebuild(&self, statement: &mut Statement, aside: &Path) -> Result<(), OpenError> {
        let (Some(history), Some(stated)) = (self.look.history(), statement.history.clone()) else {
            return Ok(());
        };
        let path = self.history_path();
        let id = salt(self.disk)?;
        let salvaged = Salvaged {
            history,
            stated: StatedHistory { id, ..stated },
        };
        let stated = salvage::rebuild::<D>(&path, statement.log_id, salvaged, self.surveyed)?;
        statement.history = Some(stated);
        let failed = |e| OpenError::io(&path, "rename", e);
        salvage::put_in_place(&path, statement, aside).map_err(failed)?;
        self.state(statement.clone())?;
        salvage::finish(&path).map_err(failed)
    }

    /// Sets history aside, so that the next start makes it anew of the segments.
    fn replay(
        &self,
        mut statement: Statement,
        aside: Option<&Path>,
        upto: Sequence,
    ) -> Result<(), OpenError> {
        if upto > 0 {
            statement.history = None;
            statement.reaches(upto);
            return self.replace_segments(self.look.history(), statement, (1, upto), upto + 1);
        }
        statement.history = None;
        if let Some(aside) = aside {
            let path = self.history_path();
            std::fs::rename(&path, aside).map_err(|e| OpenError::io(&path, "rename", e))?;
            self.sync_names()?;
        }
        self.state(statement)
    }

    fn go_on(
        &self,
        (upto, last, cut): (Sequence, Option<usize>, Option<u64>),
        statement: Option<Statement>,
    ) -> Result<(), OpenError> {
        let segment = last.and_then(|last| self.surveyed[last].segment.as_ref());
        let stated = match segment {
            Some(segment) => {
                self.set_aside()?;
                let bytes = cut.map_or(segment.bytes, |cut| cut.min(segment.bytes));
                if let Some(mut statement) = statement {
                    statement.last = Some(LastSegment {
                        number: segment.number,
                        first: segment.first,
                        bytes,
                    });
                    statement.durable_upto = upto;
                    self.state(statement)?;
                }
                if bytes < segment.bytes {
                    let cut = segment.file.truncate(bytes);
                    let cut = cut.and_then(|()| segment.file.sync());
                    let path = self.disk.path(&segment.name);
                    cut.map_err(|e| OpenError::io(&path, "truncate", e))?;
                }
                return Ok(());
            }
            None => statement,
        };
        // A segment begins behind everything that is settled.
        let mut statement = match stated {
            Some(statement) => statement,
            None => self.unstated()?,
        };
        statement.durable_upto = upto;
        self.replace_segments(None, statement, (upto + 1, upto), upto + 1)
    }

    fn remake(
        &self,
        mut statement: Statement,
        (base, upto, next): (Sequence, Sequence, Sequence),
    ) -> Result<(), OpenError> {
        let marks = self.look.marks;
        if marks.history_upto < base
            && let Some(history) = &mut statement.history
        {
            self.ingest_upto(statement.log_id, history, base)?;
            history.history_upto = base;
            self.state(statement.clone())?;
        }
        statement.durable_upto = next - 1;
        if upto == base
            && let Some(history) = &mut statement.history
        {
            // Everything in between is lost, so the state is the same behind it.
            (history.history_upto, history.checkpoint_upto) = (next - 1, next - 1);
        }
        // History may have been made anew or added to since it was looked at.
        let look = Look::at(self.disk)?;
        self.replace_segments(look.history(), statement, (base + 1, upto), next)
    }

    /// Makes all segments anew, and states them.
    fn replace_segments(
        &self,
        history: Option<&History>,
        mut statement: Statement,
        range: Range,
        next: Sequence,
    ) -> Result<(), OpenError> {
        let sources = Sources {
            history,
            surveyed: self.surveyed,
        };
        let number = self.next_number();
        let numbers = (statement.log_id, number);
        statement.last = Some(remake(self.disk, &sources, range, numbers, next)?);
        remake::mark_complete(self.disk, number, &statement)?;
        put_remade_in_place(self.disk, number, statement)
    }

    /// Brings what the segments have up to a record into history.
    fn ingest_upto(
        &self,
        log_id: u64,
        stated: &mut StatedHistory,
        upto: Sequence,
    ) -> Result<(), OpenError> {
        let path = self.history_path();
        let failed = |e: HistoryError| e.on_open(&path, "write to");
        let cache_bytes = crate::Options::default().history_cache_bytes;
        let history = History::open(path.clone(), cache_bytes, stated.times())?;
        for found in self.surveyed {
            let end = found.end.min(upto + 1);
            let wanted = end > found.first && end - 1 > stated.history_upto;
            let Some(segment) = found.segment.as_ref().filter(|_| wanted) else {
                continue;
            };
            let mut sorted = Sorted::of(segment, end).map_err(failed)?;
            let times_ms = sorted.times_ms();
            for class in sorted.classes() {
                let retention = Retention {
                    class,
                    ..Retention::default()
                };
                let ingested = history.ingest_records(&retention, segment.first, times_ms, |put| {
                    sorted.put(class, put)
                });
                ingested.map_err(failed)?;
            }
        }
        let identified = stated.keyspaces.iter().map(|one| one.id).collect();
        let keyspaces = history.stated_keyspaces((log_id, stated.id), &identified);
        stated.keyspaces = keyspaces.map_err(failed)?;
        history.close();
        Ok(())
    }

    /// The number of a new segment behind all others.
    fn next_number(&self) -> u64 {
        let segments = self.surveyed.iter();
        let numbers = segments.filter_map(|found| Some(found.segment.as_ref()?.number + 1));
        let stated = self.look.opening.statement.as_ref();
        let stated = stated.and_then(|stated| Some(stated.last?.number + 1));
        numbers.chain(stated).max().unwrap_or(1)
    }

    fn set_aside(&self) -> Result<(), OpenError> {
        // The newest first: if this is interrupted, what is left has no gap that looks sound.
        let names = self.disk.names();
        let names = names.map_err(|e| OpenError::io(&self.disk.path(""), "list", e))?;
        for i in self.aside().into_iter().rev() {
            let name = &self.surveyed[i].name;
            self.disk
                .rename(name, &remake::aside(&names, name))
                .map_err(|e| OpenError::io(&self.disk.path(name), "rename", e))?;
        }
        self.sync_names()
    }

    fn sync_names(&self) -> Result<(), OpenError> {
        let synced = self.disk.sync_names();
        synced.map_err(|e| OpenError::io(&self.disk.path(""), "sync the directory", e))
    }

    fn state(&self, statement: Statement) -> Result<(), OpenError> {
        let found = Superblocks::read(self.disk, &BTreeSet::from([statement.log_id]))?;
        Superblock::write(self.disk, found, statement).map(|_| ())
    }
}

/// The name of a history that is set aside: one that nothing has yet.
fn aside_path(history: &Path) -> PathBuf {
    let name = |n: u32| history.with_extension(format!("dropped-{n}"));
    (1..)
        .map(name)
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| name(0))
}
