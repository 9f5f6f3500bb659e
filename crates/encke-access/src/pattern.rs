//! Patterns of paths, as grants name them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::path::{hex_digit, segments};

/// A pattern of canonical paths. Its segments are literal text, `*` (any one segment), `{claim}` (one segment that equals the
/// string claim of that name in the caller's token) and, as the last one, `**` (any number of segments, also none).
///
/// A pattern is written decoded: `/v1/stream/a b`, not `/v1/stream/a%20b`. A claim that is missing, no string or holds a slash
/// matches nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathPattern {
    segments: Box<[Segment]>,
    /// Whether `**` follows the segments.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Segment {
    Literal(Box<str>),
    Any,
    Claim(Box<str>),
}

/// The text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It does not begin with a slash.
    #[error("a path pattern begins with a slash, such as /v1/stream/chat/**")]
    NotAbsolute,
    /// A segment that no canonical path has.
    #[error("the path pattern has the segment {0:?}, which no path has")]
    Impossible(String),
    /// `**` that is not the last segment.
    #[error("** is allowed as the last segment of a path pattern only")]
    OpenInside,
    /// `*`, `{` or `}` as a part of a segment.
    #[error(
        "the segment {0:?} of the path pattern must be text, *, ** or a claim such as {{sub}}, not a mixture"
    )]
    Mixed(String),
    /// Something percent-encoded.
    #[error(
        "the segment {0:?} of the path pattern is percent-encoded; patterns are written decoded"
    )]
    Encoded(String),
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if !text.starts_with('/') {
            return Err(PatternError::NotAbsolute);
        }
        let mut parts: Vec<&str> = segments(text).collect();
        let open = parts.last() == Some(&"**");
        if open {
            parts.pop();
        }
        let segments = parts.into_iter().map(segment).collect::<Result<_, _>>()?;
        Ok(PathPattern { segments, open })
    }
}

fn segment(text: &str) -> Result<Segment, PatternError> {
    let claim = text
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'));
    match (text, claim) {
        ("*", _) => Ok(Segment::Any),
        ("**", _) => Err(PatternError::OpenInside),
        (_, Some(claim)) if !claim.is_empty() && !claim.contains(['{', '}']) => {
            Ok(Segment::Claim(claim.into()))
        }
        ("" | "." | "..", _) => Err(PatternError::Impossible(text.into())),
        (text, _) if text.chars().any(char::is_control) => {
            Err(PatternError::Impossible(text.into()))
        }
        (text, _) if text.contains(['*', '{', '}']) => Err(PatternError::Mixed(text.into())),
        (text, _) if is_encoded(text) => Err(PatternError::Encoded(text.into())),
        (text, _) => Ok(Segment::Literal(text.into())),
    }
}

/// Whether two hexadecimal digits follow a `%`.
fn is_encoded(text: &str) -> bool {
    let triples = text.as_bytes().windows(3);
    let is_hex = |byte: u8| hex_digit(byte).is_some();
    triples
        .into_iter()
        .any(|triple| triple[0] == b'%' && is_hex(triple[1]) && is_hex(triple[2]))
}

impl PathPattern {
    /// Every path.
    pub(crate) fn everything() -> Self {
        PathPattern {
            segments: Box::default(),
            open: true,
        }
    }

    /// Whether it matches a canonical path. `claim` returns the value of a string claim.
    pub fn matches<'c>(&self, path: &str, claim: impl Fn(&str) -> Option<&'c str>) -> bool {
        let mut rest = segments(path);
        for segment in &self.segments {
            match rest.next() {
                Some(name) if segment.matches(name, &claim) => {}
                _ => return false,
            }
        }
        self.open || rest.next().is_none()
    }

    /// Whether it matches every path that continues the canonical path `prefix` by at least one segment.
    pub fn matches_below<'c>(&self, prefix: &str, claim: impl Fn(&str) -> Option<&'c str>) -> bool {
        let mut own = self.segments.iter();
        for name in segments(prefix) {
            match own.next() {
                Some(segment) if segment.matches(name, &claim) => {}
                Some(_) => return false,
                None => break,
            }
        }
        // Behind the prefix comes one segment of any text, and perhaps more.
        let left = own.as_slice();
        self.open && matches!(left, [] | [Segment::Any])
    }

    /// The claims that it names.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Claim(name) => Some(&**name),
            Segment::Literal(_) | Segment::Any => None,
        })
    }
}

impl Segment {
    fn matches<'c>(&self, name: &str, claim: impl Fn(&str) -> Option<&'c str>) -> bool {
        match self {
            Segment::Literal(text) => **text == *name,
            Segment::Any => true,
            Segment::Claim(of) => claim(of) == Some(name),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => write!(f, "/{text}")?,
                Segment::Any => f.write_str("/*")?,
                Segment::Claim(name) => write!(f, "/{{{name}}}")?,
            }
        }
        match (self.open, self.segments.is_empty()) {
            (true, _) => f.write_str("/**"),
            (false, true) => f.write_str("/"),
            (false, false) => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for PathPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl Serialize for PathPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        let pattern: PathPattern = pattern.parse().unwrap();
        pattern.matches(path, claim)
    }

    fn below(pattern: &str, prefix: &str) -> bool {
        let pattern: PathPattern = pattern.parse().unwrap();
        pattern.matches_below(prefix, claim)
    }

    fn claim(name: &str) -> Option<&'static str> {
        match name {
            "sub" => Some("alice"),
            "path" => Some("a/b"),
            "empty" => Some(""),
            _ => None,
        }
    }

    #[test]
    fn segments_match_whole() {
        for (pattern, path, expected) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/**", "/", true),
            ("/**", "/a/b/c", true),
            ("/a/**", "/a", true),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/ab", false),
            ("/a/*", "/a", false),
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/b/c", false),
            ("/a/*/c", "/a/b/c", true),
            ("/a/*/**", "/a", false),
            ("/a/*/**", "/a/b/c/d", true),
            ("/a/{sub}/**", "/a/alice/x", true),
            ("/a/{sub}/**", "/a/alice", true),
            ("/a/{sub}/**", "/a/bob/x", false),
            ("/a/{sub}/**", "/a/alicex", false),
            ("/a/{none}/**", "/a/alice", false),
            ("/a/{path}", "/a/a/b", false),
            ("/a/{empty}", "/a", false),
            ("/a b/100%", "/a b/100%", true),
            ("/A", "/a", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn below_means_every_path_below() {
        for (pattern, prefix, expected) in [
            ("/s/chat/**", "/s/chat", true),
            ("/s/**", "/s/chat", true),
            ("/**", "/s/chat", true),
            ("/s/*/**", "/s", true),
            ("/s/*/**", "/s/chat", true),
            ("/s/*/*/**", "/s", false),
            ("/s/chat/*", "/s/chat", false),
            ("/s/chat/x/**", "/s/chat", false),
            ("/s/chat", "/s/chat", false),
            ("/s/{sub}/**", "/s/alice", true),
            ("/s/{sub}/**", "/s/bob", false),
            ("/s/{sub}/**", "/s", false),
        ] {
            assert_eq!(below(pattern, prefix), expected, "{pattern} {prefix}");
        }
    }

    #[test]
    fn what_could_not_match_is_refused() {
        for wrong in [
            "",
            "a/b",
            "/a/",
            "//a",
            "/a/../b",
            "/./a",
            "/**/a",
            "/a*",
            "/***",
            "/user-{sub}",
            "/{}",
            "/{a",
            "/a}",
            "/{{a}}",
            "/a%20b",
            "/%2e%2e/b",
            "/a\nb",
        ] {
            assert!(wrong.parse::<PathPattern>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn patterns_are_shown_as_they_are_written() {
        for text in ["/", "/**", "/a/*/{sub}/**", "/v1/stream/a b"] {
            assert_eq!(text.parse::<PathPattern>().unwrap().to_string(), text);
        }
    }

    proptest! {
        /// What `matches_below` promises, by trying paths below.
        #[test]
        fn below_is_never_more_than_matches(
            pattern in "(/(a|b|\\*|\\{sub\\})){0,3}(/\\*\\*)?",
            prefix in "(/(a|b|alice)){0,3}",
            more in "(/(a|b|c|alice)){1,3}",
        ) {
            prop_assume!(!pattern.is_empty());
            if below(&pattern, &prefix) {
                let path = format!("{prefix}{more}");
                prop_assert!(matches(&pattern, &path), "{pattern} {path}");
            }
        }
    }
}
