//! What requests for subscriptions need by their heads. A subscription has a path of its own, at which rights to it are granted.

use encke_access::{Operation, SIGNING_PARAMETERS};
use encke_stream::Viewer;
use encke_subscriptions::{PublishedSubscriptions, SubscriptionError};

use super::refusals::{not_found, refusal};
use super::route::{SubscriptionRoute, own_path};
use super::token::wake_token;
use crate::gate::{Admitted, Rights};
use crate::problem::error;
use crate::query;
use crate::request::{Headers, UNVERIFIED_BODY_BYTES_MAX};
use crate::requirement::{Paths, RequestHead, Requirement};
use crate::response::{REFUSED, Response};

/// All that a request needs, as far as its head says it. What its body names is checked when the body is read.
pub(super) fn of_head<'a>(
    root: &str,
    head: &RequestHead<'a>,
) -> Result<Vec<Requirement<'a>>, Response> {
    let route = SubscriptionRoute::of(root, head.path)?;
    route.check_method(head.method)?;
    if let SubscriptionRoute::Report { .. } = route {
        check_unsigned(is_signed(head.query))?;
    }
    let operation = match (route, head.method) {
        (SubscriptionRoute::Keys | SubscriptionRoute::Report { .. }, _) => return Ok(Vec::new()),
        (SubscriptionRoute::Subscription { .. }, "PUT") => Operation::Create,
        (SubscriptionRoute::Subscription { .. }, "DELETE") => Operation::Delete,
        (SubscriptionRoute::Subscription { .. }, _) => Operation::Read,
        // They change what was created.
        (SubscriptionRoute::Links { .. } | SubscriptionRoute::Link { .. }, _) => Operation::Create,
        (SubscriptionRoute::Claim { .. }, _) => Operation::Work,
    };
    let id = route.id().unwrap_or_default();
    Ok(vec![Requirement::at(operation, own_path(root, id))])
}

/// Refuses a request that its caller may not make, by its head.
pub(super) fn authorise(
    (root, published): (&str, &PublishedSubscriptions),
    head: &RequestHead<'_>,
    admitted: &Admitted<'_>,
) -> Result<(), Response> {
    let needed = of_head(root, head)?;
    for needed in &needed {
        let met = admitted.meet(needed);
        // The same as for a subscription that does not exist.
        met.map_err(|refused| match refused.status {
            404 => not_found().audited(refused.audit),
            _ => refused,
        })?;
    }
    match SubscriptionRoute::of(root, head.path)? {
        SubscriptionRoute::Keys => Ok(()),
        SubscriptionRoute::Report { .. } => {
            let refused = match wake_token(head.headers) {
                Ok(token) => match published.has_made(token) {
                    Some(true) => return check_length(head.headers, REPORT_BYTES_MAX),
                    // Its sender has only claimed to have a token.
                    None => return check_length(head.headers, UNVERIFIED_BODY_BYTES_MAX),
                    Some(false) => refusal(&SubscriptionError::TokenInvalid),
                },
                Err(refused) => refused,
            };
            Err(refused.audited(Some(admitted.note(REFUSED, "token_invalid"))))
        }
        _ => check_unsigned(admitted.rights.is_signed()),
    }
}

/// Whose subscriptions a caller with these rights may see and change at the path of one.
pub(super) fn own_viewer(root: &str, id: &str, rights: &Rights) -> Viewer {
    rights.viewer(&Paths::One(own_path(root, id).into()))
}

/// Refuses a report whose body is longer than one needs, or may be.
fn check_length(headers: Headers<'_>, bytes_max: usize) -> Result<(), Response> {
    let length = headers.all("Content-Length").next();
    let length = length.and_then(|field| std::str::from_utf8(field).ok());
    match length.map(str::parse::<usize>) {
        Some(Ok(length)) if length <= bytes_max => Ok(()),
        Some(Ok(length)) => Err(error(
            413,
            "body_too_large",
            format!("the report has {length} bytes, at most {bytes_max} are allowed"),
        )),
        _ => Err(error(
            411,
            "length_required",
            format!("a report needs the field Content-Length, of at most {bytes_max}"),
        )),
    }
}

fn check_unsigned(is_signed: bool) -> Result<(), Response> {
    match is_signed {
        false => Ok(()),
        true => Err(error(
            403,
            "signed_url",
            "a signed URL is not good for subscriptions: it would not sign what the body names, or the token of a wake",
        )),
    }
}

/// Whether a query has a parameter of signed URLs.
fn is_signed(query: Option<&str>) -> bool {
    query::parameters(query)
        .flatten()
        .any(|(name, _)| SIGNING_PARAMETERS.contains(&&*name))
}

/// The longest report, which acknowledges ten thousand streams of a hundred characters.
const REPORT_BYTES_MAX: usize = 1 << 20;
