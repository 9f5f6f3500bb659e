//! What a change of the configuration leaves to those who are there: a credential that was accepted before may not be accepted any more,
//! or grant something else.
//!
//! What lasts keeps no credential, only a [`CallerTag`]. For a key, the name and a fingerprint say whether it is still there. A token
//! that was accepted is accepted as long as its issuer has not become stricter; otherwise only the token could say, and its holder has
//! to present it again.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::caller::{Authority, Caller, CallerKind, CallerTag, GrantSource, SUBJECT};
use crate::denied::AccessDenied;
use crate::digest::Digest;
use crate::grants::Grants;
use crate::operation::Operation;
use crate::rules::AccessRules;

/// What may go on of what a caller does.
#[derive(Debug)]
pub enum Standing {
    /// All: nothing that concerns it has changed.
    Unchanged,
    /// What it is granted now.
    Regranted(RegrantedCaller),
    /// Nothing: its credential is not accepted any more.
    Refused,
    /// Only the credential itself can say.
    Unknown,
}

/// A caller whose grants have changed, as far as its tag knows it: its subject by a digest, and no other claims.
#[derive(Debug)]
pub struct RegrantedCaller {
    before: Arc<Authority>,
    now: Arc<Authority>,
    subject: Option<NonZeroU64>,
}

/// Who has grants.
pub trait Grantee {
    /// Whether it may do this to a canonical path.
    fn may(&self, operation: Operation, path: &str) -> bool;

    /// Whether it may do this to every path below a canonical path, by one grant.
    fn may_below(&self, operation: Operation, prefix: &str) -> bool;
}

impl Grantee for Caller {
    fn may(&self, operation: Operation, path: &str) -> bool {
        Caller::may(self, operation, path)
    }

    fn may_below(&self, operation: Operation, prefix: &str) -> bool {
        Caller::may_below(self, operation, prefix)
    }
}

/// By the grants of now. A grant that names another claim than the subject grants nothing, because the claim is not known; see
/// [`RegrantedCaller::is_certain`].
impl Grantee for RegrantedCaller {
    fn may(&self, operation: Operation, path: &str) -> bool {
        let has = |claim: &str, value: &str| claim == SUBJECT && self.is_subject(value);
        let allows = |grants: &Grants| grants.allow(operation, path, has);
        self.judges().all(allows)
    }

    fn may_below(&self, operation: Operation, prefix: &str) -> bool {
        let has = |claim: &str, value: &str| claim == SUBJECT && self.is_subject(value);
        let allows = |grants: &Grants| grants.allow_below(operation, prefix, has);
        self.judges().all(allows)
    }
}

impl RegrantedCaller {
    /// Whether what it may not do by [`Grantee::may`] is refused for certain. Otherwise it depends on claims that are not known.
    pub fn is_certain(&self) -> bool {
        let mut claims = self.judges().flat_map(Grants::claims);
        claims.all(|claim| claim == SUBJECT)
    }

    /// Whether it might do this to a canonical path before, whatever its claims.
    pub fn might(&self, operation: Operation, path: &str) -> bool {
        let before = &self.before;
        let allows = |grants: &Grants| grants.allow(operation, path, |_, _| true);
        allows(&before.grants) && before.bound.as_deref().is_none_or(allows)
    }

    /// Whether it might do this to every path below a canonical path before, whatever its claims.
    pub fn might_below(&self, operation: Operation, prefix: &str) -> bool {
        let before = &self.before;
        let allows = |grants: &Grants| grants.allow_below(operation, prefix, |_, _| true);
        allows(&before.grants) && before.bound.as_deref().is_none_or(allows)
    }

    fn is_subject(&self, text: &str) -> bool {
        self.subject.is_some() && self.subject == Some(Digest::of(text).short())
    }

    /// The grants that all must allow what it does. Those of a token's own claim did, and they stay.
    fn judges(&self) -> impl Iterator<Item = &Grants> {
        let own = (self.now.source != GrantSource::Claim).then_some(&self.now.grants);
        own.into_iter().chain(self.now.bound.as_deref())
    }
}

/// What has become of an authority.
enum Successor {
    Same,
    Other(Arc<Authority>),
    Refused,
    Unknown,
}

impl AccessRules {
    /// See [`crate::Access::standing`].
    pub(crate) fn standing(&self, tag: &CallerTag) -> Standing {
        match self.successor(&tag.authority) {
            Successor::Same => Standing::Unchanged,
            Successor::Other(now) => Standing::Regranted(RegrantedCaller {
                before: Arc::clone(&tag.authority),
                now,
                subject: tag.subject,
            }),
            Successor::Refused => Standing::Refused,
            Successor::Unknown => Standing::Unknown,
        }
    }

    /// See [`crate::Access::renewed`].
    pub(crate) fn renewed(&self, caller: &Arc<Caller>) -> Result<Arc<Caller>, AccessDenied> {
        let authority = match self.successor(&caller.authority) {
            Successor::Same => return Ok(Arc::clone(caller)),
            Successor::Other(authority) => authority,
            Successor::Refused => return Err(AccessDenied::Revoked),
            Successor::Unknown => return Err(AccessDenied::Expired("token")),
        };
        let names = authority.claims.iter();
        let values: Vec<_> = names
            .map(|name| caller.claim(name).map(Into::into))
            .collect();
        Ok(Arc::new(Caller {
            authority,
            subject: caller.subject.clone(),
            claims: (!values.is_empty()).then(|| Box::new(values)),
            token_id: caller.token_id,
            ends_at: caller.ends_at,
            issued_at: caller.issued_at,
        }))
    }

    fn successor(&self, before: &Arc<Authority>) -> Successor {
        if before.kind == CallerKind::Token {
            return self.successor_of_tokens(before);
        }
        match self.authorities.get(&before.name) {
            Some(now) if Arc::ptr_eq(now, before) => Successor::Same,
            // Another key of the same name is another key.
            Some(now) if now.kind == before.kind && is_same_key(before, now) => {
                Successor::Other(Arc::clone(now))
            }
            _ => Successor::Refused,
        }
    }

    fn successor_of_tokens(&self, before: &Authority) -> Successor {
        let Some(issuer) = self.issuer(&before.name) else {
            return Successor::Refused;
        };
        if before.version < issuer.accepts_since {
            return Successor::Unknown;
        }
        if before
            .signed_by
            .is_some_and(|key| issuer.has_withdrawn(key))
        {
            return Successor::Refused;
        }
        if before.version == issuer.version && !before.is_moved {
            return Successor::Same;
        }
        let bound = issuer.bound.clone();
        let (source, grants) = match (&before.source, issuer.has_scopes()) {
            (GrantSource::Claim, _) => (GrantSource::Claim, before.grants.clone()),
            (GrantSource::Scopes(scopes), true) => {
                (before.source.clone(), issuer.grants_of_scopes(scopes))
            }
            (_, false) => {
                let grants = bound.as_deref().cloned().unwrap_or_default();
                (GrantSource::Configured, grants)
            }
            // Its scopes did not matter before, and nobody has kept them.
            (GrantSource::Configured, true) => return Successor::Unknown,
        };
        let key = &*before.key;
        let kid = key.strip_prefix(&*before.name);
        let kid = kid.and_then(|kid| kid.strip_prefix('/'));
        Successor::Other(Arc::new(Authority {
            signed_by: before.signed_by,
            source,
            version: issuer.version,
            ..Authority::new(CallerKind::Token, &before.name, grants).with_bound(kid, bound)
        }))
    }
}

/// Whether two authorities of one name come from the same key. An older version of the server did not say from which its own came.
fn is_same_key(before: &Authority, now: &Authority) -> bool {
    before.signed_by.is_none() || before.signed_by == now.signed_by
}
