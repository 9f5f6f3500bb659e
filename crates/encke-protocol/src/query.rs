//! Paths and queries.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::misspelled::shown;

/// Something percent-encoded that does not decode to text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not percent-encoded UTF-8; % itself is written as %25")]
pub(crate) struct BadEncoding;

/// Decodes once. A `%` that two hexadecimal digits don't follow is refused.
pub(crate) fn decode(text: &str) -> Result<Cow<'_, str>, BadEncoding> {
    let mut rest = text.as_bytes();
    while let Some(at) = memchr::memchr(b'%', rest) {
        let digits = rest.get(at + 1..at + 3).ok_or(BadEncoding)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(BadEncoding);
        }
        rest = &rest[at + 3..];
    }
    percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| BadEncoding)
}

/// A query's parameters, in order. `+` stands for itself, except that forms mean a space by it:
/// no parameter of ours may hold either.
pub(crate) fn parameters(
    query: Option<&str>,
) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), BadEncoding>> {
    query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, decode(value)?))
        })
}

/// The value of a parameter that is true or false, or why it is neither.
pub(crate) fn truth(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!("{name} is true or false, not {}", shown(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decodes_once() {
        assert_eq!(decode("a%2520b").as_deref(), Ok("a%20b"));
        assert_eq!(decode("%C3%A4").as_deref(), Ok("ä"));
        for bad in ["%", "%2", "%zz", "%FF", "a%"] {
            assert_eq!(decode(bad), Err(BadEncoding), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}") {
            let _ = decode(&text);
            parameters(Some(&text)).for_each(drop);
        }
    }
}
