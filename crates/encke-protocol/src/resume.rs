//! Where a client of server-sent events goes on.

use crate::request::{Headers, NotText};

/// The id of the last event that a client has: the field `Last-Event-ID` of HTML, section 9.2.4, or the parameter in its place by
/// clients that can't send it. A client sends the URL of its first request again, so the field is the newer one.
pub(crate) fn last_event_id<'a>(
    headers: Headers<'a>,
    parameter: Option<&'a str>,
) -> Result<Option<&'a str>, NotText> {
    let field = headers.text("Last-Event-ID")?;
    let given = |id: &&str| !id.is_empty();
    Ok(field.filter(given).or(parameter.filter(given)))
}
