//! Which subscriptions a stream concerns, by its name.
//!
//! The machine adds and removes names and patterns; the threads that publish commits ask whether a stream concerns any subscription, so
//! that they report only the commits of such streams. The patterns are a tree of their segments: to look a name up visits the branches
//! that its segments can take, whatever the number of patterns that do not begin like the name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::glob::{Glob, GlobPart, is_matchable};

/// Which subscriptions a stream concerns: those with a pattern that matches its name, and those that name it.
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
    patterns: PatternTree,
}

impl SubscriptionIndex {
    /// Whether a stream concerns a subscription. It costs one atomic read while there are no subscriptions.
    pub fn concerns(&self, stream: &str) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 || !is_matchable(stream) {
            return false;
        }
        let table = self.table.read();
        let mut found = false;
        table.patterns.find(stream, &mut |_| found = true);
        found || table.names.contains_key(stream)
    }

    /// The numbers of the subscriptions that a stream concerns, in ascending order.
    pub(crate) fn subscriptions(&self, stream: &str) -> Vec<u64> {
        if self.count.load(Ordering::SeqCst) == 0 || !is_matchable(stream) {
            return Vec::new();
        }
        let table = self.table.read();
        let mut found = table.names.get(stream).cloned().unwrap_or_default();
        table
            .patterns
            .find(stream, &mut |numbers| found.extend_from_slice(numbers));
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

    /// Adds the pattern of a subscription.
    pub(crate) fn add_pattern(&self, pattern: &Glob, subscription: u64) {
        self.table.write().patterns.add(pattern, subscription);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes the pattern of a subscription.
    pub(crate) fn remove_pattern(&self, pattern: &Glob, subscription: u64) {
        if self.table.write().patterns.remove(pattern, subscription) {
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Patterns as a tree of their segments.
#[derive(Debug)]
struct PatternTree {
    nodes: Vec<Node>,
    /// Nodes that are not in use.
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Node {
    literals: HashMap<Box<str>, usize>,
    one: Option<usize>,
    any: Option<usize>,
    /// It stands for any number of segments itself.
    repeats: bool,
    /// The subscriptions whose patterns end here.
    ends: Vec<u64>,
}

impl Node {
    fn is_unused(&self) -> bool {
        self.literals.is_empty() && self.one.is_none() && self.any.is_none() && self.ends.is_empty()
    }
}

impl Default for PatternTree {
    fn default() -> Self {
        PatternTree {
            nodes: vec![Node::default()],
            free: Vec::new(),
        }
    }
}

impl PatternTree {
    fn add(&mut self, pattern: &Glob, subscription: u64) {
        let mut at = ROOT;
        for part in pattern.parts() {
            at = match self.child(at, part) {
                Some(child) => child,
                None => self.add_child(at, part),
            };
        }
        self.nodes[at].ends.push(subscription);
    }

    /// False: the subscription does not have the pattern.
    fn remove(&mut self, pattern: &Glob, subscription: u64) -> bool {
        let mut path = vec![ROOT];
        for part in pattern.parts() {
            let last = path[path.len() - 1];
            match self.child(last, part) {
                Some(child) => path.push(child),
                None => return false,
            }
        }
        let ends = &mut self.nodes[path[path.len() - 1]].ends;
        let Some(at) = ends.iter().position(|number| *number == subscription) else {
            return false;
        };
        ends.swap_remove(at);
        for (part, steps) in pattern.parts().iter().zip(path.windows(2)).rev() {
            let (parent, child) = (steps[0], steps[1]);
            if !self.nodes[child].is_unused() {
                break;
            }
            let parent = &mut self.nodes[parent];
            match part {
                GlobPart::Literal(literal) => {
                    parent.literals.remove(literal);
                }
                GlobPart::One => parent.one = None,
                GlobPart::Any => parent.any = None,
            }
            self.nodes[child] = Node::default();
            self.free.push(child);
        }
        true
    }

    /// Calls `each` with the subscriptions of each pattern that matches the name.
    fn find(&self, name: &str, each: &mut dyn FnMut(&[u64])) {
        let mut states = Vec::new();
        self.enter(ROOT, &mut states);
        let mut next = Vec::new();
        for segment in name.split('/') {
            for state in states.drain(..) {
                let node = &self.nodes[state];
                if node.repeats {
                    self.enter(state, &mut next);
                }
                if let Some(child) = node.literals.get(segment) {
                    self.enter(*child, &mut next);
                }
                if let Some(child) = node.one {
                    self.enter(child, &mut next);
                }
            }
            // A node that repeats is entered from itself and from its parent.
            next.sort_unstable();
            next.dedup();
            std::mem::swap(&mut states, &mut next);
        }
        for state in states {
            let ends = &self.nodes[state].ends;
            if !ends.is_empty() {
                each(ends);
            }
        }
    }

    /// Adds a node to the states, and the node behind it that needs no segment.
    fn enter(&self, node: usize, states: &mut Vec<usize>) {
        states.push(node);
        states.extend(self.nodes[node].any);
    }

    fn child(&self, node: usize, part: &GlobPart) -> Option<usize> {
        let node = &self.nodes[node];
        match part {
            GlobPart::Literal(literal) => node.literals.get(literal).copied(),
            GlobPart::One => node.one,
            GlobPart::Any => node.any,
        }
    }

    fn add_child(&mut self, parent: usize, part: &GlobPart) -> usize {
        let child = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        });
        self.nodes[child].repeats = *part == GlobPart::Any;
        let node = &mut self.nodes[parent];
        match part {
            GlobPart::Literal(literal) => {
                node.literals.insert(literal.clone(), child);
            }
            GlobPart::One => node.one = Some(child),
            GlobPart::Any => node.any = Some(child),
        }
        child
    }
}

const ROOT: usize = 0;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn glob(text: &str) -> Glob {
        text.parse().unwrap()
    }

    #[test]
    fn names_and_patterns_are_found_until_they_are_removed() {
        let index = SubscriptionIndex::default();
        assert!(!index.concerns("a/b"));
        index.add_pattern(&glob("a/*"), 1);
        index.add_pattern(&glob("**"), 2);
        index.add_name("a/b", 3);
        index.add_name("a/b", 1);
        assert_eq!(index.subscriptions("a/b"), [1, 2, 3]);
        assert_eq!(index.subscriptions("a"), [2]);
        assert!(index.subscriptions("\u{1}pools").is_empty());
        assert!(index.subscriptions("__ds/x").is_empty());
        index.remove_pattern(&glob("**"), 2);
        index.remove_name("a/b", 1);
        assert_eq!(index.subscriptions("a/b"), [1, 3]);
        index.remove_pattern(&glob("a/*"), 1);
        index.remove_name("a/b", 3);
        assert!(!index.concerns("a/b"));
        // What is not there can be removed.
        index.remove_name("a/b", 3);
        index.remove_pattern(&glob("a/*"), 1);
        index.add_name("c", 4);
        assert!(index.concerns("c"));
    }

    #[test]
    fn what_is_removed_leaves_no_nodes() {
        let mut tree = PatternTree::default();
        let patterns = ["a/*/c", "a/**", "a/**/d", "*/b", "a/*"];
        for round in 0..3 {
            for (number, pattern) in (0..).zip(patterns) {
                tree.add(&glob(pattern), number);
            }
            for (number, pattern) in (0..).zip(patterns) {
                assert!(tree.remove(&glob(pattern), number), "{round} {pattern}");
            }
            assert!(tree.nodes[ROOT].is_unused());
            assert_eq!(tree.free.len() + 1, tree.nodes.len());
        }
    }

    /// How many nodes a look-up visits, counted by its states.
    fn visited(tree: &PatternTree, name: &str) -> usize {
        let mut states = Vec::new();
        tree.enter(ROOT, &mut states);
        let mut count = states.len();
        for segment in name.split('/') {
            let mut next = Vec::new();
            for state in states {
                let node = &tree.nodes[state];
                if node.repeats {
                    tree.enter(state, &mut next);
                }
                for child in node.literals.get(segment).into_iter().chain(&node.one) {
                    tree.enter(*child, &mut next);
                }
            }
            next.sort_unstable();
            next.dedup();
            count += next.len();
            states = next;
        }
        count
    }

    #[test]
    fn a_look_up_does_not_visit_patterns_of_other_names() {
        let mut tree = PatternTree::default();
        tree.add(&glob("users/1/*"), 0);
        let alone = visited(&tree, "users/1/inbox");
        for number in 2..10_000 {
            tree.add(&glob(&format!("users/{number}/*")), number);
            tree.add(&glob(&format!("users/{number}/**/x")), number);
        }
        assert_eq!(visited(&tree, "users/1/inbox"), alone);
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
                index.add_pattern(&glob(text), number);
            }
            for ((number, text), removed) in (0..).zip(&patterns).zip(removed) {
                if removed {
                    index.remove_pattern(&glob(text), number);
                } else if glob(text).matches(&name) {
                    expected.push(number);
                }
            }
            prop_assert_eq!(index.concerns(&name), !expected.is_empty());
            prop_assert_eq!(index.subscriptions(&name), expected);
        }
    }
}
