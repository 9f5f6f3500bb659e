//! The keys that verify the tokens of one issuer. A key is bound to its algorithms when it is loaded, so a token can't choose what
//! its signature is checked with.

mod algorithms;
mod jwks;
mod key_set;
mod pem;

use jsonwebtoken::{Algorithm, DecodingKey};

use crate::digest::Digest;
use algorithms::check_secret;
use key_set::VerifyingKey;

pub(crate) use algorithms::{algorithm, algorithms, is_hmac};
pub use jwks::{JWKS_BYTES_MAX, JWKS_KEYS_MAX, JwksError};
pub(crate) use key_set::{KeyFingerprint, KeySet, NoKey};

impl KeySet {
    /// The set of one shared secret.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub(crate) fn secret(secret: &[u8], algorithms: &[Algorithm]) -> Result<Self, String> {
        check_secret(secret, algorithms)?;
        Ok(KeySet::single(VerifyingKey {
            algorithms: algorithms.to_vec(),
            key: DecodingKey::from_secret(secret),
            source: Digest::of(secret).to_hex(),
        }))
    }

    /// The set of one public key in PEM form.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub(crate) fn public_key(pem: &[u8], algorithms: &[Algorithm]) -> Result<Self, String> {
        pem::public_key(pem, algorithms).map(KeySet::single)
    }

    /// The set of a JSON Web Key Set. Keys of other kinds than the algorithms need are left out.
    ///
    /// # Errors
    /// It is too large, no key set, or has no key for one of the algorithms.
    pub(crate) fn jwks(json: &[u8], algorithms: &[Algorithm]) -> Result<Self, JwksError> {
        jwks::parse(json, algorithms)
    }
}
