//! What requests for a stream need, and the header fields that they have.

use encke_access::Operation;

use super::fields::{self, NamedOwner, StopRequest};
use crate::known_field::{KnownField, KnownFields};
use crate::mount::Mount;
use crate::problem::not_allowed;
use crate::request::Headers;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;
use crate::stream_rights::StreamRights;

/// All that a request for a stream needs: at its own path, and at the source of a fork, and to make a stream for somebody else. `streams` is the mount of
/// the streams.
pub(super) fn requirements<'a>(
    request: &RequestHead<'a>,
    streams: &Mount,
    rights: &StreamRights,
) -> Result<Vec<Requirement<'a>>, Response> {
    let mut needed = vec![at_its_path(request, rights)?];
    if request.method == "PUT"
        && let Some(forking) = fields::forking(request.headers, streams)?
    {
        needed.push(forking.requirement(streams, rights));
    }
    if request.method == "PUT"
        && let Some(NamedOwner::Subject { .. }) = fields::owner(request.headers)?
    {
        // Unless that is the caller itself.
        needed.push(rights.of_stream(Operation::Own, request.below, request.path));
    }
    Ok(needed)
}

/// What a request needs at its own path.
pub(super) fn at_its_path<'a>(
    request: &RequestHead<'a>,
    rights: &StreamRights,
) -> Result<Requirement<'a>, Response> {
    let operation = operation(request.method, request.headers)?;
    let needed = rights.of_stream(operation, request.below, request.path);
    let stops = request.method == "POST" && fields::stops(request.headers) == StopRequest::Closes;
    Ok(match stops {
        true if operation == Operation::Append => needed.or(Operation::Stop),
        _ => needed,
    })
}

/// What a request does to the stream of its path.
///
/// # Errors
/// The response to a method that streams do not have.
pub(super) fn operation(method: &str, headers: Headers<'_>) -> Result<Operation, Response> {
    Ok(match method {
        "GET" | "HEAD" => Operation::Read,
        "POST" if fields::truncates(headers) => Operation::Delete,
        "POST" if fields::stops(headers) == StopRequest::Asks => Operation::Stop,
        "POST" => Operation::Append,
        "PUT" => Operation::Create,
        "DELETE" => Operation::Delete,
        method => return Err(not_allowed(method, METHODS)),
    })
}

/// The methods of a stream.
pub(super) const METHODS: &[&str] = &["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"];

/// The header fields of requests for streams, and of their responses.
pub(super) const FIELDS: KnownFields = KnownFields {
    request: &[
        // It describes the body, which whoever has the URL writes as well. An append must have the type of its stream.
        KnownField::harmless("Content-Type"),
        // They choose the form of a response, or leave out what the client has.
        KnownField::harmless("Accept"),
        KnownField::harmless("Accept-Encoding"),
        KnownField::harmless("If-None-Match"),
        // A client goes on behind the last event that it got. With a signed URL the protocol refuses positions before the signed one
        // (`Admitted::may_go_on_anywhere`).
        KnownField::harmless("Last-Event-ID"),
        // It outlasts the URL: appends of others with a lower sequence are refused from then on.
        KnownField::changing("Stream-Seq"),
        // They outlast the URL: how long the stream is kept.
        KnownField::changing("Stream-TTL"),
        KnownField::changing("Stream-Expires-At"),
        // Nobody can append behind it.
        KnownField::changing("Stream-Closed"),
        // They read another stream.
        KnownField::changing("Stream-Forked-From"),
        KnownField::changing("Stream-Fork-Offset"),
        KnownField::changing("Stream-Fork-Sub-Offset"),
        // They outlast the URL: appends of others with a lower epoch or sequence are refused from then on.
        KnownField::changing("Producer-Id"),
        KnownField::changing("Producer-Epoch"),
        KnownField::changing("Producer-Seq"),
        // Of a new stream it is the durability of all appends; of other requests that of their own response.
        KnownField::changing_with("PUT", "Encke-Ack"),
        // It outlasts the URL: how long records are kept.
        KnownField::changing("Encke-Retention"),
        // It removes records.
        KnownField::changing("Encke-Truncate"),
        // It only keeps the append from being made.
        KnownField::harmless("If-Match"),
        // They outlast the URL: whose the stream is, what all readers are told of it, and when it is closed.
        KnownField::changing("Encke-Owner"),
        KnownField::changing("Encke-Metadata"),
        KnownField::changing("Encke-Producer-Timeout"),
        KnownField::changing("Encke-End-Reason"),
        KnownField::changing("Encke-Stop"),
        // What the URL was given for is stored; this is not.
        KnownField::changing("Encke-Ephemeral"),
        // It asks for another URL.
        KnownField::changing("Encke-Read-URL"),
    ],
    response: &[
        "Stream-Next-Offset",
        "Stream-Cursor",
        "Stream-Up-To-Date",
        "Stream-Closed",
        "Stream-TTL",
        "Stream-Expires-At",
        "Stream-SSE-Data-Encoding",
        "Producer-Epoch",
        "Producer-Seq",
        "Producer-Expected-Seq",
        "Producer-Received-Seq",
        "ETag",
        "Location",
        "Retry-After",
        "Encke-Ack",
        "Encke-Retention",
        "Encke-Floor",
        "Encke-Messages",
        "Encke-Owner",
        "Encke-Metadata",
        "Encke-Producer-Timeout",
        "Encke-End-Reason",
        "Encke-Stop-Requested",
        "Encke-Read-URL",
    ],
};
