//! The configured policy as a whole: from a request's credentials to its caller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use encke_clock::{Now, WallTime};
use parking_lot::RwLock;

use crate::authorities::Authorities;
use crate::cache::{TokenCache, TokenCacheCounts};
use crate::caller::{ANONYMOUS, Authority, Caller, CallerKind, CallerTag, identity};
use crate::config::{AccessConfig, AccessConfigError};
use crate::credentials::{ClientCertificate, Credentials, Presented};
use crate::denied::{AccessDenied, DenialCounts, TOKEN_BYTES_MAX};
use crate::digest::{self, Digest};
use crate::entries::{Names, api_key, is_cookie_name, signing_key};
use crate::files::KeyFiles;
use crate::issuer::Issuer;
use crate::key_requests::{Asked, KeyRequests};
use crate::keys::JwksError;
use crate::revocation::{Revocation, RevocationTarget, Revocations, TooManyRevocations};
use crate::signed_url::{SignError, SignedUrl, SigningKey, UrlToSign};
use crate::token::{DecodedToken, Header};

/// Who may do what, as configured. All methods take `&self` and may be called by many threads.
pub struct Access {
    conceal: bool,
    leeway_s: u64,
    cookie: Option<String>,
    anonymous: Option<Arc<Caller>>,
    issuers: Vec<Issuer>,
    /// The issuers whose keys are fetched.
    fetched: Vec<usize>,
    api_keys: Vec<(Digest, Arc<Caller>)>,
    signing_keys: Vec<SigningKey>,
    certificates: Vec<(String, Arc<Caller>)>,
    authorities: Authorities,
    tokens: TokenCache,
    revocations: Revocations,
    key_requests: KeyRequests,
    key_listener: RwLock<Option<KeyListener>>,
    denials: DenialCounts,
    fetches: [AtomicU64; 2],
    /// How often fetched keys have differed from those before.
    key_changes: AtomicU64,
}

/// What runs when a fetch of keys has ended: the name of the issuer, and whether its keys are good now.
type KeyListener = Box<dyn Fn(&str, bool) + Send + Sync>;

/// A subject is known by its issuer, and that is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIssuer {
    /// The names of the issuers.
    pub names: Vec<String>,
}

/// A request's caller.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The caller.
    pub caller: Arc<Caller>,
    /// It was resolved from a cookie, which browsers send by themselves: writes must check `Origin`.
    pub by_cookie: bool,
    /// What is signed, if it was resolved from a signed URL: that is good for the request that was signed, and for nothing else that the
    /// caller may do.
    pub signed_url: Option<SignedUrl>,
}

/// Where the keys of an issuer are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLocation<'a> {
    /// The name of the issuer.
    pub issuer: &'a str,
    /// The URL exactly as configured. No part of a token ever goes into it.
    pub url: &'a str,
}

/// Counters and sizes, for metrics.
#[derive(Clone, Debug)]
pub struct AccessCounts {
    /// The cache of verified tokens.
    pub tokens: TokenCacheCounts,
    /// Refused requests by [`AccessDenied::reason`].
    pub denied: Vec<(&'static str, u64)>,
    /// Fetches of keys that ended well.
    pub key_fetches: u64,
    /// Fetches of keys that failed.
    pub key_fetches_failed: u64,
    /// Keys of all issuers.
    pub keys: usize,
    /// Keys that tokens have named and that are not known.
    pub unknown_keys: usize,
    /// Revocations in memory.
    pub revocations: usize,
    /// Different grants of tokens in memory.
    pub shared_grants: usize,
}

impl Access {
    /// The policy of a configuration. `read` reads the files that it names.
    ///
    /// # Errors
    /// A key of the configuration has a wrong value, or a file can't be read.
    pub fn from_config(
        config: &AccessConfig,
        read: &dyn Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Self, AccessConfigError> {
        let files = KeyFiles(read);
        let mut names = Names::default();
        let mut issuers = Vec::new();
        for (at, issuer) in config.issuers.iter().enumerate() {
            let key = format!("access.issuers[{at}]");
            let issuer = Issuer::new(issuer, &key, &files)?;
            names.add(&key, "name", &issuer.name)?;
            if issuers
                .iter()
                .any(|other: &Issuer| other.issuer == issuer.issuer)
            {
                let problem = "is the issuer of another entry; one entry can have several keys and algorithms";
                return Err(AccessConfigError::new(format!("{key}.issuer"), problem));
            }
            issuers.push(issuer);
        }
        let mut api_keys = Vec::new();
        for (at, one) in config.api_keys.iter().enumerate() {
            let key = format!("access.api-keys[{at}]");
            names.add(&key, "name", &one.name)?;
            api_keys.push(api_key(one, &key)?);
        }
        if api_keys.len() > API_KEYS_MAX {
            let problem = format!(
                "has {} entries, at most {API_KEYS_MAX} are allowed",
                api_keys.len()
            );
            return Err(AccessConfigError::new("access.api-keys", problem));
        }
        let mut signing_keys = Vec::new();
        for (at, one) in config.signing_keys.iter().enumerate() {
            let key = format!("access.signing-keys[{at}]");
            names.add(&key, "kid", &one.kid)?;
            signing_keys.push(signing_key(one, &key, &files)?);
        }
        let mut certificates = Vec::new();
        for (at, one) in config.certificates.iter().enumerate() {
            names.add(&format!("access.certificates[{at}]"), "name", &one.name)?;
            let authority = Authority::new(CallerKind::Certificate, &one.name, one.grants.clone());
            certificates.push((one.name.clone(), authority.caller()));
        }
        let cookie = config.cookie.clone();
        if cookie.as_deref().is_some_and(|name| !is_cookie_name(name)) {
            let problem = "must be the name of a cookie: letters, digits, - and _";
            return Err(AccessConfigError::new("access.cookie", problem));
        }
        let anonymous = config.anonymous.as_ref().map(|anonymous| {
            Authority::new(CallerKind::Anonymous, ANONYMOUS, anonymous.grants.clone()).caller()
        });
        let fetched: Vec<usize> = (0..issuers.len())
            .filter(|at| issuers[*at].url.is_some())
            .collect();
        Ok(Access {
            conceal: config.conceal,
            leeway_s: config.leeway.as_secs(),
            cookie,
            anonymous,
            issuers,
            key_requests: KeyRequests::new(fetched.len()),
            fetched,
            api_keys,
            signing_keys,
            certificates,
            authorities: Authorities::default(),
            tokens: TokenCache::new(config.token_cache),
            revocations: Revocations::new(Duration::from_secs(config.leeway.as_secs())),
            key_listener: RwLock::new(None),
            denials: DenialCounts::default(),
            fetches: Default::default(),
            key_changes: AtomicU64::default(),
        })
    }

    /// The caller of a request. Credentials that are wrong are refused; they never make a request anonymous.
    ///
    /// # Errors
    /// Why there is no caller. After [`AccessDenied::KeysUnknown`] the request can be resolved again when
    /// [`Self::when_keys_arrive`] has named the issuer.
    pub fn resolve(&self, request: &Credentials<'_>, now: Now) -> Result<Resolved, AccessDenied> {
        self.resolve_uncounted(request, now)
            .inspect_err(|denied| self.denials.count(denied))
    }

    /// The same for a request that is not made: a refusal is not counted.
    ///
    /// # Errors
    /// As [`Access::resolve`].
    pub fn resolve_uncounted(
        &self,
        request: &Credentials<'_>,
        now: Now,
    ) -> Result<Resolved, AccessDenied> {
        // The connection was made with it, whatever else the request presents.
        if request
            .client_certificate
            .is_some_and(|certificate| certificate.has_ended(now.wall))
        {
            return Err(AccessDenied::Expired("client certificate"));
        }
        let presented = request.presented(self.cookie.as_deref())?;
        let by_cookie = matches!(presented, Presented::Cookie(_));
        let mut signed_url = None;
        let caller = match presented {
            Presented::Nothing => self.without_credentials(request.client_certificate)?,
            Presented::Bearer(token) | Presented::Cookie(token) => self.bearer(token, now)?,
            Presented::Url(query) => {
                let key = self.signing_keys.iter().find(|key| *key.kid == *query.kid);
                let key = key.ok_or(AccessDenied::UnknownKey)?;
                let (caller, url) = key.resolve(request, query, now.wall)?;
                signed_url = Some(url);
                caller
            }
        };
        if self.revocations.concerns(&caller) {
            return Err(AccessDenied::Revoked);
        }
        Ok(Resolved {
            caller,
            by_cookie,
            signed_url,
        })
    }

    /// The subjects with these digests ([`CallerTag::subject_digest`]), as far as a token of theirs is still in the cache. Looks at
    /// all tokens in the cache.
    ///
    /// [`CallerTag::subject_digest`]: crate::CallerTag::subject_digest
    pub fn subjects(&self, digests: &BTreeSet<NonZeroU64>) -> BTreeMap<NonZeroU64, Box<str>> {
        let mut subjects = BTreeMap::new();
        if digests.is_empty() {
            return subjects;
        }
        self.tokens.for_each(|caller| {
            if let Some(subject) = &caller.subject {
                let digest = Digest::of(&**subject).short();
                if digests.contains(&digest) {
                    subjects.insert(digest, subject.clone());
                }
            }
        });
        subjects
    }

    /// Of a certificate that no entry names, nothing is known.
    fn without_credentials(
        &self,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Arc<Caller>, AccessDenied> {
        if let Some(certificate) = certificate {
            let mut known = self.certificates.iter();
            let known = known.find(|(name, _)| certificate.names.contains(name));
            if let Some((_, caller)) = known {
                return Ok(Arc::new(caller.ending_at(certificate.ends_at)));
            }
        }
        self.anonymous.clone().ok_or(AccessDenied::NoCredentials)
    }

    fn bearer(&self, token: &str, now: Now) -> Result<Arc<Caller>, AccessDenied> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(AccessDenied::TooLong { bytes: token.len() });
        }
        let digest = Digest::of(token);
        match token.contains('.') {
            true => self.token(token, digest, now),
            false => self.api_key(&digest),
        }
    }

    /// Compares with every key, so that the time does not depend on which one it is.
    fn api_key(&self, digest: &Digest) -> Result<Arc<Caller>, AccessDenied> {
        let mut found = None;
        for (known, caller) in &self.api_keys {
            if digest::same(&known.0, &digest.0) {
                found = Some(caller);
            }
        }
        found.cloned().ok_or(AccessDenied::UnknownApiKey)
    }

    fn token(&self, token: &str, digest: Digest, now: Now) -> Result<Arc<Caller>, AccessDenied> {
        if let Some(caller) = self.tokens.get(&digest) {
            if caller.ends_at().is_some_and(|ends| now.wall >= ends) {
                self.tokens.remove(&digest);
                return Err(AccessDenied::Expired("token"));
            }
            return Ok(caller);
        }
        let token = DecodedToken::decode(token)?;
        let header = token.header()?;
        let claims = token.claims()?;
        // A name to look up, and nothing more until the signature is checked.
        let named = claims.text("iss")?.ok_or(AccessDenied::UnknownIssuer)?;
        let issuer = self.issuers.iter().position(|one| one.issuer == named);
        let at = issuer.ok_or(AccessDenied::UnknownIssuer)?;
        let issuer = &self.issuers[at];
        let used = issuer
            .verify(&token, &header)
            .map_err(|denied| self.with_fetch(at, &header, denied, now))?;
        let caller = issuer.caller(&claims, &used, &self.authorities, now.wall, self.leeway_s)?;
        let caller = Arc::new(caller);
        self.tokens
            .insert(digest, &caller, || issuer.has_keys(&used.keys));
        Ok(caller)
    }

    /// Asks for keys if a fetch could bring the one that is missing.
    fn with_fetch(
        &self,
        issuer: usize,
        header: &Header,
        denied: AccessDenied,
        now: Now,
    ) -> AccessDenied {
        let is_missing = matches!(
            denied,
            AccessDenied::UnknownKey | AccessDenied::KeysUnavailable { .. }
        );
        let source = self.fetched.iter().position(|at| *at == issuer);
        let Some(source) = source.filter(|_| is_missing) else {
            return denied;
        };
        let kid = header.kid.as_deref().unwrap_or_default();
        match self.key_requests.ask(source, kid, now.steady) {
            Asked::Pending => AccessDenied::KeysUnknown {
                issuer: Arc::clone(&self.issuers[issuer].name),
            },
            Asked::Later { retry_s } => AccessDenied::KeysUnavailable { retry_s },
            Asked::Missing => denied,
        }
    }

    /// Whether a stream that the caller may not read is reported as missing.
    pub fn conceals(&self) -> bool {
        self.conceal
    }

    /// The caller of requests without credentials, if they may do anything.
    pub fn anonymous(&self) -> Option<&Arc<Caller>> {
        self.anonymous.as_ref()
    }

    /// What the thread that fetches keys waits on.
    pub fn key_requests(&self) -> &KeyRequests {
        &self.key_requests
    }

    /// Where keys are fetched; [`KeyRequests::wait`] returns places in this list.
    pub fn key_locations(&self) -> Vec<KeyLocation<'_>> {
        let issuers = self.fetched.iter().map(|at| &self.issuers[*at]);
        issuers
            .filter_map(|issuer| {
                Some(KeyLocation {
                    issuer: &issuer.name,
                    url: issuer.url.as_deref()?,
                })
            })
            .collect()
    }

    /// Takes the result of a fetch: the key set as JSON, or `None` if the fetch failed. The last good set stays when the new one is
    /// wrong. Tokens whose keys were replaced are verified anew.
    ///
    /// # Errors
    /// The key set can't be used.
    pub fn keys_fetched(&self, source: usize, json: Option<&[u8]>) -> Result<(), JwksError> {
        let issuer = &self.issuers[self.fetched[source]];
        let result = match json {
            None => Ok(false),
            Some(json) => issuer.set_keys(json),
        };
        if result == Ok(true) {
            let name = &*issuer.name;
            self.tokens.retain(|caller| *caller.authority.name != *name);
            self.key_changes.fetch_add(1, Ordering::Release);
        }
        let is_good = json.is_some() && result.is_ok();
        self.fetches[usize::from(!is_good)].fetch_add(1, Ordering::Relaxed);
        self.key_requests.ended(source, is_good);
        if let Some(listener) = &*self.key_listener.read() {
            listener(&issuer.name, is_good);
        }
        result.map(drop)
    }

    /// Sets what runs after each fetch of keys, with the name of the issuer and whether the fetch went well. It must not block.
    pub fn when_keys_arrive(&self, listener: impl Fn(&str, bool) + Send + Sync + 'static) {
        *self.key_listener.write() = Some(Box::new(listener));
    }

    /// Revokes credentials from now on. Returns the record to store, for [`Self::restore`].
    ///
    /// # Errors
    /// There are [`crate::REVOCATIONS_MAX`] of them.
    pub fn revoke(
        &self,
        revoke: RevocationTarget,
        now: WallTime,
    ) -> Result<Revocation, TooManyRevocations> {
        let lifetimes = self.issuers.iter().map(|issuer| issuer.lifetime_s_max);
        // Tokens whose lifetime is bounded have all ended by then.
        let longest = lifetimes
            .max_by_key(|most| most.unwrap_or(u64::MAX))
            .flatten();
        let until = match (&revoke, longest) {
            (RevocationTarget::Token(_) | RevocationTarget::Subject(_), Some(most)) => {
                let period_s = most.saturating_add(self.leeway_s.saturating_mul(2));
                Some(now.after(Duration::from_secs(period_s)))
            }
            _ => None,
        };
        let revocation = Revocation {
            revoke,
            at: now,
            until,
        };
        self.restore(revocation.clone(), now)?;
        Ok(revocation)
    }

    /// Takes a revocation that was stored. One that can't matter any more is dropped.
    ///
    /// # Errors
    /// There are [`crate::REVOCATIONS_MAX`] of them.
    pub fn restore(&self, revocation: Revocation, now: WallTime) -> Result<(), TooManyRevocations> {
        self.revocations.add(revocation, now)
    }

    /// Drops the revocations that can't matter any more.
    pub fn remove_ended_revocations(&self, now: WallTime) {
        self.revocations.remove_ended(now);
    }

    /// All revocations that matter.
    pub fn revocations(&self) -> Vec<Revocation> {
        self.revocations.all()
    }

    /// Whether a caller's credential was revoked. One atomic load while there are no revocations.
    pub fn is_revoked(&self, caller: &Caller) -> bool {
        self.revocations.concerns(caller)
    }

    /// As [`Self::is_revoked`], for a subscription: also whether the issuer of its token does not list the key any more that signed
    /// it. New requests with such a token are refused because their key is unknown.
    pub fn is_tag_revoked(&self, tag: &CallerTag) -> bool {
        self.revocations.concerns_tag(tag) || self.has_withdrawn_key(&tag.authority)
    }

    fn has_withdrawn_key(&self, authority: &Authority) -> bool {
        let Some(key) = authority.signed_by else {
            return false;
        };
        let is_it = |issuer: &&Issuer| *issuer.name == *authority.name;
        let issuer = self.issuers.iter().find(is_it);
        issuer.is_some_and(|issuer| issuer.has_withdrawn(key))
    }

    /// Changes with each revocation and each change of fetched keys: while it stays the same, a subscription that was checked needs
    /// no other check.
    pub fn revocations_version(&self) -> u64 {
        let key_changes = self.key_changes.load(Ordering::Acquire);
        self.revocations.version().wrapping_add(key_changes)
    }

    /// The names of the keys that sign URLs.
    pub fn signing_kids(&self) -> impl Iterator<Item = &str> {
        self.signing_keys.iter().map(|key| &*key.kid)
    }

    /// The identity ([`Caller::identity`]) of the subject of tokens. `issuer` names one of several.
    ///
    /// # Errors
    /// There is no such issuer, or several and none is named.
    pub fn subject_identity(
        &self,
        subject: &str,
        issuer: Option<&str>,
    ) -> Result<String, UnknownIssuer> {
        let mut named = self
            .issuers
            .iter()
            .filter(|one| issuer.is_none_or(|name| *one.name == *name));
        match (named.next(), named.next()) {
            (Some(one), None) => Ok(identity(CallerKind::Token, &one.name, subject)),
            _ => Err(UnknownIssuer {
                names: self
                    .issuers
                    .iter()
                    .map(|one| one.name.to_string())
                    .collect(),
            }),
        }
    }

    /// Signs a URL: returns its path and query with the parameters that sign it.
    ///
    /// # Errors
    /// There is no such key, or the URL can't be signed.
    pub fn sign_url(&self, kid: &str, url: &UrlToSign<'_>) -> Result<String, SignError> {
        let key = self.signing_keys.iter().find(|key| *key.kid == *kid);
        let key = key.ok_or_else(|| SignError::UnknownKey(kid.to_owned()))?;
        key.sign(url)
    }

    /// Counters and sizes, for metrics.
    pub fn counts(&self) -> AccessCounts {
        AccessCounts {
            tokens: self.tokens.counts(),
            denied: self.denials.get().collect(),
            key_fetches: self.fetches[0].load(Ordering::Relaxed),
            key_fetches_failed: self.fetches[1].load(Ordering::Relaxed),
            keys: self.issuers.iter().map(Issuer::keys_len).sum(),
            unknown_keys: self.key_requests.unknown_len(),
            revocations: self.revocations.len(),
            shared_grants: self.authorities.len(),
        }
    }
}

impl fmt::Debug for Access {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("issuers", &self.issuers.len())
            .field("api_keys", &self.api_keys.len())
            .field("signing_keys", &self.signing_keys.len())
            .field("certificates", &self.certificates.len())
            .finish_non_exhaustive()
    }
}

/// API keys: each request with one is compared with all of them.
pub const API_KEYS_MAX: usize = 1_024;
