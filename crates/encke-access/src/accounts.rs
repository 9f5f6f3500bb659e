//! What callers use of their quotas. A bounded table, in parts with a lock each. A caller is in it while it has subscriptions, or while
//! its recent appends still count; it outlives a reload of the configuration.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use encke_clock::SteadyTime;
use parking_lot::Mutex;

use crate::caller::{Caller, CallerKind, CallerTag};
use crate::digest::Digest;
use crate::quotas::{AccountKey, Quota, QuotaExceeded, QuotaLimits, QuotaRules};

/// The callers whose use is counted.
#[derive(Debug, Default)]
pub(crate) struct QuotaAccounts {
    parts: [Mutex<HashMap<AccountKey, Account>>; PARTS],
    known: AtomicUsize,
    exceeded: [AtomicU64; Quota::ALL.len()],
}

/// What one caller uses.
#[derive(Debug)]
struct Account {
    kind: CallerKind,
    name: Box<str>,
    /// `None`: none of its requests has said it yet, or it has none.
    subject: Option<Box<str>>,
    /// Up to when its rate of appends is used up, on the steady clock.
    taken_ns: u64,
    /// Messages that it has appended since it is counted.
    appended: u64,
    subscribers: Arc<AtomicU64>,
    exceeded: u64,
}

/// Counts a subscription of a caller for as long as it is kept.
#[derive(Debug)]
pub struct SubscriberHold(Arc<AtomicU64>);

/// What a caller uses, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountUsage {
    /// How its credentials are resolved.
    pub kind: CallerKind,
    /// Its issuer, key or certificate.
    pub name: Box<str>,
    /// The subject of its tokens, if they have one and a request has named it since the caller is counted.
    pub subject: Option<Box<str>>,
    /// What stands for the caller in what is stored.
    pub account: [u64; 2],
    /// Its subscriptions and long polls.
    pub subscribers: u64,
    /// Messages that it has appended since it is counted.
    pub appended: u64,
    /// Requests that exceeded one of its quotas since it is counted.
    pub exceeded: u64,
    /// What it may use.
    pub limits: QuotaLimits,
}

/// Who is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountOwner<'a> {
    pub(crate) key: AccountKey,
    pub(crate) kind: CallerKind,
    pub(crate) name: &'a str,
    pub(crate) subject: Option<&'a str>,
}

impl<'a> AccountOwner<'a> {
    /// The caller of what lasts. Its subject is known by a digest only.
    pub(crate) fn of_tag(tag: &'a CallerTag) -> Self {
        AccountOwner {
            key: AccountKey::new(&tag.authority, tag.subject),
            kind: tag.authority.kind,
            name: &tag.authority.name,
            subject: None,
        }
    }

    /// The caller of a request.
    pub(crate) fn of(caller: &'a Caller) -> Self {
        let subject = caller.subject.as_deref();
        let digest = subject.map(|subject| Digest::of(subject).short());
        AccountOwner {
            key: AccountKey::new(&caller.authority, digest),
            kind: caller.authority.kind,
            name: &caller.authority.name,
            subject,
        }
    }
}

impl Drop for SubscriberHold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl QuotaAccounts {
    /// Counts messages that a caller appends. A group of messages counts as many, and is not refused for its size: it may use up the rate
    /// of a time to come.
    pub(crate) fn append(
        &self,
        rules: &QuotaRules,
        owner: AccountOwner<'_>,
        messages: u64,
        now: SteadyTime,
    ) -> Result<(), QuotaExceeded> {
        let limits = rules.limits(owner.key);
        // A rate beyond one per nanosecond is no limit.
        let Some(interval_ns) = NANOSECONDS.checked_div(limits.appends_per_second) else {
            return Ok(());
        };
        let now_ns = nanoseconds(now);
        self.with(rules, owner, now, |account| {
            let from_ns = now_ns.max(account.taken_ns);
            let ahead_ns = from_ns - now_ns;
            let allowed_ns = interval_ns.saturating_mul(limits.append_burst - 1);
            if ahead_ns > allowed_ns {
                return Err(QuotaExceeded {
                    quota: Quota::Appends,
                    max: limits.appends_per_second,
                    retry: Some(Duration::from_nanos(ahead_ns - allowed_ns)),
                });
            }
            account.taken_ns = from_ns.saturating_add(interval_ns.saturating_mul(messages));
            account.appended += messages;
            Ok(())
        })
    }

    /// Counts a subscription of a caller while the hold is kept. `None`: there is no limit. `held`: how it was counted before, which it
    /// stays if that was for the same caller.
    pub(crate) fn subscribe(
        &self,
        rules: &QuotaRules,
        owner: AccountOwner<'_>,
        held: Option<SubscriberHold>,
        now: SteadyTime,
    ) -> Result<Option<SubscriberHold>, QuotaExceeded> {
        let max = rules.limits(owner.key).subscribers;
        if max == 0 {
            return Ok(None);
        }
        self.with(rules, owner, now, |account| {
            if let Some(held) = held.filter(|held| Arc::ptr_eq(&held.0, &account.subscribers)) {
                return Ok(Some(held));
            }
            // Others only take away: what grows is under the lock of the part.
            if account.subscribers.load(Ordering::Acquire) >= max {
                return Err(QuotaExceeded {
                    quota: Quota::Subscribers,
                    max,
                    retry: None,
                });
            }
            account.subscribers.fetch_add(1, Ordering::AcqRel);
            Ok(Some(SubscriberHold(Arc::clone(&account.subscribers))))
        })
    }

    /// Notes the name of a caller that is about to use something, so that operators see it. Without room nothing is noted.
    pub(crate) fn note(&self, rules: &QuotaRules, owner: AccountOwner<'_>) {
        if rules.limits(owner.key).is_unlimited() {
            return;
        }
        let mut part = self.parts[part_of(owner.key)].lock();
        let has_room = part.len() < rules.accounts_max.div_ceil(PARTS);
        if !has_room && !part.contains_key(&owner.key) {
            return;
        }
        let account = part.entry(owner.key).or_insert_with(|| {
            self.known.fetch_add(1, Ordering::Relaxed);
            Account::new(owner)
        });
        account.name_subject(owner);
    }

    /// What callers use, in no order.
    pub(crate) fn usage(&self, rules: &QuotaRules) -> Vec<AccountUsage> {
        let mut all = Vec::new();
        for part in &self.parts {
            let part = part.lock();
            all.extend(part.iter().map(|(key, account)| AccountUsage {
                kind: account.kind,
                name: account.name.clone(),
                subject: account.subject.clone(),
                account: key.stored(),
                subscribers: account.subscribers.load(Ordering::Acquire),
                appended: account.appended,
                exceeded: account.exceeded,
                limits: rules.limits(*key),
            }));
        }
        all
    }

    /// Forgets all callers. Subscriptions that were counted are not counted any more.
    pub(crate) fn forget(&self) {
        for part in &self.parts {
            let mut part = part.lock();
            self.known.fetch_sub(part.len(), Ordering::Relaxed);
            part.clear();
        }
    }

    /// How many callers are counted.
    pub(crate) fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// How often each quota was exceeded.
    pub(crate) fn exceeded(&self) -> impl Iterator<Item = (Quota, u64)> {
        let counts = Quota::ALL.iter().zip(&self.exceeded);
        counts.map(|(quota, count)| (*quota, count.load(Ordering::Relaxed)))
    }

    /// Counts a refusal because of what an account stores.
    pub(crate) fn exceed(&self, key: AccountKey, exceeded: QuotaExceeded) -> QuotaExceeded {
        if let Some(account) = self.parts[part_of(key)].lock().get_mut(&key) {
            account.exceeded += 1;
        }
        self.count(exceeded)
    }

    fn with<T>(
        &self,
        rules: &QuotaRules,
        owner: AccountOwner<'_>,
        now: SteadyTime,
        use_it: impl FnOnce(&mut Account) -> Result<T, QuotaExceeded>,
    ) -> Result<T, QuotaExceeded> {
        let mut part = self.parts[part_of(owner.key)].lock();
        let is_known = part.contains_key(&owner.key);
        if !is_known && part.len() >= rules.accounts_max.div_ceil(PARTS) {
            let before = part.len();
            part.retain(|_, account| !account.is_idle(now));
            self.known.fetch_sub(before - part.len(), Ordering::Relaxed);
            if part.len() >= rules.accounts_max.div_ceil(PARTS) {
                return Err(self.count(QuotaExceeded {
                    quota: Quota::Accounts,
                    max: rules.accounts_max as u64,
                    retry: None,
                }));
            }
        }
        let account = part.entry(owner.key).or_insert_with(|| {
            self.known.fetch_add(1, Ordering::Relaxed);
            Account::new(owner)
        });
        account.name_subject(owner);
        let used = use_it(account);
        used.map_err(|exceeded| {
            account.exceeded += 1;
            self.count(exceeded)
        })
    }

    fn count(&self, exceeded: QuotaExceeded) -> QuotaExceeded {
        let place = Quota::ALL.iter().position(|one| *one == exceeded.quota);
        if let Some(count) = place.and_then(|place| self.exceeded.get(place)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        exceeded
    }
}

impl Account {
    fn new(owner: AccountOwner<'_>) -> Self {
        Account {
            kind: owner.kind,
            name: owner.name.into(),
            subject: None,
            taken_ns: 0,
            appended: 0,
            subscribers: Arc::default(),
            exceeded: 0,
        }
    }

    fn name_subject(&mut self, owner: AccountOwner<'_>) {
        if self.subject.is_none() {
            self.subject = owner.subject.map(Into::into);
        }
    }

    /// Whether it is the same as one that was never counted.
    fn is_idle(&self, now: SteadyTime) -> bool {
        self.subscribers.load(Ordering::Acquire) == 0 && self.taken_ns <= nanoseconds(now)
    }
}

fn part_of(key: AccountKey) -> usize {
    let mixed = key.name.get() ^ key.subject.map_or(0, NonZeroU64::get).rotate_left(32);
    (mixed % PARTS as u64) as usize
}

fn nanoseconds(time: SteadyTime) -> u64 {
    time.as_ms().saturating_mul(1_000_000)
}

const PARTS: usize = 16;

const NANOSECONDS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::{QuotaOverride, QuotasConfig};

    fn owner(subject: &str) -> AccountOwner<'_> {
        AccountOwner {
            key: AccountKey {
                name: Digest::of("app").short(),
                subject: Some(Digest::of(subject).short()),
            },
            kind: CallerKind::Token,
            name: "app",
            subject: Some(subject),
        }
    }

    fn rules(change: impl FnOnce(&mut QuotasConfig)) -> QuotaRules {
        let mut config = QuotasConfig::default();
        change(&mut config);
        QuotaRules::new(&config, &HashSet::from(["app".to_owned()])).unwrap()
    }

    fn at(ms: u64) -> SteadyTime {
        SteadyTime::from_ms(ms)
    }

    #[test]
    fn appends_have_a_burst_and_a_rate_and_messages_count() {
        let accounts = QuotaAccounts::default();
        let rules = rules(|config| {
            config.appends_per_second = 10;
            config.append_burst = Some(5);
        });
        let append =
            |subject, messages, ms| accounts.append(&rules, owner(subject), messages, at(ms));
        for _ in 0..5 {
            assert_eq!(append("a", 1, 1_000), Ok(()));
        }
        let exceeded = append("a", 1, 1_000).unwrap_err();
        assert_eq!((exceeded.quota, exceeded.max), (Quota::Appends, 10));
        assert_eq!(exceeded.retry, Some(Duration::from_millis(100)));
        assert_eq!(append("b", 1, 1_000), Ok(()), "another caller");
        assert_eq!(append("a", 1, 1_100), Ok(()));
        // A group is taken whole, and then paid for.
        assert_eq!(append("c", 100, 1_000), Ok(()));
        let exceeded = append("c", 1, 1_000).unwrap_err();
        assert_eq!(exceeded.retry, Some(Duration::from_millis(9_600)));
        assert!(append("c", 1, 10_500).is_err() && append("c", 1, 10_600).is_ok());
        let counts: Vec<_> = accounts.exceeded().map(|(_, count)| count).collect();
        assert_eq!(counts, [3, 0, 0, 0, 0]);
    }

    #[test]
    fn subscribers_are_counted_while_they_last() {
        let accounts = QuotaAccounts::default();
        let rules = rules(|config| config.subscribers = 2);
        let subscribe = |subject| accounts.subscribe(&rules, owner(subject), None, at(1));
        let first = subscribe("a").unwrap();
        let _second = subscribe("a").unwrap();
        assert_eq!(subscribe("a").unwrap_err().quota, Quota::Subscribers);
        assert!(subscribe("b").unwrap().is_some());
        drop(first);
        assert!(subscribe("a").is_ok());
    }

    #[test]
    fn a_subscription_moves_to_another_caller() {
        let accounts = QuotaAccounts::default();
        let rules = rules(|config| config.subscribers = 1);
        let subscribe = |subject, held| accounts.subscribe(&rules, owner(subject), held, at(1));
        let used = |subject: &str| {
            let usage = accounts.usage(&rules);
            let found = usage
                .iter()
                .find(|one| one.subject.as_deref() == Some(subject));
            found.map(|one| one.subscribers)
        };
        let held = subscribe("a", None).unwrap();
        let held = subscribe("a", held).unwrap();
        assert_eq!(used("a"), Some(1), "the quota is used up by itself");
        let held = subscribe("b", held).unwrap();
        assert_eq!((used("a"), used("b")), (Some(0), Some(1)));
        let _other = subscribe("c", None).unwrap();
        assert_eq!(subscribe("c", held).unwrap_err().quota, Quota::Subscribers);
        assert_eq!((used("b"), used("c")), (Some(0), Some(1)));
    }

    #[test]
    fn overrides_are_for_a_subject_before_its_issuer() {
        let one = |subject: Option<&str>, subscribers| QuotaOverride {
            name: "app".into(),
            subject: subject.map(Into::into),
            appends_per_second: None,
            append_burst: None,
            subscribers: Some(subscribers),
            streams: None,
            stored_bytes: None,
        };
        let rules = rules(|config| {
            config.appends_per_second = 7;
            config.overrides = vec![one(None, 1), one(Some("a"), 0)];
        });
        let limits = |subject| rules.limits(owner(subject).key);
        assert_eq!((limits("a").subscribers, limits("b").subscribers), (0, 1));
        assert_eq!(limits("a").appends_per_second, 7);
        assert_eq!(limits("a").append_burst, 7);
        let wrong = QuotasConfig {
            overrides: vec![one(None, 1), one(None, 2)],
            ..QuotasConfig::default()
        };
        let names = HashSet::from(["app".to_owned()]);
        let error = QuotaRules::new(&wrong, &names).unwrap_err();
        assert_eq!(error.key, "access.quotas.overrides[1]");
        let error = QuotaRules::new(&wrong, &HashSet::new()).unwrap_err();
        assert_eq!(error.key, "access.quotas.overrides[0].name");
    }

    #[test]
    fn the_table_is_bounded_and_idle_callers_give_way() {
        let accounts = QuotaAccounts::default();
        let rules = rules(|config| {
            config.accounts_max = 32;
            config.appends_per_second = 1;
        });
        let append = |number: u32, ms| {
            let subject = number.to_string();
            accounts.append(&rules, owner(&subject), 1, at(ms))
        };
        let full = (0..1_000).filter(|number| append(*number, 1_000).is_err());
        assert!(full.count() > 0 && accounts.known() <= 32);
        let exceeded = accounts.exceeded().last().unwrap();
        assert_eq!(exceeded.0, Quota::Accounts);
        assert!(exceeded.1 > 0);
        // A second later their appends do not count any more.
        assert!((1_000..1_010).all(|number| append(number, 2_000 + u64::from(number)).is_ok()));
        let held = accounts.subscribe(
            &self::rules(|config| config.subscribers = 1),
            owner("held"),
            None,
            at(9_000),
        );
        assert!((2_000..3_000).all(|number| append(number, u64::from(number) * 2_000).is_ok()));
        let usage = accounts.usage(&rules);
        let mut of_held = usage.iter().filter(|one| one.subscribers == 1);
        let held_subject = of_held.next().and_then(|one| one.subject.as_deref());
        assert_eq!(held_subject, Some("held"), "it has a subscription");
        drop(held);
    }
}
