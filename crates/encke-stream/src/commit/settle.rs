//! Syncs outside of a batch: for late replies, and for records that were acknowledged before a sync.

use std::time::Instant;

use encke_log::{DeferredSync, DeferredSyncResult, Disk};

use super::publish;
use super::state::Commit;
use super::sync::SETTLE_WHEN_IDLE;
use crate::AckLevel;

impl<D: Disk> Commit<D> {
    /// Syncs if a late reply waits for that.
    pub(super) fn sync_for_late_replies(&mut self) {
        self.send_late_replies_if_written();
        if self.late.are_waiting() && self.failed.is_none() && self.is_written() {
            match self.log.sync() {
                Ok(()) => self.send_late_replies(AckLevel::Synced),
                Err(error) => {
                    self.fail(&error);
                }
            }
        }
    }

    /// Syncs what was acknowledged before a sync, if the interval for that is over.
    pub(crate) fn sync_if_due(&mut self) {
        if self.syncs.is_due() {
            self.sync_written();
        }
    }

    /// Syncs what was acknowledged before a sync. True unless the log has failed.
    pub(crate) fn sync_written(&mut self) -> bool {
        self.syncs.synced_at = Instant::now();
        if self.failed.is_none()
            && let Err(error) = self.log.sync()
        {
            self.fail(&error);
        }
        self.failed.is_none()
    }

    /// When no commands arrive: syncs what was acknowledged before a sync, and notes in the log that everything is
    /// durable, so that later damage cannot be taken for a torn tail.
    pub(crate) fn settle(&mut self) {
        let soon = self.syncs.settle_within(self.log.is_synced()) < SETTLE_WHEN_IDLE;
        let synced = self.sync_written();
        // When the interval is short, commands may follow before the note is worth its write.
        if soon || !std::mem::take(&mut self.syncs.unsettled) || !synced {
            return;
        }
        if let Err(error) = self.log.mark_durable().and_then(|()| self.log.sync()) {
            self.fail(&error);
        }
    }

    /// Begins a sync that runs without this object, if one is due: for late replies, after the interval, or because
    /// no commands arrive (`idle`). Until [`Commit::end_sync`] commands may be decided and nothing may be written.
    pub(crate) fn begin_sync(&mut self, idle: bool) -> Option<DeferredSync<D>> {
        let awaited = self.late.are_waiting() && self.is_written();
        if self.failed.is_some() || !(idle || awaited || self.syncs.is_due()) {
            return None;
        }
        self.syncs.synced_at = Instant::now();
        if let Some(sync) = self.log.defer_sync() {
            if awaited {
                self.late.begin_sync();
            }
            return Some(sync);
        }
        if awaited {
            self.send_late_replies(AckLevel::Synced);
        }
        if !idle || !std::mem::take(&mut self.syncs.unsettled) {
            return None;
        }
        if let Err(error) = self.log.mark_durable() {
            self.fail(&error);
        }
        self.log.defer_sync()
    }

    /// Notes the result of the sync that [`Commit::begin_sync`] began.
    pub(crate) fn end_sync(&mut self, synced: DeferredSyncResult) {
        match self.log.finish_sync(synced) {
            Ok(()) => {
                let late = self.late.end_sync();
                publish::acknowledge_late(late, &self.machine.view, &mut self.outlets);
            }
            Err(error) => {
                self.fail(&error);
            }
        }
    }
}
