//! Charges a stream to the account that pays for it.

use std::sync::Arc;

use crate::stream::account::{Account, AccountId, StorageUse};
use crate::stream::{Life, State, Stream};

impl Stream {
    /// Who pays for it.
    pub fn account(&self) -> Option<AccountId> {
        Some(self.charged_account()?.account.id)
    }

    /// What its committed state costs its account, or would.
    pub fn storage(&self) -> StorageUse {
        cost(&self.state())
    }

    /// Charges its account with what its committed state costs. Returns the account if the next checkpoint has to take it from now on.
    #[must_use]
    pub(crate) fn charge(&self, state: &State) -> Option<Arc<Account>> {
        let of = self.charged_account()?;
        let cost = cost(state);
        let is_changed = of.account.charge(of.charged(), cost);
        of.note(cost);
        is_changed.then(|| Arc::clone(&of.account))
    }

    /// Notes that its account was charged with its committed state.
    pub(crate) fn note_charged(&self, state: &State) {
        if let Some(of) = self.charged_account() {
            of.note(cost(state));
        }
    }

    /// Notes with what its account was charged for it.
    pub(crate) fn note_charged_with(&self, cost: StorageUse) {
        if let Some(of) = self.charged_account() {
            of.note(cost);
        }
    }
}

fn cost(state: &State) -> StorageUse {
    let facts = &state.committed;
    let metadata = state.metadata.as_ref();
    let metadata = metadata.and_then(|metadata| metadata.committed.as_deref());
    let buckets = state.buckets.as_deref();
    match facts.life {
        Life::Ended => StorageUse::default(),
        life => StorageUse {
            streams: u64::from(life == Life::Live),
            bytes: buckets
                .map_or_else(
                    || facts.appended.known().unwrap_or_default(),
                    |buckets| buckets.bytes(),
                )
                .saturating_add(metadata.map_or(0, |metadata| metadata.len() as u64)),
        },
    }
}
