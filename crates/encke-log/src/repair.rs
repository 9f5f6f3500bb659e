//! Repairing a log that is not open: what it takes to make it one that opens, and what that costs.

use crate::Sequence;
use crate::check::open_history;
use crate::disk::{Disk, DiskFile};
use crate::error::OpenError;
use crate::files::Files;
use crate::history::{History, Marks};
use crate::options::SEGMENT_BYTES_MIN;
use crate::prepare::Preparer;
use crate::recover;
use crate::salvage;
use crate::survey::{self, Problem, Surveyed, problem};
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

/// Makes a damaged log one that opens again, by dropping what is damaged and what follows it. `decide` is told what that
/// costs before anything is changed, and nothing is unless it says yes; it is not asked when there is nothing to do. The log
/// must not be open.
///
/// Records that are in history are not lost by damage to a segment. A log that is sound, or ends in a torn batch only,
/// loses nothing. Of a damaged history what can be read is kept, and what can't is taken from
/// segments as far as they have it; one that can't be opened at all is made anew if the segments have everything.
///
/// # Errors
/// As [`check`](crate::check), or history is damaged, or something could not be written.
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
    if let Some(path) = disk.history() {
        let finished = salvage::finish_interrupted(&path);
        finished.map_err(|e| OpenError::io(&path, "finish the repair of", e))?;
    }
    let surveyed = survey::survey(disk, &mut |_, _| {})?;
    let opened = open_history(disk).and_then(|history| Ok((Marks::of(history.as_ref())?, history)));
    let (marks, mut history) = match opened {
        Ok(opened) => opened,
        Err(error @ OpenError::History { .. }) => {
            return replay_all(disk, &surveyed, error, decide);
        }
        Err(error) => return Err(error),
    };
    if let Some(damaged) = history.take_if(|history| has_gaps(history)) {
        return mend(damaged, marks, &surveyed, decide, disk);
    }
    let plan = Plan::new(disk, marks, &surveyed);
    let mut report = RepairReport {
        losses: plan.losses.clone(),
        set_aside: plan
            .aside
            .iter()
            .map(|name| disk.path(&aside(name)))
            .collect(),
        notes: Vec::new(),
        needed: !plan.aside.is_empty() || plan.cut.is_some() || plan.begin.is_some(),
        done: false,
    };
    if report.needed && decide(&report) {
        plan.carry_out(disk, history.as_ref(), &surveyed)?;
        report.done = true;
    }
    Ok(report)
}

fn has_gaps(history: &History) -> bool {
    salvage::gaps(history).is_ok_and(|gaps| !gaps.is_empty())
}

/// History can't be opened. When the segments have everything, it is made anew from them; otherwise it can't be repaired.
fn replay_all<D: Disk>(
    disk: &D,
    surveyed: &[Surveyed<D::File>],
    error: OpenError,
    decide: &mut dyn FnMut(&RepairReport) -> bool,
) -> Result<RepairReport, OpenError> {
    let whole = surveyed.first().is_some_and(|found| found.first == 1)
        && surveyed.iter().all(|found| found.problem.is_none());
    let (true, Some(path)) = (whole, disk.history()) else {
        return Err(error);
    };
    let aside = aside_path(&path);
    let mut report = RepairReport {
        losses: Vec::new(),
        set_aside: vec![aside.clone()],
        notes: vec![format!(
            "{error}; the segments have every record, so the next start makes it anew"
        )],
        needed: true,
        done: false,
    };
    if decide(&report) {
        std::fs::rename(&path, &aside).map_err(|e| OpenError::io(&path, "rename", e))?;
        disk.sync_names()
            .map_err(|e| OpenError::io(&disk.path(""), "sync the directory", e))?;
        report.done = true;
    }
    Ok(report)
}

/// History has places that can't be read: it is made anew of what can, and of what segments have.
fn mend<D: Disk>(
    history: History,
    marks: Marks,
    surveyed: &[Surveyed<D::File>],
    decide: &mut dyn FnMut(&RepairReport) -> bool,
    disk: &D,
) -> Result<RepairReport, OpenError> {
    let gaps = salvage::gaps(&history).map_err(|e| e.on_open(history.path(), "read"))?;
    let damaged = surveyed
        .iter()
        .rposition(|found| found.problem.is_some() && found.first <= marks.history_upto);
    let kept_from = match damaged {
        Some(damaged) => surveyed.get(damaged + 1).map(|next| next.first),
        None => surveyed.first().map(|first| first.first),
    };
    let lost_upto = kept_from.map_or(marks.history_upto, |first| first - 1);
    let aside = aside_path(history.path());
    let mut report = RepairReport {
        losses: Vec::new(),
        set_aside: vec![aside.clone()],
        notes: Vec::new(),
        needed: true,
        done: false,
    };
    for gap in &gaps {
        let what = gap.text();
        if gap.is_of_records() && lost_upto == 0 {
            report
                .notes
                .push(format!("{what}; it is taken from the segments"));
        } else {
            let upto = if gap.is_of_records() {
                lost_upto
            } else {
                marks.checkpoint_upto
            };
            report.losses.push(Loss {
                from: 1,
                upto,
                what,
            });
        }
    }
    if decide(&report) {
        salvage::rebuild::<D>(history, marks.history_upto, surveyed, &aside)?;
        disk.sync_names()
            .map_err(|e| OpenError::io(&disk.path(""), "sync the directory", e))?;
        report.done = true;
    }
    Ok(report)
}

/// The name of a history that is set aside: one that nothing has yet.
fn aside_path(history: &Path) -> PathBuf {
    let name = |n: u32| history.with_extension(format!("dropped-{n}"));
    (1..)
        .map(name)
        .find(|path| !path.exists())
        .unwrap_or_else(|| name(0))
}

/// How to make the log one that opens.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    losses: Vec<Loss>,
    /// Records that no file has, if that is a problem.
    pub(crate) missing: Option<Problem>,
    /// Segments to set aside.
    aside: Vec<String>,
    /// The segment to cut, by its place, and where.
    cut: Option<(usize, u64)>,
    /// The record with which a new segment has to begin, and its number.
    begin: Option<(Sequence, u64)>,
    /// Up to which record everything counts as settled from then on, if that has to change.
    settle_upto: Option<Sequence>,
}

impl Plan {
    pub(crate) fn new<D: Disk>(disk: &D, marks: Marks, surveyed: &[Surveyed<D::File>]) -> Plan {
        let settled_upto = marks.history_upto.min(marks.checkpoint_upto);
        let promised_upto = marks.history_upto.max(marks.checkpoint_upto);
        let mut plan = Plan::default();
        let end_of = |i: usize| {
            surveyed
                .get(i + 1)
                .map_or(surveyed[i].end, |next| next.first)
        };
        // What is settled matters for the global order only: it may begin after the last damage there.
        let mut from = 0;
        for (i, found) in surveyed.iter().enumerate() {
            let settled = i + 1 < surveyed.len() && end_of(i) - 1 <= settled_upto;
            if settled && found.problem.is_some() {
                from = i + 1;
            }
        }
        plan.set_aside(
            surveyed,
            0..from,
            "it can no longer be read in the global order; streams still have it in history",
        );
        let Some(first) = surveyed.get(from) else {
            if promised_upto > 0 {
                plan.missing = Some(problem(
                    disk,
                    "",
                    0,
                    settled_upto + 1,
                    format!(
                        "no segment has the records from here on; there were some up to {promised_upto} at least"
                    ),
                ));
                plan.restart(promised_upto, settled_upto, 1);
            }
            return plan;
        };
        let number_end = surveyed
            .iter()
            .filter_map(|found| found.segment.as_ref())
            .map(|segment| segment.number + 1)
            .max()
            .unwrap_or(1);
        if first.first > settled_upto + 1 {
            let what = format!(
                "the records from here to {} are in no segment",
                first.first - 1
            );
            plan.missing = Some(problem(disk, "", 0, settled_upto + 1, what));
        }
        let damaged = surveyed[from..]
            .iter()
            .position(|found| found.problem.is_some())
            .map(|i| from + i);
        let sound_end = damaged.map_or_else(|| end_of(surveyed.len() - 1), |i| surveyed[i].end);
        let whole = plan.missing.is_none();
        if damaged.is_none() && whole && sound_end > promised_upto {
            return plan;
        }
        if whole && sound_end > promised_upto {
            // The usual case: everything before the damage stays.
            if let Some(i) = damaged {
                plan.set_aside(
                    surveyed,
                    i + 1..surveyed.len(),
                    "it follows what is damaged",
                );
                plan.losses.insert(
                    0,
                    Loss {
                        from: sound_end,
                        upto: surveyed[i].traced_upto.max(sound_end),
                        what: surveyed[i].text(),
                    },
                );
                if surveyed[i].segment.is_some() {
                    plan.cut = Some((i, surveyed[i].end_position));
                } else {
                    plan.aside.push(surveyed[i].name.clone());
                    if i == from {
                        plan.begin = Some((surveyed[i].first, number_end));
                    }
                }
            }
            return plan;
        }
        // The damage reaches back before what history or the state store already rely on. They stay as they are, and the log
        // goes on behind them.
        let behind = surveyed
            .iter()
            .position(|found| found.first == promised_upto + 1);
        let behind = behind
            .filter(|i| *i >= from && surveyed[*i..].iter().all(|found| found.problem.is_none()));
        plan.set_aside(
            surveyed,
            from..behind.unwrap_or(surveyed.len()),
            "it is damaged, or what is damaged is needed with it",
        );
        plan.settle_upto = Some(promised_upto);
        if behind.is_none() {
            plan.restart(promised_upto, settled_upto, number_end);
        }
        plan
    }

    fn restart(&mut self, promised_upto: Sequence, settled_upto: Sequence, number: u64) {
        self.settle_upto = Some(promised_upto);
        self.begin = Some((promised_upto + 1, number));
        if promised_upto > settled_upto {
            self.losses.push(Loss {
                from: settled_upto + 1,
                upto: promised_upto,
                what: "these records are in the state store or in history, but not in both"
                    .to_owned(),
            });
        }
    }

    fn set_aside<F>(&mut self, surveyed: &[Surveyed<F>], which: std::ops::Range<usize>, why: &str) {
        for i in which {
            let found = &surveyed[i];
            let traced_end = found.end.max(found.traced_upto + 1);
            let end = surveyed.get(i + 1).map_or(traced_end, |next| next.first);
            self.aside.push(found.name.clone());
            if end > found.first {
                let what = format!("{}: {why}", found.name);
                self.losses.push(Loss {
                    from: found.first,
                    upto: end - 1,
                    what,
                });
            }
        }
    }

    fn carry_out<D: Disk>(
        &self,
        disk: &D,
        history: Option<&History>,
        surveyed: &[Surveyed<D::File>],
    ) -> Result<(), OpenError> {
        // The newest first: if this is interrupted, what is left has no gap that looks sound.
        for name in self.aside.iter().rev() {
            disk.rename(name, &aside(name))
                .map_err(|e| OpenError::io(&disk.path(name), "rename", e))?;
        }
        disk.sync_names()
            .map_err(|e| OpenError::io(&disk.path(""), "sync the directory", e))?;
        if let Some((i, position)) = self.cut
            && let Some(segment) = &surveyed[i].segment
        {
            let cut = segment
                .file
                .truncate(position)
                .and_then(|()| segment.file.sync());
            cut.map_err(|e| OpenError::io(&disk.path(&segment.name), "truncate", e))?;
        }
        if let (Some(upto), Some(history)) = (self.settle_upto, history) {
            let settled = history
                .set_history_upto(upto)
                .and_then(|()| history.set_checkpoint_upto(upto));
            settled.map_err(|e| e.on_open(history.path(), "write to"))?;
        }
        if let Some((first, number)) = self.begin {
            // The next open replaces an empty segment that is smaller than it wants them.
            let made = Preparer::start(disk.clone(), SEGMENT_BYTES_MIN, &[]).and_then(|preparer| {
                let prepared = preparer.take(1)?.remove(0);
                recover::begin(disk, prepared, number, first)
            });
            made.map_err(|e| OpenError::io(&disk.path(""), "begin a segment in", e))?;
        }
        Ok(())
    }
}

impl<F> Surveyed<F> {
    fn text(&self) -> String {
        self.problem
            .as_ref()
            .map_or_else(String::new, Problem::to_string)
    }
}

/// The name of a segment that is set aside.
fn aside(name: &str) -> String {
    format!("{name}.dropped")
}
