//! Where a client of server-sent events goes on.

use crate::request::{Headers, NotText};

/// The id of the last event that a client has: the field `Last-Event-ID` of HTML, section 9.2.4, or the parameter in its place by
/// clients that can't send it. If the field is present, even without a value, the parameter is ignored: a signature may cover the field, and
/// never covers the parameter.
pub(crate) fn last_event_id<'a>(
    headers: Headers<'a>,
    parameter: Option<&'a str>,
) -> Result<Option<&'a str>, NotText> {
    let field = headers.text("Last-Event-ID")?;
    Ok(field.or(parameter).filter(|id| !id.is_empty()))
}
