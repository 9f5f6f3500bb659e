//! The table `[presence]` of the configuration file: which streams have members.

use std::time::Duration;

use anyhow::Context;
use encke_access::parse_duration;
use encke_presence::{GRACE_MAX, PresenceRules};
use encke_protocol::{PresenceNames, PresenceRule};
use encke_stream::NotAPattern;
use serde::Deserialize;
use toml::Table;

use super::tables::entries_of;

/// The table `[presence]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PresenceTable {
    entries: Vec<StreamsEntry>,
}

/// An entry of `[[presence.streams]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StreamsEntry {
    /// A stream, or a pattern such as `chat/**`.
    names: String,
    grace: Option<String>,
    members_max: Option<usize>,
}

impl PresenceTable {
    pub(super) fn parse(mut table: Table) -> anyhow::Result<Self> {
        let entries = entries_of(&mut table, NAME, "streams")?;
        if let Some(unknown) = table.keys().next() {
            anyhow::bail!("unknown key {unknown} in {NAME}; known keys are streams");
        }
        Ok(PresenceTable { entries })
    }

    /// What the table says.
    pub(crate) fn rules(&self) -> anyhow::Result<Vec<PresenceRule>> {
        let entries = self.entries.iter().enumerate();
        let rules = entries.map(|(at, entry)| {
            let rule = entry.rule();
            rule.with_context(|| format!("the key {NAME}.streams[{at}] is wrong"))
        });
        rules.collect()
    }

    /// What is configured, in a few words.
    pub(crate) fn summary(&self) -> String {
        let names: Vec<&str> = self.entries.iter().map(|entry| &*entry.names).collect();
        format!("members of {}", names.join(", "))
    }
}

impl StreamsEntry {
    fn rule(&self) -> anyhow::Result<PresenceRule> {
        if self.names.is_empty() || self.names.starts_with('/') {
            anyhow::bail!("names is the name of a stream, or a pattern such as chat/**");
        }
        let names = PresenceNames::from(&*self.names);
        if matches!(names, PresenceNames::Stream(_)) && self.names.ends_with('*') {
            anyhow::bail!(
                "names is {}, which is no pattern: {NotAPattern}",
                self.names
            );
        }
        let members_max = self.members_max.unwrap_or(MEMBERS_MAX);
        if members_max == 0 {
            anyhow::bail!("members-max must be at least 1");
        }
        Ok(PresenceRule {
            names,
            rules: PresenceRules {
                grace: self
                    .grace
                    .as_deref()
                    .map(grace_of)
                    .transpose()?
                    .unwrap_or_default(),
                members_max,
                bytes_max: members_max.saturating_mul(BYTES_OF_MEMBER).max(BYTES_MIN),
            },
        })
    }
}

/// How long members stay after their last connection is gone.
pub(super) fn grace_of(text: &str) -> anyhow::Result<Duration> {
    let grace = parse_duration(text).and_then(|grace| Duration::try_from(grace).ok());
    let grace = grace.filter(|grace| *grace <= GRACE_MAX);
    grace.with_context(|| format!("a grace is a duration of at most {GRACE_MAX:?}, such as 5s"))
}

/// The name of the table.
pub(super) const NAME: &str = "presence";

/// Members of a stream, unless an entry names another number.
const MEMBERS_MAX: usize = 10_000;

/// Bytes of a member, on average, before the members of a stream take too much memory.
const BYTES_OF_MEMBER: usize = 1_280;

/// Bytes that the members of a stream may always have: fifteen with the longest names and data.
const BYTES_MIN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> anyhow::Result<Vec<PresenceRule>> {
        PresenceTable::parse(text.parse().unwrap()).and_then(|table| table.rules())
    }

    #[test]
    fn an_entry_is_a_rule() {
        let text = "[[streams]]\nnames = 'chat/**'\ngrace = '5s'\nmembers-max = 7\n[[streams]]\nnames = 'a'";
        let rules = rules(text).unwrap();
        assert_eq!(
            rules[0].names,
            PresenceNames::Pattern("chat/**".parse().unwrap())
        );
        let of = rules[0].rules;
        assert_eq!((of.grace, of.members_max), (Duration::from_secs(5), 7));
        assert_eq!(of.bytes_max, BYTES_MIN);
        assert_eq!(rules[1].names, PresenceNames::Stream("a".into()));
        assert_eq!(rules[1].rules.grace, Duration::ZERO);
        assert_eq!(rules[1].rules.bytes_max, 12_800_000);
    }

    #[test]
    fn messages_name_the_key() {
        for (text, message) in [
            (
                "stream = 1",
                "unknown key stream in presence; known keys are streams",
            ),
            (
                "streams = 1",
                "must be a list of tables, [[presence.streams]]",
            ),
            ("[[streams]]", "the key presence.streams[0] needs names"),
            ("[[streams]]\nnames = ''", "names is the name of a stream"),
            (
                "[[streams]]\nnames = 'room-*'",
                "names is room-*, which is no pattern: a pattern is `**`, or ends in `/**`",
            ),
            (
                "[[streams]]\nnames = 'a'\ngrace = '2d'",
                "a grace is a duration",
            ),
            (
                "[[streams]]\nnames = 'a'\nmembers-max = 0",
                "members-max must be at least 1",
            ),
        ] {
            let error = format!("{:#}", rules(text).unwrap_err());
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
