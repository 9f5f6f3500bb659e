//! Entries of the configuration, checked.

use std::collections::HashSet;

use crate::caller::{ANONYMOUS, Authority, CallerKind};
use crate::config::{AccessConfigError, ApiKeyConfig, SigningKeyConfig};
use crate::digest::Digest;
use crate::files::KeyFiles;
use crate::grants::Grants;

/// Names by which revocations find keys.
#[derive(Default)]
pub(crate) struct Names(HashSet<String>);

impl Names {
    pub(crate) fn all(&self) -> &HashSet<String> {
        &self.0
    }

    pub(crate) fn add(
        &mut self,
        key: &str,
        field: &str,
        name: &str,
    ) -> Result<(), AccessConfigError> {
        let key = format!("{key}.{field}");
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(AccessConfigError::new(
                key,
                "must be a name without control characters",
            ));
        }
        if name == ANONYMOUS || !self.0.insert(name.to_owned()) {
            let problem = format!(
                "has the value {name:?}, which is taken; names of issuers, keys and certificates must differ"
            );
            return Err(AccessConfigError::new(key, problem));
        }
        Ok(())
    }
}

/// The digest of an API key, and what it may do.
pub(crate) fn api_key(
    config: &ApiKeyConfig,
    key: &str,
) -> Result<(Digest, Authority), AccessConfigError> {
    let digest = Digest::from_hex(&config.sha256).ok_or_else(|| {
        let problem = "must be the SHA-256 digest of the key in 64 hexadecimal digits; encke token new-key prints both";
        AccessConfigError::new(format!("{key}.sha256"), problem)
    })?;
    let authority = Authority::new(CallerKind::ApiKey, &config.name, config.grants.clone());
    Ok((digest, authority.with_key(digest.short())))
}

/// The secret of a key that signs URLs, and what they may do.
pub(crate) fn signing_key(
    config: &SigningKeyConfig,
    key: &str,
    files: &KeyFiles<'_>,
) -> Result<(Vec<u8>, Authority), AccessConfigError> {
    let secret = match (&config.secret, &config.secret_file) {
        (Some(secret), None) => secret.expose().as_bytes().to_vec(),
        (None, Some(path)) => files.secret(&format!("{key}.secret-file"), path)?,
        _ => {
            return Err(AccessConfigError::new(
                key,
                "needs either secret or secret-file",
            ));
        }
    };
    if secret.len() < SIGNING_SECRET_BYTES_MIN {
        let problem = format!(
            "has a secret of {} bytes, at least {SIGNING_SECRET_BYTES_MIN} random bytes are needed, such as of openssl rand -hex 32",
            secret.len()
        );
        return Err(AccessConfigError::new(key, problem));
    }
    let grants = config.grants.clone();
    let grants = grants.unwrap_or_else(Grants::everything_but_admin);
    let authority = Authority::new(CallerKind::SignedUrl, &config.kid, grants);
    let fingerprint = Digest::of(&secret).short();
    Ok((secret, authority.with_key(fingerprint)))
}

pub(crate) fn is_cookie_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !name.is_empty() && name.bytes().all(is_allowed)
}

/// Bytes of the secret of a signing key.
const SIGNING_SECRET_BYTES_MIN: usize = 32;
