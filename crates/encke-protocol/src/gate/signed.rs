//! Holds a request with a signed URL to what was signed: its header fields, and the rights that it needs.

use encke_access::SignedFields;

use super::refused;
use super::rights::UNSIGNED_FIELD;
use crate::known_field::{KnownField, SHARED_FIELDS};
use crate::problem::error;
use crate::request::Request;
use crate::response::Response;

/// The fields of a request that a protocol gets: those that the URL signs, and those that may be set by anybody who has the URL.
///
/// # Errors
/// The request has a field that changes what it does, and that is not signed.
pub(crate) fn covered_fields<'a>(
    request: &Request<'a>,
    known: &[KnownField],
    signed: &SignedFields,
) -> Result<Vec<(&'a str, &'a [u8])>, Response> {
    let mut covered = Vec::with_capacity(request.headers.0.len());
    for (name, value) in request.headers.0 {
        let mut known = known.iter().chain(SHARED_FIELDS);
        let known = known.find(|field| field.is_named(name));
        let is_covered = match known {
            _ if signed.covers(name) => true,
            Some(field) if field.must_be_signed(request.method) => {
                return Err(unsigned(request, field.name));
            }
            Some(_) => true,
            None => false,
        };
        if is_covered {
            covered.push((*name, *value));
        }
    }
    Ok(covered)
}

/// The refusal of a field that the URL would have to sign.
fn unsigned(request: &Request<'_>, name: &str) -> Response {
    let why = format!(
        "the URL does not sign the field {name}, which changes what the request does; encke sign --field signs it"
    );
    refused(request, error(403, UNSIGNED_FIELD, why), UNSIGNED_FIELD)
}
