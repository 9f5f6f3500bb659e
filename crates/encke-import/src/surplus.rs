//! What the destination has of a stream and the journal does not know of: a run was ended before it could write its line, or the journal
//! is lost.

use crate::content_hash::ContentHash;
use crate::copy_failure::CopyFailure;

/// Data at the destination that the source must have, too, before anything is appended behind it.
#[derive(Debug)]
pub(crate) struct Surplus {
    /// All of it.
    wanted: ContentHash,
    /// What the source has had of it so far.
    found: ContentHash,
}

impl Surplus {
    pub(crate) fn new(wanted: ContentHash) -> Self {
        Surplus {
            wanted,
            found: ContentHash::new(),
        }
    }

    /// Takes a message of the source.
    pub(crate) fn message(&mut self, message: &str) {
        self.found.message(message);
    }

    /// Takes the first of some bytes of the source: those that the destination has. How many those are.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> usize {
        let left = usize::try_from(self.left()).unwrap_or(usize::MAX);
        let taken = bytes.len().min(left);
        self.found.bytes(&bytes[..taken]);
        taken
    }

    /// Messages, or bytes, that the destination has.
    pub(crate) fn units(&self) -> u64 {
        self.wanted.units()
    }

    /// Whether the source has had all of it.
    ///
    /// # Errors
    /// It was something else. `offset` is where it begins at the destination.
    pub(crate) fn is_over(&self, unit: &str, offset: &str) -> Result<bool, CopyFailure> {
        if self.left() > 0 {
            return Ok(false);
        }
        if self.found.hex() == self.wanted.hex() {
            return Ok(true);
        }
        let units = self.units();
        Err(CopyFailure::Differs {
            why: format!(
                "it has {units} {unit} behind its offset {offset} that are not those of the source; has somebody else written there?"
            ),
        })
    }

    /// The error if the source has nothing more.
    pub(crate) fn more(&self, unit: &str) -> CopyFailure {
        let left = self.left();
        CopyFailure::Differs {
            why: format!(
                "it has {left} {unit} more than the source; has somebody else written there?"
            ),
        }
    }

    fn left(&self) -> u64 {
        self.wanted.units() - self.found.units()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8]) -> ContentHash {
        let mut hash = ContentHash::new();
        hash.bytes(text);
        hash
    }

    #[test]
    fn it_takes_what_the_destination_has_and_no_more() {
        let mut surplus = Surplus::new(of(b"abcd"));
        assert_eq!(surplus.bytes(b"ab"), 2);
        assert!(!surplus.is_over("bytes", "-1").unwrap());
        assert!(surplus.more("bytes").to_string().contains("2 bytes more"));
        assert_eq!(surplus.bytes(b"cdef"), 2);
        assert!(surplus.is_over("bytes", "-1").unwrap());
        assert!(Surplus::new(of(b"")).is_over("bytes", "-1").unwrap());
    }

    #[test]
    fn other_data_is_an_error() {
        let mut surplus = Surplus::new(of(b"abcd"));
        surplus.bytes(b"abxd");
        let error = surplus.is_over("bytes", "o").unwrap_err().to_string();
        assert!(error.contains("4 bytes behind its offset o"), "{error}");
    }
}
