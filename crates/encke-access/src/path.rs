//! The one form of a path that both routing and authorisation use.

use std::borrow::Cow;
use std::fmt;

/// The path of a request, percent-decoded once. It begins with a slash and has no empty segment, no segment `.` or `..` and
/// no control character, however they were written. Two raw paths that mean the same are the same canonical path, or at least
/// one of them is refused; so a rule about a path can't be avoided by another spelling of it.
///
/// `%2F` is a slash: `/v1/stream/a%2Fb` is the path `/v1/stream/a/b`. Nothing else is normalised: case and Unicode forms differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CanonicalPath<'a>(Cow<'a, str>);

/// Why a path has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    /// A `%` without two hexadecimal digits, or bytes that are not UTF-8.
    #[error("the path is not percent-encoded UTF-8; % itself is written as %25")]
    Encoding,
    /// A slash at the end, or two in a row, also if encoded.
    #[error("the path has an empty segment: a slash at its end, or two in a row")]
    EmptySegment,
    /// A segment `.` or `..`, also if encoded.
    #[error("the path has a segment `.` or `..`")]
    DotSegment,
    /// A control character, such as a line break or a zero byte.
    #[error("the path has a control character")]
    ControlCharacter,
}

impl<'a> CanonicalPath<'a> {
    /// Reads the path of a request target, without its query. Allocates only if something is encoded.
    ///
    /// # Errors
    /// The path has no canonical form.
    pub fn parse(raw: &'a str) -> Result<Self, PathError> {
        if !raw.starts_with('/') {
            return Err(PathError::NotAbsolute);
        }
        let path = percent_decode(raw).ok_or(PathError::Encoding)?;
        check(&path)?;
        Ok(CanonicalPath(path))
    }

    /// A path that is decoded already, such as the one that an alias stands for. A `%` in it is a character like any other.
    ///
    /// # Errors
    /// The path is not canonical.
    pub fn from_decoded(path: String) -> Result<CanonicalPath<'static>, PathError> {
        if !path.starts_with('/') {
            return Err(PathError::NotAbsolute);
        }
        check(&path)?;
        Ok(CanonicalPath(Cow::Owned(path)))
    }

    /// The decoded path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same path, independent of the request's buffer.
    pub fn into_owned(self) -> CanonicalPath<'static> {
        CanonicalPath(Cow::Owned(self.0.into_owned()))
    }
}

impl fmt::Display for CanonicalPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The segments of a canonical path: none for `/`.
pub(crate) fn segments(path: &str) -> impl Iterator<Item = &str> {
    let path = path.strip_prefix('/').unwrap_or(path);
    (!path.is_empty())
        .then(|| path.split('/'))
        .into_iter()
        .flatten()
}

fn check(path: &str) -> Result<(), PathError> {
    if path.chars().any(char::is_control) {
        return Err(PathError::ControlCharacter);
    }
    for segment in segments(path) {
        match segment {
            "" => return Err(PathError::EmptySegment),
            "." | ".." => return Err(PathError::DotSegment),
            _ => {}
        }
    }
    Ok(())
}

/// Decodes once. `None`: a `%` that two hexadecimal digits don't follow, or no UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex_digit(bytes.next()?)? << 4 | hex_digit(bytes.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

pub(crate) fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| digit.try_into().ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(raw: &str) -> Result<String, PathError> {
        CanonicalPath::parse(raw).map(|path| path.as_str().to_owned())
    }

    #[test]
    fn encodings_of_a_path_are_the_same_path() {
        for raw in [
            "/v1/stream/a/b",
            "/v1/%73tream/a/b",
            "/v1/stream/a%2Fb",
            "/v1/stream/a%2fb",
            "/%76%31/%73%74%72%65%61%6d/%61/%62",
            "/v1%2Fstream%2fa%2Fb",
        ] {
            assert_eq!(path(raw).as_deref(), Ok("/v1/stream/a/b"), "{raw}");
        }
        assert_eq!(path("/").as_deref(), Ok("/"));
        assert_eq!(path("/a%2520b").as_deref(), Ok("/a%20b"));
        assert_eq!(path("/%C3%A4").as_deref(), Ok("/ä"));
        assert_eq!(path("/.a/..b/c..").as_deref(), Ok("/.a/..b/c.."));
    }

    #[test]
    fn a_decoded_path_is_checked_and_not_decoded_again() {
        let decoded = |path: &str| CanonicalPath::from_decoded(path.to_owned());
        assert_eq!(decoded("/a%2Fb").unwrap().as_str(), "/a%2Fb");
        for (path, why) in [
            ("a", PathError::NotAbsolute),
            ("/a//b", PathError::EmptySegment),
            ("/a/..", PathError::DotSegment),
            ("/a\n", PathError::ControlCharacter),
        ] {
            assert_eq!(decoded(path), Err(why), "{path}");
        }
    }

    #[test]
    fn dot_segments_are_refused_in_every_encoding() {
        for raw in [
            "/a/../b",
            "/a/%2e%2e/b",
            "/a/.%2E/b",
            "/a/%2e./b",
            "/a%2F..%2Fb",
            "/a/%2e%2e%2fb",
            "/./a",
            "/a/%2E",
            "/..",
        ] {
            assert_eq!(path(raw), Err(PathError::DotSegment), "{raw}");
        }
        // Decoded once only: this is a segment of literal text.
        assert_eq!(path("/a/%252e%252e/b").as_deref(), Ok("/a/%2e%2e/b"));
    }

    #[test]
    fn empty_segments_are_refused_in_every_encoding() {
        for raw in ["//", "/a/", "//a", "/a//b", "/a%2F%2Fb", "/a%2f", "/%2Fa"] {
            assert_eq!(path(raw), Err(PathError::EmptySegment), "{raw}");
        }
        // One slash, and nothing behind it: the same as `/%2F` would be if it were not refused.
        assert_eq!(path("/%2F"), Err(PathError::EmptySegment));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        for raw in ["/%", "/%2", "/%zz", "/%FF", "/%C0%AF", "/%c3", "/%+1a"] {
            assert_eq!(path(raw), Err(PathError::Encoding), "{raw}");
        }
        for raw in ["/%00", "/a%0d%0aB", "/%7f", "/%C2%85", "/a\u{1}"] {
            assert_eq!(path(raw), Err(PathError::ControlCharacter), "{raw}");
        }
        for raw in ["", "*", "a/b", "http://host/a", "%2Fa"] {
            assert_eq!(path(raw), Err(PathError::NotAbsolute), "{raw}");
        }
    }

    /// Writes each byte of a path in one of the ways that a client can write it.
    fn spelled(path: &str, choices: &[u8]) -> String {
        let bytes = path.bytes().enumerate();
        bytes
            .map(|(at, byte)| match choices[at % choices.len()] % 3 {
                // The first slash must be one.
                _ if at == 0 => char::from(byte).to_string(),
                0 if byte.is_ascii() && byte != b'%' => char::from(byte).to_string(),
                1 => format!("%{byte:02x}"),
                _ => format!("%{byte:02X}"),
            })
            .collect()
    }

    proptest! {
        #[test]
        fn two_spellings_of_a_path_are_refused_or_the_same(
            text in "/[a-c./%é*{ ]{0,12}",
            first in prop::collection::vec(any::<u8>(), 1..12),
            second in prop::collection::vec(any::<u8>(), 1..12),
        ) {
            let (first, second) = (spelled(&text, &first), spelled(&text, &second));
            prop_assert_eq!(path(&first), path(&second));
            if let Ok(canonical) = path(&first) {
                prop_assert_eq!(canonical, text);
            }
        }

        #[test]
        fn a_canonical_path_is_canonical(raw in "[/%.a-f0-9]{0,20}") {
            if let Ok(canonical) = path(&raw) {
                prop_assert!(canonical.starts_with('/'));
                prop_assert!(segments(&canonical).all(|one| !matches!(one, "" | "." | "..")));
                prop_assert!(!canonical.chars().any(char::is_control));
            }
        }
    }
}
