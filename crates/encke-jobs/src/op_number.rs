//! The numbers of the dispatcher's commands: they tell its terms and its parts apart.

/// Which part of the dispatcher a command is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// The pools.
    Jobs,
    /// The subscriptions.
    Subscriptions,
    /// Commands that change nothing, behind which everything has come.
    Barriers,
}

impl OpKind {
    /// The part that a command with this number is of.
    pub(crate) fn of(op: u64) -> OpKind {
        match (op & SUBSCRIPTIONS, op & BARRIERS) {
            (0, _) => OpKind::Jobs,
            (_, 0) => OpKind::Subscriptions,
            _ => OpKind::Barriers,
        }
    }
}

/// The number of the first command of a part in a term. The terms of a run are numbered; a server that is no node of a fleet has one.
pub(crate) fn first_op(term: u64, kind: OpKind) -> u64 {
    let kind = match kind {
        OpKind::Jobs => 0,
        OpKind::Subscriptions => SUBSCRIPTIONS,
        OpKind::Barriers => SUBSCRIPTIONS | BARRIERS,
    };
    term << TERM_SHIFT | kind
}

/// The number of a term is above this many bits.
const TERM_SHIFT: u32 = 40;

/// All commands but those of the pools have this bit.
const SUBSCRIPTIONS: u64 = 1 << 39;

/// And those that change nothing have this one, too.
const BARRIERS: u64 = 1 << 38;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_what_it_is_of() {
        for term in [0, 1, 77] {
            for kind in [OpKind::Jobs, OpKind::Subscriptions, OpKind::Barriers] {
                let first = first_op(term, kind);
                for op in [first, first + 1, first + (1 << 38) - 1] {
                    assert_eq!(OpKind::of(op), kind);
                    assert!(first_op(term, OpKind::Jobs) <= op);
                    assert!(op < first_op(term + 1, OpKind::Jobs));
                }
            }
        }
    }
}
