//! Written → durable: a group becomes as durable as its level asks, with an fdatasync where that is `synced`.

use std::time::{Duration, Instant};

use encke_log::{CommitError, Disk, Log};

use super::decide::Decided;
use super::write::Written;
use crate::AckLevel;

/// A group that is as durable as the levels of its streams ask, so that readers may see it.
#[derive(Debug)]
pub(crate) struct Durable(Decided);

impl Durable {
    /// A group that needs no file ([`Decided::needs_file`]).
    pub(crate) fn without_file(decided: Decided) -> Durable {
        debug_assert!(!decided.needs_file(), "the group must be written");
        Durable(decided)
    }

    pub(super) fn take_commands(&mut self) -> usize {
        self.0.take_commands()
    }

    pub(super) fn into_group(self) -> Decided {
        self.0
    }
}

/// Syncs a written group if its level asks for it. Returns how long that took, if there was a sync.
///
/// # Errors
/// The sync failed, and with it the log.
pub(crate) fn sync<D: Disk>(
    written: Written,
    log: &mut Log<D>,
) -> Result<(Durable, Option<Duration>), (Box<Decided>, CommitError)> {
    let group = written.into_group();
    if group.level != AckLevel::Synced {
        return Ok((Durable(group), None));
    }
    let begin = Instant::now();
    match log.sync() {
        Ok(()) => Ok((Durable(group), Some(begin.elapsed()))),
        Err(error) => Err((Box::new(group), error)),
    }
}

/// When records that were acknowledged before a sync are synced.
#[derive(Debug)]
pub(crate) struct SyncSchedule {
    /// At least this often.
    pub(super) every: Duration,
    pub(super) synced_at: Instant,
    /// Something was written since the log last noted that all it holds is durable.
    pub(super) unsettled: bool,
}

impl SyncSchedule {
    pub(super) fn new() -> Self {
        SyncSchedule {
            every: SYNC_EVERY,
            synced_at: Instant::now(),
            unsettled: false,
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.synced_at.elapsed() > self.every
    }

    /// How long the log waits for commands before it syncs because none arrive. `is_synced`: everything is durable, and
    /// only the note about it is missing.
    pub(super) fn settle_within(&self, is_synced: bool) -> Duration {
        if is_synced {
            return SETTLE_WHEN_IDLE;
        }
        // A shorter interval holds also when no command follows.
        SETTLE_WHEN_IDLE.min(self.every)
    }
}

/// After this long without a command, everything is synced, and the log notes that it is durable.
pub(crate) const SETTLE_WHEN_IDLE: Duration = Duration::from_millis(20);

/// What is acknowledged before it is synced is synced at least this often by default.
const SYNC_EVERY: Duration = Duration::from_secs(1);
