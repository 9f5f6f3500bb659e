//! JSON Web Key Sets (RFC 7517).

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::algorithms::{algorithm, check_secret, is_hmac};
use super::key_set::{KeySet, VerifyingKey};

/// Bytes of a key set; what is larger is refused.
pub const JWKS_BYTES_MAX: usize = 64 << 10;

/// Keys of a key set; one with more is refused.
pub const JWKS_KEYS_MAX: usize = 100;

/// Why a key set can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// It is larger than [`JWKS_BYTES_MAX`].
    #[error("the key set is larger than {JWKS_BYTES_MAX} bytes")]
    TooLarge,
    /// It has more than [`JWKS_KEYS_MAX`] keys.
    #[error("the key set has {0} keys, at most {JWKS_KEYS_MAX} are allowed")]
    TooMany(usize),
    /// It is no JSON object with a list `keys`.
    #[error("the key set is no JSON object with a list \"keys\"")]
    NotAKeySet,
    /// It has no key that the issuer's algorithms can use.
    #[error("the key set has no key for the algorithms of the issuer")]
    NoUsableKey,
    /// Two keys for one algorithm have the same `kid`.
    #[error("two keys of the key set have the same kid {0:?}")]
    SameKid(String),
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

/// The members of a key that matter. A private part is ignored.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    intended_use: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
}

pub(super) fn parse(json: &[u8], algorithms: &[Algorithm]) -> Result<KeySet, JwksError> {
    if json.len() > JWKS_BYTES_MAX {
        return Err(JwksError::TooLarge);
    }
    let document: Document<'_> = serde_json::from_slice(json).map_err(|_| JwksError::NotAKeySet)?;
    if document.keys.len() > JWKS_KEYS_MAX {
        return Err(JwksError::TooMany(document.keys.len()));
    }
    let mut set = KeySet {
        named: HashMap::new(),
        unnamed: Vec::new(),
    };
    for raw in document.keys {
        // A set may have keys of other kinds, and for other purposes (section 5).
        let Ok(jwk) = serde_json::from_str::<Jwk>(raw.get()) else {
            continue;
        };
        let Some(key) = key(&jwk, algorithms) else {
            continue;
        };
        let Some(kid) = jwk.kid else {
            set.unnamed.push(key);
            continue;
        };
        let same = set.named.entry(kid.into()).or_default();
        if same.iter().any(|other| other.shares_algorithm(&key)) {
            let kid = serde_json::from_str::<Jwk>(raw.get()).ok();
            let kid = kid.and_then(|jwk| jwk.kid).unwrap_or_default();
            return Err(JwksError::SameKid(kid.chars().take(100).collect()));
        }
        same.push(key);
    }
    set.named.retain(|_, keys| !keys.is_empty());
    match set.len() {
        0 => Err(JwksError::NoUsableKey),
        _ => Ok(set),
    }
}

/// The key with those of the algorithms that its type, curve and `alg` allow. `None`: there is none, or the key is broken.
fn key(jwk: &Jwk, algorithms: &[Algorithm]) -> Option<VerifyingKey> {
    if jwk.intended_use.as_deref().is_some_and(|of| of != "sig") {
        return None;
    }
    if let Some(operations) = &jwk.key_ops
        && !operations.iter().any(|one| one == "verify")
    {
        return None;
    }
    let only = match &jwk.alg {
        None => None,
        Some(name) => Some(algorithm(name)?),
    };
    let (key, fits): (DecodingKey, fn(Algorithm) -> bool) = match (&*jwk.kty, jwk.crv.as_deref()) {
        ("RSA", _) => (rsa(jwk)?, |one| one.family() == AlgorithmFamily::Rsa),
        ("EC", Some("P-256")) => (ec(jwk, 32)?, |one| one == Algorithm::ES256),
        ("EC", Some("P-384")) => (ec(jwk, 48)?, |one| one == Algorithm::ES384),
        ("OKP", Some("Ed25519")) => {
            let x = jwk.x.as_deref()?;
            let bytes = decode(x)?;
            (bytes.len() == 32).then_some(())?;
            (DecodingKey::from_ed_der(&bytes), |one| {
                one == Algorithm::EdDSA
            })
        }
        ("oct", _) => {
            let secret = decode(jwk.k.as_deref()?)?;
            // A key that names its algorithm is for that one alone.
            let own: Vec<Algorithm> = algorithms
                .iter()
                .copied()
                .filter(|one| is_hmac(*one) && only.is_none_or(|only| only == *one))
                .collect();
            check_secret(&secret, &own).ok()?;
            (DecodingKey::from_secret(&secret), is_hmac)
        }
        _ => return None,
    };
    let algorithms: Vec<Algorithm> = algorithms
        .iter()
        .copied()
        .filter(|one| fits(*one) && only.is_none_or(|only| only == *one))
        .collect();
    let parts = [&jwk.n, &jwk.e, &jwk.x, &jwk.y, &jwk.k];
    let parts: Vec<&str> = parts.map(|part| part.as_deref().unwrap_or_default()).into();
    (!algorithms.is_empty()).then(|| VerifyingKey {
        source: format!("{} {algorithms:?} {}", jwk.kty, parts.join(" ")),
        algorithms,
        key,
    })
}

fn rsa(jwk: &Jwk) -> Option<DecodingKey> {
    let (n, e) = (decode(jwk.n.as_deref()?)?, decode(jwk.e.as_deref()?)?);
    let first = n.iter().position(|byte| *byte != 0)?;
    let n = &n[first..];
    (RSA_BYTES_MIN..=RSA_BYTES_MAX)
        .contains(&n.len())
        .then_some(())?;
    (!e.is_empty() && e.len() <= 8).then_some(())?;
    Some(DecodingKey::from_rsa_raw_components(n, &e))
}

fn ec(jwk: &Jwk, bytes: usize) -> Option<DecodingKey> {
    let (x, y) = (decode(jwk.x.as_deref()?)?, decode(jwk.y.as_deref()?)?);
    (x.len() == bytes && y.len() == bytes).then_some(())?;
    let mut point = vec![4];
    point.extend_from_slice(&x);
    point.extend_from_slice(&y);
    Some(DecodingKey::from_ec_der(&point))
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Bytes of the modulus of an RSA key: 2048 bits (RFC 7518, section 3.3).
pub(super) const RSA_BYTES_MIN: usize = 256;

/// A larger modulus takes too long to use: 8192 bits.
const RSA_BYTES_MAX: usize = 1_024;
