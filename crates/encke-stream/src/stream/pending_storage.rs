//! The storage that commands on their way to the log will use. It counts for their accounts as soon as they are allowed.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::account::{AccountId, StorageUse};

/// The storage for commands of this process that are not visible yet.
#[derive(Debug, Default)]
pub(crate) struct PendingStorage(Mutex<HashMap<AccountId, StorageUse>>);

/// Counts for an account until it is dropped, which is when a command is visible or refused.
#[derive(Debug)]
pub struct StorageHold {
    pending: Arc<PendingStorage>,
    account: AccountId,
    wanted: StorageUse,
}

impl PendingStorage {
    /// Counts the storage for a command, unless `exceeded` objects to the sum of `used`, which is visible, and all that is pending.
    pub(crate) fn hold<E>(
        self: &Arc<Self>,
        account: AccountId,
        wanted: StorageUse,
        used: impl FnOnce() -> StorageUse,
        exceeded: impl FnOnce(StorageUse) -> Option<E>,
    ) -> Result<StorageHold, E> {
        let mut all = self.0.lock();
        let pending = all.get(&account).copied().unwrap_or_default();
        // Behind the lock: what is not pending any more is visible.
        if let Some(exceeded) = exceeded(pending.and(used())) {
            return Err(exceeded);
        }
        all.insert(account, pending.and(wanted));
        Ok(StorageHold {
            pending: Arc::clone(self),
            account,
            wanted,
        })
    }
}

impl Drop for StorageHold {
    fn drop(&mut self) {
        let mut all = self.pending.0.lock();
        let Some(pending) = all.get_mut(&self.account) else {
            return;
        };
        *pending = StorageUse {
            streams: pending.streams.saturating_sub(self.wanted.streams),
            bytes: pending.bytes.saturating_sub(self.wanted.bytes),
        };
        if *pending == StorageUse::default() {
            all.remove(&self.account);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_counts_until_it_is_dropped() {
        let pending = Arc::new(PendingStorage::default());
        let account = AccountId([1, 2]);
        let wanted = StorageUse {
            streams: 1,
            bytes: 10,
        };
        let used = StorageUse {
            streams: 3,
            bytes: 0,
        };
        let hold = || {
            pending.hold(
                account,
                wanted,
                || used,
                |sum| (sum.streams >= 5).then_some(sum),
            )
        };
        let (first, second) = (hold().unwrap(), hold().unwrap());
        let all = StorageUse {
            streams: 5,
            bytes: 20,
        };
        assert_eq!(hold().unwrap_err(), all);
        drop(first);
        drop((hold().unwrap(), second));
        assert!(pending.0.lock().is_empty());
    }
}
