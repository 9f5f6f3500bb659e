//! Accounts: who pays for a stream, how many streams each of them has, and how much those store.
//!
//! A stream has an account from its creation on, if its creator is counted at all. The totals of an account are the sum of what its
//! streams were charged with; a stream is charged when a change of it is committed. A checkpoint has the totals beside the states of the
//! streams, so that a start reads none of the streams at rest: what it replays is charged as a difference to what the checkpoint has.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Names the account that pays for a stream. Only access control knows whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AccountId(pub [u64; 2]);

impl AccountId {
    /// Its 16 bytes, by which accounts are ordered.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let [first, second] = self.0;
        ((u128::from(first) << 64) | u128::from(second)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(bytes);
        AccountId([(both >> 64) as u64, both as u64])
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.0;
        write!(f, "{first:016x}{second:016x}")
    }
}

/// What an account uses, or one stream of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageUse {
    /// Streams that were neither deleted nor have expired.
    pub streams: u64,
    /// Bytes of data and metadata. What a retention has removed is not among them; what a truncation has removed is, unless the stream has
    /// a retention, because the bytes before a position are not counted.
    pub bytes: u64,
}

impl StorageUse {
    /// Both together.
    #[must_use]
    pub fn and(self, other: StorageUse) -> StorageUse {
        StorageUse {
            streams: self.streams.saturating_add(other.streams),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Who pays for a stream that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payer {
    /// The account.
    pub account: AccountId,
    /// What it has used up: only a stream that exists is confirmed then.
    pub exceeded: Option<StorageExceeded>,
}

/// What a creation would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageExceeded {
    /// Which limit.
    pub limit: StorageLimit,
    /// How much is allowed.
    pub max: u64,
}

/// A limit of what an account stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageLimit {
    /// [`StorageUse::streams`].
    Streams,
    /// [`StorageUse::bytes`].
    Bytes,
}

/// An account with at least one stream in memory, or with something in the store.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) id: AccountId,
    streams: AtomicU64,
    bytes: AtomicU64,
    /// Changed since the last checkpoint took it.
    dirty: AtomicBool,
}

impl Account {
    pub(crate) fn used(&self) -> StorageUse {
        StorageUse {
            streams: self.streams.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    /// Charges the account with a stream that cost something before. Only the thread that commits does so. True: the next checkpoint did
    /// not have to take it until now.
    #[must_use]
    pub(crate) fn charge(&self, before: StorageUse, after: StorageUse) -> bool {
        if before == after {
            return false;
        }
        let used = self.used();
        let changed =
            |used: u64, before: u64, after: u64| used.saturating_add(after).saturating_sub(before);
        let streams = changed(used.streams, before.streams, after.streams);
        let bytes = changed(used.bytes, before.bytes, after.bytes);
        self.streams.store(streams, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        !self.dirty.swap(true, Ordering::Relaxed)
    }
}

/// The account of a stream, and what the stream was charged with.
#[derive(Debug)]
pub(crate) struct ChargedAccount {
    pub(crate) account: Arc<Account>,
    /// Bytes, and in the lowest bit whether it counts as a stream.
    charged: AtomicU64,
}

impl ChargedAccount {
    /// An account that was charged with nothing for the stream.
    pub(crate) fn new(account: Arc<Account>) -> Self {
        ChargedAccount {
            account,
            charged: AtomicU64::new(0),
        }
    }

    pub(crate) fn charged(&self) -> StorageUse {
        let charged = self.charged.load(Ordering::Relaxed);
        StorageUse {
            streams: charged & 1,
            bytes: charged >> 1,
        }
    }

    /// Notes with what it was charged.
    pub(crate) fn note(&self, cost: StorageUse) {
        let charged = (cost.bytes.min(u64::MAX >> 1) << 1) | (cost.streams & 1);
        self.charged.store(charged, Ordering::Relaxed);
    }
}

/// The accounts of the streams of a log.
#[derive(Debug, Default)]
pub(crate) struct Accounts(Mutex<HashMap<AccountId, Arc<Account>>>);

impl Accounts {
    /// The account of that name. It stays as long as a stream has it.
    pub(crate) fn enter(&self, id: AccountId) -> Arc<Account> {
        let mut all = self.0.lock();
        let account = all.entry(id).or_insert_with(|| {
            Arc::new(Account {
                id,
                streams: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                dirty: AtomicBool::new(false),
            })
        });
        Arc::clone(account)
    }

    /// What an account uses.
    pub(crate) fn used(&self, id: AccountId) -> StorageUse {
        let all = self.0.lock();
        all.get(&id)
            .map_or_else(StorageUse::default, |account| account.used())
    }

    /// Calls `each` with each account that uses something.
    pub(crate) fn for_each(&self, each: &mut impl FnMut(AccountId, StorageUse)) {
        for (id, account) in &*self.0.lock() {
            let used = account.used();
            if used != StorageUse::default() {
                each(*id, used);
            }
        }
    }

    /// An account as the checkpoint has it.
    pub(crate) fn restore(&self, id: AccountId, used: StorageUse) {
        let account = self.enter(id);
        account.streams.store(used.streams, Ordering::Relaxed);
        account.bytes.store(used.bytes, Ordering::Relaxed);
    }

    /// Takes accounts that have changed since the last call, and forgets those that use nothing and are in no use.
    pub(crate) fn take(
        &self,
        changed: &mut Vec<Arc<Account>>,
        each: &mut impl FnMut(AccountId, StorageUse),
    ) {
        for account in changed.drain(..) {
            account.dirty.store(false, Ordering::Relaxed);
            let used = account.used();
            each(account.id, used);
            if used != StorageUse::default() {
                continue;
            }
            let mut all = self.0.lock();
            // The one of the table and the one here: who has another one has it from the table, under the lock.
            if Arc::strong_count(&account) == 2 {
                all.remove(&account.id);
            }
        }
        changed.shrink_to(SPARE_MAX);
    }
}

/// Accounts for which room is kept between two checkpoints.
const SPARE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn used(streams: u64, bytes: u64) -> StorageUse {
        StorageUse { streams, bytes }
    }

    #[test]
    fn an_account_stays_while_it_is_used() {
        let accounts = Accounts::default();
        let id = AccountId([1, 0]);
        let account = accounts.enter(id);
        let take = |account: &Arc<Account>| {
            let mut taken = Vec::new();
            let mut changed = vec![Arc::clone(account)];
            accounts.take(&mut changed, &mut |id, used| taken.push((id, used)));
            assert!(changed.is_empty());
            taken
        };
        assert!(account.charge(StorageUse::default(), used(1, 10)));
        assert!(!account.charge(used(1, 10), used(1, 30)), "it is marked");
        assert_eq!(accounts.used(id), used(1, 30));
        assert_eq!(take(&account), [(id, used(1, 30))]);
        drop(account);
        assert_eq!(accounts.used(id), used(1, 30), "its stream is at rest");
        let account = accounts.enter(id);
        assert!(account.charge(used(1, 30), StorageUse::default()));
        let in_use = Arc::clone(&account);
        assert_eq!(take(&account), [(id, StorageUse::default())]);
        assert_eq!(accounts.0.lock().len(), 1, "a stream has it");
        drop((in_use, account));
        let account = accounts.enter(id);
        let mut changed = vec![account];
        accounts.take(&mut changed, &mut |_, _| {});
        assert_eq!(accounts.0.lock().len(), 0);
    }

    #[test]
    fn names_are_bytes_and_digits() {
        let id = AccountId([0x0102, u64::MAX]);
        assert_eq!(AccountId::from_bytes(id.to_bytes()), id);
        assert_eq!(id.to_string(), "0000000000000102ffffffffffffffff");
    }
}
