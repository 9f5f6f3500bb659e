//! The subscriptions by their patterns.
//!
//! A pattern is divided at its `**`. The parts before the first one (all of them, if there is none) are a path in a tree, and those
//! behind the last one, from their end, a path in a tree that belongs to the end of that path. So a look-up goes along a name from both
//! its ends and visits each part of a pattern once at most. What is between the first and the last `**` is compared with the segments
//! between, in a step for each segment, for those patterns alone whose ends match.

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::part_tree::{IsEmpty, PartTree};
use super::segments::NameSegments;
use super::steps::Steps;
use crate::glob::{Glob, GlobPart};

/// The subscriptions by their patterns.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    heads: PartTree<Head>,
}

/// The patterns that begin with the same parts.
#[derive(Debug, Default)]
struct Head {
    /// Those that end with these parts.
    ends: Followers,
    /// Those that go on with `**`, by the parts behind their last `**`, the last one first.
    tails: PartTree<Tail>,
}

/// The patterns that end with the same parts, by the first literal between; empty for those that have none.
type Tail = HashMap<Box<str>, Middles>;

/// The patterns by what is between: it begins and ends with `**`, and is one `**` if there is no other.
type Middles = HashMap<Box<[GlobPart]>, Followers>;

/// The subscriptions with the same pattern, by the streams for their own events, which they do not follow; empty for those without one.
type Followers = HashMap<Box<str>, Vec<u64>>;

impl Patterns {
    pub(super) fn add(&mut self, pattern: &Glob, own_events: &str, subscription: u64) {
        let divided = Divided::of(pattern.parts());
        let head = self.heads.entry(divided.head.iter());
        let followers = match divided.middle {
            None => &mut head.ends,
            Some(middle) => {
                let tail = head.tails.entry(divided.tail.iter().rev());
                let middles = tail.entry(first_literal(middle).into()).or_default();
                middles.entry(middle.into()).or_default()
            }
        };
        followers
            .entry(own_events.into())
            .or_default()
            .push(subscription);
    }

    /// False: the subscription does not have the pattern.
    pub(super) fn remove(&mut self, pattern: &Glob, own_events: &str, subscription: u64) -> bool {
        let divided = Divided::of(pattern.parts());
        let mut is_removed = false;
        self.heads.update(divided.head.iter(), |head| {
            match divided.middle {
                None => is_removed = remove_follower(&mut head.ends, own_events, subscription),
                Some(middle) => {
                    head.tails.update(divided.tail.iter().rev(), |tail| {
                        is_removed = remove_middle(tail, middle, own_events, subscription);
                        IsEmpty(tail.is_empty())
                    });
                }
            }
            IsEmpty(head.ends.is_empty() && head.tails.is_empty())
        });
        is_removed
    }

    /// Calls `each` with the subscriptions whose pattern matches the name, but those whose own events have it. It breaks if `each` does,
    /// and when there are no more steps.
    pub(super) fn find(
        &self,
        name: &str,
        steps: &mut Steps,
        each: &mut dyn FnMut(&[u64]) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut segments = NameSegments::of(name);
        let count = segments.len();
        let mut found = |followers: &Followers, steps: &mut Steps| {
            for (own_events, subscriptions) in followers {
                steps.count(1)?;
                if **own_events != *name {
                    each(subscriptions)?;
                }
            }
            ControlFlow::Continue(())
        };
        for (depth, head) in self.heads.values(segments.iter(), steps)? {
            if depth == count {
                found(&head.ends, steps)?;
            }
            let behind = segments.iter().rev().take(count - depth);
            for (tail_depth, tail) in head.tails.values(behind, steps)? {
                for (middle, followers) in candidates(tail, &mut segments, steps)? {
                    let between = depth..count - tail_depth;
                    if segments.match_between(middle, between, steps)? {
                        found(followers, steps)?;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }
}

/// The parts of a pattern before the first `**`, from there to the last one, and behind it.
struct Divided<'a> {
    head: &'a [GlobPart],
    /// `None`: there is no `**`.
    middle: Option<&'a [GlobPart]>,
    tail: &'a [GlobPart],
}

impl<'a> Divided<'a> {
    fn of(parts: &'a [GlobPart]) -> Divided<'a> {
        let is_any = |part: &GlobPart| *part == GlobPart::Any;
        let ends = parts.iter().position(is_any);
        match ends.zip(parts.iter().rposition(is_any)) {
            Some((first, last)) => Divided {
                head: &parts[..first],
                middle: Some(&parts[first..=last]),
                tail: &parts[last + 1..],
            },
            None => Divided {
                head: parts,
                middle: None,
                tail: &[],
            },
        }
    }
}

/// The patterns whose first literal between is in the name, or that have none.
fn candidates<'a>(
    tail: &'a Tail,
    segments: &mut NameSegments<'_>,
    steps: &mut Steps,
) -> ControlFlow<(), Vec<(&'a [GlobPart], &'a Followers)>> {
    let mut found: Vec<&Middles> = tail.get(NO_LITERAL).into_iter().collect();
    if tail.len() > found.len() {
        let literals = segments.literals();
        // The smaller set is looked up in the larger one.
        if tail.len() < literals.len() {
            steps.count(tail.len())?;
            let named = tail.iter();
            let named = named.filter(|(literal, _)| literals.contains_key(&***literal));
            found.extend(named.map(|(_, middles)| middles));
        } else {
            steps.count(literals.len())?;
            found.extend(literals.keys().filter_map(|literal| tail.get(*literal)));
        }
    }
    let middles = found.iter().map(|middles| middles.len());
    steps.count(middles.sum())?;
    let found = found.into_iter().flatten();
    ControlFlow::Continue(
        found
            .map(|(middle, followers)| (&**middle, followers))
            .collect(),
    )
}

fn first_literal(parts: &[GlobPart]) -> &str {
    let literal = parts.iter().find_map(|part| match part {
        GlobPart::Literal(literal) => Some(&**literal),
        GlobPart::One | GlobPart::Any => None,
    });
    literal.unwrap_or(NO_LITERAL)
}

/// False: it is not there.
fn remove_middle(
    tail: &mut Tail,
    middle: &[GlobPart],
    own_events: &str,
    subscription: u64,
) -> bool {
    let literal = first_literal(middle);
    let Some(middles) = tail.get_mut(literal) else {
        return false;
    };
    let Some(followers) = middles.get_mut(middle) else {
        return false;
    };
    let is_removed = remove_follower(followers, own_events, subscription);
    if followers.is_empty() {
        middles.remove(middle);
    }
    if middles.is_empty() {
        tail.remove(literal);
    }
    is_removed
}

/// False: it is not there.
fn remove_follower(followers: &mut Followers, own_events: &str, subscription: u64) -> bool {
    let Some(subscriptions) = followers.get_mut(own_events) else {
        return false;
    };
    let Some(at) = subscriptions
        .iter()
        .position(|number| *number == subscription)
    else {
        return false;
    };
    subscriptions.swap_remove(at);
    if subscriptions.is_empty() {
        followers.remove(own_events);
    }
    true
}

/// In place of a literal: no segment is empty.
const NO_LITERAL: &str = "";
