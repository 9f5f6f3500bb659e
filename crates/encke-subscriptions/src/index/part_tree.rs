//! Values by sequences of parts that stand for one segment each.
//!
//! A node is as deep as the segments that lead to it, so that a look-up visits each node once at most.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::steps::Steps;
use crate::glob::GlobPart;

/// A tree of the parts of patterns, without `**`.
#[derive(Debug)]
pub(super) struct PartTree<T> {
    nodes: Vec<Node<T>>,
    /// Nodes that are not in use.
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Node<T> {
    literals: HashMap<Box<str>, usize>,
    one: Option<usize>,
    /// `None`: no sequence ends here.
    value: Option<T>,
}

impl<T> Node<T> {
    fn is_unused(&self) -> bool {
        self.literals.is_empty() && self.one.is_none() && self.value.is_none()
    }

    fn child(&self, part: &GlobPart) -> Option<usize> {
        match part {
            GlobPart::Literal(literal) => self.literals.get(literal).copied(),
            GlobPart::One => self.one,
            GlobPart::Any => None,
        }
    }
}

impl<T: Default> Default for PartTree<T> {
    fn default() -> Self {
        PartTree {
            nodes: vec![Node::default()],
            free: Vec::new(),
        }
    }
}

impl<T: Default> PartTree<T> {
    /// The value of a sequence of parts, which is created if there is none.
    pub(super) fn entry<'a>(&mut self, parts: impl Iterator<Item = &'a GlobPart>) -> &mut T {
        let mut at = ROOT;
        for part in parts {
            at = match self.nodes[at].child(part) {
                Some(child) => child,
                None => self.add_child(at, part),
            };
        }
        self.nodes[at].value.get_or_insert_default()
    }

    /// Updates the value of a sequence of parts, and removes it if `update` says that it is empty then. False: there is none.
    pub(super) fn update<'a>(
        &mut self,
        parts: impl Iterator<Item = &'a GlobPart>,
        update: impl FnOnce(&mut T) -> IsEmpty,
    ) -> bool {
        let mut path = Vec::new();
        let mut at = ROOT;
        for part in parts {
            let Some(child) = self.nodes[at].child(part) else {
                return false;
            };
            path.push((at, part, child));
            at = child;
        }
        let value = &mut self.nodes[at].value;
        match value.as_mut().map(update) {
            None => return false,
            Some(IsEmpty(false)) => return true,
            Some(IsEmpty(true)) => *value = None,
        }
        for (parent, part, child) in path.into_iter().rev() {
            if !self.nodes[child].is_unused() {
                break;
            }
            let parent = &mut self.nodes[parent];
            match part {
                GlobPart::Literal(literal) => {
                    parent.literals.remove(literal);
                }
                GlobPart::One => parent.one = None,
                GlobPart::Any => {}
            }
            self.nodes[child] = Node::default();
            self.free.push(child);
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes[ROOT].is_unused()
    }

    /// The values whose parts stand for the first segments, and how many these are.
    pub(super) fn values<'a>(
        &self,
        segments: impl Iterator<Item = &'a str>,
        steps: &mut Steps,
    ) -> ControlFlow<(), Vec<(usize, &T)>> {
        let mut found = Vec::new();
        let mut states = vec![ROOT];
        let mut next = Vec::new();
        for (depth, segment) in segments.map(Some).chain([None]).enumerate() {
            for state in states.drain(..) {
                steps.count(1)?;
                let node = &self.nodes[state];
                found.extend(node.value.as_ref().map(|value| (depth, value)));
                if let Some(segment) = segment {
                    next.extend(node.literals.get(segment));
                    next.extend(node.one);
                }
            }
            if next.is_empty() {
                break;
            }
            std::mem::swap(&mut states, &mut next);
        }
        ControlFlow::Continue(found)
    }

    fn add_child(&mut self, parent: usize, part: &GlobPart) -> usize {
        let child = self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        });
        let node = &mut self.nodes[parent];
        match part {
            GlobPart::Literal(literal) => {
                node.literals.insert(literal.clone(), child);
            }
            GlobPart::One => node.one = Some(child),
            GlobPart::Any => debug_assert!(false, "`**` is no part of a tree"),
        }
        child
    }
}

/// Whether a value holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsEmpty(pub(super) bool);

const ROOT: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Vec<GlobPart> {
        let glob: crate::glob::Glob = text.parse().unwrap();
        glob.parts().to_vec()
    }

    #[test]
    fn what_is_removed_leaves_no_nodes() {
        let mut tree: PartTree<usize> = PartTree::default();
        let sequences = ["a/*/c", "a", "a/*/d", "*/b", "a/*"].map(parts);
        for _ in 0..3 {
            for sequence in &sequences {
                *tree.entry(sequence.iter()) += 1;
            }
            for sequence in &sequences {
                assert!(!tree.is_empty());
                assert!(tree.update(sequence.iter(), |_| IsEmpty(true)));
                assert!(!tree.update(sequence.iter(), |_| IsEmpty(true)));
            }
            assert!(tree.is_empty());
            assert_eq!(tree.free.len() + 1, tree.nodes.len());
        }
    }
}
