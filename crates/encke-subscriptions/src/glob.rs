//! Patterns of stream names as subscriptions have them: `*` is one segment, `**` is any number of segments.
//!
//! They are not the [`Pattern`](encke_stream::Pattern) of subscribers, which is a prefix: here `events/*` does not match `events/a/b`.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A pattern of stream names. `*` stands for exactly one segment, at any place and any number of times, and `**` for any number of
/// segments, none included, at any place and at most [`PATTERN_WILDCARDS_MAX`] times. Every other segment stands for itself; `%2A` in it
/// is the character `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Glob {
    text: Box<str>,
    parts: Box<[GlobPart]>,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GlobPart {
    /// A segment that equals this one.
    Literal(Box<str>),
    /// One segment.
    One,
    /// Any number of segments. No two in a row.
    Any,
}

/// The text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum BadGlob {
    /// It is empty.
    #[error("the pattern is empty; `**` matches all streams")]
    Empty,
    /// It is too long.
    #[error("the pattern has {bytes} bytes, at most {PATTERN_BYTES_MAX} are allowed")]
    TooLong {
        /// Its size.
        bytes: usize,
    },
    /// It has too many segments.
    #[error("the pattern has {segments} segments, at most {PATTERN_SEGMENTS_MAX} are allowed")]
    TooManySegments {
        /// Their number.
        segments: usize,
    },
    /// It has too many `**`.
    #[error("the pattern has {wildcards} `**`, at most {PATTERN_WILDCARDS_MAX} are allowed")]
    TooManyWildcards {
        /// Their number, those behind another one not counted.
        wildcards: usize,
    },
    /// Two slashes in a row.
    #[error("the pattern has an empty segment; no stream has one")]
    EmptySegment,
    /// A control character.
    #[error("the pattern has a control character; no stream has one")]
    ControlCharacter,
}

impl FromStr for Glob {
    type Err = BadGlob;

    /// Slashes at both ends do not count.
    fn from_str(text: &str) -> Result<Glob, BadGlob> {
        let text = text.trim_matches('/');
        let bytes = text.len();
        if text.is_empty() {
            return Err(BadGlob::Empty);
        }
        if bytes > PATTERN_BYTES_MAX {
            return Err(BadGlob::TooLong { bytes });
        }
        if text.chars().any(char::is_control) {
            return Err(BadGlob::ControlCharacter);
        }
        let segments = text.split('/').count();
        if segments > PATTERN_SEGMENTS_MAX {
            return Err(BadGlob::TooManySegments { segments });
        }
        let mut parts: Vec<GlobPart> = Vec::with_capacity(segments);
        for segment in text.split('/') {
            let part = match segment {
                "" => return Err(BadGlob::EmptySegment),
                "*" => GlobPart::One,
                "**" => GlobPart::Any,
                literal => {
                    GlobPart::Literal(literal.replace("%2A", "*").replace("%2a", "*").into())
                }
            };
            if part != GlobPart::Any || parts.last() != Some(&GlobPart::Any) {
                parts.push(part);
            }
        }
        let wildcards = parts.iter().filter(|part| **part == GlobPart::Any).count();
        if wildcards > PATTERN_WILDCARDS_MAX {
            return Err(BadGlob::TooManyWildcards { wildcards });
        }
        Ok(Glob {
            text: text.into(),
            parts: parts.into(),
        })
    }
}

impl From<Glob> for String {
    fn from(glob: Glob) -> String {
        glob.text.into()
    }
}

impl TryFrom<String> for Glob {
    type Error = BadGlob;

    fn try_from(text: String) -> Result<Glob, BadGlob> {
        text.parse()
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Glob {
    /// Whether it matches a name. The time is linear in the length of the name, whatever the pattern.
    ///
    /// No pattern matches the server's own streams, nor names below the reserved segment `__ds`.
    pub fn matches(&self, name: &str) -> bool {
        if !is_matchable(name) {
            return false;
        }
        // One bit for each number of parts that the segments so far can have used up.
        let literals = self.literals();
        let (mut one, mut any) = (0_u64, 0_u64);
        for (at, part) in self.parts.iter().enumerate() {
            match part {
                GlobPart::Literal(_) => {}
                GlobPart::One => one |= 1 << at,
                GlobPart::Any => any |= 1 << at,
            }
        }
        let skip = |states: u64| states | ((states & any) << 1);
        let mut states = skip(1);
        for segment in name.split('/') {
            let literal = literals.get(segment).copied().unwrap_or_default();
            states = skip(((states & (one | literal)) << 1) | (states & any));
        }
        states & (1 << self.parts.len()) != 0
    }

    /// What all names begin with that it matches.
    pub fn prefix(&self) -> String {
        let literals = self.parts.iter().map_while(|part| match part {
            GlobPart::Literal(literal) => Some(&**literal),
            GlobPart::One | GlobPart::Any => None,
        });
        let literals: Vec<&str> = literals.collect();
        let mut prefix = literals.join("/");
        if literals.len() < self.parts.len() && !literals.is_empty() {
            let may_end_here = self.parts[literals.len()..] == [GlobPart::Any];
            // `a/**` also matches `a`.
            if !may_end_here {
                prefix.push('/');
            }
        }
        prefix
    }

    /// As it was given, without slashes at its ends.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn parts(&self) -> &[GlobPart] {
        &self.parts
    }

    /// The places of each literal, one bit for each.
    fn literals(&self) -> HashMap<&str, u64> {
        let mut literals: HashMap<&str, u64> = HashMap::new();
        for (at, part) in self.parts.iter().enumerate() {
            if let GlobPart::Literal(literal) = part {
                *literals.entry(literal).or_default() |= 1 << at;
            }
        }
        literals
    }
}

/// Whether patterns may match a name: it is not one of the server's own streams, nor below the reserved segment.
pub(crate) fn is_matchable(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or_default();
    first != RESERVED_SEGMENT && !name.starts_with(char::is_control)
}

/// The first segment of paths that no stream can have: subscriptions are managed there.
pub const RESERVED_SEGMENT: &str = "__ds";

/// The longest pattern.
pub const PATTERN_BYTES_MAX: usize = 1_024;

/// The most segments of a pattern.
pub const PATTERN_SEGMENTS_MAX: usize = 32;

/// The most `**` of a pattern. Those in a row are one.
pub const PATTERN_WILDCARDS_MAX: usize = 3;

// One bit for each part, and one for the end.
const _: () = assert!(PATTERN_SEGMENTS_MAX < 64);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn glob(text: &str) -> Glob {
        text.parse().unwrap()
    }

    #[test]
    fn a_star_is_one_segment_and_two_are_any_number() {
        for (pattern, name, matches) in [
            ("events/*", "events/a", true),
            ("events/*", "events/a/b", false),
            ("events/*", "events", false),
            ("/events/*/", "events/a", true),
            ("ev*", "events", false),
            ("ev*", "ev*", true),
            ("a%2Ab", "a*b", true),
            ("a%2ab", "a%2ab", false),
            ("**", "a", true),
            ("**", "a/b/c", true),
            ("a/**", "a", true),
            ("a/**", "a/b/c", true),
            ("a/**", "ab", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/b/x", false),
            ("**/a/**/b/**", "x/a/y/b", true),
            ("**/a/**/b/**", "b/a", false),
            ("*/**/*", "a", false),
            ("*/**/*", "a/b", true),
            ("**", "\u{1}pools", false),
            ("**", "__ds/subscriptions/x", false),
            ("__ds/**", "__ds/x", false),
            ("**", "a/__ds", true),
        ] {
            assert_eq!(glob(pattern).matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn what_no_name_can_match_is_refused() {
        let long = "x".repeat(PATTERN_BYTES_MAX);
        assert!(long.parse::<Glob>().is_ok());
        let deep = vec!["a"; PATTERN_SEGMENTS_MAX].join("/");
        assert!(deep.parse::<Glob>().is_ok());
        for (text, error) in [
            ("", BadGlob::Empty),
            ("//", BadGlob::Empty),
            ("a//b", BadGlob::EmptySegment),
            ("a/\u{7}", BadGlob::ControlCharacter),
            (
                &format!("{long}x"),
                BadGlob::TooLong {
                    bytes: PATTERN_BYTES_MAX + 1,
                },
            ),
            (
                &format!("{deep}/a"),
                BadGlob::TooManySegments {
                    segments: PATTERN_SEGMENTS_MAX + 1,
                },
            ),
            (
                "**/a/**/b/**/c/**",
                BadGlob::TooManyWildcards { wildcards: 4 },
            ),
        ] {
            assert_eq!(text.parse::<Glob>(), Err(error), "{text:?}");
        }
        assert_eq!(
            BadGlob::TooManyWildcards { wildcards: 4 }.to_string(),
            "the pattern has 4 `**`, at most 3 are allowed"
        );
        // Those in a row are one.
        assert!("**/**/a/**/**/b/**".parse::<Glob>().is_ok());
    }

    #[test]
    fn a_prefix_is_what_all_matches_begin_with() {
        for (pattern, prefix) in [
            ("events/*", "events/"),
            ("a/b/*/c", "a/b/"),
            ("a/b", "a/b"),
            ("a/**", "a"),
            ("a/**/b", "a/"),
            ("**/b", ""),
            ("*", ""),
        ] {
            assert_eq!(glob(pattern).prefix(), prefix, "{pattern}");
        }
    }

    /// The same by recursion, as one would say it.
    fn naive(parts: &[GlobPart], segments: &[&str]) -> bool {
        match (parts, segments) {
            ([], rest) => rest.is_empty(),
            ([GlobPart::Any, after @ ..], _) => {
                (0..=segments.len()).any(|taken| naive(after, &segments[taken..]))
            }
            ([part, after @ ..], [segment, rest @ ..]) => {
                let fits = match part {
                    GlobPart::Literal(literal) => **literal == **segment,
                    GlobPart::One | GlobPart::Any => true,
                };
                fits && naive(after, rest)
            }
            (_, []) => false,
        }
    }

    /// Up to seven segments, of which every second one can be `**`.
    fn pattern() -> &'static str {
        "([ab]|\\*|\\*\\*)((/([ab]|\\*)){1,2}/([ab]|\\*|\\*\\*)){0,2}"
    }

    proptest! {
        #[test]
        fn it_matches_what_the_naive_matcher_matches(
            pattern in pattern(),
            name in "[ab](/[ab]){0,7}",
        ) {
            let glob = glob(&pattern);
            let segments: Vec<&str> = name.split('/').collect();
            let expected = naive(glob.parts(), &segments);
            prop_assert_eq!(glob.matches(&name), expected);
            if expected {
                prop_assert!(name.starts_with(&glob.prefix()));
            }
        }

        #[test]
        fn it_shows_what_it_was_read_from(pattern in pattern()) {
            let glob = glob(&pattern);
            prop_assert_eq!(glob.to_string(), &*pattern);
            prop_assert_eq!(pattern.parse(), Ok(glob));
        }
    }
}
