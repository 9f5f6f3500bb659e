//! Makes tokens, for the issuers whose secret or private key this machine has.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use jsonwebtoken::{Algorithm, AlgorithmFamily, EncodingKey, Header, encode};
use serde::Serialize;

use crate::config::{AccessConfigError, IssuerConfig};
use crate::files::KeyFiles;
use crate::keys;
use crate::operation::Operation;
use crate::pattern::PathPattern;

/// Signs tokens of one issuer.
#[derive(Debug)]
pub struct Mint {
    header: Header,
    key: EncodingKey,
    issuer: String,
    audience: String,
}

/// What a token should say.
#[derive(Clone, Debug, Default)]
pub struct NewToken {
    /// The claim `sub`.
    pub subject: Option<String>,
    /// The claim `jti`.
    pub id: Option<String>,
    /// The claim `encke`. `None`: the token grants what the configuration grants to its issuer.
    pub grants: Option<Vec<(Operation, PathPattern)>>,
    /// Other claims, of text.
    pub claims: BTreeMap<String, String>,
    /// The claim `iat`, in seconds since 1970.
    pub issued_at_s: u64,
    /// The claim `exp`, in seconds since 1970.
    pub expires_s: u64,
}

#[derive(Serialize)]
struct NewClaims<'a> {
    iss: &'a str,
    aud: &'a str,
    iat: u64,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jti: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encke: Option<BTreeMap<&'static str, Vec<String>>>,
    #[serde(flatten)]
    others: &'a BTreeMap<String, String>,
}

/// Why a token can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    /// A claim that has an argument of its own.
    #[error("the claim {0} can't be set by name")]
    Reserved(String),
    /// The key does not sign.
    #[error("the key can't sign: {0}")]
    Key(String),
}

impl Mint {
    /// Reads the key of an issuer: `private-key-file`, or else `secret` or `secret-file`. `key` names the issuer's entry in messages.
    ///
    /// # Errors
    /// The issuer has neither, or it can't be used.
    pub fn new(
        config: &IssuerConfig,
        key: &str,
        read: &dyn Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Self, AccessConfigError> {
        let files = KeyFiles(read);
        let wrong = |name: &str, problem| AccessConfigError::new(format!("{key}.{name}"), problem);
        let algorithms =
            keys::algorithms(&config.algorithms).map_err(|problem| wrong("algorithms", problem))?;
        let (name, signing) = match (
            &config.private_key_file,
            &config.secret,
            &config.secret_file,
        ) {
            (Some(path), _, _) => {
                let name = "private-key-file";
                let pem = files.read(&format!("{key}.{name}"), path)?;
                (name, private_key(&pem, &algorithms))
            }
            (None, Some(secret), _) => {
                let secret = secret.expose().as_bytes();
                ("secret", Ok(EncodingKey::from_secret(secret)))
            }
            (None, None, Some(path)) => {
                let secret = files.secret(&format!("{key}.secret-file"), path)?;
                ("secret-file", Ok(EncodingKey::from_secret(&secret)))
            }
            (None, None, None) => {
                let problem = "has no private-key-file, secret or secret-file, so its tokens can be verified only";
                return Err(AccessConfigError::new(key, problem));
            }
        };
        let mut header = Header::new(algorithms[0]);
        header.kid.clone_from(&config.kid);
        Ok(Mint {
            header,
            key: signing.map_err(|problem| wrong(name, problem))?,
            issuer: config.issuer.clone(),
            audience: config.audience.first().cloned().unwrap_or_default(),
        })
    }

    /// Makes a token.
    ///
    /// # Errors
    /// A claim is reserved, or the key does not sign.
    pub fn token(&self, new: &NewToken) -> Result<String, MintError> {
        let reserved = ["iss", "aud", "iat", "nbf", "exp", "sub", "jti", "encke"];
        if let Some(name) = new
            .claims
            .keys()
            .find(|name| reserved.contains(&name.as_str()))
        {
            return Err(MintError::Reserved(name.clone()));
        }
        let grants = new.grants.as_ref().map(|grants| {
            let mut claim: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
            for (operation, pattern) in grants {
                let paths = claim.entry(operation.name()).or_default();
                paths.push(pattern.to_string());
            }
            claim
        });
        let claims = NewClaims {
            iss: &self.issuer,
            aud: &self.audience,
            iat: new.issued_at_s,
            exp: new.expires_s,
            sub: new.subject.as_deref(),
            jti: new.id.as_deref(),
            encke: grants,
            others: &new.claims,
        };
        encode(&self.header, &claims, &self.key).map_err(|error| MintError::Key(error.to_string()))
    }
}

/// A private key for the first of the algorithms.
fn private_key(pem: &[u8], algorithms: &[Algorithm]) -> Result<EncodingKey, String> {
    let key = match algorithms[0].family() {
        AlgorithmFamily::Rsa => EncodingKey::from_rsa_pem(pem),
        AlgorithmFamily::Ec => EncodingKey::from_ec_pem(pem),
        AlgorithmFamily::Ed => EncodingKey::from_ed_pem(pem),
        AlgorithmFamily::Hmac => {
            return Err("can't be used with HS algorithms, whose key is a secret".into());
        }
    };
    key.map_err(|_| {
        format!(
            "holds no private key for {:?} in the form BEGIN PRIVATE KEY (PKCS #8)",
            algorithms[0]
        )
    })
}

/// A new API key, and the digest of it that the configuration holds. The bytes must be random.
pub fn api_key(random: [u8; 32]) -> (String, String) {
    use base64::Engine;
    let key = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random);
    let key = format!("encke_{key}");
    let digest = crate::digest::Digest::of(&key).to_hex();
    (key, digest)
}
