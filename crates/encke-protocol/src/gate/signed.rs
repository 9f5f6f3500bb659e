//! Holds a request with a signed URL to the header fields that were signed.

use encke_access::SignedFields;

use crate::known_field::{KnownField, SHARED_FIELDS};
use crate::request::Request;

/// The fields of a request that a protocol gets: those that the URL signs, and those that may be set by anybody who has the URL.
///
/// # Errors
/// The name of a field that changes what the request does, and that is not signed.
pub(crate) fn covered_fields<'a>(
    request: &Request<'a>,
    known: &[KnownField],
    signed: &SignedFields,
) -> Result<Vec<(&'a str, &'a [u8])>, &'static str> {
    let mut covered = Vec::with_capacity(request.headers.0.len());
    for (name, value) in request.headers.0 {
        let mut known = known.iter().chain(SHARED_FIELDS);
        let known = known.find(|field| field.is_named(name));
        let is_covered = match known {
            _ if signed.covers(name) => true,
            Some(field) if field.must_be_signed(request.method) => return Err(field.name),
            Some(_) => true,
            None => false,
        };
        if is_covered {
            covered.push((*name, *value));
        }
    }
    Ok(covered)
}
