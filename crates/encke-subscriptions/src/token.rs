//! Secrets of the server, and what is made of them: tokens of wakes, their names, and the noise of pauses.
//!
//! A token says for which wake of which subscription it is, and has a code of the server's key over that. So no token is stored, and it
//! stays the same over restarts and at all nodes of a fleet.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use aws_lc_rs::constant_time;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::key::{KEY_BYTES, KeySeed, code};

/// The secrets that the journal holds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscriptionSecrets {
    /// The seed of the key that signs calls.
    pub(crate) webhook_key: [u8; KEY_BYTES],
    /// The key of tokens.
    pub(crate) token_key: [u8; KEY_BYTES],
}

impl SubscriptionSecrets {
    pub(crate) fn new(seed: &KeySeed) -> SubscriptionSecrets {
        SubscriptionSecrets {
            webhook_key: seed.key(&[b"webhook key"]),
            token_key: seed.key(&[b"token key"]),
        }
    }

    /// The token of a wake.
    pub(crate) fn token(&self, wake: WakeName) -> WakeToken {
        let code = code(&self.token_key, &[b"token", &wake.bytes()]);
        let mut token = WakeToken {
            wake,
            code: [0; CODE_BYTES],
        };
        token.code.copy_from_slice(&code[..CODE_BYTES]);
        token
    }

    /// Whether the server has made a token.
    pub(crate) fn has_made(&self, token: &WakeToken) -> bool {
        let made = self.token(token.wake);
        constant_time::verify_slices_are_equal(&made.code, &token.code).is_ok()
    }

    /// The unique name of a wake: `w_` and 24 hexadecimal digits.
    pub(crate) fn wake_id(&self, wake: WakeName) -> String {
        use fmt::Write;
        let code = code(&self.token_key, &[b"wake", &wake.bytes()]);
        let mut text = "w_".to_owned();
        for byte in &code[..WAKE_ID_BYTES] {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// A pause, longer or shorter by up to a fifth. The same pause of the same wake is always the same.
    pub(crate) fn spread(&self, pause: Duration, wake: WakeName, number: u32) -> Duration {
        let code = code(
            &self.token_key,
            &[b"pause", &wake.bytes(), &number.to_le_bytes()],
        );
        let part = f64::from(u16::from_le_bytes([code[0], code[1]])) / f64::from(u16::MAX);
        pause.mul_f64(0.8 + 0.4 * part)
    }
}

/// Messages and logs must not show them.
impl fmt::Debug for SubscriptionSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubscriptionSecrets")
    }
}

/// What a wake is known by in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakeName {
    /// The number of the subscription, which no other one ever has.
    pub(crate) subscription: u64,
    /// The number of the wake in the subscription.
    pub(crate) generation: u64,
}

impl WakeName {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.subscription.to_be_bytes());
        bytes[8..].copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }
}

/// The credential for one wake, which its receiver or worker gets. It does not end by itself: the wake does.
#[derive(Clone, Copy)]
pub(crate) struct WakeToken {
    /// The wake.
    pub(crate) wake: WakeName,
    code: [u8; CODE_BYTES],
}

/// The text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAToken;

impl fmt::Display for WakeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.wake.bytes()[..], &self.code[..]].concat();
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for WakeToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<WakeToken, NotAToken> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| NotAToken)?;
        let bytes: [u8; 16 + CODE_BYTES] = bytes.try_into().map_err(|_| NotAToken)?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let mut code = [0; CODE_BYTES];
        code.copy_from_slice(&bytes[16..]);
        Ok(WakeToken {
            wake: WakeName {
                subscription: number(0),
                generation: number(8),
            },
            code,
        })
    }
}

impl fmt::Debug for WakeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WakeToken({:?})", self.wake)
    }
}

/// 128 bits cannot be guessed.
const CODE_BYTES: usize = 16;

const WAKE_ID_BYTES: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(subscription: u64, generation: u64) -> WakeName {
        WakeName {
            subscription,
            generation,
        }
    }

    fn secrets(byte: u8) -> SubscriptionSecrets {
        SubscriptionSecrets::new(&KeySeed::of([byte; 32]))
    }

    #[test]
    fn a_token_is_for_one_wake() {
        let (own, other) = (secrets(1), secrets(2));
        let token = own.token(wake(7, 9));
        let read: WakeToken = token.to_string().parse().unwrap();
        assert_eq!(read.wake, token.wake);
        assert!(own.has_made(&read) && !other.has_made(&read));
        for changed in [wake(8, 9), wake(7, 10)] {
            let forged = WakeToken {
                wake: changed,
                ..token
            };
            assert!(!own.has_made(&forged));
        }
        for text in ["", "x", &"A".repeat(42), &"A".repeat(44), &"=".repeat(43)] {
            assert!(text.parse::<WakeToken>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_wake_has_a_name_of_its_own() {
        let own = secrets(1);
        let id = own.wake_id(wake(7, 9));
        let digits = id.strip_prefix("w_").unwrap();
        assert!(digits.len() == 24 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(own.wake_id(wake(7, 9)), id);
        for other in [
            own.wake_id(wake(9, 7)),
            own.wake_id(wake(7, 10)),
            secrets(2).wake_id(wake(7, 9)),
        ] {
            assert_ne!(other, id);
        }
    }

    #[test]
    fn a_pause_varies_by_a_fifth() {
        let own = secrets(1);
        let pause = Duration::from_secs(10);
        let pauses: Vec<_> = (0..200)
            .map(|number| own.spread(pause, wake(1, 1), number))
            .collect();
        assert!(
            pauses
                .iter()
                .all(|pause| (8..=12).contains(&pause.as_secs()))
        );
        let below = pauses.iter().filter(|spread| **spread < pause).count();
        assert!((50..150).contains(&below), "{below}");
        assert_eq!(own.spread(pause, wake(1, 1), 5), pauses[5]);
    }

    #[test]
    fn what_is_secret_is_not_shown() {
        let seed = KeySeed::random().expect("random bytes");
        let own = SubscriptionSecrets::new(&seed);
        let shown = format!("{seed:?} {own:?} {:?}", own.token(wake(1, 2)));
        assert_eq!(
            shown,
            "KeySeed SubscriptionSecrets WakeToken(WakeName { subscription: 1, generation: 2 })"
        );
    }
}
