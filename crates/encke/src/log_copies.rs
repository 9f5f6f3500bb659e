//! Copies of logs from other nodes of a fleet: a node that the brokers cannot bring up to date takes one at its start, and
//! `encke fleet join` takes all before the first start.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use encke_fleet::{CopyLogError, CopyProgress, FleetError, FleetSettings, LogCopier};
use encke_stream::Logs;
use prometheus::Registry;

use crate::failure::{Code, Failed, say};
use crate::node::Node;

/// Restores the logs and joins the fleet. A log that lacks what the brokers no longer have is copied from another node
/// before.
pub(crate) fn restore_and_join(
    settings: &FleetSettings,
    directories: &[PathBuf],
    registry: &Registry,
    restore: &mut dyn FnMut() -> Result<Logs, Failed>,
) -> Result<(Logs, Node), Failed> {
    let mut copies = 0;
    loop {
        let logs = restore()?;
        let refused = match Node::join(settings.clone(), &logs, registry) {
            Ok(node) => return Ok((logs, node)),
            Err(refused) => refused,
        };
        // A copy needs the lock of the directory.
        drop(logs);
        let Some(FleetError::Behind { log, applied, .. }) = refused.error.downcast_ref() else {
            return Err(refused);
        };
        let (log, applied) = (*log, *applied);
        let Some(directory) = directories.get(log) else {
            return Err(refused);
        };
        copies += 1;
        if copies > COPIES_MAX * directories.len() {
            return Err(refused);
        }
        tracing::warn!(reason = %refused.error, "copying log {log} from another node");
        copy(settings, log, directory).map_err(|failed| Failed {
            error: failed.error.context(refused.error.to_string()),
            ..failed
        })?;
        if applied == 0 {
            forget_empty(directory);
        }
    }
}

/// Removes the log before a copy, which had nothing.
fn forget_empty(directory: &Path) {
    let replaced = directory.join(encke_log::REPLACED);
    if let Err(error) = std::fs::remove_dir_all(&replaced) {
        tracing::warn!(%error, path = %replaced.display(), "an empty log could not be removed");
    }
}

fn copy(settings: &FleetSettings, log: usize, directory: &Path) -> Result<(), Failed> {
    let (access, fleet) = (&settings.access, &settings.name);
    let node = settings.node.as_str();
    let copier = LogCopier::connect(access, fleet, node, settings.silence_max);
    let copier = copier.map_err(|error| Code::Running.with(error))?;
    let begun = Instant::now();
    let mut pace = Pace::default();
    let copied = copier.copy(log, None, directory, &mut |at| {
        if pace.is_due() {
            tracing::info!("{}", text(at));
        }
    });
    copied.map_err(failed)?;
    tracing::info!(
        log,
        took_ms = begun.elapsed().as_millis() as u64,
        replaced = %directory.join(encke_log::REPLACED).display(),
        "the log is copied; what it replaces stays beside it until the next copy"
    );
    Ok(())
}

/// Copies all logs into directories without a log, with progress on standard error.
pub(crate) fn copy_all(
    copier: &LogCopier,
    from: Option<&encke_fleet::FleetName>,
    directories: &[PathBuf],
) -> Result<(), Failed> {
    for (log, directory) in directories.iter().enumerate() {
        let mut pace = Pace::default();
        let copied = copier.copy(log, from, directory, &mut |at| {
            if pace.is_due() || at.files_done == at.files {
                say(format_args!("{}\n", text(at)));
            }
        });
        copied.map_err(failed)?;
    }
    Ok(())
}

fn text(at: &CopyProgress) -> String {
    format!(
        "log {} from node {}: {} of {}, {} of {} files",
        at.log,
        at.from,
        ByteSize(at.bytes_done),
        ByteSize(at.bytes),
        at.files_done,
        at.files
    )
}

fn failed(error: CopyLogError) -> Failed {
    let code = match error {
        CopyLogError::Place(_) => Code::Data,
        CopyLogError::NoSource { .. } | CopyLogError::Fleet(_) => Code::Running,
    };
    code.with(error)
}

/// Lets progress through from time to time.
#[derive(Default)]
struct Pace {
    last: Option<Instant>,
}

impl Pace {
    fn is_due(&mut self) -> bool {
        let is_due = self
            .last
            .is_none_or(|last| last.elapsed() >= PROGRESS_EVERY);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }
}

/// How often a log is copied at one start: the brokers may forget while it is copied what the copy lacks.
const COPIES_MAX: usize = 3;

const PROGRESS_EVERY: Duration = Duration::from_secs(2);
