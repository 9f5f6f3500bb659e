//! The result of parsing a connection's input.

/// What a parser makes of a connection's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conversation {
    pub(super) requests: Vec<ParsedRequest>,
    pub(super) end: InputEnd,
}

/// A request as a service gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedRequest {
    /// The minor version.
    pub(super) version: u8,
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    /// Names in lower case, in order of their names; those of the same name in the order of arrival.
    pub(super) fields: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

/// The state behind the last byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InputEnd {
    /// The next request may arrive.
    Open,
    /// Half of an empty line has arrived, which is no part of a request.
    Blank,
    /// A part of the next request has arrived.
    Partial,
    /// The connection was closed behind the last request, as requested.
    Closed,
    /// What follows the last request is no request; with the reason.
    Refused(String),
}

/// Fields with names in lower case, in order of their names.
pub(super) fn by_name<'a>(
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Vec<(String, Vec<u8>)> {
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_vec()))
        .collect();
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

/// As small as hyper allows.
pub(super) const HEAD_BYTES_MAX: usize = 8 << 10;
