//! Quotas: how much of the server one caller may use, by the table `[access.quotas]`.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::time::Duration;

use crate::caller::{ANONYMOUS, Authority};
use crate::config::{AccessConfigError, QuotasConfig};
use crate::digest::Digest;

/// What a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Messages appended a second.
    Appends,
    /// Subscriptions and long polls at a time.
    Subscribers,
    /// Callers that are counted at a time, of all callers.
    Accounts,
}

impl Quota {
    /// All of them.
    pub const ALL: [Quota; 3] = [Quota::Appends, Quota::Subscribers, Quota::Accounts];

    /// Its key in the table `[access.quotas]`, and its name in metrics.
    pub fn key(self) -> &'static str {
        match self {
            Quota::Appends => "appends-per-second",
            Quota::Subscribers => "subscribers",
            Quota::Accounts => "accounts-max",
        }
    }
}

/// A caller's quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the quota of the caller is used up: {} = {max} in access.quotas",
    quota.key()
)]
pub struct QuotaExceeded {
    /// Which one.
    pub quota: Quota,
    /// How much is allowed.
    pub max: u64,
    /// After which time the caller may try again, if that is known.
    pub retry: Option<Duration>,
}

/// The limits of one caller. 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Messages appended a second.
    pub appends_per_second: u64,
    /// Messages appended at once after a pause; at least 1.
    pub append_burst: u64,
    /// Subscriptions and long polls at a time.
    pub subscribers: u64,
}

impl QuotaLimits {
    /// Whether there are none.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.appends_per_second == 0 && self.subscribers == 0
    }
}

/// The limits of all callers.
#[derive(Debug)]
pub(crate) struct QuotaRules {
    default: QuotaLimits,
    /// By the digests of name and subject, see [`AccountKey`].
    overrides: HashMap<(NonZeroU64, Option<NonZeroU64>), QuotaLimits>,
    pub(crate) accounts_max: usize,
}

/// Names the caller that is counted: all tokens of a subject at an issuer, whatever they grant; an API key or a certificate; all that use
/// one signing key; all tokens of an issuer without a subject; all without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AccountKey {
    pub(crate) name: NonZeroU64,
    pub(crate) subject: Option<NonZeroU64>,
}

impl AccountKey {
    pub(crate) fn new(authority: &Authority, subject: Option<NonZeroU64>) -> Self {
        AccountKey {
            name: authority.name_digest,
            subject,
        }
    }
}

impl QuotaRules {
    /// The rules of a configuration. `names` are those of all issuers, keys and certificates.
    pub(crate) fn new(
        config: &QuotasConfig,
        names: &HashSet<String>,
    ) -> Result<Self, AccessConfigError> {
        let wrong = |key: String, problem: String| Err(AccessConfigError::new(key, problem));
        if config.accounts_max == 0 {
            return wrong(
                "access.quotas.accounts-max".into(),
                "must be at least 1".into(),
            );
        }
        let limits = |rate: u64, burst: Option<u64>, subscribers| QuotaLimits {
            appends_per_second: rate,
            append_burst: burst.unwrap_or(rate).max(1),
            subscribers,
        };
        let mut overrides = HashMap::new();
        for (at, one) in config.overrides.iter().enumerate() {
            let key = format!("access.quotas.overrides[{at}]");
            if one.name != ANONYMOUS && !names.contains(&one.name) {
                let problem = format!(
                    "is {:?}, which is no issuer, key or certificate of the table [access], nor {ANONYMOUS}",
                    one.name
                );
                return wrong(format!("{key}.name"), problem);
            }
            let rate = one.appends_per_second.unwrap_or(config.appends_per_second);
            // The burst of all goes with the rate of all.
            let burst = match one.appends_per_second {
                Some(_) => one.append_burst,
                None => one.append_burst.or(config.append_burst),
            };
            let subscribers = one.subscribers.unwrap_or(config.subscribers);
            let subject = one.subject.as_deref();
            let subject = subject.map(|subject| Digest::of(subject).short());
            let place = (Digest::of(&one.name).short(), subject);
            if overrides
                .insert(place, limits(rate, burst, subscribers))
                .is_some()
            {
                return wrong(key, "is for the same callers as another entry".into());
            }
        }
        Ok(QuotaRules {
            default: limits(
                config.appends_per_second,
                config.append_burst,
                config.subscribers,
            ),
            overrides,
            accounts_max: config.accounts_max,
        })
    }

    /// The limits of a caller.
    pub(crate) fn limits(&self, account: AccountKey) -> QuotaLimits {
        let own = self.overrides.get(&(account.name, account.subject));
        let own = own.or_else(|| self.overrides.get(&(account.name, None)));
        own.copied().unwrap_or(self.default)
    }
}
