//! Repairs a log that is not open: plans what makes it open again, reports the losses, and carries the plan out.
//!
//! `check.rs` only reports. `plan.rs` plans, `report.rs` has the losses, `segments.rs` and `history.rs` carry out the two halves of
//! a plan: with `rewrite.rs`, which writes new segments, and `salvage.rs`, which copies what is readable in a damaged history.
//! `damaged_log.rs` is what they share.

pub(crate) mod check;
pub(crate) mod damaged_log;
pub(crate) mod history;
pub(crate) mod plan;
pub(crate) mod report;
pub(crate) mod rewrite;
pub(crate) mod salvage;
pub(crate) mod segments;

use crate::diagnosis::Diagnosis;
use crate::diagnosis::survey;
use crate::disk::Disk;
use crate::disk::file_name;
use crate::disk::files::{FileAccess, Files};
use crate::error::OpenError;
use crate::history::verify::inspect::{HistoryHealth, ReadWhole};
use crate::repair::damaged_log::{DamagedLog, aside_path};
use crate::repair::history::HistoryRepair;
use crate::repair::plan::{Plan, SegmentRepair};
use crate::repair::report::RepairReport;
use crate::superblock::statement::Statement;
use crate::superblock::{Superblock, Superblocks};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Makes a damaged log one that opens again. `decide` gets the report before anything is changed, and nothing is changed
/// unless it returns true. It is not called when there is nothing to do. The log must not be open.
///
/// Damage to a segment loses no records that are in history. Of the others, those before the first lost one are kept. Later
/// ones may depend on it, so they are reported as lost, and segments that hold them are set aside, intact ones too. A sound
/// log, or one that only ends in a torn batch, loses nothing. Records that can't be read in a damaged history are taken
/// from segments, where they have them. When the state store is damaged, everything is made again if all records can be read.
///
/// # Errors
/// As [`check`](crate::check), or the log can't be repaired, or something could not be written.
pub fn repair(
    directory: &Path,
    decide: &mut dyn FnMut(&RepairReport) -> bool,
) -> Result<RepairReport, OpenError> {
    repair_on(&Files::lock_existing(directory, FileAccess::Write)?, decide)
}

/// Gives `plan` the report that [`repair`] would give, if there is something to repair, and needs no permission to write.
///
/// # Errors
/// As [`repair`].
pub fn plan_repair(
    directory: &Path,
    plan: &mut dyn FnMut(&RepairReport),
) -> Result<RepairReport, OpenError> {
    let disk = Files::lock_existing(directory, FileAccess::Read)?;
    repair_on(&disk, &mut |report| {
        plan(report);
        false
    })
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
    // When the new history is stated, only its mark is left. The next start removes it.
    if let Some((made, statement)) = interrupted
        && !is_stated(&made, &statement)?
    {
        let done = finish_interrupted(disk, &made, statement, decide)?;
        if !done.done {
            return Ok(done);
        }
    }
    if let Some((first_number, statement)) = rewrite::complete(disk) {
        let done = finish_rewrite(disk, first_number, statement, decide)?;
        if !done.done {
            return Ok(done);
        }
    }
    let diagnosis = Diagnosis::of(disk, ReadWhole::All)?;
    let stated = diagnosis.directory.statement.as_ref();
    let surveyed = survey::survey(disk, stated, &mut |_, _| {})?;
    let mut repair = Repair {
        log: DamagedLog {
            disk,
            diagnosis: &diagnosis,
            surveyed: &surveyed,
        },
        report: RepairReport::default(),
        history: HistoryRepair::Nothing,
        segments: Plan::default(),
    };
    repair.plan()?;
    let mut report = repair.report();
    if report.needed && decide(&report) {
        repair.carry_out()?;
        report.done = true;
    }
    Ok(report)
}

/// Completes a repair that was interrupted when its new history was complete.
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

/// Completes a repair that was interrupted when its new segments were complete.
fn finish_rewrite<D: Disk>(
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
        segments::put_rewritten_in_place(disk, first_number, statement)?;
        report.done = true;
    }
    Ok(report)
}

/// A repair that is planned and then carried out.
struct Repair<'r, D: Disk> {
    log: DamagedLog<'r, D>,
    report: RepairReport,
    history: HistoryRepair,
    segments: Plan,
}

impl<D: Disk> Repair<'_, D> {
    /// Plans the repair and its losses. Nothing is changed.
    fn plan(&mut self) -> Result<(), OpenError> {
        if self.log.diagnosis.health == HistoryHealth::Unusable {
            self.history = history::plan_replay(&self.log, &mut self.report)?;
            return Ok(());
        }
        if let Some(history) = self.log.diagnosis.history() {
            let planned = history::plan_rebuild(&self.log, history, &mut self.report);
            self.history = planned.map_err(|e| e.on_open(&self.log.history_path(), "read"))?;
        }
        self.segments = Plan::new(self.log.disk, self.log.diagnosis, self.log.surveyed);
        self.report.losses.append(&mut self.segments.losses);
        let damaged = self
            .log
            .surveyed
            .iter()
            .filter_map(|found| found.problem.as_ref());
        let places = damaged.chain(&self.segments.missing);
        self.report.notes.extend(places.map(ToString::to_string));
        let is_rewritten = matches!(
            self.segments.action,
            SegmentRepair::Rewrite { .. } | SegmentRepair::Continue { last: None, .. }
        );
        let directory = &self.log.diagnosis.directory;
        if is_rewritten && directory.statement.is_none() && directory.history.is_some() {
            // The version of this log kept marks where a repair does not change them.
            let aside = aside_path(&self.log.history_path());
            self.history = HistoryRepair::Rebuild { aside };
        }
        Ok(())
    }

    /// The report of the plan.
    fn report(&self) -> RepairReport {
        let mut set_aside: Vec<PathBuf> = match &self.history {
            HistoryRepair::Nothing => Vec::new(),
            HistoryRepair::Rebuild { aside } => vec![aside.clone()],
            HistoryRepair::Replay { aside, .. } => aside.iter().cloned().collect(),
        };
        let DamagedLog { disk, surveyed, .. } = self.log;
        let names = disk.names().unwrap_or_default();
        let segments = self.aside().into_iter();
        let segments = segments.map(|i| file_name::aside(&names, &surveyed[i].name));
        set_aside.extend(segments.map(|name| disk.path(&name)));
        RepairReport {
            set_aside,
            needed: self.history != HistoryRepair::Nothing || self.segments.is_needed(),
            ..self.report.clone()
        }
    }

    /// The segments to set aside, by index.
    fn aside(&self) -> Vec<usize> {
        match self.history {
            HistoryRepair::Replay { upto, .. } if upto > 0 => {
                (0..self.log.surveyed.len()).collect()
            }
            _ => self.segments.aside.clone(),
        }
    }

    fn carry_out(&self) -> Result<(), OpenError> {
        let stated = self.log.diagnosis.directory.statement.clone();
        let is_stated = stated.is_some() || self.history != HistoryRepair::Nothing;
        let mut statement = match stated {
            Some(statement) => statement,
            None => self.log.new_statement()?,
        };
        match self.history.clone() {
            HistoryRepair::Nothing => {}
            HistoryRepair::Rebuild { aside } => {
                history::rebuild(&self.log, &mut statement, &aside)?;
            }
            HistoryRepair::Replay { aside, upto } => {
                return history::replay(&self.log, statement, aside.as_deref(), upto);
            }
        }
        match self.segments.action {
            SegmentRepair::Nothing => Ok(()),
            // A log of a version without superblocks opens without one.
            SegmentRepair::Continue { upto, last, cut } => {
                let statement = is_stated.then_some(statement);
                segments::continue_after(&self.log, (upto, last, cut), statement, &self.aside())
            }
            SegmentRepair::Rewrite { base, upto, next } => {
                segments::rewrite_segments(&self.log, statement, (base, upto, next))
            }
        }
    }
}
