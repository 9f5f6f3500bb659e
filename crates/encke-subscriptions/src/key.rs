//! What the keys of the server are made of, and the codes that they make.

use std::fmt;

use aws_lc_rs::{hmac, rand};

/// What the keys of new pools and of a new journal are made of: random, one for each run of a dispatcher. The machines themselves draw
/// nothing at random.
#[derive(Clone)]
pub struct KeySeed([u8; KEY_BYTES]);

impl KeySeed {
    /// A new one.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn random() -> std::io::Result<KeySeed> {
        let mut bytes = [0; KEY_BYTES];
        rand::fill(&mut bytes)
            .map_err(|_| std::io::Error::other("no random bytes for the keys of tokens"))?;
        Ok(KeySeed(bytes))
    }

    /// One of these bytes, for tests that repeat a run.
    pub fn of(bytes: [u8; 32]) -> KeySeed {
        KeySeed(bytes)
    }

    /// The key for a purpose, which the parts name as in [`code`].
    pub fn key(&self, purpose: &[&[u8]]) -> [u8; KEY_BYTES] {
        code(&self.0, purpose)
    }
}

/// Messages and logs must not show it.
impl fmt::Debug for KeySeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySeed")
    }
}

/// HMAC-SHA256 over parts of which the first one says how many bytes the others have.
pub fn code(key: &[u8; KEY_BYTES], parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, &parts.concat());
    let mut code = [0; KEY_BYTES];
    code.copy_from_slice(tag.as_ref());
    code
}

/// Bytes of a key, and of a code.
pub const KEY_BYTES: usize = 32;
