//! One issuer of tokens: its keys, and what its tokens grant.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use encke_clock::{WallSeconds, WallTime};
use jsonwebtoken::Algorithm;
use parking_lot::RwLock;

use crate::authorities::Authorities;
use crate::caller::{Authority, Caller, CallerKind, GrantSource, NEVER, SUBJECT};
use crate::config::{AccessConfigError, IssuerConfig, Secret};
use crate::denied::AccessDenied;
use crate::digest::Digest;
use crate::files::KeyFiles;
use crate::grants::{Grants, GrantsClaim};
use crate::keys::{self, JwksError, KeyFingerprint, KeySet, NoKey};
use crate::token::{Claims, DecodedToken, Header, wrong};

#[derive(Debug)]
pub(crate) struct Issuer {
    /// The version of the configuration that it is of.
    pub(crate) version: u64,
    /// What accepts its tokens has not become stricter since this version. Whether one of before would still be accepted, only the
    /// token can say.
    pub(crate) accepts_since: u64,
    pub(crate) name: Arc<str>,
    /// The claim `iss`.
    pub(crate) issuer: String,
    audience: Vec<String>,
    algorithms: Vec<Algorithm>,
    /// `None`: they were never fetched.
    keys: RwLock<Option<Arc<KeySet>>>,
    /// The fingerprints of these keys.
    listed: RwLock<HashSet<KeyFingerprint>>,
    /// Where its keys are fetched, if they are.
    pub(crate) url: Option<String>,
    pub(crate) lifetime_s_max: Option<u64>,
    pub(crate) bound: Option<Arc<Grants>>,
    scopes: BTreeMap<String, Grants>,
}

/// A key that a signature was checked with.
#[derive(Debug)]
pub(crate) struct UsedKey {
    /// Its name in the issuer's set, if it has one.
    pub(crate) kid: Option<Box<str>>,
    /// The set.
    pub(crate) keys: Arc<KeySet>,
    /// What [`Issuer::has_withdrawn`] knows it by.
    pub(crate) fingerprint: KeyFingerprint,
}

/// Where the keys of an issuer come from.
enum KeySource<'c> {
    Keys(&'c Secret),
    KeysFile(&'c Path),
    JwksUrl(&'c str),
    Secret(&'c Secret),
    SecretFile(&'c Path),
    PublicKeyFile(&'c Path),
}

impl Issuer {
    pub(crate) fn new(
        config: &IssuerConfig,
        key: &str,
        files: &KeyFiles<'_>,
        version: u64,
    ) -> Result<Self, AccessConfigError> {
        let wrong =
            |name: &str, problem: String| AccessConfigError::new(format!("{key}.{name}"), problem);
        if config.issuer.is_empty() {
            return Err(wrong("issuer", "must not be empty".into()));
        }
        let algorithms =
            keys::algorithms(&config.algorithms).map_err(|problem| wrong("algorithms", problem))?;
        let source = KeySource::of(config, key)?;
        let name = source.name();
        if let Some(problem) = source.misfit(&algorithms) {
            return Err(wrong(name, problem.into()));
        }
        let of_jwks = |json: &[u8]| {
            KeySet::jwks(json, &algorithms)
                .map_err(|error| wrong(name, format!("is wrong: {error}")))
        };
        let at = format!("{key}.{name}");
        let keys = match source {
            KeySource::Keys(json) => Some(of_jwks(json.expose().as_bytes())?),
            KeySource::KeysFile(path) => Some(of_jwks(&files.read(&at, path)?)?),
            KeySource::JwksUrl(url) => {
                check_url(url).map_err(|problem| wrong(name, problem))?;
                None
            }
            KeySource::Secret(secret) => {
                let set = KeySet::secret(secret.expose().as_bytes(), &algorithms);
                Some(set.map_err(|problem| wrong(name, problem))?)
            }
            KeySource::SecretFile(path) => {
                let set = KeySet::secret(&files.secret(&at, path)?, &algorithms);
                Some(set.map_err(|problem| wrong(name, problem))?)
            }
            KeySource::PublicKeyFile(path) => {
                let set = KeySet::public_key(&files.read(&at, path)?, &algorithms);
                Some(set.map_err(|problem| wrong(name, problem))?)
            }
        };
        let listed = keys.as_ref().map(KeySet::fingerprints);
        Ok(Issuer {
            version,
            accepts_since: version,
            name: config
                .name
                .as_ref()
                .unwrap_or(&config.issuer)
                .as_str()
                .into(),
            issuer: config.issuer.clone(),
            audience: config.audience.clone(),
            algorithms,
            keys: RwLock::new(keys.map(Arc::new)),
            listed: RwLock::new(listed.unwrap_or_default()),
            url: config.jwks_url.clone(),
            lifetime_s_max: config.lifetime_max.map(|period| period.as_secs()),
            bound: config.grants.clone().map(Arc::new),
            scopes: config.scopes.clone(),
        })
    }

    /// This issuer behind one of the same name in the configuration before: that one if nothing differs.
    pub(crate) fn after(self, before: &Arc<Issuer>) -> Arc<Issuer> {
        let is_strict = |list: &[String]| list.iter().any(|one| !self.audience.contains(one));
        let has_same_keys = match (&self.url, &before.url) {
            (Some(url), Some(url_before)) => url == url_before,
            (None, None) => {
                let (keys, keys_before) = (self.keys.read(), before.keys.read());
                let both = keys.as_ref().zip(keys_before.as_ref());
                both.is_some_and(|(keys, before)| keys.is_same(before))
            }
            _ => false,
        };
        let has_same_algorithms = self.algorithms == before.algorithms;
        let is_same = self.issuer == before.issuer
            && self.audience == before.audience
            && has_same_algorithms
            && has_same_keys
            && self.lifetime_s_max == before.lifetime_s_max
            && self.bound == before.bound
            && self.scopes == before.scopes;
        if is_same {
            return Arc::clone(before);
        }
        let lifetime = |issuer: &Issuer| issuer.lifetime_s_max.unwrap_or(u64::MAX);
        let accepts_all = self.issuer == before.issuer
            && !is_strict(&before.audience)
            && has_same_algorithms
            && lifetime(&self) >= lifetime(before);
        let is_fetched = self.url.is_some() && has_same_keys && has_same_algorithms;
        let (keys, listed) = match is_fetched {
            // Until the next fetch.
            true => {
                let keys = before.keys.read();
                (keys.clone(), before.listed.read().clone())
            }
            false => (self.keys.into_inner(), self.listed.into_inner()),
        };
        Arc::new(Issuer {
            accepts_since: match accepts_all {
                true => before.accepts_since,
                false => self.version,
            },
            keys: RwLock::new(keys),
            listed: RwLock::new(listed),
            ..self
        })
    }

    /// Takes keys that were fetched. Whether they differ from those before.
    pub(crate) fn set_keys(&self, json: &[u8]) -> Result<bool, JwksError> {
        let set = KeySet::jwks(json, &self.algorithms)?;
        let mut keys = self.keys.write();
        if keys.as_ref().is_some_and(|keys| keys.is_same(&set)) {
            return Ok(false);
        }
        *self.listed.write() = set.fingerprints();
        *keys = Some(Arc::new(set));
        Ok(true)
    }

    /// Whether a key that was listed once is not listed any more: in the configuration, or by the last fetch that went well. While no
    /// fetch has, nothing is known.
    pub(crate) fn has_withdrawn(&self, key: KeyFingerprint) -> bool {
        self.keys.read().is_some() && !self.listed.read().contains(&key)
    }

    /// What scopes grant. Those that mean nothing are left out.
    pub(crate) fn grants_of_scopes(&self, scopes: &[String]) -> Grants {
        let mut grants = Grants::default();
        for granted in scopes.iter().filter_map(|scope| self.scopes.get(scope)) {
            grants.extend(granted);
        }
        grants
    }

    /// Whether a token without the claim `encke` grants what its scopes do.
    pub(crate) fn has_scopes(&self) -> bool {
        !self.scopes.is_empty()
    }

    /// Number of keys.
    pub(crate) fn keys_len(&self) -> usize {
        self.keys.read().as_ref().map_or(0, |keys| keys.len())
    }

    /// Whether these are still the issuer's keys.
    pub(crate) fn has_keys(&self, keys: &Arc<KeySet>) -> bool {
        let own = self.keys.read();
        own.as_ref().is_some_and(|own| Arc::ptr_eq(own, keys))
    }

    /// Checks the signature of a token.
    ///
    /// # Errors
    /// [`AccessDenied::UnknownKey`] and [`AccessDenied::KeysUnavailable`] may be mended by a fetch of keys.
    pub(crate) fn verify(
        &self,
        token: &DecodedToken<'_>,
        header: &Header,
    ) -> Result<UsedKey, AccessDenied> {
        let algorithm = keys::algorithm(&header.algorithm)
            .filter(|algorithm| self.algorithms.contains(algorithm))
            .ok_or(AccessDenied::Algorithm)?;
        let keys = self.keys.read().clone();
        let keys = keys.ok_or(AccessDenied::KeysUnavailable { retry_s: 1 })?;
        let (key, kid) =
            keys.find(header.kid.as_deref(), algorithm)
                .map_err(|no_key| match no_key {
                    NoKey::Unknown => AccessDenied::UnknownKey,
                    NoKey::Algorithm => AccessDenied::Algorithm,
                })?;
        if !key.verifies(token.message, token.signature, algorithm) {
            return Err(AccessDenied::Signature);
        }
        Ok(UsedKey {
            kid: kid.map(Into::into),
            fingerprint: key.fingerprint(kid),
            keys: Arc::clone(&keys),
        })
    }

    /// Whether a token says that it has expired.
    pub(crate) fn has_expired(claims: &Claims<'_>, now: WallTime, leeway_s: u64) -> bool {
        let expires = claims.time("exp").ok().flatten();
        expires.is_some_and(|expires| now.as_ms() / 1_000 >= expires.saturating_add(leeway_s))
    }

    /// The caller of a token whose signature is right, if its claims allow it now.
    pub(crate) fn caller(
        &self,
        claims: &Claims<'_>,
        used: &UsedKey,
        authorities: &Authorities,
        now: WallTime,
        leeway_s: u64,
    ) -> Result<Caller, AccessDenied> {
        let now_s = now.as_ms() / 1_000;
        let expires = claims
            .time("exp")?
            .ok_or_else(|| wrong("exp", "is missing"))?;
        let issued = claims.time("iat")?;
        let ends_at = expires.saturating_add(leeway_s);
        if now_s >= ends_at {
            return Err(AccessDenied::Expired("token"));
        }
        let begins = claims.time("nbf")?.max(issued).unwrap_or(0);
        if begins > now_s.saturating_add(leeway_s) {
            return Err(AccessDenied::NotYetValid);
        }
        if !claims.is_for(&self.audience)? {
            return Err(AccessDenied::Audience);
        }
        if let Some(most) = self.lifetime_s_max {
            let issued = issued.ok_or_else(|| {
                wrong(
                    "iat",
                    "is missing, which the lifetime-max of its issuer needs",
                )
            })?;
            if expires.saturating_sub(issued) > most {
                return Err(AccessDenied::Lifetime);
            }
        }
        let authority = self.authority(claims, used, authorities)?;
        let values = authority.claims.iter().map(|name| claims.text_of_any(name));
        let values: Vec<_> = values.map(|value| value.map(Into::into)).collect();
        Ok(Caller {
            subject: claims.text(SUBJECT)?.map(Into::into),
            claims: (!values.is_empty()).then(|| Box::new(values)),
            token_id: claims.text("jti")?.map(|id| Digest::of(id).short()),
            ends_at: seconds(ends_at).min(LATEST),
            issued_at: seconds(issued.unwrap_or(0)),
            authority,
        })
    }

    /// What a token grants: its claim `encke`, or else its scopes, or else what the configuration grants.
    fn authority(
        &self,
        claims: &Claims<'_>,
        used: &UsedKey,
        authorities: &Authorities,
    ) -> Result<Arc<Authority>, AccessDenied> {
        let make = |source: GrantSource, grants: Grants| Authority {
            source,
            version: self.version,
            ..Authority::new(CallerKind::Token, &self.name, grants)
                .with_key(used.fingerprint)
                .with_bound(used.kid.as_deref(), self.bound.clone())
        };
        // Another key of the same name has another authority, and so has the issuer in another version of the configuration.
        let kid = used.kid.as_deref().unwrap_or_default();
        let kid = &*format!("{}/{}/{kid}", self.version, used.fingerprint);
        if let Some(raw) = claims.raw(GRANTS_CLAIM) {
            return authorities.get([&self.name, kid, "claim", raw], || {
                let claim = serde_json::from_str::<GrantsClaim>(raw);
                let claim =
                    claim.map_err(|error| wrong(GRANTS_CLAIM, format!("is wrong: {error}")));
                claim.map(|claim| make(GrantSource::Claim, claim.0))
            });
        }
        if !self.has_scopes() {
            return authorities.get([&self.name, kid, "default", ""], || {
                let grants = self.bound.as_deref().cloned().unwrap_or_default();
                Ok(make(GrantSource::Configured, grants))
            });
        }
        let mut scopes = claims.scopes()?.unwrap_or_default();
        scopes.retain(|scope| self.scopes.contains_key(scope));
        authorities.get([&self.name, kid, "scopes", &scopes.join(" ")], || {
            let grants = self.grants_of_scopes(&scopes);
            Ok(make(GrantSource::Scopes(scopes.clone().into()), grants))
        })
    }
}

impl<'c> KeySource<'c> {
    fn of(config: &'c IssuerConfig, key: &str) -> Result<Self, AccessConfigError> {
        let given = [
            config.keys.as_ref().map(KeySource::Keys),
            config.keys_file.as_deref().map(KeySource::KeysFile),
            config.jwks_url.as_deref().map(KeySource::JwksUrl),
            config.secret.as_ref().map(KeySource::Secret),
            config.secret_file.as_deref().map(KeySource::SecretFile),
            config
                .public_key_file
                .as_deref()
                .map(KeySource::PublicKeyFile),
        ];
        let mut given = given.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => Err(AccessConfigError::new(
                format!("{key}.{}", other.name()),
                format!(
                    "can't be set together with {}: an issuer has one source of keys",
                    one.name()
                ),
            )),
            (None, _) => Err(AccessConfigError::new(
                key,
                "needs keys, keys-file, jwks-url, secret, secret-file or public-key-file",
            )),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            KeySource::Keys(_) => "keys",
            KeySource::KeysFile(_) => "keys-file",
            KeySource::JwksUrl(_) => "jwks-url",
            KeySource::Secret(_) => "secret",
            KeySource::SecretFile(_) => "secret-file",
            KeySource::PublicKeyFile(_) => "public-key-file",
        }
    }

    /// Why keys of this kind can't be used with the algorithms.
    fn misfit(&self, algorithms: &[Algorithm]) -> Option<&'static str> {
        let is_hmac = algorithms.iter().any(|one| keys::is_hmac(*one));
        match (self, is_hmac) {
            (KeySource::Secret(_) | KeySource::SecretFile(_), false) => Some(
                "is for HS algorithms only; other algorithms need keys, keys-file, jwks-url or public-key-file",
            ),
            (KeySource::JwksUrl(_) | KeySource::PublicKeyFile(_), true) => Some(
                "holds public keys, which HS algorithms must not be used with; they need secret or secret-file",
            ),
            _ => None,
        }
    }
}

/// Allows https, and http to this machine. Nothing of a token ever becomes part of the URL, so braces are a mistake.
fn check_url(url: &str) -> Result<(), String> {
    let allowed = "must be a URL such as https://issuer.example/.well-known/jwks.json, or http:// with the host localhost, \
                   127.0.0.1 or [::1]; nothing in it is replaced";
    let is_plain =
        |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}' | '"' | '<' | '>' | '\\');
    if !url.chars().all(is_plain) {
        return Err(allowed.into());
    }
    let (is_https, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => return Err(allowed.into()),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_loopback = host == "localhost"
        || host == "::1"
        || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
    match !host.is_empty() && !authority.contains('@') && (is_https || is_loopback) {
        true => Ok(()),
        false => Err(allowed.into()),
    }
}

/// A time in a claim. A later one than there is in four bytes is the last one.
fn seconds(since_1970: u64) -> WallSeconds {
    WallSeconds::from_s(u32::try_from(since_1970).unwrap_or(u32::MAX))
}

/// The last end that a token can have.
const LATEST: WallSeconds = WallSeconds::from_s(NEVER.as_s() - 1);

/// The claim that holds grants.
const GRANTS_CLAIM: &str = "encke";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_fetched_by_https_or_from_this_machine() {
        for url in [
            "https://issuer.example/jwks.json",
            "https://issuer.example:8443/jwks?x=1",
            "https://[2001:db8::1]/jwks",
            "http://localhost:8080/jwks",
            "http://127.0.0.1/jwks",
            "http://127.9.9.9:1/jwks",
            "http://[::1]:8080/jwks",
        ] {
            assert_eq!(check_url(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "issuer.example/jwks",
            "ftp://issuer.example/jwks",
            "http://issuer.example/jwks",
            "http://127.0.0.1.issuer.example/jwks",
            "http://localhost.issuer.example/",
            "http://localhost@issuer.example/",
            "https://user:password@issuer.example/",
            "https://issuer.example/{iss}/jwks",
            "https://issuer.example/\r\nx",
            "https:///jwks",
            "file:///etc/passwd",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }
}
