//! Which subscriptions a stream concerns, by its name.
//!
//! The machine adds and removes names and patterns; the threads that publish commits ask whether a stream concerns any subscription, so
//! that they report only the commits of such streams. To look a name up visits the patterns that begin like it and end like it, whatever
//! the number of others (`patterns.rs`).
//!
//! **Bounds.** A look-up of a name with `s` segments takes at most one step for each part of the patterns, and `s` steps for each
//! pattern with two or three `**`: the exact one, by the machine's thread, is bounded by the number of subscriptions. The threads that
//! publish commits give up after a fixed number of steps, and report the commit.

mod part_tree;
mod patterns;
mod segments;
mod steps;

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use self::patterns::Patterns;
use self::steps::Steps;
use crate::glob::{Glob, is_matchable};

/// Which subscriptions a stream concerns: those with a pattern that matches its name, those that name it, and those whose events of
/// wakes it takes.
#[derive(Debug, Default)]
pub struct SubscriptionIndex {
    /// How many names and patterns there are.
    count: AtomicUsize,
    table: RwLock<IndexTable>,
}

#[derive(Debug, Default)]
struct IndexTable {
    /// Clients choose the names, so that their hashes must not be known.
    names: HashMap<Box<str>, Vec<u64>>,
    /// The streams for the events of wakes.
    event_streams: HashSet<Box<str>>,
    patterns: Patterns,
}

impl SubscriptionIndex {
    /// Whether a stream concerns a subscription, or may do: this is also the answer when the patterns would take too long to compare.
    /// It costs one atomic read while there are no subscriptions.
    pub fn concerns(&self, stream: &str) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 || !is_matchable(stream) {
            return false;
        }
        let table = self.table.read();
        let mut steps = Steps::at_most(CONCERNS_STEPS_MAX);
        table.event_streams.contains(stream)
            || table.names.contains_key(stream)
            || table
                .patterns
                .find(stream, &mut steps, &mut |_| ControlFlow::Break(()))
                .is_break()
    }

    /// The numbers of the subscriptions that follow a stream, in ascending order. Those whose own events it has are not among them.
    pub(crate) fn followers(&self, stream: &str) -> Vec<u64> {
        if self.count.load(Ordering::SeqCst) == 0 || !is_matchable(stream) {
            return Vec::new();
        }
        let table = self.table.read();
        let mut found = table.names.get(stream).cloned().unwrap_or_default();
        let all = table
            .patterns
            .find(stream, &mut Steps::unlimited(), &mut |numbers| {
                found.extend_from_slice(numbers);
                ControlFlow::Continue(())
            });
        debug_assert!(all.is_continue(), "nothing breaks the look-up");
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Adds a name for a subscription. A name can be added several times.
    pub(crate) fn add_name(&self, stream: &str, subscription: u64) {
        let mut table = self.table.write();
        match table.names.get_mut(stream) {
            Some(numbers) => numbers.push(subscription),
            None => {
                table.names.insert(stream.into(), vec![subscription]);
            }
        }
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a name that was added for a subscription, once.
    pub(crate) fn remove_name(&self, stream: &str, subscription: u64) {
        let mut table = self.table.write();
        let Some(numbers) = table.names.get_mut(stream) else {
            return;
        };
        let Some(at) = numbers.iter().position(|number| *number == subscription) else {
            return;
        };
        numbers.swap_remove(at);
        if numbers.is_empty() {
            table.names.remove(stream);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Adds the pattern of a subscription, which has its own events in that stream, if any.
    pub(crate) fn add_pattern(&self, pattern: &Glob, own_events: Option<&str>, subscription: u64) {
        let own_events = own_events.unwrap_or_default();
        let mut table = self.table.write();
        table.patterns.add(pattern, own_events, subscription);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes the pattern of a subscription.
    pub(crate) fn remove_pattern(
        &self,
        pattern: &Glob,
        own_events: Option<&str>,
        subscription: u64,
    ) {
        let own_events = own_events.unwrap_or_default();
        let mut table = self.table.write();
        if table.patterns.remove(pattern, own_events, subscription) {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Adds a stream for the events of wakes.
    pub(crate) fn add_event_stream(&self, stream: &str) {
        if self.table.write().event_streams.insert(stream.into()) {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Removes a stream for the events of wakes: no subscription has one of that name any more.
    pub(crate) fn remove_event_stream(&self, stream: &str) {
        if self.table.write().event_streams.remove(stream) {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// The most steps of [`SubscriptionIndex::concerns`]: the threads that publish commits wait no longer for it. A look-up of the deepest
/// name among patterns that are not made to be slow takes a few dozen.
const CONCERNS_STEPS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::glob::{PATTERN_SEGMENTS_MAX, PATTERN_WILDCARDS_MAX};

    fn glob(text: &str) -> Glob {
        text.parse().unwrap()
    }

    #[test]
    fn names_and_patterns_are_found_until_they_are_removed() {
        let index = SubscriptionIndex::default();
        assert!(!index.concerns("a/b"));
        index.add_pattern(&glob("a/*"), None, 1);
        index.add_pattern(&glob("**"), None, 2);
        index.add_name("a/b", 3);
        index.add_name("a/b", 1);
        assert_eq!(index.followers("a/b"), [1, 2, 3]);
        assert_eq!(index.followers("a"), [2]);
        assert!(index.followers("\u{1}pools").is_empty());
        assert!(index.followers("__ds/x").is_empty());
        index.remove_pattern(&glob("**"), None, 2);
        index.remove_name("a/b", 1);
        assert_eq!(index.followers("a/b"), [1, 3]);
        index.remove_pattern(&glob("a/*"), None, 1);
        index.remove_name("a/b", 3);
        assert!(!index.concerns("a/b"));
        // What is not there can be removed.
        index.remove_name("a/b", 3);
        index.remove_pattern(&glob("a/*"), None, 1);
        index.add_name("c", 4);
        assert!(index.concerns("c"));
    }

    /// How many steps a look-up takes.
    fn steps(patterns: &Patterns, name: &str) -> usize {
        let mut steps = Steps::unlimited();
        let found = patterns.find(name, &mut steps, &mut |_| ControlFlow::Continue(()));
        assert!(found.is_continue());
        usize::MAX - steps.left()
    }

    #[test]
    fn a_look_up_does_not_visit_patterns_of_other_names() {
        let mut patterns = Patterns::default();
        patterns.add(&glob("users/1/*"), "", 0);
        patterns.add(&glob("**/inbox/x"), "", 1);
        patterns.add(&glob("**/1/**/inbox/x"), "", 1);
        patterns.add(&glob("**/1/**"), "", 1);
        patterns.add(&glob("**/0/**"), "", 1);
        let alone = steps(&patterns, "users/1/inbox");
        for number in 2..10_000 {
            for text in [
                format!("users/{number}/*"),
                format!("users/{number}/**/x"),
                format!("**/{number}"),
                format!("**/1/**/inbox/{number}"),
                format!("**/{number}/**"),
            ] {
                patterns.add(&glob(&text), "", number);
            }
        }
        let segments = 3;
        assert!(steps(&patterns, "users/1/inbox") <= alone + segments);
    }

    #[test]
    fn a_look_up_visits_each_part_once_and_compares_each_middle_once() {
        for (kind, name) in hostile_names() {
            let mut patterns = Patterns::default();
            for (number, pattern) in (0..200).zip(hostile_patterns(kind)) {
                patterns.add(&glob(&pattern), "", number);
            }
            let segments = name.split('/').count();
            let taken = steps(&patterns, &name);
            assert!(
                taken <= 200 * (2 * PATTERN_SEGMENTS_MAX + segments),
                "{kind:?}: {taken}"
            );
        }
    }

    #[test]
    fn patterns_that_take_too_long_to_compare_may_concern_a_stream() {
        let index = SubscriptionIndex::default();
        let (kind, name) = &hostile_names()[1];
        for (number, pattern) in (0..1_000).zip(hostile_patterns(*kind)) {
            index.add_pattern(&glob(&pattern), None, number);
        }
        assert!(index.concerns(name));
        assert!(index.followers(name).is_empty());
        // A look-up of any other name takes no longer than before.
        assert!(!index.concerns("c/d"));
    }

    #[test]
    fn own_events_concern_a_subscription_that_does_not_follow_them() {
        let index = SubscriptionIndex::default();
        index.add_event_stream("wakes");
        index.add_event_stream("wakes");
        index.add_pattern(&glob("**"), Some("wakes"), 1);
        index.add_pattern(&glob("**"), Some("others"), 2);
        index.add_pattern(&glob("**"), None, 3);
        assert!(index.concerns("wakes"));
        assert_eq!(index.followers("wakes"), [2, 3]);
        index.remove_pattern(&glob("**"), Some("others"), 2);
        index.remove_pattern(&glob("**"), None, 3);
        assert!(index.concerns("wakes"));
        assert!(index.followers("wakes").is_empty());
        index.remove_event_stream("wakes");
        assert!(!index.concerns("wakes"));
        assert_eq!(index.followers("other"), [1]);
    }

    /// Times look-ups of a long name among patterns of which it matches much and nothing in the end.
    #[test]
    #[ignore = "prints times and asserts none"]
    fn time_of_look_ups_among_hostile_patterns() {
        for (kind, name) in hostile_names() {
            for subscriptions in [2_000, 10_000] {
                let index = SubscriptionIndex::default();
                for (number, pattern) in (0..subscriptions).zip(hostile_patterns(kind)) {
                    index.add_pattern(&glob(&pattern), None, number);
                }
                let begin = std::time::Instant::now();
                let concerns = index.concerns(&name);
                let concerns_time = begin.elapsed();
                let begin = std::time::Instant::now();
                let found = index.followers(&name).len();
                println!(
                    "{kind:?}, {subscriptions} patterns: concerns() {concerns_time:?} ({concerns}), followers() {:?} ({found})",
                    begin.elapsed(),
                );
            }
        }
    }

    /// What a pattern that is made to be slow has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Hostile {
        /// `**` at any place, and an end that no name has.
        Ends,
        /// `**` at both ends, and a middle that nearly matches everywhere.
        Middles,
        /// No `**`, and all of it matches but the end.
        Heads,
    }

    fn hostile_names() -> [(Hostile, String); 3] {
        [
            (Hostile::Ends, ["a"; 500].join("/")),
            (Hostile::Middles, format!("zz/{}", ["a"; 500].join("/"))),
            (Hostile::Heads, ["a"; PATTERN_SEGMENTS_MAX].join("/")),
        ]
    }

    /// Patterns of the most segments that match nearly all of a name of `a/a/…`.
    fn hostile_patterns(kind: Hostile) -> impl Iterator<Item = String> {
        let mut random = 1_u64;
        std::iter::repeat_with(move || {
            let is_middle = kind == Hostile::Middles;
            let mut parts: Vec<&str> = Vec::new();
            parts.extend(is_middle.then_some("**"));
            let mut wildcards_left = match kind {
                Hostile::Ends => PATTERN_WILDCARDS_MAX,
                Hostile::Middles | Hostile::Heads => 0,
            };
            while parts.len() < PATTERN_SEGMENTS_MAX - 2 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                match ["a", "*", "**"][(random >> 33) as usize % 3] {
                    "**" if wildcards_left == 0 || parts.last() == Some(&"**") => {}
                    "**" => {
                        wildcards_left -= 1;
                        parts.push("**");
                    }
                    part => parts.push(part),
                }
            }
            parts.push("zz");
            parts.extend(is_middle.then_some("**"));
            parts.join("/")
        })
    }

    proptest! {
        #[test]
        fn the_tree_finds_each_pattern_that_matches(
            patterns in vec("([ab]|\\*|\\*\\*)(/([ab]|\\*|\\*\\*)){0,4}", 0..12),
            removed in vec(any::<bool>(), 12),
            name in "[ab](/[ab]){0,5}",
        ) {
            let index = SubscriptionIndex::default();
            let mut expected = Vec::new();
            for (number, text) in (0..).zip(&patterns) {
                index.add_pattern(&glob(text), None, number);
            }
            for ((number, text), removed) in (0..).zip(&patterns).zip(removed) {
                if removed {
                    index.remove_pattern(&glob(text), None, number);
                } else if glob(text).matches(&name) {
                    expected.push(number);
                }
            }
            prop_assert_eq!(index.concerns(&name), !expected.is_empty());
            prop_assert_eq!(index.followers(&name), expected);
            for (number, text) in (0..).zip(&patterns) {
                index.remove_pattern(&glob(text), None, number);
            }
            prop_assert!(index.table.read().patterns.is_empty());
            prop_assert_eq!(index.count.load(Ordering::SeqCst), 0);
        }
    }
}
