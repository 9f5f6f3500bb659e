//! What a request needs: an operation, and the paths where its caller must have it.
//!
//! Each protocol says it once, for the three that ask: the protocol itself, the gate, which holds a signed URL to the request that
//! was signed, and `encke token explain`.

use std::borrow::Cow;
use std::fmt;

use encke_access::{Caller, Grantee, Operation};

use crate::request::Headers;

/// The head of a request, which says what the request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead<'a> {
    /// The method.
    pub(crate) method: &'a str,
    /// The canonical path.
    pub(crate) path: &'a str,
    /// The part of the path that the `**` of its protocol's mount stands for; empty if the mount is a single path.
    pub(crate) below: &'a str,
    /// What follows the path's `?`.
    pub(crate) query: Option<&'a str>,
    /// The header fields.
    pub(crate) headers: Headers<'a>,
}

/// One right that a request needs. A request may need several, and needs all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement<'a> {
    /// The operation.
    pub operation: Operation,
    /// Another one that is enough as well.
    pub or: Option<Operation>,
    /// Where.
    pub paths: Paths<'a>,
}

/// Canonical paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Paths<'a> {
    /// This one.
    One(Cow<'a, str>),
    /// All below this prefix, which ends with a slash.
    Below(Cow<'a, str>),
}

impl<'a> Requirement<'a> {
    /// An operation at a path.
    pub(crate) fn at(operation: Operation, path: impl Into<Cow<'a, str>>) -> Self {
        Requirement {
            operation,
            or: None,
            paths: Paths::One(path.into()),
        }
    }

    /// An operation at all paths below a prefix, which ends with a slash.
    pub(crate) fn below(operation: Operation, prefix: impl Into<Cow<'a, str>>) -> Self {
        Requirement {
            operation,
            or: None,
            paths: Paths::Below(prefix.into()),
        }
    }

    /// The same, or another operation at the same path.
    pub(crate) fn or(self, operation: Operation) -> Self {
        Requirement {
            or: Some(operation),
            ..self
        }
    }

    /// Whether a caller has the right by its grants.
    pub fn is_met_by(&self, caller: &impl Grantee) -> bool {
        self.alternatives()
            .any(|operation| self.paths.allow(caller, operation))
    }

    /// Why a caller has the right by its grants, or why not, in one sentence.
    pub fn explain(&self, caller: &Caller) -> String {
        match &self.paths {
            Paths::One(path) => {
                let met = self
                    .alternatives()
                    .find(|operation| caller.may(*operation, path));
                caller.explain(met.unwrap_or(self.operation), path)
            }
            Paths::Below(_) if self.is_met_by(caller) => {
                format!(
                    "a grant of the caller allows {} on {}",
                    self.operation, self.paths
                )
            }
            Paths::Below(_) => format!(
                "no single grant of the caller allows {} on everything that {} stands for",
                self.operation, self.paths
            ),
        }
    }

    /// Each of these is enough.
    pub(crate) fn alternatives(&self) -> impl Iterator<Item = Operation> {
        [Some(self.operation), self.or].into_iter().flatten()
    }

    pub(crate) fn into_owned(self) -> Requirement<'static> {
        let owned = |path: Cow<'a, str>| Cow::Owned(path.into_owned());
        Requirement {
            operation: self.operation,
            or: self.or,
            paths: match self.paths {
                Paths::One(path) => Paths::One(owned(path)),
                Paths::Below(prefix) => Paths::Below(owned(prefix)),
            },
        }
    }
}

impl Paths<'_> {
    /// Whether a caller may do this at all of them.
    pub(crate) fn allow(&self, caller: &impl Grantee, operation: Operation) -> bool {
        match self {
            Paths::One(path) => caller.may(operation, path),
            Paths::Below(prefix) => caller.may_below(operation, prefix),
        }
    }
}

impl fmt::Display for Paths<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Paths::One(path) => f.write_str(path),
            Paths::Below(prefix) => write!(f, "{prefix}*"),
        }
    }
}
