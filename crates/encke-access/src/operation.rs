//! What a caller can do to a path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// One kind of access to a path. Configuration and tokens name it in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Reads a stream, or the state of a pool or a job.
    Read,
    /// Appends to a stream, and closes it.
    Append,
    /// Creates a stream or a pool.
    Create,
    /// Deletes a stream or a pool.
    Delete,
    /// Lists what is below a path.
    List,
    /// Takes jobs from a pool and reports their results.
    Work,
    /// Posts jobs to a pool.
    Post,
    /// Operates the server: metrics, revocations.
    Admin,
    /// Asks the producer of a stream to stop, and stops it.
    Stop,
    /// Does what the caller may do also to streams that belong to others, and creates streams for them.
    Own,
}

impl Operation {
    /// All operations.
    pub const ALL: [Operation; 10] = [
        Operation::Read,
        Operation::Append,
        Operation::Create,
        Operation::Delete,
        Operation::List,
        Operation::Work,
        Operation::Post,
        Operation::Admin,
        Operation::Stop,
        Operation::Own,
    ];

    /// Its name in configuration, tokens, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Append => "append",
            Operation::Create => "create",
            Operation::Delete => "delete",
            Operation::List => "list",
            Operation::Work => "work",
            Operation::Post => "post",
            Operation::Admin => "admin",
            Operation::Stop => "stop",
            Operation::Own => "own",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown action {0:?}; the actions are read, append, create, delete, list, work, post, admin, stop and own"
)]
pub struct UnknownOperation(pub String);

impl FromStr for Operation {
    type Err = UnknownOperation;

    fn from_str(text: &str) -> Result<Self, UnknownOperation> {
        let found = Operation::ALL.iter().find(|one| one.name() == text);
        found.copied().ok_or_else(|| {
            UnknownOperation(text.chars().take(UNKNOWN_CHARS_SHOWN).collect::<String>())
        })
    }
}

/// A set of operations, in two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationSet(u16);

impl OperationSet {
    /// Every operation except `admin`.
    pub const ALL_BUT_ADMIN: OperationSet = OperationSet(!(1 << Operation::Admin as u16));

    /// The set with one more operation.
    #[must_use]
    pub fn with(self, operation: Operation) -> Self {
        OperationSet(self.0 | operation.bit())
    }

    /// Whether the set has the operation.
    pub fn contains(self, operation: Operation) -> bool {
        self.0 & operation.bit() != 0
    }

    /// The operations of the set.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        Operation::ALL
            .into_iter()
            .filter(move |one| self.contains(*one))
    }
}

impl FromIterator<Operation> for OperationSet {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        operations
            .into_iter()
            .fold(OperationSet::default(), OperationSet::with)
    }
}

impl fmt::Display for OperationSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Operation::name).collect();
        f.write_str(&names.join(", "))
    }
}

impl<'de> Deserialize<'de> for OperationSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        if names.is_empty() {
            return Err(de::Error::custom("actions must name at least one action"));
        }
        names
            .iter()
            .map(|name| name.parse().map_err(de::Error::custom))
            .collect()
    }
}

impl Serialize for OperationSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Operation::name))
    }
}

/// A message shows at most so much of an unknown name.
const UNKNOWN_CHARS_SHOWN: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for operation in Operation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
        }
        for wrong in ["", "Read", "READ", "write", "read "] {
            assert!(wrong.parse::<Operation>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_set_has_what_was_added() {
        let set: OperationSet = [Operation::Read, Operation::Admin].into_iter().collect();
        for operation in Operation::ALL {
            let added = matches!(operation, Operation::Read | Operation::Admin);
            assert_eq!(set.contains(operation), added, "{operation}");
        }
        assert!(!OperationSet::ALL_BUT_ADMIN.contains(Operation::Admin));
        assert_eq!(OperationSet::ALL_BUT_ADMIN.iter().count(), 9);
    }
}
