//! The configured policy as a whole: from a request's credentials to its caller.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use encke_clock::{Now, SteadyTime, WallTime};
use parking_lot::{Mutex, RwLock};

use crate::accounts::{AccountOwner, AccountUsage, QuotaAccounts, SubscriberHold};
use crate::cache::TokenCacheCounts;
use crate::caller::{Caller, CallerKind, CallerTag, identity};
use crate::config::{AccessConfig, AccessConfigError};
use crate::credentials::Credentials;
use crate::denied::{AccessDenied, DenialCounts};
use crate::digest::Digest;
use crate::key_fetches::KeyFetches;
use crate::keys::JwksError;
use crate::quotas::{AccountKey, Quota, QuotaExceeded, QuotaLimits};
use crate::revocation::{Revocation, RevocationTarget, Revocations, TooManyRevocations};
use crate::rules::AccessRules;
use crate::signed_url::{SignError, SignedUrl, UrlToSign};
use crate::standing::Standing;

/// Who may do what, as configured. All methods take `&self` and may be called by many threads.
pub struct Access {
    /// What [`Access::reload`] replaces.
    rules: ArcSwap<AccessRules>,
    /// Held while the rules are replaced.
    reloading: Mutex<()>,
    revocations: Revocations,
    accounts: QuotaAccounts,
    key_listener: RwLock<Option<KeyListener>>,
    denials: DenialCounts,
    fetches: [AtomicU64; 2],
    /// How often the rules were replaced, and fetched keys have differed from those before.
    changes: AtomicU64,
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
    /// Whether a stream that the caller may not read is reported as missing.
    pub conceals: bool,
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
    /// Callers whose use is counted for quotas.
    pub accounts: usize,
    /// How often each quota was exceeded.
    pub quotas_exceeded: Vec<(Quota, u64)>,
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
        let rules = AccessRules::new(config, read, None)?;
        Ok(Access {
            revocations: Revocations::new(config.leeway),
            rules: ArcSwap::from_pointee(rules),
            reloading: Mutex::default(),
            accounts: QuotaAccounts::default(),
            key_listener: RwLock::new(None),
            denials: DenialCounts::default(),
            fetches: Default::default(),
            // Who has moved in from another process is judged once.
            changes: AtomicU64::new(1),
        })
    }

    /// Puts another configuration in force, as a whole and at once: every request is judged by all of the old one or by all of the new
    /// one. Revocations stay, and so do fetched keys whose source has not changed. What callers of before may still do,
    /// [`Self::standing`] says. Fetches of before have to be begun anew, see [`Self::key_fetches`].
    ///
    /// # Errors
    /// A key of the configuration has a wrong value, or a file can't be read: nothing has changed.
    pub fn reload(
        &self,
        config: &AccessConfig,
        read: &dyn Fn(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<(), AccessConfigError> {
        let _one_at_a_time = self.reloading.lock();
        let before = self.rules.load_full();
        let rules = AccessRules::new(config, read, Some(&before))?;
        self.revocations.set_leeway(config.leeway);
        let has_quotas = rules.quotas.is_some();
        self.rules.store(Arc::new(rules));
        if !has_quotas {
            self.accounts.forget();
        }
        // Behind the rules, so that whoever sees the number sees them.
        self.changes.fetch_add(1, Ordering::Release);
        // Requests that wait for keys are asked about again: their issuer may be gone.
        if let Some(listener) = &*self.key_listener.read() {
            let fetched = before.fetched.iter().map(|at| &before.issuers[*at]);
            fetched.for_each(|issuer| listener(&issuer.name, true));
        }
        Ok(())
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
        let rules = self.rules.load();
        let known = rules.resolve(request, now)?;
        if self.revocations.concerns(&known.caller) {
            return Err(AccessDenied::Revoked);
        }
        Ok(Resolved {
            caller: known.caller,
            by_cookie: known.by_cookie,
            signed_url: known.signed_url,
            conceals: rules.conceal,
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
        self.rules.load().tokens.for_each(|caller| {
            if let Some(subject) = &caller.subject {
                let digest = Digest::of(&**subject).short();
                if digests.contains(&digest) {
                    subjects.insert(digest, subject.clone());
                }
            }
        });
        subjects
    }

    /// Whether a stream that the caller may not read is reported as missing.
    pub fn conceals(&self) -> bool {
        self.rules.load().conceal
    }

    /// The caller of requests without credentials, if they may do anything.
    pub fn anonymous(&self) -> Option<Arc<Caller>> {
        self.rules.load().anonymous.clone()
    }

    /// The fetches of keys that the configuration in force needs.
    pub fn key_fetches(&self) -> KeyFetches {
        KeyFetches::new(self.rules.load_full())
    }

    /// Takes the result of a fetch: the key set as JSON, or `None` if the fetch failed. The last good set stays when the new one is
    /// wrong. Tokens whose keys were replaced are verified anew. `source` is a place in [`KeyFetches::locations`].
    ///
    /// # Errors
    /// The key set can't be used.
    pub fn keys_fetched(
        &self,
        fetches: &KeyFetches,
        source: usize,
        json: Option<&[u8]>,
    ) -> Result<(), JwksError> {
        let issuer = fetches.issuer(source);
        let result = match json {
            None => Ok(false),
            Some(json) => issuer.set_keys(json),
        };
        if result == Ok(true) {
            let name = &*issuer.name;
            let rules = self.rules.load();
            rules
                .tokens
                .retain(|caller| *caller.authority.name != *name);
            self.changes.fetch_add(1, Ordering::Release);
        }
        let is_good = json.is_some() && result.is_ok();
        self.fetches[usize::from(!is_good)].fetch_add(1, Ordering::Relaxed);
        fetches.ended(source, is_good);
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
        let rules = self.rules.load();
        let lifetimes = rules.issuers.iter().map(|issuer| issuer.lifetime_s_max);
        // Tokens whose lifetime is bounded have all ended by then.
        let longest = lifetimes
            .max_by_key(|most| most.unwrap_or(u64::MAX))
            .flatten();
        let until = match (&revoke, longest) {
            (RevocationTarget::Token(_) | RevocationTarget::Subject(_), Some(most)) => {
                let period_s = most.saturating_add(rules.leeway_s.saturating_mul(2));
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

    /// What may go on of what a caller does, by the configuration and the revocations in force now. It is for what lasts, such as a
    /// subscription: also a token is refused whose issuer does not list the key any more that signed it. New requests with such a
    /// token are refused because their key is unknown.
    pub fn standing(&self, tag: &CallerTag) -> Standing {
        match self.revocations.concerns_tag(tag) {
            true => Standing::Refused,
            false => self.rules.load().standing(tag),
        }
    }

    /// The same caller by the configuration in force, which may grant it something else.
    ///
    /// # Errors
    /// Its credential is not accepted any more, or must be presented again to be judged.
    pub fn renewed(&self, caller: &Arc<Caller>) -> Result<Arc<Caller>, AccessDenied> {
        match self.is_revoked(caller) {
            true => Err(AccessDenied::Revoked),
            false => self.rules.load().renewed(caller),
        }
    }

    /// Notes the name of a caller that is about to use something for which there may be quotas, so that [`Self::usage`] shows it.
    pub fn note_use(&self, caller: &Caller) {
        if let Some(quotas) = &self.rules.load().quotas {
            self.accounts.note(quotas, AccountOwner::of(caller));
        }
    }

    /// Counts messages that a caller appends.
    ///
    /// # Errors
    /// It appends more than its quota allows.
    pub fn count_appends(
        &self,
        tag: &CallerTag,
        messages: u64,
        now: SteadyTime,
    ) -> Result<(), QuotaExceeded> {
        match &self.rules.load().quotas {
            None => Ok(()),
            Some(quotas) => self
                .accounts
                .append(quotas, AccountOwner::of_tag(tag), messages, now),
        }
    }

    /// Counts a subscription of a caller while what is returned is kept. `None`: there is no limit.
    ///
    /// # Errors
    /// It has as many as its quota allows.
    pub fn count_subscriber(
        &self,
        tag: &CallerTag,
        now: SteadyTime,
    ) -> Result<Option<SubscriberHold>, QuotaExceeded> {
        self.move_subscriber(None, tag, now)
    }

    /// Counts a subscription for a caller that was counted before, perhaps for another one. For the same caller nothing changes.
    ///
    /// # Errors
    /// The quota of the caller is used up.
    pub fn move_subscriber(
        &self,
        held: Option<SubscriberHold>,
        tag: &CallerTag,
        now: SteadyTime,
    ) -> Result<Option<SubscriberHold>, QuotaExceeded> {
        match &self.rules.load().quotas {
            None => Ok(None),
            Some(quotas) => self
                .accounts
                .subscribe(quotas, AccountOwner::of_tag(tag), held, now),
        }
    }

    /// What stands for a caller in what is stored, if there are quotas.
    pub fn account(&self, tag: &CallerTag) -> Option<[u64; 2]> {
        self.rules.load().quotas.as_ref()?;
        Some(AccountOwner::of_tag(tag).key.stored())
    }

    /// The limits of a caller that an account stands for; none if there are no quotas.
    pub fn account_limits(&self, account: [u64; 2]) -> QuotaLimits {
        let rules = self.rules.load();
        match (&rules.quotas, AccountKey::of_stored(account)) {
            (Some(quotas), Some(key)) => quotas.limits(key),
            _ => QuotaLimits::default(),
        }
    }

    /// The name of the issuer, key or certificate of a caller that an account stands for, if the configuration still has it.
    pub fn account_name(&self, [name, _]: [u64; 2]) -> Option<String> {
        let rules = self.rules.load();
        Some(rules.quotas.as_ref()?.name(name)?.to_owned())
    }

    /// Counts a refusal because of what an account stores. `max`: how much is allowed.
    pub fn storage_exceeded(&self, account: [u64; 2], quota: Quota, max: u64) -> QuotaExceeded {
        let exceeded = QuotaExceeded {
            quota,
            max,
            retry: None,
        };
        match AccountKey::of_stored(account) {
            Some(key) => self.accounts.exceed(key, exceeded),
            None => exceeded,
        }
    }

    /// What callers use of their quotas, in no order. `None`: there are no quotas.
    pub fn usage(&self) -> Option<Vec<AccountUsage>> {
        let rules = self.rules.load();
        let quotas = rules.quotas.as_ref()?;
        Some(self.accounts.usage(quotas))
    }

    /// Changes with each revocation, each change of fetched keys and each reload: while it stays the same, a subscription that was
    /// judged needs no other judgement.
    pub fn version(&self) -> u64 {
        let changes = self.changes.load(Ordering::Acquire);
        self.revocations.version().wrapping_add(changes)
    }

    /// The name of the first key that signs URLs.
    pub fn first_signing_kid(&self) -> Option<Box<str>> {
        let rules = self.rules.load();
        rules.signing_keys.first().map(|key| key.kid().into())
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
        let issuers = &self.rules.load().issuers;
        let mut named = issuers
            .iter()
            .filter(|one| issuer.is_none_or(|name| *one.name == *name));
        match (named.next(), named.next()) {
            (Some(one), None) => Ok(identity(CallerKind::Token, &one.name, subject)),
            _ => Err(UnknownIssuer {
                names: issuers.iter().map(|one| one.name.to_string()).collect(),
            }),
        }
    }

    /// Signs a URL: returns its path and query with the parameters that sign it.
    ///
    /// # Errors
    /// There is no such key, or the URL can't be signed.
    pub fn sign_url(&self, kid: &str, url: &UrlToSign<'_>) -> Result<String, SignError> {
        let rules = self.rules.load();
        let key = rules
            .signing_key(kid)
            .ok_or_else(|| SignError::UnknownKey(kid.to_owned()))?;
        key.sign(url)
    }

    /// Counters and sizes, for metrics.
    pub fn counts(&self) -> AccessCounts {
        let rules = self.rules.load();
        let issuers = rules.issuers.iter().map(|issuer| issuer.keys_len());
        AccessCounts {
            tokens: rules.tokens.counts(),
            denied: self.denials.get().collect(),
            key_fetches: self.fetches[0].load(Ordering::Relaxed),
            key_fetches_failed: self.fetches[1].load(Ordering::Relaxed),
            keys: issuers.sum(),
            unknown_keys: rules.key_requests.unknown_len(),
            revocations: self.revocations.len(),
            accounts: self.accounts.known(),
            quotas_exceeded: self.accounts.exceeded().collect(),
            shared_grants: rules.token_authorities.len(),
        }
    }
}

impl fmt::Debug for Access {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.load();
        f.debug_struct("Access")
            .field("issuers", &rules.issuers.len())
            .field("api_keys", &rules.api_keys.len())
            .field("signing_keys", &rules.signing_keys.len())
            .field("certificates", &rules.certificates.len())
            .finish_non_exhaustive()
    }
}
