//! What the dispatcher answers, as responses.

use std::sync::Arc;

use encke_jobs::JobError;
use encke_subscriptions::{
    ClaimedWake, LinkStatus, PublicWebhookKey, RESERVED_SEGMENT, SubscriptionError,
    SubscriptionKind, SubscriptionResponse, SubscriptionStatus, jwk_set, shown_offset,
};
use serde_json::{Map, Value, json};

use super::refusals::{not_found, refusal};
use super::requirements::own_viewer;
use crate::action::{DispatchResponse, Dispatched, OnDispatch};
use crate::gate::Rights;
use crate::pool;
use crate::problem::error;
use crate::response::{AuditNote, Response};
use crate::timestamp::timestamp;

/// Waits for the one response to a request.
#[derive(Debug)]
pub(super) struct RespondOnce {
    /// The path above the streams.
    root: Arc<str>,
    /// The URL of the subscription that the request creates.
    pub(super) location: Option<String>,
    /// The rights of the caller that is shown a subscription.
    pub(super) reader: Option<Rights>,
    /// What the audit log says if the token of a wake is refused.
    pub(super) audit: Option<Box<AuditNote>>,
}

impl RespondOnce {
    pub(super) fn new(root: Arc<str>) -> Self {
        RespondOnce {
            root,
            location: None,
            reader: None,
            audit: None,
        }
    }

    fn respond(self, response: SubscriptionResponse) -> Response {
        match response {
            SubscriptionResponse::Created {
                existed,
                subscription,
            } => {
                let status = if existed { 200 } else { 201 };
                let response = json_body(status, &described(&subscription));
                response.field_if("Location", self.location.filter(|_| !existed))
            }
            SubscriptionResponse::Described(subscription) => match self.is_visible(&subscription) {
                true => json_body(200, &described(&subscription)),
                false => not_found(),
            },
            SubscriptionResponse::Deleted
            | SubscriptionResponse::LinksChanged
            | SubscriptionResponse::Released => empty(204),
            SubscriptionResponse::Claimed(wake) => json_body(200, &claimed(&wake)),
            SubscriptionResponse::Reported { next_wake } => {
                json_body(200, &json!({ "ok": true, "next_wake": next_wake }))
            }
            SubscriptionResponse::Keys(keys) => key_set(&keys),
            SubscriptionResponse::Refused(error @ SubscriptionError::TokenInvalid) => {
                refusal(&error).audited(self.audit)
            }
            SubscriptionResponse::Refused(error) => refusal(&error),
        }
    }

    /// Whether the reader may know of a subscription. For others there is none: its links show which streams there are.
    fn is_visible(&self, subscription: &SubscriptionStatus) -> bool {
        let viewer = &subscription.config.viewer;
        let is_visible =
            |rights: &Rights| own_viewer(&self.root, &subscription.id, rights).includes(viewer);
        self.reader.as_ref().is_none_or(is_visible)
    }
}

impl OnDispatch for RespondOnce {
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched {
        Dispatched::Respond(match event {
            DispatchResponse::Subscription(response) => self.respond(*response),
            DispatchResponse::Refused(error) => pool::refusal(&error),
            DispatchResponse::Stopping => pool::refusal(&JobError::Stopping),
            _ => error(
                500,
                "internal",
                "internal error: the pools have answered a request to the subscriptions",
            ),
        })
    }

    fn waits_long(&self) -> bool {
        false
    }
}

/// A subscription as a client sees it. Members without a value are left out.
fn described(subscription: &SubscriptionStatus) -> Value {
    let SubscriptionStatus {
        id, config, links, ..
    } = subscription;
    let links = links.iter().map(|link| {
        json!({
            "path": &*link.stream,
            "link_type": link_type(link),
            "acked_offset": shown_offset(link.acked),
        })
    });
    let mut shown = Map::new();
    let mut add = |name: &str, value: Value| shown.insert(name.to_owned(), value);
    add("id", (**id).into());
    add("subscription_id", (**id).into());
    match &config.kind {
        SubscriptionKind::Webhook { url } => {
            add("type", "webhook".into());
            let signing = json!({
                // As the protocol has it here; the key says `EdDSA`.
                "alg": "ed25519",
                "kid": &*subscription.kid,
                "jwks_url": format!("{}/{RESERVED_SEGMENT}/jwks.json", subscription.root),
            });
            add("webhook", json!({ "url": &**url, "signing": signing }));
        }
        SubscriptionKind::PullWake => {
            add("type", "pull-wake".into());
        }
    }
    if let Some(pattern) = &config.pattern {
        add("pattern", pattern.as_str().into());
    }
    add("streams", links.collect());
    if let Some(stream) = &config.wake_stream {
        add("wake_stream", (**stream).into());
    }
    add("lease_ttl_ms", config.lease_ms.into());
    add("created_at", timestamp(subscription.created).into());
    let status = if subscription.failed {
        "failed"
    } else {
        "active"
    };
    add("status", status.into());
    if let Some(description) = &config.description {
        add("description", (**description).into());
    }
    Value::Object(shown)
}

fn claimed(wake: &ClaimedWake) -> Value {
    let links = wake.links.iter().map(|link| {
        json!({
            "path": &*link.stream,
            "link_type": link_type(link),
            "acked_offset": shown_offset(link.acked),
            "tail_offset": shown_offset(link.tail),
            "has_pending": link.has_pending,
        })
    });
    json!({
        "wake_id": &*wake.wake_id,
        "generation": wake.generation,
        "token": &*wake.token,
        "streams": links.collect::<Value>(),
        "lease_ttl_ms": wake.lease_ms,
    })
}

fn link_type(link: &LinkStatus) -> &'static str {
    match link.explicit {
        true => "explicit",
        false => "glob",
    }
}

/// The document with the keys that sign calls. Before the first subscription there is no key, which caches must not keep.
fn key_set(keys: &[PublicWebhookKey]) -> Response {
    let caching = match keys {
        [] => "no-store",
        _ => "public, max-age=300",
    };
    let response = Response::shared(200)
        .field("Content-Type", "application/jwk-set+json")
        .field("Cache-Control", caching)
        .body(jwk_set(keys).into_bytes());
    match keys {
        [] => response,
        _ => response.cacheable(),
    }
}

fn json_body(status: u16, body: &Value) -> Response {
    empty(status)
        .field("Content-Type", "application/json")
        .body(body.to_string())
}

fn empty(status: u16) -> Response {
    Response::shared(status).field("Cache-Control", "no-store")
}
