//! One version of the policy: what a configuration says, and the keys and tokens that are known under it. A reload makes another
//! version, and what has not changed in it is shared.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use encke_clock::Now;

use crate::authorities::Authorities;
use crate::cache::TokenCache;
use crate::caller::{ANONYMOUS, Authority, Caller, CallerKind};
use crate::config::{AccessConfig, AccessConfigError};
use crate::credentials::{ClientCertificate, Credentials, Presented};
use crate::denied::{AccessDenied, TOKEN_BYTES_MAX};
use crate::digest::{self, Digest};
use crate::entries::{Names, api_key, is_cookie_name, signing_key};
use crate::failed_tokens::FailedTokens;
use crate::files::KeyFiles;
use crate::issuer::Issuer;
use crate::key_requests::{Asked, KeyRequests};
use crate::quotas::QuotaRules;
use crate::signed_url::{SignedUrl, SigningKey};
use crate::token::{DecodedToken, Header};

/// One version of the policy.
pub(crate) struct AccessRules {
    /// Counts the versions of a policy from 1.
    pub(crate) version: u64,
    pub(crate) conceal: bool,
    pub(crate) leeway_s: u64,
    cookie: Option<String>,
    pub(crate) anonymous: Option<Arc<Caller>>,
    pub(crate) issuers: Vec<Arc<Issuer>>,
    /// The issuers whose keys are fetched.
    pub(crate) fetched: Vec<usize>,
    pub(crate) api_keys: Vec<(Digest, Arc<Caller>)>,
    pub(crate) signing_keys: Vec<SigningKey>,
    pub(crate) certificates: Vec<(String, Arc<Caller>)>,
    /// Of API keys, signing keys and certificates, by their names.
    pub(crate) authorities: HashMap<Box<str>, Arc<Authority>>,
    /// Of tokens; shared by all versions.
    pub(crate) token_authorities: Arc<Authorities>,
    pub(crate) tokens: TokenCache,
    pub(crate) key_requests: KeyRequests,
    failed_tokens: Arc<FailedTokens>,
    pub(crate) quotas: Option<QuotaRules>,
}

/// A caller, how it was resolved, and what its URL covers if that is signed.
pub(crate) struct KnownCaller {
    pub(crate) caller: Arc<Caller>,
    pub(crate) by_cookie: bool,
    pub(crate) signed_url: Option<SignedUrl>,
}

impl AccessRules {
    /// The rules of a configuration, and what is to be kept of the version before. `read` reads the files that it names.
    ///
    /// # Errors
    /// A key of the configuration has a wrong value, or a file can't be read.
    pub(crate) fn new(
        config: &AccessConfig,
        read: &dyn Fn(&Path) -> io::Result<Vec<u8>>,
        before: Option<&AccessRules>,
    ) -> Result<Self, AccessConfigError> {
        let files = KeyFiles(read);
        let version = before.map_or(FIRST_VERSION, |before| before.version + 1);
        let mut names = Names::default();
        let mut issuers: Vec<Arc<Issuer>> = Vec::new();
        for (at, one) in config.issuers.iter().enumerate() {
            let key = format!("access.issuers[{at}]");
            let issuer = Issuer::new(one, &key, &files, version)?;
            names.add(&key, "name", &issuer.name)?;
            if issuers.iter().any(|other| other.issuer == issuer.issuer) {
                let problem = "is the issuer of another entry; one entry can have several keys and algorithms";
                return Err(AccessConfigError::new(format!("{key}.issuer"), problem));
            }
            let known = before.and_then(|before| before.issuer(&issuer.name));
            issuers.push(match known {
                Some(known) => issuer.after(known),
                None => Arc::new(issuer),
            });
        }
        let mut authorities = HashMap::new();
        // An authority that has not changed is shared, so that its callers stay the same.
        let mut shared = |authority: Authority| {
            let known = before.and_then(|before| before.authorities.get(&authority.name));
            let known = known.filter(|known| known.is_same(&authority));
            let authority = known.cloned().unwrap_or_else(|| Arc::new(authority));
            authorities.insert(authority.name.clone(), Arc::clone(&authority));
            authority
        };
        let mut api_keys = Vec::new();
        for (at, one) in config.api_keys.iter().enumerate() {
            let key = format!("access.api-keys[{at}]");
            names.add(&key, "name", &one.name)?;
            let (digest, authority) = api_key(one, &key)?;
            api_keys.push((digest, Caller::of(shared(authority))));
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
            let (secret, authority) = signing_key(one, &key, &files)?;
            signing_keys.push(SigningKey::new(&secret, shared(authority)));
        }
        let mut certificates = Vec::new();
        for (at, one) in config.certificates.iter().enumerate() {
            names.add(&format!("access.certificates[{at}]"), "name", &one.name)?;
            let authority = Authority::new(CallerKind::Certificate, &one.name, one.grants.clone());
            certificates.push((one.name.clone(), Caller::of(shared(authority))));
        }
        let cookie = config.cookie.clone();
        if cookie.as_deref().is_some_and(|name| !is_cookie_name(name)) {
            let problem = "must be the name of a cookie: letters, digits, - and _";
            return Err(AccessConfigError::new("access.cookie", problem));
        }
        let anonymous = config.anonymous.as_ref().map(|anonymous| {
            let authority =
                Authority::new(CallerKind::Anonymous, ANONYMOUS, anonymous.grants.clone());
            Caller::of(shared(authority))
        });
        let fetched: Vec<usize> = (0..issuers.len())
            .filter(|at| issuers[*at].url.is_some())
            .collect();
        let quotas = config.quotas.as_ref();
        let quotas = quotas.map(|quotas| QuotaRules::new(quotas, names.all()));
        Ok(AccessRules {
            quotas: quotas.transpose()?,
            version,
            conceal: config.conceal,
            leeway_s: config.leeway.as_secs(),
            cookie,
            anonymous,
            issuers,
            key_requests: KeyRequests::new(fetched.len()),
            failed_tokens: before
                .map(|before| Arc::clone(&before.failed_tokens))
                .unwrap_or_else(|| Arc::new(FailedTokens::new())),
            fetched,
            api_keys,
            signing_keys,
            certificates,
            authorities,
            token_authorities: before
                .map(|before| Arc::clone(&before.token_authorities))
                .unwrap_or_default(),
            tokens: match before {
                Some(before) => before.tokens.emptied(config.token_cache),
                None => TokenCache::new(config.token_cache),
            },
        })
    }

    /// The caller of a request, whether it was revoked or not.
    pub(crate) fn resolve(
        &self,
        request: &Credentials<'_>,
        now: Now,
    ) -> Result<KnownCaller, AccessDenied> {
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
            Presented::Bearer(token) | Presented::Cookie(token) => {
                self.bearer(token, request.address, now)?
            }
            Presented::Url(query) => {
                let key = self.signing_key(&query.kid);
                let key = key.ok_or(AccessDenied::UnknownKey)?;
                let (caller, url) = key.resolve(request, query, now.wall)?;
                signed_url = Some(url);
                caller
            }
        };
        Ok(KnownCaller {
            caller,
            by_cookie,
            signed_url,
        })
    }

    /// The issuer of that name.
    pub(crate) fn issuer(&self, name: &str) -> Option<&Arc<Issuer>> {
        self.issuers.iter().find(|issuer| *issuer.name == *name)
    }

    /// The key of signed URLs of that name.
    pub(crate) fn signing_key(&self, kid: &str) -> Option<&SigningKey> {
        self.signing_keys.iter().find(|key| *key.kid() == *kid)
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

    fn bearer(
        &self,
        token: &str,
        address: Option<IpAddr>,
        now: Now,
    ) -> Result<Arc<Caller>, AccessDenied> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(AccessDenied::TooLong { bytes: token.len() });
        }
        let digest = Digest::of(token);
        match token.contains('.') {
            true => self.token((token, digest), address, now),
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

    fn token(
        &self,
        (token, digest): (&str, Digest),
        address: Option<IpAddr>,
        now: Now,
    ) -> Result<Arc<Caller>, AccessDenied> {
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
        // Before the costly part: clients whose tokens have expired are many, and no attackers.
        if Issuer::has_expired(&claims, now.wall, self.leeway_s) {
            return Err(AccessDenied::Expired("token"));
        }
        self.failed_tokens.check(address, now.steady)?;
        let used = issuer
            .verify(&token, &header)
            .map_err(|denied| self.with_fetch(at, &header, denied, now));
        let caller = used.and_then(|used| {
            let authorities = &self.token_authorities;
            let caller = issuer.caller(&claims, &used, authorities, now.wall, self.leeway_s)?;
            Ok((used, Arc::new(caller)))
        });
        let (used, caller) = caller.inspect_err(|denied| {
            if is_of_verified(denied) {
                self.failed_tokens.count(address, now.steady);
            }
        })?;
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
}

/// Whether a token that was refused so has cost a verification.
fn is_of_verified(denied: &AccessDenied) -> bool {
    !matches!(
        denied,
        AccessDenied::Algorithm
            | AccessDenied::UnknownKey
            | AccessDenied::KeysUnknown { .. }
            | AccessDenied::KeysUnavailable { .. }
    )
}

/// The version of the configuration that a process starts with.
pub(crate) const FIRST_VERSION: u64 = 1;

/// API keys: each request with one is compared with all of them.
pub const API_KEYS_MAX: usize = 1_024;
