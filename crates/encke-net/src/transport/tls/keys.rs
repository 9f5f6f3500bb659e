//! The keys of one direction of a session, and the provider's ciphers that are built of them.
//!
//! A cipher of the provider takes 640 bytes, its key 32. So an idle session keeps keys only, and ciphers are built when records
//! come or go. rustls can't copy a key of AES-128, so such a cipher stays once it is built.
//!
//! Keys are overwritten where they are not needed any more: here, by rustls when it drops one, and by its provider when it drops a cipher.
//! What rustls takes by value leaves copies on the stack, which are overwritten as well as safe code can (`wipe_stack`).

use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, MessageDecrypter, MessageEncrypter,
    OutboundChunks, OutboundPlainMessage,
};
use rustls::{ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion, SupportedCipherSuite};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::moved::in_base64;

/// Encrypts records.
pub(super) struct Sealer {
    secret: Secret,
    /// The number of the next record.
    sequence: u64,
    cipher: Option<Box<dyn MessageEncrypter>>,
}

/// Decrypts records.
pub(super) struct Opener {
    secret: Secret,
    /// The number of the next record.
    sequence: u64,
    cipher: Option<Box<dyn MessageDecrypter>>,
}

struct Secret {
    key: AeadKey,
    iv: Zeroizing<[u8; IV_BYTES]>,
    /// A cipher was built of the key, which could not be copied. A flag takes no room here, as an `Option` of the key would.
    key_is_gone: bool,
}

impl Sealer {
    pub(super) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Self> {
        Some(Sealer {
            secret: Secret::new(secrets)?,
            sequence,
            cipher: None,
        })
    }

    /// Records that were encrypted with this key.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Encrypts content of at most 2^14 bytes into a record.
    pub(super) fn seal(
        &mut self,
        suite: SupportedCipherSuite,
        kind: ContentType,
        content: &[u8],
    ) -> Result<Vec<u8>, Error> {
        if self.cipher.is_none() {
            self.cipher = Some(self.build(suite)?);
        }
        let cipher = self.cipher.as_mut().ok_or(Error::EncryptError)?;
        let message = OutboundPlainMessage {
            typ: kind,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(content),
        };
        let record = cipher.encrypt(message, self.sequence)?;
        self.sequence += 1;
        Ok(record.encode())
    }

    /// Drops the cipher if it can be built again.
    pub(super) fn rest(&mut self) {
        if !self.secret.key_is_gone {
            self.cipher = None;
        }
    }

    fn build(&mut self, suite: SupportedCipherSuite) -> Result<Box<dyn MessageEncrypter>, Error> {
        let built = self.build_unwiped(suite);
        wipe_stack::<CIPHER_WORDS>();
        built
    }

    fn build_unwiped(
        &mut self,
        suite: SupportedCipherSuite,
    ) -> Result<Box<dyn MessageEncrypter>, Error> {
        let (key, iv) = self.secret.take().ok_or(Error::EncryptError)?;
        let mut cipher = match suite {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg.encrypter(key, Iv::new(*iv)),
            SupportedCipherSuite::Tls12(suite) => {
                let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
                let (fixed, explicit) = iv.split_at_checked(fixed).ok_or(Error::EncryptError)?;
                suite.aead_alg.encrypter(key, fixed, explicit)
            }
        };
        if self.sequence > 0 {
            // AES-GCM of the provider checks that sequences grow, and counts from the first one that it sees. It takes those of
            // a session from the middle only if that was 0. The record is dropped: it never leaves this function, so its nonce
            // is not used twice.
            let nothing = OutboundPlainMessage {
                typ: ContentType::ApplicationData,
                version: ProtocolVersion::TLSv1_2,
                payload: OutboundChunks::Single(&[]),
            };
            drop(cipher.encrypt(nothing, 0)?);
        }
        Ok(cipher)
    }
}

impl Opener {
    pub(super) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<Self> {
        Some(Opener {
            secret: Secret::new(secrets)?,
            sequence,
            cipher: None,
        })
    }

    /// Decrypts a record in place.
    pub(super) fn open<'a>(
        &mut self,
        suite: SupportedCipherSuite,
        record: InboundOpaqueMessage<'a>,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        if self.cipher.is_none() {
            self.cipher = Some(self.build(suite)?);
        }
        let cipher = self.cipher.as_mut().ok_or(Error::DecryptError)?;
        let message = cipher.decrypt(record, self.sequence)?;
        self.sequence = self.sequence.checked_add(1).ok_or(Error::DecryptError)?;
        Ok(message)
    }

    /// Drops the cipher if it can be built again.
    pub(super) fn rest(&mut self) {
        if !self.secret.key_is_gone {
            self.cipher = None;
        }
    }

    fn build(&mut self, suite: SupportedCipherSuite) -> Result<Box<dyn MessageDecrypter>, Error> {
        let built = self.build_unwiped(suite);
        wipe_stack::<CIPHER_WORDS>();
        built
    }

    fn build_unwiped(
        &mut self,
        suite: SupportedCipherSuite,
    ) -> Result<Box<dyn MessageDecrypter>, Error> {
        let (key, iv) = self.secret.take().ok_or(Error::DecryptError)?;
        match suite {
            SupportedCipherSuite::Tls13(suite) => Ok(suite.aead_alg.decrypter(key, Iv::new(*iv))),
            SupportedCipherSuite::Tls12(suite) => {
                let fixed = suite.aead_alg.key_block_shape().fixed_iv_len;
                let fixed = iv.get(..fixed).ok_or(Error::DecryptError)?;
                Ok(suite.aead_alg.decrypter(key, fixed))
            }
        }
    }
}

/// The keys of one direction for another process.
#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub(super) struct MovedKeys {
    #[serde(with = "in_base64")]
    key: Vec<u8>,
    #[serde(with = "in_base64")]
    iv: Vec<u8>,
    sequence: u64,
}

impl Sealer {
    /// Whether its keys can be copied.
    pub(super) fn can_move(&self) -> bool {
        self.secret.can_move()
    }

    /// The keys for another process. `None`: they can't be copied.
    pub(super) fn moved(&self) -> Option<MovedKeys> {
        self.secret.moved(self.sequence)
    }

    pub(super) fn arrive(moved: &MovedKeys) -> Option<Self> {
        Some(Sealer {
            secret: Secret::arrive(moved)?,
            sequence: moved.sequence,
            cipher: None,
        })
    }
}

impl Opener {
    /// Whether its keys can be copied.
    pub(super) fn can_move(&self) -> bool {
        self.secret.can_move()
    }

    /// The keys for another process. `None`: they can't be copied.
    pub(super) fn moved(&self) -> Option<MovedKeys> {
        self.secret.moved(self.sequence)
    }

    pub(super) fn arrive(moved: &MovedKeys) -> Option<Self> {
        Some(Opener {
            secret: Secret::arrive(moved)?,
            sequence: moved.sequence,
            cipher: None,
        })
    }
}

impl Secret {
    fn can_move(&self) -> bool {
        !self.key_is_gone && self.key.as_ref().len() == LONG_KEY_BYTES
    }

    fn moved(&self, sequence: u64) -> Option<MovedKeys> {
        self.can_move().then(|| MovedKeys {
            key: self.key.as_ref().to_vec(),
            iv: self.iv.to_vec(),
            sequence,
        })
    }

    fn arrive(moved: &MovedKeys) -> Option<Self> {
        let mut key = Zeroizing::new([0; LONG_KEY_BYTES]);
        if moved.key.len() != LONG_KEY_BYTES {
            return None;
        }
        key.copy_from_slice(&moved.key);
        let iv: &[u8; IV_BYTES] = moved.iv.as_slice().try_into().ok()?;
        Some(Secret {
            key: AeadKey::from(*key),
            iv: Zeroizing::new(*iv),
            key_is_gone: false,
        })
    }

    /// `None` for ciphers that this module does not know.
    fn new(secrets: ConnectionTrafficSecrets) -> Option<Self> {
        let (key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
            _ => return None,
        };
        Some(Secret {
            iv: Zeroizing::new(iv.as_ref().try_into().ok()?),
            key,
            key_is_gone: false,
        })
    }

    /// The key for a cipher. It stays here as well if it can be copied.
    fn take(&mut self) -> Option<(AeadKey, Zeroizing<[u8; IV_BYTES]>)> {
        if self.key_is_gone {
            return None;
        }
        let mut copy = Zeroizing::new([0; LONG_KEY_BYTES]);
        // rustls lets others make keys of the longest kind only.
        let key = if self.key.as_ref().len() == LONG_KEY_BYTES {
            copy.copy_from_slice(self.key.as_ref());
            AeadKey::from(*copy)
        } else {
            self.key_is_gone = true;
            // Zeros overwrite the key in the place that it leaves.
            std::mem::replace(&mut self.key, AeadKey::from(*copy))
        };
        Some((key, self.iv.clone()))
    }
}

/// Overwrites what the functions that were called before have left of keys on the stack. They are copied where rustls or its provider
/// takes them by value, and what is left of a frame can be overwritten by another frame only.
#[inline(never)]
pub(super) fn wipe_stack<const WORDS: usize>() {
    let mut frame = [0_u64; WORDS];
    frame[..].zeroize();
}

/// Words of the frames in which ciphers are built: 8 KiB.
pub(super) const CIPHER_WORDS: usize = 1 << 10;

/// Words of the frames in which handshakes are made: 64 KiB.
pub(super) const HANDSHAKE_WORDS: usize = 8 << 10;

/// The keys of AES-256 and ChaCha20.
const LONG_KEY_BYTES: usize = 32;

const IV_BYTES: usize = 12;
