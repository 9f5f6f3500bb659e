//! Socket ids: the names of connections, which signatures of subscriptions cover and events exclude.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::hmac;

/// The name of a connection: two numbers, of 64 bits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketId(u64);

/// A text that is no socket id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a socket id has the form digits.digits")]
pub(super) struct BadSocketId;

/// Gives out socket ids. They look random, so that those of other nodes and of other times are others, and no client guesses one.
#[derive(Debug)]
pub(super) struct SocketIds {
    key: hmac::Key,
    given: AtomicU64,
}

impl SocketIds {
    /// Socket ids that follow from a secret seed.
    pub(super) fn new(seed: &[u8; 32]) -> Self {
        SocketIds {
            key: hmac::Key::new(hmac::HMAC_SHA256, seed),
            given: AtomicU64::new(0),
        }
    }

    /// The next one.
    pub(super) fn next(&self) -> SocketId {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let tag = hmac::sign(&self.key, &number.to_be_bytes());
        let first = tag.as_ref().first_chunk().copied();
        SocketId(u64::from_be_bytes(first.unwrap_or_default()))
    }
}

impl SocketId {
    /// Both numbers as one.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    pub(super) fn from_number(number: u64) -> Self {
        SocketId(number)
    }
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 32, self.0 as u32)
    }
}

impl FromStr for SocketId {
    type Err = BadSocketId;

    /// Each id has one form only.
    fn from_str(text: &str) -> Result<Self, BadSocketId> {
        let part = |text: &str| text.parse::<u32>().ok();
        let (high, low) = text.split_once('.').ok_or(BadSocketId)?;
        let (high, low) = part(high).zip(part(low)).ok_or(BadSocketId)?;
        let id = SocketId(u64::from(high) << 32 | u64::from(low));
        (id.to_string() == text).then_some(id).ok_or(BadSocketId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_differ_and_read_back() {
        let (ids, others) = (SocketIds::new(&[1; 32]), SocketIds::new(&[2; 32]));
        let all: Vec<SocketId> = (0..1_000)
            .flat_map(|_| [ids.next(), others.next()])
            .collect();
        let numbers: HashSet<u64> = all.iter().map(|id| id.number()).collect();
        assert_eq!(numbers.len(), all.len());
        for id in all {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn an_id_has_one_form() {
        assert_eq!("0.7".parse(), Ok(SocketId(7)));
        assert_eq!("4294967295.0".parse(), Ok(SocketId(0xffff_ffff << 32)));
        for text in [
            "",
            ".",
            "1",
            "1.",
            ".1",
            "1.2.3",
            "+1.2",
            "01.2",
            "1.-2",
            "1. 2",
            "4294967296.1",
            "1.2\n",
            "a.b",
            "1.2:private-x",
        ] {
            assert_eq!(text.parse::<SocketId>(), Err(BadSocketId), "{text}");
        }
    }
}
