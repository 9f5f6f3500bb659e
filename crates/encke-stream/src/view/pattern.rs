//! Patterns of stream names, and the shards that have subscribers of them.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use encke_log::StreamNo;
use parking_lot::RwLock;

use crate::stream::number::pattern_number;

/// The names that begin with a prefix of whole segments: `chat/**` matches `chat/a` and `chat/a/b`, `**` matches all names.
///
/// Earlier versions wrote `chat/*` and `*`, which mean the same in this version. Paths of grants have always said `**`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Empty, or with a slash at its end.
    prefix: Arc<str>,
}

/// The text is a name and no pattern: it is not `**` and does not end in `/**`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pattern is `**`, or ends in `/**`")]
pub struct NotAPattern;

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        let prefix = text
            .strip_suffix("**")
            .or(text.strip_suffix('*'))
            .ok_or(NotAPattern)?;
        match prefix.is_empty() || prefix.ends_with('/') {
            true => Ok(Pattern {
                prefix: prefix.into(),
            }),
            false => Err(NotAPattern),
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}**", self.prefix)
    }
}

impl Pattern {
    /// What the names begin with: empty, or with a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether it matches a name. No pattern matches the server's own streams, whose names begin with a control character.
    pub fn matches(&self, name: &str) -> bool {
        name.starts_with(&*self.prefix) && !is_internal(name)
    }

    /// Whether there are names that both match.
    pub fn overlaps(&self, other: &Pattern) -> bool {
        self.prefix.starts_with(&*other.prefix) || other.prefix.starts_with(&*self.prefix)
    }
}

/// Whether a name is of the server's own streams.
fn is_internal(name: &str) -> bool {
    name.starts_with(char::is_control)
}

/// The patterns that have subscribers, and the shards of these. A look-up costs one probe for each length of a prefix in use
/// at which the name has a slash, however many patterns there are, and nothing while there are none.
#[derive(Debug, Default)]
pub(crate) struct PatternWatchers {
    count: AtomicUsize,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Clients choose the prefixes, so that their hashes must not be known.
    watched: HashMap<Arc<str>, WatchedPattern, foldhash::quality::RandomState>,
    prefixes: HashMap<StreamNo, Arc<str>, foldhash::fast::FixedState>,
    /// How many prefixes have which length, so that no other part of a name is hashed.
    lengths: BTreeMap<usize, usize>,
    /// How many numbers were given.
    given: u64,
}

#[derive(Debug)]
struct WatchedPattern {
    no: StreamNo,
    shards: Vec<u16>,
}

/// The patterns that match a name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Matches {
    pub(crate) patterns: Vec<StreamNo>,
    pub(crate) shards: Vec<u16>,
}

impl PatternWatchers {
    /// Notes that a shard has subscribers of a pattern. The pattern's number, which it keeps for as long as it has any.
    pub(crate) fn add(&self, pattern: &Pattern, log: usize, shard: u16) -> StreamNo {
        let mut table = self.table.write();
        let Table {
            watched,
            prefixes,
            lengths,
            given,
        } = &mut *table;
        let entry = watched
            .entry(Arc::clone(&pattern.prefix))
            .or_insert_with(|| {
                *given += 1;
                *lengths.entry(pattern.prefix.len()).or_default() += 1;
                let no = pattern_number(log, *given);
                prefixes.insert(no, Arc::clone(&pattern.prefix));
                WatchedPattern {
                    no,
                    shards: Vec::with_capacity(1),
                }
            });
        if !entry.shards.contains(&shard) {
            entry.shards.push(shard);
        }
        let no = entry.no;
        self.count.store(table.watched.len(), Ordering::SeqCst);
        no
    }

    /// Notes that a shard has no subscribers of a pattern any more.
    pub(crate) fn remove(&self, no: StreamNo, shard: u16) {
        let mut table = self.table.write();
        let Some(prefix) = table.prefixes.get(&no).cloned() else {
            return;
        };
        let Some(entry) = table.watched.get_mut(&prefix) else {
            return;
        };
        entry.shards.retain(|other| *other != shard);
        if entry.shards.is_empty() {
            table.watched.remove(&prefix);
            table.prefixes.remove(&no);
            if let Some(count) = table.lengths.get_mut(&prefix.len()) {
                *count -= 1;
                if *count == 0 {
                    table.lengths.remove(&prefix.len());
                }
            }
        }
        self.count.store(table.watched.len(), Ordering::SeqCst);
    }

    /// Whether no pattern has subscribers.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of patterns with subscribers.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// The patterns that match a name, and the shards with subscribers of them.
    pub(crate) fn of(&self, name: &str) -> Matches {
        let mut matches = Matches::default();
        if is_internal(name) {
            return matches;
        }
        let table = self.table.read();
        for &end in table.lengths.keys() {
            // A prefix is empty or ends with a slash, so that it ends between two characters.
            let is_prefix = end == 0 || name.as_bytes().get(end - 1) == Some(&b'/');
            if is_prefix && let Some(watched) = table.watched.get(&name[..end]) {
                matches.patterns.push(watched.no);
                matches.shards.extend_from_slice(&watched.shards);
            }
        }
        matches
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use proptest::prelude::*;

    use super::*;
    use crate::stream::number::{is_pattern, log_of};

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_ends_in_a_whole_segment() {
        for text in [
            "", "chat", "chat*", "chat**", "chat/", "**/chat", "chat/**/", "chat/***",
        ] {
            assert_eq!(text.parse::<Pattern>(), Err(NotAPattern), "{text}");
        }
        assert!(pattern("chat/**").matches("chat/a/b"));
        assert!(!pattern("chat/**").matches("chat"));
        assert!(!pattern("chat/**").matches("chats/a"));
        assert!(pattern("**").matches("chat"));
        assert!(!pattern("**").matches("\u{1}pools"));
        // As earlier versions wrote them.
        for (before, now) in [("a/b/*", "a/b/**"), ("*", "**")] {
            assert_eq!(pattern(before), pattern(now));
            assert_eq!(pattern(before).to_string(), now);
        }
    }

    #[test]
    fn patterns_overlap_when_one_has_the_other() {
        assert!(pattern("**").overlaps(&pattern("a/**")));
        assert!(pattern("a/b/**").overlaps(&pattern("a/**")));
        assert!(!pattern("a/**").overlaps(&pattern("ab/**")));
    }

    #[test]
    fn a_pattern_keeps_its_number_until_its_last_shard_leaves() {
        let watchers = PatternWatchers::default();
        let no = watchers.add(&pattern("a/**"), 3, 1);
        assert!(is_pattern(no) && log_of(no) == 3);
        assert_eq!(watchers.add(&pattern("a/**"), 3, 1), no);
        assert_eq!(watchers.add(&pattern("a/**"), 3, 70), no);
        assert_eq!(watchers.of("a/b").shards, [1, 70]);
        watchers.remove(no, 1);
        assert_eq!(watchers.of("a/b").shards, [70]);
        watchers.remove(no, 70);
        assert!(watchers.is_empty());
        assert_eq!(watchers.of("a/b"), Matches::default());
        assert_ne!(watchers.add(&pattern("a/**"), 3, 1), no);
    }

    #[test]
    fn the_hashes_of_prefixes_that_clients_choose_are_random() {
        let hash = |watchers: &PatternWatchers| {
            let table = watchers.table.read();
            table.watched.hasher().hash_one("chat/")
        };
        let (one, other) = (PatternWatchers::default(), PatternWatchers::default());
        assert_ne!(hash(&one), hash(&other));
        assert_eq!(hash(&one), hash(&one));
    }

    proptest! {
        #[test]
        fn the_table_finds_each_pattern_that_matches(
            patterns in prop::collection::vec("([ab]/){0,3}\\*", 0..6),
            name in "[ab]{1,2}(/[ab]{1,2}){0,4}",
        ) {
            let watchers = PatternWatchers::default();
            let mut expected = Vec::new();
            for text in &patterns {
                let one = pattern(text);
                let no = watchers.add(&one, 0, 0);
                if one.matches(&name) && !expected.contains(&no) {
                    expected.push(no);
                }
            }
            let mut found = watchers.of(&name).patterns;
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
