//! What is granted: operations on patterns of paths.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::operation::{Operation, OperationSet};
use crate::pattern::PathPattern;

/// Some operations on the paths that match one of some patterns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// What is allowed.
    #[serde(rename = "actions")]
    pub operations: OperationSet,
    /// Where it is allowed.
    pub paths: Vec<PathPattern>,
}

/// A list of grants. What none of them allows is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Grants(Vec<Grant>);

impl Grants {
    /// The union of these grants.
    pub fn new(grants: Vec<Grant>) -> Self {
        Grants(grants)
    }

    /// Everything except `admin`, everywhere.
    pub(crate) fn everything_but_admin() -> Self {
        Grants(vec![Grant {
            operations: OperationSet::ALL_BUT_ADMIN,
            paths: vec![PathPattern::everything()],
        }])
    }

    /// The pattern that allows an operation on a canonical path. `claim` returns the value of a string claim.
    pub(crate) fn allowing<'c>(
        &self,
        operation: Operation,
        path: &str,
        claim: impl Fn(&str) -> Option<&'c str>,
    ) -> Option<&PathPattern> {
        self.patterns(operation)
            .find(|pattern| pattern.matches(path, &claim))
    }

    /// Whether one pattern allows an operation on every path below a prefix.
    pub(crate) fn allows_below<'c>(
        &self,
        operation: Operation,
        prefix: &str,
        claim: impl Fn(&str) -> Option<&'c str>,
    ) -> bool {
        self.patterns(operation)
            .any(|pattern| pattern.matches_below(prefix, &claim))
    }

    fn patterns(&self, operation: Operation) -> impl Iterator<Item = &PathPattern> {
        self.0
            .iter()
            .filter(move |grant| grant.operations.contains(operation))
            .flat_map(|grant| &grant.paths)
    }

    /// The claims that the patterns name.
    pub(crate) fn claims(&self) -> BTreeSet<&str> {
        let patterns = self.0.iter().flat_map(|grant| &grant.paths);
        patterns.flat_map(PathPattern::claims).collect()
    }

    /// Number of patterns.
    pub(crate) fn patterns_len(&self) -> usize {
        self.0.iter().map(|grant| grant.paths.len()).sum()
    }

    pub(crate) fn extend(&mut self, other: &Grants) {
        self.0.extend(other.0.iter().cloned());
    }
}

impl fmt::Display for Grants {
    /// One grant on each line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("  nothing\n");
        }
        for grant in &self.0 {
            let paths: Vec<_> = grant.paths.iter().map(ToString::to_string).collect();
            writeln!(f, "  {}: {}", grant.operations, paths.join(", "))?;
        }
        Ok(())
    }
}

/// The claim `encke` of a token: patterns by the name of an operation, such as `{"read": ["/v1/stream/chat/**"]}`.
pub(crate) struct GrantsClaim(pub(crate) Grants);

impl<'de> Deserialize<'de> for GrantsClaim {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ClaimVisitor).map(GrantsClaim)
    }
}

struct ClaimVisitor;

impl<'de> Visitor<'de> for ClaimVisitor {
    type Value = Grants;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object such as {\"read\": [\"/v1/stream/chat/**\"]}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Grants, A::Error> {
        let mut grants = Grants::default();
        let mut seen = OperationSet::default();
        while let Some(name) = map.next_key::<String>()? {
            let operation: Operation = name.parse().map_err(Error::custom)?;
            if seen.contains(operation) {
                return Err(Error::custom(format!("the action {name} is named twice")));
            }
            seen = seen.with(operation);
            let paths: Vec<PathPattern> = map.next_value()?;
            if grants.patterns_len() + paths.len() > PATTERNS_PER_TOKEN_MAX {
                return Err(Error::custom(format!(
                    "more than {PATTERNS_PER_TOKEN_MAX} path patterns"
                )));
            }
            grants.0.push(Grant {
                operations: OperationSet::default().with(operation),
                paths,
            });
        }
        Ok(grants)
    }
}

/// Path patterns of one token: a bound on the time that a check takes.
pub const PATTERNS_PER_TOKEN_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(json: &str) -> Result<Grants, serde_json::Error> {
        serde_json::from_str::<GrantsClaim>(json).map(|claim| claim.0)
    }

    fn no_claim(_: &str) -> Option<&'static str> {
        None
    }

    #[test]
    fn a_claim_grants_what_it_names() {
        let grants = claim(r#"{"read": ["/a/**", "/b"], "append": ["/a/*"]}"#).unwrap();
        for (operation, path, expected) in [
            (Operation::Read, "/a", true),
            (Operation::Read, "/b", true),
            (Operation::Read, "/c", false),
            (Operation::Append, "/a/x", true),
            (Operation::Append, "/b", false),
            (Operation::Delete, "/a", false),
        ] {
            let found = grants.allowing(operation, path, no_claim).is_some();
            assert_eq!(found, expected, "{operation} {path}");
        }
    }

    #[test]
    fn a_wrong_claim_is_refused() {
        for json in [
            "null",
            "[]",
            "\"read\"",
            r#"{"write": ["/a"]}"#,
            r#"{"read": "/a"}"#,
            r#"{"read": ["a"]}"#,
            r#"{"read": [1]}"#,
            r#"{"read": ["/a"], "read": ["/**"]}"#,
        ] {
            assert!(claim(json).is_err(), "{json}");
        }
        assert_eq!(claim("{}").unwrap(), Grants::default());
    }

    #[test]
    fn the_patterns_of_a_token_are_bounded() {
        let with = |patterns: usize| {
            let paths = vec!["\"/a\""; patterns / 2].join(",");
            claim(&format!("{{\"read\": [{paths}], \"append\": [{paths}]}}"))
        };
        assert!(with(PATTERNS_PER_TOKEN_MAX).is_ok());
        let error = with(PATTERNS_PER_TOKEN_MAX + 2).unwrap_err();
        assert!(error.to_string().contains("128 path patterns"), "{error}");
    }

    #[test]
    fn grants_of_the_configuration_know_their_keys() {
        let grants = |json| serde_json::from_str::<Grants>(json);
        assert!(grants(r#"[{"actions": ["read", "list"], "paths": ["/a"]}]"#).is_ok());
        for json in [
            r#"[{"actions": ["read"], "path": ["/a"]}]"#,
            r#"[{"actions": [], "paths": ["/a"]}]"#,
            r#"[{"actions": ["reed"], "paths": ["/a"]}]"#,
        ] {
            assert!(grants(json).is_err(), "{json}");
        }
    }
}
