//! Where a protocol is served.

use std::fmt;

/// A place where a protocol is served: one path, or all paths below a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pattern: MountPattern,
    /// Other patterns that stand for this one. A request for a path that one of them matches is a request for the canonical path, before
    /// its credentials are looked at: grants, signatures and logs name canonical paths only.
    aliases: Vec<MountPattern>,
    /// Requests need no credentials, because the responses say nothing about what is stored.
    pub(crate) is_public: bool,
    /// Whether it is served at the address for operators.
    pub(crate) at_operators: AtOperators,
}

/// How a mount is served at the address for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOperators {
    /// It is not.
    Missing,
    /// To all that reach the address.
    ByAddress,
    /// By the same credentials and grants as at the address of clients: who reaches the address gets no right to what is stored.
    ByGrant,
}

/// One canonical path, or all below a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountPattern {
    /// The path, or the prefix, which ends with a slash.
    path: Box<str>,
    is_prefix: bool,
}

impl Mount {
    /// A mount at a pattern: a path such as `/v1/events`, or `/v1/stream/**` for all paths below `/v1/stream/`.
    pub(crate) fn at(pattern: &str) -> Self {
        Mount {
            pattern: MountPattern::parse(pattern),
            aliases: Vec::new(),
            is_public: false,
            at_operators: AtOperators::Missing,
        }
    }

    /// A mount at all paths below a prefix, which ends with a slash.
    pub(crate) fn below(prefix: &str) -> Self {
        Mount::at(&format!("{prefix}{ALL}"))
    }

    /// The same, with another pattern that stands for its own: `/streams/**` for `/v1/stream/**`.
    #[must_use]
    pub(crate) fn alias(mut self, pattern: &str) -> Self {
        let alias = MountPattern::parse(pattern);
        assert_eq!(
            alias.is_prefix, self.pattern.is_prefix,
            "an alias of a prefix is a prefix"
        );
        self.aliases.push(alias);
        self
    }

    /// The same, served without credentials.
    #[must_use]
    pub(crate) fn public(self) -> Self {
        Mount {
            is_public: true,
            ..self
        }
    }

    /// The same, served at the address for operators too.
    #[must_use]
    pub(crate) fn for_operators(self) -> Self {
        Mount {
            at_operators: AtOperators::ByAddress,
            ..self
        }
    }

    /// The same, served at the address for operators too, to callers with the grants that it needs.
    #[must_use]
    pub(crate) fn for_operators_by_grant(self) -> Self {
        Mount {
            at_operators: AtOperators::ByGrant,
            ..self
        }
    }

    /// Its own pattern.
    pub(crate) fn pattern(&self) -> &MountPattern {
        &self.pattern
    }

    /// The patterns that stand for its own.
    pub(crate) fn aliases(&self) -> &[MountPattern] {
        &self.aliases
    }

    /// The part of a path that `**` stands for, in its own pattern or in an alias.
    pub(crate) fn match_path<'a>(&self, path: &'a str) -> Option<&'a str> {
        let mut patterns = std::iter::once(&self.pattern).chain(&self.aliases);
        patterns.find_map(|pattern| pattern.match_path(path))
    }
}

impl fmt::Display for MountPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        f.write_str(if self.is_prefix { ALL } else { "" })
    }
}

impl MountPattern {
    fn parse(pattern: &str) -> Self {
        let prefix = pattern.strip_suffix(ALL);
        MountPattern {
            path: prefix.unwrap_or(pattern).into(),
            is_prefix: prefix.is_some(),
        }
    }

    /// The part of a path that `**` stands for, which is empty for a single path. `None`: the path is elsewhere.
    pub(crate) fn match_path<'a>(&self, path: &'a str) -> Option<&'a str> {
        let below = path.strip_prefix(&*self.path)?;
        (self.is_prefix || below.is_empty()).then_some(below)
    }

    /// The path, or the prefix.
    pub(crate) fn as_str(&self) -> &str {
        &self.path
    }

    /// Bytes of the path or prefix. Where several patterns match a path, the longest one has it.
    pub(crate) fn len(&self) -> usize {
        self.path.len()
    }
}

/// What stands for all paths below a prefix, at the end of a pattern.
const ALL: &str = "**";
