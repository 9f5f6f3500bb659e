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
    /// Streams that the caller has created.
    Streams,
    /// Bytes that its streams store.
    StoredBytes,
    /// Callers that are counted at a time, of all callers.
    Accounts,
}

impl Quota {
    /// All of them.
    pub const ALL: [Quota; 5] = [
        Quota::Appends,
        Quota::Subscribers,
        Quota::Streams,
        Quota::StoredBytes,
        Quota::Accounts,
    ];

    /// Its key in the table `[access.quotas]`, and its name in metrics.
    pub fn key(self) -> &'static str {
        match self {
            Quota::Appends => "appends-per-second",
            Quota::Subscribers => "subscribers",
            Quota::Streams => "streams",
            Quota::StoredBytes => "stored-bytes",
            Quota::Accounts => "accounts-max",
        }
    }
}

/// A caller's quota is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the quota of {} is used up: {} = {max} in access.quotas",
    match quota {
        // The one who appends may be another caller.
        Quota::StoredBytes => "the caller that has created the stream",
        _ => "the caller",
    },
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
    /// Streams.
    pub streams: u64,
    /// Bytes that these store.
    pub stored_bytes: u64,
}

impl QuotaLimits {
    /// Whether there are none.
    pub(crate) fn is_unlimited(&self) -> bool {
        let limits = [
            self.appends_per_second,
            self.subscribers,
            self.streams,
            self.stored_bytes,
        ];
        limits == [0; 4]
    }
}

/// The limits of all callers.
#[derive(Debug)]
pub(crate) struct QuotaRules {
    default: QuotaLimits,
    /// By the digests of name and subject, see [`AccountKey`].
    overrides: HashMap<(NonZeroU64, Option<NonZeroU64>), QuotaLimits>,
    pub(crate) accounts_max: usize,
    /// By their digests.
    names: HashMap<u64, Box<str>>,
}

/// Names the caller that is counted: all tokens of a subject at an issuer, whatever they grant; an API key or a certificate; all that use
/// one signing key; all tokens of an issuer without a subject; all without credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AccountKey {
    pub(crate) name: NonZeroU64,
    pub(crate) subject: Option<NonZeroU64>,
}

impl AccountKey {
    /// How it is stored with what it pays for, so its form must not change: two numbers, of which the second is 0 without a subject.
    pub(crate) fn stored(self) -> [u64; 2] {
        [self.name.get(), self.subject.map_or(0, NonZeroU64::get)]
    }

    /// One that was stored.
    pub(crate) fn of_stored([name, subject]: [u64; 2]) -> Option<Self> {
        Some(AccountKey {
            name: NonZeroU64::new(name)?,
            subject: NonZeroU64::new(subject),
        })
    }

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
        let limits = |rate: u64, burst: Option<u64>, rest: QuotaLimits| QuotaLimits {
            appends_per_second: rate,
            append_burst: burst.unwrap_or(rate).max(1),
            ..rest
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
            let rest = QuotaLimits {
                subscribers: one.subscribers.unwrap_or(config.subscribers),
                streams: one.streams.unwrap_or(config.streams),
                stored_bytes: one.stored_bytes.unwrap_or(config.stored_bytes),
                ..QuotaLimits::default()
            };
            let subject = one.subject.as_deref();
            let subject = subject.map(|subject| Digest::of(subject).short());
            let place = (Digest::of(&one.name).short(), subject);
            if overrides.insert(place, limits(rate, burst, rest)).is_some() {
                return wrong(key, "is for the same callers as another entry".into());
            }
        }
        Ok(QuotaRules {
            default: limits(
                config.appends_per_second,
                config.append_burst,
                QuotaLimits {
                    subscribers: config.subscribers,
                    streams: config.streams,
                    stored_bytes: config.stored_bytes,
                    ..QuotaLimits::default()
                },
            ),
            overrides,
            accounts_max: config.accounts_max,
            names: names
                .iter()
                .map(String::as_str)
                .chain([ANONYMOUS])
                .map(|name| (Digest::of(name).short().get(), name.into()))
                .collect(),
        })
    }

    /// The name of an issuer, a key or a certificate, or [`ANONYMOUS`], by its digest.
    pub(crate) fn name(&self, digest: u64) -> Option<&str> {
        self.names.get(&digest).map(|name| &**name)
    }

    /// The limits of a caller.
    pub(crate) fn limits(&self, account: AccountKey) -> QuotaLimits {
        let own = self.overrides.get(&(account.name, account.subject));
        let own = own.or_else(|| self.overrides.get(&(account.name, None)));
        own.copied().unwrap_or(self.default)
    }
}
