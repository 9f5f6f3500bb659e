//! Requests of clients, receivers and workers.

use std::borrow::Cow;

use encke_access::CanonicalPath;
use encke_stream::Viewer;
use encke_subscriptions::{
    RESERVED_SEGMENT, ReportKind, SubscriptionRequest, WakeReport, stream_name, subscription_id,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::bodies::{self, ClaimBody, CreateBody, ReportBody, StreamsBody};
use super::named_streams::NamedStreams;
use super::refusals::{invalid, refusal};
use super::requirements::own_viewer;
use super::responses::RespondOnce;
use super::route::{SubscriptionRoute, own_path};
use super::token::wake_token;
use crate::action::{Action, DispatchRequest};
use crate::gate::Admitted;
use crate::request::Request;
use crate::response::{REFUSED, Response};
use crate::streams::StreamAccess;

/// The action for an authorised request.
pub(super) fn parse(
    streams: &StreamAccess,
    request: &Request<'_>,
    admitted: &Admitted<'_>,
) -> Result<Action, Response> {
    let route = SubscriptionRoute::of(&streams.root, admitted.path)?;
    let mut then = RespondOnce::new(streams.root.clone());
    let id = match route.id().map(subscription_id).transpose() {
        Ok(id) => id.unwrap_or_default(),
        Err(error) => return Err(refusal(&error)),
    };
    let asked = match route {
        SubscriptionRoute::Keys => SubscriptionRequest::Keys,
        SubscriptionRoute::Subscription { .. } => match request.method {
            "PUT" => {
                let root = client_root(streams, request, admitted)?;
                let create = create(streams, &id, root, request, admitted)?;
                then.location = location(&create);
                create
            }
            "DELETE" => {
                let viewer = own_viewer(&streams.root, &id, &admitted.rights);
                SubscriptionRequest::Delete { id, viewer }
            }
            _ => {
                then.reader = Some(admitted.rights.clone());
                SubscriptionRequest::Describe { id }
            }
        },
        SubscriptionRoute::Links { .. } => {
            let names = bodies::parse::<StreamsBody>(&request.body)?.names()?;
            let named = NamedStreams {
                streams: &names,
                ..NamedStreams::default()
            };
            named.check(streams, admitted)?;
            let viewer = viewer(streams, &id, &named, admitted);
            SubscriptionRequest::Link {
                id,
                streams: names,
                viewer,
            }
        }
        SubscriptionRoute::Link { stream, .. } => {
            let stream = stream_name(stream).map_err(|error| refusal(&error))?;
            let viewer = own_viewer(&streams.root, &id, &admitted.rights);
            SubscriptionRequest::Unlink { id, stream, viewer }
        }
        SubscriptionRoute::Claim { .. } => {
            let body: ClaimBody = bodies::parse(&request.body)?;
            let worker = body.worker()?;
            SubscriptionRequest::Claim { id, worker }
        }
        SubscriptionRoute::Report { kind, .. } => {
            let token = wake_token(request.headers)?.into();
            then.audit = Some(admitted.note(REFUSED, "token_invalid"));
            SubscriptionRequest::Report(report(id, kind, token, &request.body)?)
        }
    };
    let asked = DispatchRequest::Subscription(Box::new(asked));
    Ok(Action::Dispatch(asked, Box::new(then)))
}

fn create(
    streams: &StreamAccess,
    id: &str,
    root: String,
    request: &Request<'_>,
    admitted: &Admitted<'_>,
) -> Result<SubscriptionRequest, Response> {
    let mut config = bodies::parse::<CreateBody>(&request.body)?.config()?;
    let named = NamedStreams::of(&config);
    named.check(streams, admitted)?;
    config.viewer = viewer(streams, id, &named, admitted);
    Ok(SubscriptionRequest::Create {
        id: id.into(),
        config,
        root: root.into(),
    })
}

/// Whose streams a subscription may follow: those of all owners only if the caller may use them at the path of the subscription, and
/// wherever it names streams.
fn viewer(
    streams: &StreamAccess,
    id: &str,
    named: &NamedStreams<'_>,
    admitted: &Admitted<'_>,
) -> Viewer {
    match own_viewer(&streams.root, id, &admitted.rights) {
        Viewer::All => named.viewer(&streams.root, &admitted.rights),
        own => own,
    }
}

fn report(
    id: Box<str>,
    kind: ReportKind,
    token: Box<str>,
    body: &[u8],
) -> Result<WakeReport, Response> {
    let mut body: ReportBody = bodies::parse(body)?;
    let is_release = kind == ReportKind::Release;
    let acks = match is_release {
        true => Vec::new(),
        false => body.acks()?,
    };
    Ok(WakeReport {
        id,
        kind,
        token,
        wake_id: body.wake_id(),
        generation: body.generation,
        acks,
        done: body.done == Some(true) && !is_release,
    })
}

/// Where the client has reached the root of the streams: by its own path or by an alias.
fn client_root(
    streams: &StreamAccess,
    request: &Request<'_>,
    admitted: &Admitted<'_>,
) -> Result<String, Response> {
    let sent = CanonicalPath::parse(request.path);
    let sent = sent.as_ref().map_or(admitted.path, CanonicalPath::as_str);
    let root = sent
        .strip_suffix(admitted.below)
        .and_then(|sent| sent.strip_suffix('/'))
        .and_then(|sent| sent.strip_suffix(RESERVED_SEGMENT))
        .unwrap_or(&streams.root);
    let root = root.strip_suffix('/').unwrap_or(root);
    let root = format!("{}{}", request.base(), encoded(root, PATH));
    match root.len() <= ROOT_BYTES_MAX {
        true => Ok(root),
        false => Err(invalid(format!(
            "the URL of the server has {} bytes, at most {ROOT_BYTES_MAX} are allowed",
            root.len()
        ))),
    }
}

/// The URL of a subscription that is created.
fn location(create: &SubscriptionRequest) -> Option<String> {
    match create {
        SubscriptionRequest::Create { id, root, .. } => {
            let root = format!("{root}/");
            Some(own_path(&root, &encoded(id, SEGMENT)))
        }
        _ => None,
    }
}

fn encoded<'a>(text: &'a str, set: &'static AsciiSet) -> Cow<'a, str> {
    utf8_percent_encode(text, set).into()
}

/// The longest URL of a root, as long as a long name of a host and a path.
const ROOT_BYTES_MAX: usize = 512;

/// What is not encoded in a segment of a URL (RFC 3986, section 2.3) is left as it is.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The same, in a path.
const PATH: &AsciiSet = &SEGMENT.remove(b'/');
