//! The members of a JSON object, unparsed.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object whose names all differ: with two of a name, two readers could see two different tokens.
#[derive(Debug)]
pub(super) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    pub(super) fn parse(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// A member as JSON.
    pub(super) fn get(&self, name: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(own, _)| *own == name);
        found.map(|(_, raw)| raw.get())
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

/// A name, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(Cow<'de, str>, &RawValue)> = Vec::new();
        while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &RawValue>()? {
            if members.len() == MEMBERS_MAX {
                return Err(A::Error::custom("too many members"));
            }
            if members.iter().any(|(other, _)| *other == name) {
                return Err(A::Error::custom("two members of one name"));
            }
            members.push((name, value));
        }
        Ok(Members(members))
    }
}

/// Members of a header, and claims: enough for any issuer, and few enough to compare all names.
const MEMBERS_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unescaped_and_differ() {
        let members = Members::parse(br#"{"\u0061lg": "x", "b": {"c": 1}}"#).unwrap();
        assert_eq!(members.get("alg"), Some("\"x\""));
        assert_eq!(members.get("b"), Some(r#"{"c": 1}"#));
        assert!(Members::parse(br#"{"alg": 1, "\u0061lg": 2}"#).is_none());
        assert!(Members::parse(b"[]").is_none() && Members::parse(b"{} x").is_none());
    }

    #[test]
    fn the_number_of_members_is_bounded() {
        let object = |count: usize| {
            let members: Vec<_> = (0..count).map(|number| format!("\"{number}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(Members::parse(object(MEMBERS_MAX).as_bytes()).is_some());
        assert!(Members::parse(object(MEMBERS_MAX + 1).as_bytes()).is_none());
    }
}
