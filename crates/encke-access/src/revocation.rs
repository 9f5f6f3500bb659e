//! Credentials that were revoked before they end.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use encke_clock::{WallSeconds, WallTime};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::caller::{Authority, Caller, CallerTag};
use crate::digest::Digest;

/// A revocation as it is stored. Its JSON form is stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// What is revoked.
    pub revoke: RevocationTarget,
    /// When it was revoked.
    #[serde(rename = "at_ms")]
    pub at: WallTime,
    /// When no credential is left that it could concern. `None`: never.
    #[serde(rename = "until_ms", default, skip_serializing_if = "Option::is_none")]
    pub until: Option<WallTime>,
}

/// What a revocation names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevocationTarget {
    /// One token, by its claim `jti`.
    #[serde(rename = "jti")]
    Token(String),
    /// The tokens of a subject (`sub`) that were issued until then (`iat`), the leeway included, and those that don't say when they
    /// were issued.
    #[serde(rename = "sub")]
    Subject(String),
    /// A key, by [`Caller::key_name`], or all keys of an issuer, by its name: all that it signed, whenever.
    #[serde(rename = "key")]
    Key(String),
}

/// There are too many revocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are {REVOCATIONS_MAX} revocations, which is the maximum; remove the key from the configuration, or set lifetime-max for \
     each issuer so that revocations end"
)]
pub struct TooManyRevocations;

/// All revocations that matter.
#[derive(Debug)]
pub(crate) struct Revocations {
    /// By how much the clock of an issuer may be fast: a token that was issued before a revocation can say that it was issued so much
    /// later. In seconds.
    leeway_s: AtomicU64,
    table: RwLock<Revoked>,
    len: AtomicUsize,
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct Revoked {
    tokens: HashMap<NonZeroU64, Revocation>,
    subjects: HashMap<NonZeroU64, Revocation>,
    keys: HashMap<Box<str>, Revocation>,
}

impl Revocations {
    pub(crate) fn new(leeway: Duration) -> Self {
        Revocations {
            leeway_s: AtomicU64::new(leeway.as_secs()),
            table: RwLock::default(),
            len: AtomicUsize::default(),
            version: AtomicU64::default(),
        }
    }

    /// Sets by how much the clock of an issuer may be fast.
    pub(crate) fn set_leeway(&self, leeway: Duration) {
        self.leeway_s.store(leeway.as_secs(), Ordering::Relaxed);
    }

    /// Adds a revocation. One of the same target takes the place of an older one.
    pub(crate) fn add(
        &self,
        revocation: Revocation,
        now: WallTime,
    ) -> Result<(), TooManyRevocations> {
        if revocation.has_ended(now) {
            return Ok(());
        }
        let mut table = self.table.write();
        if table.len() >= REVOCATIONS_MAX && !table.contains(&revocation.revoke) {
            table.remove_ended(now);
            self.len.store(table.len(), Ordering::Release);
            if table.len() >= REVOCATIONS_MAX {
                return Err(TooManyRevocations);
            }
        }
        match &revocation.revoke {
            RevocationTarget::Token(id) => {
                later(table.tokens.entry(Digest::of(id).short()), revocation);
            }
            RevocationTarget::Subject(subject) => {
                later(
                    table.subjects.entry(Digest::of(subject).short()),
                    revocation,
                );
            }
            RevocationTarget::Key(key) => {
                let key = key.as_str().into();
                later(table.keys.entry(key), revocation);
            }
        }
        self.len.store(table.len(), Ordering::Release);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Removes what can't matter any more.
    pub(crate) fn remove_ended(&self, now: WallTime) {
        let mut table = self.table.write();
        table.remove_ended(now);
        self.len.store(table.len(), Ordering::Release);
    }

    pub(crate) fn concerns(&self, caller: &Caller) -> bool {
        self.is_any()
            && self.table.read().concerns(
                &caller.authority,
                || {
                    caller
                        .subject
                        .as_deref()
                        .map(|subject| Digest::of(subject).short())
                },
                caller.token_id,
                self.issued_at(caller.issued_at),
            )
    }

    pub(crate) fn concerns_tag(&self, tag: &CallerTag) -> bool {
        self.is_any()
            && self.table.read().concerns(
                &tag.authority,
                || tag.subject,
                tag.token_id,
                self.issued_at(tag.issued_at),
            )
    }

    /// The earliest time at which a token can have been issued. One that does not say when has 1970 there.
    fn issued_at(&self, claim: WallSeconds) -> WallTime {
        let leeway = Duration::from_secs(self.leeway_s.load(Ordering::Relaxed));
        claim.start().before(leeway)
    }

    pub(crate) fn all(&self) -> Vec<Revocation> {
        let table = self.table.read();
        let tokens = table.tokens.values();
        let others = table.subjects.values().chain(table.keys.values());
        tokens.chain(others).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Changes with each revocation.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn is_any(&self) -> bool {
        self.len() > 0
    }
}

/// Keeps the revocation that concerns more.
fn later<K>(place: std::collections::hash_map::Entry<'_, K, Revocation>, new: Revocation) {
    let old = place.or_insert_with(|| new.clone());
    old.at = old.at.max(new.at);
    old.until = old.until.zip(new.until).map(|(old, new)| old.max(new));
}

impl Revocation {
    fn has_ended(&self, now: WallTime) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl Revoked {
    fn len(&self) -> usize {
        self.tokens.len() + self.subjects.len() + self.keys.len()
    }

    fn contains(&self, target: &RevocationTarget) -> bool {
        match target {
            RevocationTarget::Token(id) => self.tokens.contains_key(&Digest::of(id).short()),
            RevocationTarget::Subject(subject) => {
                self.subjects.contains_key(&Digest::of(subject).short())
            }
            RevocationTarget::Key(key) => self.keys.contains_key(key.as_str()),
        }
    }

    fn remove_ended(&mut self, now: WallTime) {
        self.tokens.retain(|_, one| !one.has_ended(now));
        self.subjects.retain(|_, one| !one.has_ended(now));
        self.keys.retain(|_, one| !one.has_ended(now));
    }

    fn concerns(
        &self,
        authority: &Authority,
        subject: impl Fn() -> Option<NonZeroU64>,
        token_id: Option<NonZeroU64>,
        issued_at: WallTime,
    ) -> bool {
        if token_id.is_some_and(|id| self.tokens.contains_key(&id)) {
            return true;
        }
        if !self.keys.is_empty()
            && (self.keys.contains_key(&authority.key) || self.keys.contains_key(&authority.name))
        {
            return true;
        }
        if self.subjects.is_empty() {
            return false;
        }
        let of_subject = subject().and_then(|subject| self.subjects.get(&subject));
        of_subject.is_some_and(|one| issued_at <= one.at)
    }
}

/// Revocations in memory.
pub const REVOCATIONS_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::caller::{CallerKind, NEVER};
    use crate::grants::Grants;

    const LEEWAY_S: u64 = 3;

    fn caller(subject: &str, id: &str, issued_at_s: u32) -> Caller {
        let authority = Authority::new(CallerKind::Token, "issuer", Grants::default());
        Caller {
            authority: Arc::new(authority.with_bound(Some("kid"), None)),
            subject: Some(subject.into()),
            claims: None,
            token_id: Some(Digest::of(id).short()),
            ends_at: NEVER,
            issued_at: WallSeconds::from_s(issued_at_s),
        }
    }

    fn revoked(target: RevocationTarget, caller: &Caller) -> bool {
        let revocations = Revocations::new(Duration::from_secs(LEEWAY_S));
        let revocation = Revocation {
            revoke: target,
            at: WallTime::from_ms(10_000),
            until: None,
        };
        revocations.add(revocation, WallTime::from_ms(0)).unwrap();
        let concerned = revocations.concerns(caller);
        assert_eq!(revocations.concerns_tag(&caller.tag()), concerned);
        concerned
    }

    #[test]
    fn a_revocation_concerns_what_it_names() {
        let alice = caller("alice", "1", 5);
        let token = |id: &str| RevocationTarget::Token(id.into());
        assert!(revoked(token("1"), &alice) && !revoked(token("2"), &alice));
        let key = |name: &str| RevocationTarget::Key(name.into());
        assert!(revoked(key("issuer/kid"), &alice) && revoked(key("issuer"), &alice));
        assert!(!revoked(key("kid"), &alice) && !revoked(key("issuer/other"), &alice));
    }

    #[test]
    fn tokens_that_a_subject_got_later_stay_valid() {
        let revoked_for = |issued_at_s| {
            let alice = RevocationTarget::Subject("alice".into());
            revoked(alice, &caller("alice", "1", issued_at_s))
        };
        assert!(revoked_for(0) && revoked_for(5) && revoked_for(10));
        // The clock of an issuer may be fast by the leeway.
        assert!(revoked_for(11) && revoked_for(10 + LEEWAY_S as u32));
        assert!(!revoked_for(11 + LEEWAY_S as u32));
        let bob = RevocationTarget::Subject("bob".into());
        assert!(!revoked(bob, &caller("alice", "1", 5)));
    }

    #[test]
    fn a_revocation_is_kept_until_it_cannot_matter() {
        let revocations = Revocations::new(Duration::from_secs(LEEWAY_S));
        let alice = caller("alice", "1", 5);
        let version = revocations.version();
        let revocation = Revocation {
            revoke: RevocationTarget::Token("1".into()),
            at: WallTime::from_ms(1_000),
            until: Some(WallTime::from_ms(2_000)),
        };
        revocations
            .add(revocation.clone(), WallTime::from_ms(1_000))
            .unwrap();
        assert_ne!(revocations.version(), version);
        revocations.remove_ended(WallTime::from_ms(1_999));
        assert!(revocations.concerns(&alice));
        assert_eq!(revocations.all(), std::slice::from_ref(&revocation));
        revocations.remove_ended(WallTime::from_ms(2_000));
        assert!(!revocations.concerns(&alice));
        revocations
            .add(revocation, WallTime::from_ms(2_000))
            .unwrap();
        assert_eq!(revocations.len(), 0);
    }

    #[test]
    fn a_shorter_revocation_does_not_weaken_a_longer_one() {
        let revocations = Revocations::new(Duration::from_secs(LEEWAY_S));
        for (at_ms, until_ms) in [(9_000, None), (5_000, Some(6_000))] {
            let revocation = Revocation {
                revoke: RevocationTarget::Subject("alice".into()),
                at: WallTime::from_ms(at_ms),
                until: until_ms.map(WallTime::from_ms),
            };
            revocations.add(revocation, WallTime::from_ms(0)).unwrap();
        }
        assert_eq!(revocations.all()[0].at, WallTime::from_ms(9_000));
        assert_eq!(revocations.all()[0].until, None);
    }

    #[test]
    fn the_number_of_revocations_is_bounded_and_ended_ones_give_way() {
        let revocations = Revocations::new(Duration::from_secs(LEEWAY_S));
        let one = |number: usize, until_ms: Option<u64>| Revocation {
            revoke: RevocationTarget::Token(number.to_string()),
            at: WallTime::default(),
            until: until_ms.map(WallTime::from_ms),
        };
        for number in 0..REVOCATIONS_MAX - 1 {
            revocations
                .add(one(number, None), WallTime::from_ms(0))
                .unwrap();
        }
        revocations
            .add(one(REVOCATIONS_MAX, Some(10)), WallTime::from_ms(0))
            .unwrap();
        let next = one(REVOCATIONS_MAX + 1, None);
        assert_eq!(
            revocations.add(next.clone(), WallTime::from_ms(9)),
            Err(TooManyRevocations)
        );
        // One that is there already takes no room.
        assert_eq!(revocations.add(one(0, None), WallTime::from_ms(9)), Ok(()));
        assert_eq!(revocations.len(), REVOCATIONS_MAX);
        assert_eq!(revocations.add(next, WallTime::from_ms(10)), Ok(()));
        assert_eq!(revocations.len(), REVOCATIONS_MAX);
    }

    #[test]
    fn the_stored_form_is_stable() {
        let json = r#"{"revoke":{"jti":"x"},"at_ms":1,"until_ms":2}"#;
        let read: Revocation = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), json);
        let forever = r#"{"revoke":{"key":"issuer/kid"},"at_ms":1}"#;
        let read: Revocation = serde_json::from_str(forever).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), forever);
        assert!(serde_json::from_str::<Revocation>(r#"{"revoke":{"iss":"x"},"at_ms":1}"#).is_err());
    }
}
