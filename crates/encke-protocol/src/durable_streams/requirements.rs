//! What requests for a stream need, and the header fields that they have.

use encke_access::Operation;

use super::fields;
use crate::known_field::KnownField;
use crate::problem::error;
use crate::request::Headers;
use crate::requirement::{RequestLine, Requirement};
use crate::response::Response;
use crate::stream_rights::StreamRights;
use crate::streams::METHODS;

/// All that a request for the stream of a name needs: at its own path, and at the source of a fork. `root` is the path above the
/// streams.
pub(crate) fn requirements<'a>(
    request: RequestLine<'a>,
    name: &str,
    root: &str,
    rights: &StreamRights,
) -> Result<Vec<Requirement<'a>>, Response> {
    let operation = operation(request.method, request.headers)?;
    let mut needed = vec![rights.of_stream(operation, name, request.path)];
    if request.method == "PUT"
        && let Some(forking) = fields::forking(request.headers, root)?
    {
        needed.push(forking.requirement(root, rights));
    }
    Ok(needed)
}

/// What a request does to the stream of its path.
///
/// # Errors
/// The response to a method that streams do not have.
pub(super) fn operation(method: &str, headers: Headers<'_>) -> Result<Operation, Response> {
    Ok(match method {
        "GET" | "HEAD" => Operation::Read,
        "POST" if fields::truncates(headers) => Operation::Delete,
        "POST" => Operation::Append,
        "PUT" => Operation::Create,
        "DELETE" => Operation::Delete,
        method => {
            let why = format!("{method} is not allowed here, only {METHODS}");
            return Err(error(405, "method_not_allowed", why).field("Allow", METHODS));
        }
    })
}

/// The header fields of all requests for streams.
pub(crate) const FIELDS: &[KnownField] = &[
    // It describes the body, which whoever has the URL writes as well. An append must have the type of its stream.
    KnownField::harmless("Content-Type"),
    // They choose the form of a response, or leave out what the client has.
    KnownField::harmless("Accept-Encoding"),
    KnownField::harmless("If-None-Match"),
    // A client goes on behind the last event that it got. With a signed URL the protocol refuses positions before the signed one
    // (`Admitted::may_go_on_anywhere`).
    KnownField::harmless("Last-Event-ID"),
    // Nobody can append behind it.
    KnownField::changing("Stream-Closed"),
    // It removes records.
    KnownField::changing("Encke-Truncate"),
    // They read another stream.
    KnownField::changing("Stream-Forked-From"),
    KnownField::changing("Stream-Fork-Offset"),
    KnownField::changing("Stream-Fork-Sub-Offset"),
    // They outlast the URL: appends of others with a lower sequence or epoch are refused from then on.
    KnownField::changing("Stream-Seq"),
    KnownField::changing("Producer-Id"),
    KnownField::changing("Producer-Epoch"),
    KnownField::changing("Producer-Seq"),
    // They outlast the URL: how long the stream and its records are kept.
    KnownField::changing("Stream-TTL"),
    KnownField::changing("Stream-Expires-At"),
    KnownField::changing("Encke-Retention"),
    // Of a new stream it is the durability of all appends; of other requests that of their own response.
    KnownField::changing_with("PUT", "Encke-Ack"),
];
