//! Tokens: who has one was given a job, or has posted it. A number of a job or of an attempt can be guessed, a token cannot.
//!
//! A pool has a random key, which its journal holds. A token is a code of the key over what it is for, so that no token is stored, and
//! a token stays the same over restarts and at all nodes of a fleet.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::constant_time;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use encke_subscriptions::{KEY_BYTES, KeySeed, code};
use serde::{Deserialize, Serialize};

/// The key of a pool's tokens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolKey([u8; KEY_BYTES]);

/// The token of a job, for its poster, or of an attempt at it, for its worker.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct JobToken([u8; TOKEN_BYTES]);

/// The text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a token of a job or of an attempt")]
pub struct BadToken;

impl PoolKey {
    /// The key of a pool that has none yet. A number is of one pool, so no two pools have the same.
    pub(crate) fn new(seed: &KeySeed, no: u64) -> PoolKey {
        PoolKey(seed.key(&[b"pool", &no.to_le_bytes()]))
    }

    pub(crate) fn of_job(&self, id: u64) -> JobToken {
        self.token(&[b"job", &id.to_le_bytes()])
    }

    pub(crate) fn of_attempt(&self, id: u64, attempt: u16) -> JobToken {
        self.token(&[b"attempt", &id.to_le_bytes(), &attempt.to_le_bytes()])
    }

    fn token(&self, parts: &[&[u8]]) -> JobToken {
        let code = code(&self.0, parts);
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&code[..TOKEN_BYTES]);
        JobToken(token)
    }
}

/// In a time that says nothing of where they differ.
impl PartialEq for JobToken {
    fn eq(&self, other: &JobToken) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for JobToken {}

impl fmt::Display for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl FromStr for JobToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<JobToken, BadToken> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| BadToken)?;
        bytes.try_into().map(JobToken).map_err(|_| BadToken)
    }
}

/// Messages and logs must not show it.
impl fmt::Debug for JobToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobToken")
    }
}

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey")
    }
}

/// 128 bits cannot be guessed.
const TOKEN_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_pool_one_job_and_one_attempt() {
        let seed = KeySeed::of([7; 32]);
        let (one, other) = (PoolKey::new(&seed, 1), PoolKey::new(&seed, 2));
        let tokens = [
            one.of_job(9),
            one.of_job(10),
            one.of_attempt(9, 1),
            one.of_attempt(9, 2),
            one.of_attempt(10, 1),
            other.of_job(9),
            other.of_attempt(9, 1),
            PoolKey::new(&KeySeed::of([8; 32]), 1).of_job(9),
        ];
        for (at, token) in tokens.iter().enumerate() {
            for (other_at, other) in tokens.iter().enumerate() {
                assert_eq!(token == other, at == other_at);
            }
            assert_eq!(token.to_string().parse(), Ok(*token));
            assert_eq!(token.to_string().len(), 22);
        }
        assert_eq!(PoolKey::new(&seed, 1).of_job(9), one.of_job(9));
        for text in ["", "1", &"A".repeat(21), &"A".repeat(23), &"=".repeat(22)] {
            assert_eq!(text.parse::<JobToken>(), Err(BadToken), "{text}");
        }
    }

    #[test]
    fn what_is_secret_is_not_shown() {
        let seed = KeySeed::random().expect("random bytes");
        let key = PoolKey::new(&seed, 1);
        let shown = format!("{seed:?} {key:?} {:?}", key.of_job(1));
        assert_eq!(shown, "KeySeed PoolKey JobToken");
    }
}
