//! Keys, and the choice of one for a token.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;

use jsonwebtoken::crypto::verify;
use jsonwebtoken::{Algorithm, DecodingKey};

use crate::digest::Digest;

/// One key and the algorithms that it may be used with.
#[derive(Clone, Debug)]
pub(crate) struct VerifyingKey {
    /// Not empty; all of the key's family.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) key: DecodingKey,
    /// What the key is made of, to see whether a fetched key is the one that is known.
    pub(super) source: String,
}

/// What a key is made of and its name, as a number: equal for the same key in two sets.
pub(crate) type KeyFingerprint = NonZeroU64;

/// All keys of an issuer.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySet {
    /// By `kid`, which is nothing but a name in this map.
    pub(super) named: HashMap<Box<str>, Vec<VerifyingKey>>,
    pub(super) unnamed: Vec<VerifyingKey>,
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

    /// Its fingerprint under its name in the set.
    pub(crate) fn fingerprint(&self, kid: Option<&str>) -> KeyFingerprint {
        fingerprint(kid, &self.source)
    }

    /// Whether an algorithm could use either key.
    pub(super) fn shares_algorithm(&self, other: &VerifyingKey) -> bool {
        self.algorithms
            .iter()
            .any(|one| other.algorithms.contains(one))
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

    /// The fingerprints of all keys.
    pub(crate) fn fingerprints(&self) -> HashSet<KeyFingerprint> {
        let parts = self.parts().into_iter();
        parts
            .map(|(kid, source)| fingerprint(kid, source))
            .collect()
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

fn fingerprint(kid: Option<&str>, source: &str) -> KeyFingerprint {
    Digest::of(serde_json::json!([kid, source]).to_string()).short()
}
