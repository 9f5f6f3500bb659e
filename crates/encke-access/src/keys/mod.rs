//! The keys that verify the tokens of one issuer. A key is bound to its algorithms when it is loaded, so a token can't choose what
//! its signature is checked with.

mod jwks;
mod pem;

use std::collections::HashMap;

use jsonwebtoken::crypto::verify;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};

pub use jwks::{JWKS_BYTES_MAX, JWKS_KEYS_MAX, JwksError};

/// One key and the algorithms that it may be used with.
#[derive(Clone, Debug)]
pub(crate) struct VerifyingKey {
    /// Not empty; all of the key's family.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
    /// What the key is made of, to see whether a fetched key is the one that is known.
    source: String,
}

/// All keys of an issuer.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySet {
    /// By `kid`, which is nothing but a name in this map.
    named: HashMap<Box<str>, Vec<VerifyingKey>>,
    unnamed: Vec<VerifyingKey>,
}

/// Why no key is right for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// There is no key of that `kid`, or the token names none and there are several.
    Unknown,
    /// There is a key, but not for that algorithm.
    Algorithm,
}

impl VerifyingKey {
    /// Whether the signature of a message is right. `algorithm` must be one of the key's.
    pub(crate) fn verifies(&self, message: &str, signature: &str, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
            && verify(signature, message.as_bytes(), &self.key, algorithm) == Ok(true)
    }
}

impl KeySet {
    /// The set of one key without a name.
    pub(crate) fn single(key: VerifyingKey) -> Self {
        KeySet {
            named: HashMap::new(),
            unnamed: vec![key],
        }
    }

    /// The set of one shared secret.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub(crate) fn secret(secret: &[u8], algorithms: &[Algorithm]) -> Result<Self, String> {
        check_secret(secret, algorithms)?;
        Ok(KeySet::single(VerifyingKey {
            algorithms: algorithms.to_vec(),
            key: DecodingKey::from_secret(secret),
            source: String::new(),
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

    /// The key of a token, and its name if it has one.
    pub(crate) fn find(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<(&VerifyingKey, Option<&str>), NoKey> {
        let fits = |key: &&VerifyingKey| key.algorithms.contains(&algorithm);
        let named = kid.and_then(|kid| self.named.get_key_value(kid));
        if let Some((kid, keys)) = named {
            let key = keys.iter().find(fits).ok_or(NoKey::Algorithm)?;
            return Ok((key, Some(kid)));
        }
        // A token that names no key, or an issuer whose only key has no name.
        if kid.is_some() && !(self.named.is_empty() && self.unnamed.len() == 1) {
            return Err(NoKey::Unknown);
        }
        let named = self.named.iter().flat_map(|(kid, keys)| {
            let kid: Option<&str> = Some(kid);
            keys.iter().map(move |key| (key, kid))
        });
        let mut all = named.chain(self.unnamed.iter().map(|key| (key, None)));
        let all = all.by_ref().filter(|(key, _)| fits(key));
        let mut found = None;
        for key in all {
            if found.replace(key).is_some() {
                return Err(NoKey::Unknown);
            }
        }
        found.ok_or(NoKey::Algorithm)
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        self.named.values().map(Vec::len).sum::<usize>() + self.unnamed.len()
    }

    /// Whether both sets have the same keys.
    pub(crate) fn is_same(&self, other: &KeySet) -> bool {
        self.parts() == other.parts()
    }

    fn parts(&self) -> Vec<(Option<&str>, &str)> {
        let named = self.named.iter().flat_map(|(kid, keys)| {
            let kid: Option<&str> = Some(kid);
            keys.iter().map(move |key| (kid, &*key.source))
        });
        let unnamed = self.unnamed.iter().map(|key| (None, &*key.source));
        let mut parts: Vec<_> = named.chain(unnamed).collect();
        parts.sort_unstable();
        parts
    }
}

/// Reads the names of algorithms. All must be of the same kind: shared secrets, or public keys.
///
/// # Errors
/// What is wrong, and what is allowed.
pub(crate) fn algorithms(names: &[String]) -> Result<Vec<Algorithm>, String> {
    let allowed = "must list some of HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 and EdDSA";
    if names.is_empty() {
        return Err(allowed.into());
    }
    let mut algorithms = Vec::new();
    for name in names {
        let algorithm = algorithm(name).ok_or_else(|| format!("{allowed}, not {name:?}"))?;
        if !algorithms.contains(&algorithm) {
            algorithms.push(algorithm);
        }
    }
    let secrets = algorithms.iter().filter(|one| is_hmac(**one)).count();
    if secrets > 0 && secrets < algorithms.len() {
        return Err(
            "must not mix HS algorithms, whose key is a secret, with algorithms of public keys"
                .into(),
        );
    }
    Ok(algorithms)
}

/// The algorithm of a name; RFC 9864 names EdDSA by its curve.
pub(crate) fn algorithm(name: &str) -> Option<Algorithm> {
    match name {
        "Ed25519" => Some(Algorithm::EdDSA),
        name => name.parse().ok(),
    }
}

pub(crate) fn is_hmac(algorithm: Algorithm) -> bool {
    algorithm.family() == AlgorithmFamily::Hmac
}

/// Refuses a secret that is shorter than the digest of its algorithms (RFC 7518, section 3.2).
fn check_secret(secret: &[u8], algorithms: &[Algorithm]) -> Result<(), String> {
    let least = algorithms.iter().map(|algorithm| match algorithm {
        Algorithm::HS384 => 48,
        Algorithm::HS512 => 64,
        _ => 32,
    });
    let least = least.max().unwrap_or(32);
    match secret.len() {
        bytes if bytes < least => Err(format!(
            "has {bytes} bytes; its algorithms need a secret of at least {least} random bytes, such as of openssl rand -hex {least}"
        )),
        _ => Ok(()),
    }
}
