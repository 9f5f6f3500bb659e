//! The algorithms of keys.

use jsonwebtoken::{Algorithm, AlgorithmFamily};

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
pub(super) fn check_secret(secret: &[u8], algorithms: &[Algorithm]) -> Result<(), String> {
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
