//! Sessions in a form in which another process takes them over: keys, numbers of records, and what is under way.
//!
//! rustls does not give away the secrets of which the next keys are derived. A session that has moved can't change its keys: a peer that asks for
//! that is refused, and so is the session once its key is used up, which takes more than 2^24 records.

use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::keys::{MovedKeys, Opener, Sealer};
use super::session::{Held, TlsSession};
use crate::moved::in_base64;

/// A session without its socket.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(crate) struct MovedSession {
    /// The number of its cipher suite.
    suite: u16,
    sealer: MovedKeys,
    opener: MovedKeys,
    /// The beginning of a record.
    #[serde(with = "in_base64")]
    input: Vec<u8>,
    /// What is left of a record that the socket has taken in part.
    #[serde(with = "in_base64")]
    output: Vec<u8>,
    owes_byte: bool,
}

impl std::fmt::Debug for MovedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Secrets are not for logs.
        f.write_str("MovedSession")
    }
}

impl TlsSession {
    /// Whether another process can take it over: its keys can be copied, and it does not end.
    pub(crate) fn can_move(&self) -> bool {
        let keys = self.sealer.can_move() && self.opener.can_move();
        keys && !self.owes_key_update && !self.ended
    }

    /// The session for another process, if [`Self::can_move`].
    pub(crate) fn moved(&self) -> Option<MovedSession> {
        if !self.can_move() {
            return None;
        }
        let held = self.held.as_deref();
        Some(MovedSession {
            suite: self.suite.suite().into(),
            sealer: self.sealer.moved()?,
            opener: self.opener.moved()?,
            input: held.map_or(Vec::new(), |held| held.input.clone()),
            output: held.map_or(Vec::new(), |held| held.output[held.sent..].to_vec()),
            owes_byte: held.is_some_and(|held| held.owes_byte),
        })
    }
}

impl MovedSession {
    /// The session. `None`: this version does not know its cipher suite, or its keys are damaged.
    pub(crate) fn arrive(&self) -> Option<Box<TlsSession>> {
        let mut known = ALL_CIPHER_SUITES.iter();
        let suite = known.find(|suite| u16::from(suite.suite()) == self.suite)?;
        let mut session = Box::new(TlsSession::of_parts(
            None,
            *suite,
            Sealer::arrive(&self.sealer)?,
            Opener::arrive(&self.opener)?,
        ));
        if !self.input.is_empty() || !self.output.is_empty() {
            session.held = Some(Box::new(Held {
                input: self.input.clone(),
                output: self.output.clone(),
                owes_byte: self.owes_byte,
                ..Held::default()
            }));
        }
        Some(session)
    }
}
