//! What callers use of their quotas.

use std::collections::HashMap;

use encke_access::{Access, AccountUsage, QuotaLimits};
use encke_stream::{AccountId, StorageUse, Views};
use serde_json::{Value, json};

/// Those first that use the most. `None`: there are no quotas.
pub(super) fn of(access: &Access, views: &Views) -> Option<Value> {
    let mut callers = stored(access.usage()?, views.storage_uses(), access);
    callers.sort_by(|a, b| b.weight().cmp(&a.weight()).then_with(|| a.id.cmp(&b.id)));
    let counted = access.counts().accounts;
    let callers: Vec<Value> = callers.iter().take(USAGE_MAX).map(Line::to_json).collect();
    Some(json!({"counted": counted, "callers": callers}))
}

/// A caller that uses something.
struct Line {
    id: AccountId,
    /// What it uses while the server runs. `None`: it has used nothing since the start that is counted there.
    running: Option<AccountUsage>,
    /// Its issuer, key or certificate, if the configuration has it.
    name: Option<String>,
    stored: StorageUse,
    limits: QuotaLimits,
}

/// The callers that are counted, with what they store, and those that only store something.
fn stored(
    running: Vec<AccountUsage>,
    mut stored: HashMap<AccountId, StorageUse>,
    access: &Access,
) -> Vec<Line> {
    let mut lines: Vec<Line> = running
        .into_iter()
        .map(|one| {
            let id = AccountId(one.account);
            Line {
                id,
                name: Some(one.name.to_string()),
                stored: stored.remove(&id).unwrap_or_default(),
                limits: one.limits,
                running: Some(one),
            }
        })
        .collect();
    lines.extend(stored.into_iter().map(|(id, stored)| Line {
        id,
        running: None,
        name: access.account_name(id.0),
        stored,
        limits: access.account_limits(id.0),
    }));
    lines
}

impl Line {
    /// Those that use more come first.
    fn weight(&self) -> (u64, u64, u64) {
        let running = self.running.as_ref();
        (
            running.map_or(0, |one| one.subscribers),
            self.stored.bytes,
            running.map_or(0, |one| one.appended),
        )
    }

    fn to_json(&self) -> Value {
        let limit = |limit: u64| (limit > 0).then_some(limit);
        let running = self.running.as_ref();
        let limits = &self.limits;
        json!({
            "account": self.id.to_string(),
            "kind": running.map(|one| one.kind.name()),
            "name": self.name,
            "subject": running.and_then(|one| one.subject.as_deref()),
            "subscribers": {"used": running.map_or(0, |one| one.subscribers), "max": limit(limits.subscribers)},
            "appends": {"counted": running.map_or(0, |one| one.appended), "per_second_max": limit(limits.appends_per_second)},
            "streams": {"used": self.stored.streams, "max": limit(limits.streams)},
            "stored_bytes": {"used": self.stored.bytes, "max": limit(limits.stored_bytes)},
            "exceeded": running.map_or(0, |one| one.exceeded),
        })
    }
}

/// Callers in one answer.
const USAGE_MAX: usize = 1_000;
