//! Which streams have members.

use encke_presence::PresenceRules;
use encke_stream::Pattern;

/// The streams of a rule: those of a pattern, or one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresenceNames {
    /// All that match.
    Pattern(Pattern),
    /// The stream of this name.
    Stream(Box<str>),
}

/// Which streams have members, and by which rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceRule {
    /// The streams.
    pub names: PresenceNames,
    /// Their rules.
    pub rules: PresenceRules,
}

impl From<&str> for PresenceNames {
    fn from(text: &str) -> Self {
        match text.parse() {
            Ok(pattern) => PresenceNames::Pattern(pattern),
            Err(_) => PresenceNames::Stream(text.into()),
        }
    }
}

impl PresenceNames {
    /// How exactly it names a stream; 0 if it does not.
    pub(super) fn match_length(&self, name: &str) -> usize {
        match self {
            PresenceNames::Pattern(pattern) if pattern.matches(name) => pattern.prefix().len() + 1,
            PresenceNames::Stream(one) if **one == *name => usize::MAX,
            _ => 0,
        }
    }
}
