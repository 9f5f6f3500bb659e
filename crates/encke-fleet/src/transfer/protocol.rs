//! The requests of a copy, and their answers.
//!
//! A request is JSON, on the subject of the node that has the log. An answer:
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 0: the body follows; 1: the node is busy; 2: it cannot, and says why in text |
//! | 8 | XXH3 over the request and the body |
//! | … | the body |

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::settings::FleetName;

/// What the copying node asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Begins a copy: the body is [`Begun`]. An earlier one by the same node for the same log ends.
    Begin { log: usize, copier: String },
    /// A piece of a file by its index in the [`Manifest`], or of the manifest itself.
    Read {
        copy: u64,
        file: Option<u32>,
        offset: u64,
        bytes: u32,
    },
    /// The hash of a whole file: XXH3 with 128 bits, little-endian.
    Hash { copy: u64, file: u32 },
    /// Ends a copy.
    End { copy: u64 },
}

/// A copy that has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) copy: u64,
    /// The size of the manifest, in bytes.
    pub(super) manifest_bytes: u64,
}

/// The files of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) directories: Vec<String>,
    /// Names and sizes in bytes.
    pub(super) files: Vec<(String, u64)>,
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Body(Vec<u8>),
    /// It gives as many copies as it may.
    Busy,
    Refused(String),
}

/// An answer that was changed on its way, or belongs to another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a piece arrived damaged")]
pub(super) struct Damaged;

impl Answer {
    pub(super) fn encode(&self, request: &[u8]) -> Vec<u8> {
        let (kind, body): (u8, &[u8]) = match self {
            Answer::Body(body) => (BODY, body),
            Answer::Busy => (BUSY, b""),
            Answer::Refused(reason) => (REFUSED, reason.as_bytes()),
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
        bytes.push(kind);
        bytes.extend(hash(kind, request, body).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    pub(super) fn decode(request: &[u8], bytes: &[u8]) -> Result<Answer, Damaged> {
        let (kind, rest) = bytes.split_first().ok_or(Damaged)?;
        let (sum, body) = rest.split_first_chunk::<8>().ok_or(Damaged)?;
        if u64::from_le_bytes(*sum) != hash(*kind, request, body) {
            return Err(Damaged);
        }
        match *kind {
            BODY => Ok(Answer::Body(body.to_vec())),
            BUSY => Ok(Answer::Busy),
            REFUSED => Ok(Answer::Refused(String::from_utf8_lossy(body).into_owned())),
            _ => Err(Damaged),
        }
    }
}

fn hash(kind: u8, request: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&(request.len() as u64).to_le_bytes());
    hasher.update(request);
    hasher.update(&[kind]);
    hasher.update(body);
    hasher.digest()
}

/// The subject of requests to a node.
pub(crate) fn subject(fleet: &FleetName, node: &str) -> String {
    format!("{fleet}.copy.{node}")
}

/// The largest piece, in bytes, unless the brokers allow less.
pub(super) const PIECE_BYTES_MAX: usize = 256 << 10;

/// How many pieces a node asks for before the first has arrived.
pub(super) const REQUESTS_AT_ONCE: usize = 4;

/// What an answer has beside its body, in bytes.
pub(super) const HEAD_BYTES: usize = 9;

const BODY: u8 = 0;
const BUSY: u8 = 1;
const REFUSED: u8 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_answer_is_read_back_and_a_changed_one_is_refused(
            request in prop::collection::vec(any::<u8>(), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let bytes = Answer::Body(body.clone()).encode(&request);
            prop_assert_eq!(Answer::decode(&request, &bytes), Ok(Answer::Body(body)));
            let other = [&request[..], b"x"].concat();
            prop_assert_eq!(Answer::decode(&other, &bytes), Err(Damaged));
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= 1 << bit;
            prop_assert_eq!(Answer::decode(&request, &changed), Err(Damaged));
            prop_assert_eq!(Answer::decode(&request, &bytes[..at.index(bytes.len())]), Err(Damaged));
        }
    }

    #[test]
    fn a_refusal_says_why() {
        let refused = Answer::Refused("no such log".into());
        for answer in [Answer::Busy, refused] {
            assert_eq!(Answer::decode(b"r", &answer.encode(b"r")), Ok(answer));
        }
    }
}
