//! What callers use of their quotas.

use encke_access::Access;

use crate::problem::error;
use crate::response::Response;

/// `GET /v1/admin/usage`: those first that use the most.
pub(super) fn of(access: Option<&Access>) -> Result<Response, Response> {
    let used = access.and_then(|access| access.usage(USAGE_MAX));
    let Some(used) = used else {
        let why = "there is no usage: no quotas are configured, which are the table access.quotas";
        return Err(error(409, "no_quotas", why));
    };
    let limit = |limit: u64| (limit > 0).then_some(limit);
    let accounts: Vec<_> = used
        .iter()
        .map(|one| {
            serde_json::json!({
                "kind": one.kind.name(),
                "name": one.name,
                "subject": one.subject,
                "subscribers": {"used": one.subscribers, "max": limit(one.limits.subscribers)},
                "appends": {"counted": one.appended, "per_second_max": limit(one.limits.appends_per_second)},
                "exceeded": one.exceeded,
            })
        })
        .collect();
    let counted = access.map(|access| access.counts().accounts);
    let body = serde_json::json!({"counted": counted, "callers": accounts});
    Ok(Response::new(200)
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store")
        .body(body.to_string()))
}

/// Callers in one answer.
const USAGE_MAX: usize = 1_000;
