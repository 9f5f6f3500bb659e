//! The token of a wake, which is the credential of a report.

use super::refusals::token_invalid;
use crate::request::Headers;
use crate::response::Response;

/// The token of a wake that a request has in `Authorization`. The scheme is written in any case (RFC 9110, section 11.1).
pub(super) fn wake_token(headers: Headers<'_>) -> Result<&str, Response> {
    let missing = || token_invalid("send the token of the wake as `Authorization: Bearer TOKEN`");
    let mut fields = headers.all("Authorization");
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return Err(missing());
    };
    let field = std::str::from_utf8(field).map_err(|_| missing())?;
    let (scheme, token) = field.trim_ascii().split_once(' ').ok_or_else(missing)?;
    let token = token.trim_ascii();
    let is_bearer = scheme.eq_ignore_ascii_case("Bearer");
    match is_bearer && (1..=TOKEN_BYTES_MAX).contains(&token.len()) {
        true => Ok(token),
        false => Err(missing()),
    }
}

/// The longest token of a wake. Those of this server are shorter.
const TOKEN_BYTES_MAX: usize = 1_024;
