//! The configuration of access: the table `[access]` of the server's configuration file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use crate::duration::parse_duration;
use crate::grants::Grants;

/// The table `[access]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct AccessConfig {
    /// Whether a stream that the caller may not read is reported as missing.
    pub conceal: bool,
    /// By how much the clocks of issuers may differ from this machine's.
    #[serde(deserialize_with = "duration")]
    pub leeway: Duration,
    /// The cookie that holds a token, for browsers whose `EventSource` sends no other. `None`: cookies are not read.
    pub cookie: Option<String>,
    /// Verified tokens that are remembered.
    pub token_cache: usize,
    /// Time after which the keys of a `jwks-url` are fetched anew.
    #[serde(deserialize_with = "duration")]
    pub jwks_refresh: Duration,
    /// Longest time that a fetch of keys may take.
    #[serde(deserialize_with = "duration")]
    pub jwks_timeout: Duration,
    /// What requests without credentials may do. `None`: nothing.
    pub anonymous: Option<AnonymousConfig>,
    /// Issuers of tokens.
    pub issuers: Vec<IssuerConfig>,
    /// API keys.
    pub api_keys: Vec<ApiKeyConfig>,
    /// Keys of signed URLs.
    pub signing_keys: Vec<SigningKeyConfig>,
    /// Client certificates.
    pub certificates: Vec<CertificateConfig>,
    /// How much callers may use. `None`: they have no quotas.
    pub quotas: Option<QuotasConfig>,
}

impl Default for AccessConfig {
    fn default() -> Self {
        AccessConfig {
            conceal: true,
            leeway: Duration::from_secs(30),
            cookie: None,
            token_cache: 4_096,
            jwks_refresh: Duration::from_secs(600),
            jwks_timeout: Duration::from_secs(5),
            anonymous: None,
            issuers: Vec::new(),
            api_keys: Vec::new(),
            signing_keys: Vec::new(),
            certificates: Vec::new(),
            quotas: None,
        }
    }
}

/// The table `[access.anonymous]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AnonymousConfig {
    /// What requests without credentials may do.
    pub grants: Grants,
}

/// An entry of `[[access.issuers]]`. Its keys come from exactly one of `keys`, `keys-file`, `jwks-url`, `secret`, `secret-file` and
/// `public-key-file`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct IssuerConfig {
    /// Its name in logs, revocations and `encke token`. `None`: the value of `issuer`.
    pub name: Option<String>,
    /// What tokens hold in their claim `iss`.
    pub issuer: String,
    /// What tokens hold in their claim `aud`: at least one of these.
    #[serde(deserialize_with = "one_or_more")]
    pub audience: Vec<String>,
    /// The algorithms that its keys may be used with.
    pub algorithms: Vec<String>,
    /// A JSON Web Key Set.
    pub keys: Option<Secret>,
    /// A file with a JSON Web Key Set.
    pub keys_file: Option<PathBuf>,
    /// Where its JSON Web Key Set is fetched.
    pub jwks_url: Option<String>,
    /// The shared secret of HMAC algorithms, as text.
    pub secret: Option<Secret>,
    /// A file with the shared secret.
    pub secret_file: Option<PathBuf>,
    /// A file with one public key in PEM form.
    pub public_key_file: Option<PathBuf>,
    /// A file with the private key in PEM form with which `encke token` signs. The server does not read it.
    pub private_key_file: Option<PathBuf>,
    /// The `kid` that `encke token` writes into tokens.
    pub kid: Option<String>,
    /// The longest time from the claim `iat` to the claim `exp`. With it, tokens must have `iat`.
    #[serde(deserialize_with = "optional_duration", default)]
    pub lifetime_max: Option<Duration>,
    /// What its tokens may do at most; and what a token may do that says nothing, unless `scopes` is set.
    pub grants: Option<Grants>,
    /// What the OAuth scopes of a token grant, if it has no claim `encke`.
    #[serde(default)]
    pub scopes: BTreeMap<String, Grants>,
}

impl IssuerConfig {
    /// Its name in logs, revocations and `encke token`.
    pub fn shown_name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.issuer)
    }
}

/// An entry of `[[access.api-keys]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ApiKeyConfig {
    /// Its name in logs and revocations.
    pub name: String,
    /// The SHA-256 digest of the key, in hexadecimal digits.
    pub sha256: String,
    /// What it may do.
    pub grants: Grants,
}

/// An entry of `[[access.signing-keys]]`, with exactly one of `secret` and `secret-file`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SigningKeyConfig {
    /// Its name: what signed URLs hold in their parameter `kid`.
    pub kid: String,
    /// The secret, as text.
    pub secret: Option<Secret>,
    /// A file with the secret.
    pub secret_file: Option<PathBuf>,
    /// What its URLs may do at most. `None`: everything except `admin`.
    pub grants: Option<Grants>,
}

/// An entry of `[[access.certificates]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CertificateConfig {
    /// The common name or an alternative name of the certificate.
    pub name: String,
    /// What its holder may do.
    pub grants: Grants,
}

/// The table `[access.quotas]`. A limit of 0 is none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct QuotasConfig {
    /// Messages that a caller may append a second.
    pub appends_per_second: u64,
    /// Messages that a caller may append at once after a pause. `None`: as many as in a second.
    pub append_burst: Option<u64>,
    /// Subscriptions and long polls that a caller may have at a time.
    pub subscribers: u64,
    /// Streams that a caller has created, and that exist.
    pub streams: u64,
    /// Bytes that these streams may store.
    pub stored_bytes: u64,
    /// Callers whose use is counted at a time.
    pub accounts_max: usize,
    /// Other limits for some callers.
    pub overrides: Vec<QuotaOverride>,
}

impl Default for QuotasConfig {
    fn default() -> Self {
        QuotasConfig {
            appends_per_second: 0,
            append_burst: None,
            subscribers: 0,
            streams: 0,
            stored_bytes: 0,
            accounts_max: 100_000,
            overrides: Vec::new(),
        }
    }
}

/// An entry of `[[access.quotas.overrides]]`. What it leaves out is as for all callers.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct QuotaOverride {
    /// The name of an issuer, a key or a certificate, or `anonymous`.
    pub name: String,
    /// The subject of tokens of the issuer. `None`: each of its subjects that has no entry of its own.
    pub subject: Option<String>,
    /// See [`QuotasConfig::appends_per_second`].
    pub appends_per_second: Option<u64>,
    /// See [`QuotasConfig::append_burst`].
    pub append_burst: Option<u64>,
    /// See [`QuotasConfig::subscribers`].
    pub subscribers: Option<u64>,
    /// See [`QuotasConfig::streams`].
    pub streams: Option<u64>,
    /// See [`QuotasConfig::stored_bytes`].
    pub stored_bytes: Option<u64>,
}

/// Text that is not shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A key of the configuration with a wrong value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} {problem}")]
pub struct AccessConfigError {
    /// The key, such as `access.issuers[0].secret`.
    pub key: String,
    /// What is wrong and what is allowed.
    pub problem: String,
}

impl AccessConfigError {
    pub(crate) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        AccessConfigError {
            key: key.into(),
            problem: problem.into(),
        }
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .and_then(|period| Duration::try_from(period).ok())
        .ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} must be a duration with its unit, such as 30s, 12h or 7d"
            ))
        })
}

fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "must be a string or a list of strings")]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }
    let given = match OneOrMore::deserialize(deserializer)? {
        OneOrMore::One(text) => vec![text],
        OneOrMore::More(texts) => texts,
    };
    match given.is_empty() || given.iter().any(String::is_empty) {
        true => Err(de::Error::custom("must not be empty")),
        false => Ok(given),
    }
}
