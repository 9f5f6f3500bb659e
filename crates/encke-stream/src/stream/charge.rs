//! Charges a stream to the account that pays for it.

use std::sync::Arc;

use crate::stream::account::{Account, AccountId, StorageUse};
use crate::stream::count::ByteCount;
use crate::stream::retention::Buckets;
use crate::stream::{Life, State, Stream};

impl Stream {
    /// Who pays for it.
    pub fn account(&self) -> Option<AccountId> {
        Some(self.charged_account()?.account.id)
    }

    /// What its committed state costs its account, or would.
    pub fn storage(&self) -> StorageUse {
        cost_of(&self.state())
    }

    /// Charges its account with what its committed state costs. Returns the account if the next checkpoint has to take it from now on.
    #[must_use]
    pub(crate) fn charge(&self, state: &State) -> Option<Arc<Account>> {
        let of = self.charged_account()?;
        let cost = cost_of(state);
        let is_changed = of.account.charge(of.charged(), cost);
        of.note(cost);
        is_changed.then(|| Arc::clone(&of.account))
    }

    /// Notes with what its account was charged for it.
    pub(crate) fn note_charged(&self, cost: StorageUse) {
        if let Some(of) = self.charged_account() {
            of.note(cost);
        }
    }
}

fn cost_of(state: &State) -> StorageUse {
    let facts = &state.committed;
    let metadata = state.metadata.as_ref();
    let metadata = metadata.and_then(|metadata| metadata.committed.as_deref());
    match facts.life {
        Life::Ended => StorageUse::default(),
        life => cost(
            life == Life::Live,
            state.buckets.as_deref(),
            facts.appended,
            metadata,
        ),
    }
}

/// What a stream costs that has not ended. `buckets`: its records, if it has a limited retention.
pub(crate) fn cost(
    is_live: bool,
    buckets: Option<&Buckets>,
    appended: ByteCount,
    metadata: Option<&str>,
) -> StorageUse {
    let data = match buckets {
        Some(buckets) => buckets.bytes(),
        None => appended.known().unwrap_or_default(),
    };
    let metadata = metadata.map_or(0, str::len) as u64;
    StorageUse {
        streams: u64::from(is_live),
        bytes: data.saturating_add(metadata),
    }
}
