//! Keys in PEM form.

use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};

use super::jwks::RSA_BYTES_MIN;
use super::key_set::VerifyingKey;
use crate::digest::Digest;

/// A public key for the algorithms, which must all be of one family.
pub(super) fn public_key(pem: &[u8], algorithms: &[Algorithm]) -> Result<VerifyingKey, String> {
    let text = std::str::from_utf8(pem).map_err(|_| ALLOWED)?;
    if ![
        "-----BEGIN PUBLIC KEY-----",
        "-----BEGIN RSA PUBLIC KEY-----",
    ]
    .iter()
    .any(|begin| text.contains(begin))
    {
        return Err(ALLOWED.into());
    }
    let family = one_family(algorithms)?;
    let key = match family {
        AlgorithmFamily::Rsa => DecodingKey::from_rsa_pem(pem),
        AlgorithmFamily::Ec => DecodingKey::from_ec_pem(pem),
        AlgorithmFamily::Ed => DecodingKey::from_ed_pem(pem),
        AlgorithmFamily::Hmac => {
            return Err("can't be used with HS algorithms, whose key is a secret".into());
        }
    };
    let key = key.map_err(|_| format!("holds no public key for {}", names(algorithms)))?;
    let DecodingKeyKind::SecretOrDer(bytes) = key.kind() else {
        return Err(ALLOWED.into());
    };
    let fitting: Vec<Algorithm> = algorithms
        .iter()
        .copied()
        .filter(|algorithm| match algorithm {
            Algorithm::ES256 => bytes.len() == 65,
            Algorithm::ES384 => bytes.len() == 97,
            Algorithm::EdDSA => bytes.len() == 32,
            // The modulus, and a few bytes more.
            _ => bytes.len() > RSA_BYTES_MIN,
        })
        .collect();
    if fitting.len() != algorithms.len() {
        return Err(format!(
            "holds a key that does not fit {}: an RSA key has at least 2048 bits, the curve of ES256 is P-256, of ES384 P-384",
            names(algorithms)
        ));
    }
    Ok(VerifyingKey {
        algorithms: fitting,
        source: Digest::of(pem).to_hex(),
        key,
    })
}

fn one_family(algorithms: &[Algorithm]) -> Result<AlgorithmFamily, String> {
    let family = algorithms[0].family();
    match algorithms.iter().all(|one| one.family() == family) {
        true => Ok(family),
        false => Err(format!(
            "holds one key, which can't fit all of {}",
            names(algorithms)
        )),
    }
}

fn names(algorithms: &[Algorithm]) -> String {
    let names: Vec<_> = algorithms.iter().map(|one| format!("{one:?}")).collect();
    names.join(", ")
}

const ALLOWED: &str = "must hold a public key in PEM form, BEGIN PUBLIC KEY";
