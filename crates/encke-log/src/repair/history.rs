//! The repair of history: it is made again from its readable parts and from segments, or by a replay of all records.

use crate::diagnosis::ranges::contiguous_upto;
use crate::diagnosis::survey;
use crate::disk::Disk;
use crate::error::OpenError;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::ids::Sequence;
use crate::repair::damaged_log::{DamagedLog, aside_path};
use crate::repair::report::{Loss, RepairReport};
use crate::repair::salvage::{self, Salvaged};
use crate::repair::segments::replace_segments;
use crate::start::log_directory::salt;
use crate::superblock::statement::{StatedHistory, Statement};
use std::path::{Path, PathBuf};

/// What a repair does with history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HistoryRepair {
    Nothing,
    /// It is made again from its readable parts and from segments.
    Rebuild {
        aside: PathBuf,
    },
    /// The next start makes it again: it replays all records from segments.
    Replay {
        aside: Option<PathBuf>,
        upto: Sequence,
    },
}

/// Plans a replay of all records, for a log without a state store or without a statement.
pub(crate) fn plan_replay<D: Disk>(
    log: &DamagedLog<'_, D>,
    report: &mut RepairReport,
) -> Result<HistoryRepair, OpenError> {
    let (place, what) = log.diagnosis.problems[0].clone();
    let beyond_repair = |why: &str| OpenError::BeyondRepair {
        place: place.clone(),
        what: format!("{what}; {why}"),
    };
    let directory = &log.diagnosis.directory;
    if directory.statement.is_none() && directory.log_ids.len() > 1 {
        return Err(beyond_repair("the directory holds files of several logs"));
    }
    if directory.statement.is_none() && !directory.log_ids.is_empty() && directory.history.is_some()
    {
        return Err(beyond_repair("nothing else states what the log held"));
    }
    let whole = survey::available(log.surveyed);
    let reached = whole.last().map_or(0, |(_, last)| *last);
    let top = reached.max(log.diagnosis.durable_upto());
    let all_in_segments = log.surveyed.iter().all(|found| found.problem.is_none())
        && contiguous_upto(&whole, 0) == top;
    let upto = if all_in_segments {
        report.notes.push(format!(
            "{what}; the segments have every record, so history is rebuilt from them"
        ));
        0
    } else {
        let history = log.diagnosis.history();
        let history =
            history.ok_or_else(|| beyond_repair("the segments do not have every record"))?;
        let history_upto = log.diagnosis.marks.history_upto;
        let absent = salvage::absent(history, log.surveyed, top);
        let absent = absent.map_err(|e| e.on_open(&log.history_path(), "read"))?;
        if history_upto == 0 || !absent.is_empty() {
            return Err(beyond_repair(
                "the state of streams can be rebuilt only from all records, and some are missing",
            ));
        }
        report.notes.push(format!(
            "{what}; history and the segments have every record, so both are rebuilt from them"
        ));
        top
    };
    let aside = (log.diagnosis.directory.history.as_ref()).map(|path| aside_path(path));
    Ok(HistoryRepair::Replay { aside, upto })
}

pub(crate) fn plan_rebuild<D: Disk>(
    log: &DamagedLog<'_, D>,
    history: &History,
    report: &mut RepairReport,
) -> Result<HistoryRepair, HistoryError> {
    let gaps = salvage::gaps(history)?;
    if gaps.is_empty() && log.diagnosis.problems.is_empty() {
        return Ok(HistoryRepair::Nothing);
    }
    let (path, marks) = (log.history_path(), log.diagnosis.marks);
    for (place, what) in &log.diagnosis.problems {
        let place = place.display();
        report
            .notes
            .push(format!("the history in {place} is rebuilt: {what}"));
    }
    for gap in &gaps {
        if gap.is_of_records() {
            report.notes.push(gap.text());
        } else {
            report.losses.push(Loss {
                from: 1,
                upto: marks.checkpoint_upto,
                what: gap.text(),
            });
        }
    }
    if log.diagnosis.lacks_records || gaps.iter().any(salvage::UnreadableRange::is_of_records) {
        for (from, upto) in salvage::absent(history, log.surveyed, marks.history_upto)? {
            let what = "neither history nor a segment has them; some may have been deleted before";
            report.losses.push(Loss {
                from,
                upto,
                what: what.to_owned(),
            });
        }
    }
    Ok(HistoryRepair::Rebuild {
        aside: aside_path(&path),
    })
}

pub(crate) fn rebuild<D: Disk>(
    log: &DamagedLog<'_, D>,
    statement: &mut Statement,
    aside: &Path,
) -> Result<(), OpenError> {
    let (Some(history), Some(stated)) = (log.diagnosis.history(), statement.history.clone()) else {
        return Ok(());
    };
    let path = log.history_path();
    let id = salt(log.disk)?;
    let salvaged = Salvaged {
        history,
        stated: StatedHistory { id, ..stated },
    };
    let stated = salvage::rebuild::<D>(&path, statement.log_id, salvaged, log.surveyed)?;
    statement.history = Some(stated);
    let failed = |e| OpenError::io(&path, "rename", e);
    salvage::put_in_place(&path, statement, aside).map_err(failed)?;
    log.state(statement.clone())?;
    salvage::finish(&path).map_err(failed)
}

/// Sets history aside, so that the next start makes it again from the segments.
pub(crate) fn replay<D: Disk>(
    log: &DamagedLog<'_, D>,
    mut statement: Statement,
    aside: Option<&Path>,
    upto: Sequence,
) -> Result<(), OpenError> {
    if upto > 0 {
        statement.history = None;
        statement.note_durable(upto);
        return replace_segments(log, log.diagnosis.history(), statement, (1, upto), upto + 1);
    }
    statement.history = None;
    if let Some(aside) = aside {
        let path = log.history_path();
        std::fs::rename(&path, aside).map_err(|e| OpenError::io(&path, "rename", e))?;
        log.sync_names()?;
    }
    log.state(statement)
}
