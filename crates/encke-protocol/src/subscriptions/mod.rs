//! The protocol of subscriptions (Durable Streams, section 6): webhooks and pull-wake, below the reserved segment `__ds`.
//!
//! ```text
//! PUT, GET, DELETE  /v1/stream/__ds/subscriptions/{id}                  create (configuration in JSON), status, delete
//! POST              /v1/stream/__ds/subscriptions/{id}/streams          follow more streams
//! DELETE            /v1/stream/__ds/subscriptions/{id}/streams/{name}   follow a stream no more
//! POST              /v1/stream/__ds/subscriptions/{id}/claim            a worker claims the wake
//! POST              /v1/stream/__ds/subscriptions/{id}/ack, /release    a worker reports on it
//! POST              /v1/stream/__ds/subscriptions/{id}/callback         the receiver of a webhook reports on it
//! GET               /v1/stream/__ds/jwks.json                           the keys that sign calls
//! ```
//!
//! `route` finds out what a path is, `requirements` and `named_streams` what a request needs, `requests`, `bodies` and `token` read
//! requests, and `responses` and `refusals` write what the dispatcher answers. The rules are those of `encke-subscriptions`.

mod bodies;
mod named_streams;
mod refusals;
mod requests;
mod requirements;
mod responses;
mod route;
mod token;

use std::sync::Arc;

use encke_subscriptions::PublishedSubscriptions;

use self::route::SubscriptionRoute;
use crate::action::Action;
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::protocol::Protocol;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;
use crate::streams::{ALIAS_ROOT, StreamAccess};

/// The protocol of subscriptions.
#[derive(Debug)]
pub(crate) struct SubscriptionApi {
    mounts: [Mount; 3],
    streams: StreamAccess,
    published: Arc<PublishedSubscriptions>,
}

impl SubscriptionApi {
    pub(crate) fn new(streams: StreamAccess, published: Arc<PublishedSubscriptions>) -> Self {
        let at = |path: &str| {
            let pattern = format!("{}{path}", streams.root);
            Mount::at(&pattern).alias(&format!("{ALIAS_ROOT}{path}"))
        };
        SubscriptionApi {
            // Nothing is at the first one, and no stream may be there.
            mounts: [at("__ds"), at("__ds/**"), at("__ds/jwks.json").public()],
            streams,
            published,
        }
    }
}

impl Protocol for SubscriptionApi {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        route::METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &FIELDS
    }

    fn overview(&self) -> &'static str {
        "Webhooks     PUT, GET, DELETE  /v1/stream/__ds/subscriptions/{id}\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        requirements::of_head(&self.streams.root, head)
    }

    fn authorise(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        let head = admitted.head(request);
        requirements::authorise((&self.streams.root, &self.published), &head, admitted)
    }

    fn has_own_credentials(&self, method: &str, below: &str) -> bool {
        let route = SubscriptionRoute::parse(below);
        method == "POST" && matches!(route, Some(SubscriptionRoute::Report { .. }))
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = self.authorise(&request, admitted);
        let action = action.and_then(|()| requests::parse(&self.streams, &request, admitted));
        action.unwrap_or_else(Action::Respond)
    }
}

/// The header fields of subscriptions. Requests have none but `Authorization`, which reaches no protocol by a signed URL.
const FIELDS: KnownFields = KnownFields {
    request: &[],
    response: &["Location", "Retry-After"],
};
