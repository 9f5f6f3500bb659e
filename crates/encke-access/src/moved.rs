//! Callers in a form in which another process takes them over, with the connections that are theirs.
//!
//! Most callers share an authority: the grants of a key or an issuer. So authorities are numbered, and callers name the number.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use encke_clock::WallSeconds;
use serde::{Deserialize, Serialize};

use crate::caller::{Authority, Caller, CallerKind, CallerTag};
use crate::grants::Grants;

/// What the callers of one key with the same grants share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedAuthority {
    kind: CallerKind,
    name: Box<str>,
    key: Box<str>,
    grants: Grants,
    bound: Option<Grants>,
    claims: Box<[Box<str>]>,
    signed_by: Option<NonZeroU64>,
}

/// A caller with all that it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedCaller {
    authority: u32,
    subject: Option<Box<str>>,
    claims: Option<Vec<Option<Box<str>>>>,
    token_id: Option<NonZeroU64>,
    ends_at_s: u32,
    issued_at_s: u32,
}

/// What a subscription keeps of its caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedTag {
    authority: u32,
    subject: Option<NonZeroU64>,
    token_id: Option<NonZeroU64>,
    ends_at_s: u32,
    issued_at_s: u32,
}

/// Numbers the authorities of callers that move out.
#[derive(Debug, Default)]
pub struct CallersOut {
    authorities: Vec<MovedAuthority>,
    /// The numbers by the addresses of authorities, and these, so that no other gets the address.
    numbers: HashMap<usize, (u32, Arc<Authority>)>,
}

/// Callers that move in share the authorities of these numbers.
#[derive(Debug, Default)]
pub struct CallersIn {
    authorities: Vec<Arc<Authority>>,
}

/// A caller names an authority that was not announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a caller has the authority {0}, which is not among those that were announced")]
pub struct UnknownAuthority(u32);

impl CallersOut {
    /// A caller with all that it may do.
    pub fn caller(&mut self, caller: &Caller) -> MovedCaller {
        MovedCaller {
            authority: self.number(&caller.authority),
            subject: caller.subject.clone(),
            claims: caller.claims.as_deref().cloned(),
            token_id: caller.token_id,
            ends_at_s: caller.ends_at.as_s(),
            issued_at_s: caller.issued_at.as_s(),
        }
    }

    /// What a subscription keeps of its caller.
    pub fn tag(&mut self, tag: &CallerTag) -> MovedTag {
        MovedTag {
            authority: self.number(&tag.authority),
            subject: tag.subject,
            token_id: tag.token_id,
            ends_at_s: tag.ends_at.as_s(),
            issued_at_s: tag.issued_at.as_s(),
        }
    }

    /// The authorities by their numbers.
    pub fn into_authorities(self) -> Vec<MovedAuthority> {
        self.authorities
    }

    fn number(&mut self, authority: &Arc<Authority>) -> u32 {
        let address = Arc::as_ptr(authority).addr();
        if let Some((number, _)) = self.numbers.get(&address) {
            return *number;
        }
        let number = self.authorities.len() as u32;
        self.authorities.push(MovedAuthority {
            kind: authority.kind,
            name: authority.name.clone(),
            key: authority.key.clone(),
            grants: authority.grants.clone(),
            bound: authority.bound.as_deref().cloned(),
            claims: authority.claims.clone(),
            signed_by: authority.signed_by,
        });
        let known = (number, Arc::clone(authority));
        self.numbers.insert(address, known);
        number
    }
}

impl CallersIn {
    /// Callers that share these authorities.
    pub fn new(authorities: Vec<MovedAuthority>) -> Self {
        let authorities = authorities.into_iter();
        CallersIn {
            authorities: authorities.map(MovedAuthority::into_authority).collect(),
        }
    }

    /// A caller with all that it may do.
    ///
    /// # Errors
    /// Its authority was not announced.
    pub fn caller(&self, moved: MovedCaller) -> Result<Arc<Caller>, UnknownAuthority> {
        Ok(Arc::new(Caller {
            authority: self.authority(moved.authority)?,
            subject: moved.subject,
            claims: moved.claims.map(Box::new),
            token_id: moved.token_id,
            ends_at: WallSeconds::from_s(moved.ends_at_s),
            issued_at: WallSeconds::from_s(moved.issued_at_s),
        }))
    }

    /// What a subscription keeps of its caller.
    ///
    /// # Errors
    /// Its authority was not announced.
    pub fn tag(&self, moved: &MovedTag) -> Result<CallerTag, UnknownAuthority> {
        Ok(CallerTag {
            authority: self.authority(moved.authority)?,
            subject: moved.subject,
            token_id: moved.token_id,
            ends_at: WallSeconds::from_s(moved.ends_at_s),
            issued_at: WallSeconds::from_s(moved.issued_at_s),
        })
    }

    fn authority(&self, number: u32) -> Result<Arc<Authority>, UnknownAuthority> {
        let authority = self.authorities.get(number as usize);
        authority.cloned().ok_or(UnknownAuthority(number))
    }
}

impl MovedAuthority {
    fn into_authority(self) -> Arc<Authority> {
        Arc::new(Authority {
            kind: self.kind,
            name: self.name,
            key: self.key,
            grants: self.grants,
            bound: self.bound.map(Arc::new),
            claims: self.claims,
            signed_by: self.signed_by,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operation;

    fn moved<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
        serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
    }

    #[test]
    fn a_caller_may_the_same_where_it_moved_to() {
        let grants: Grants = serde_json::from_str(
            r#"[{"actions":["read","append"],"paths":["/v1/stream/{sub}/**","/v1/stream/a b/*"]}]"#,
        )
        .unwrap();
        let bound: Grants =
            serde_json::from_str(r#"[{"actions":["read"],"paths":["/**"]}]"#).unwrap();
        let authority = Arc::new(
            Authority::new(CallerKind::Token, "issuer", grants)
                .with_bound(Some("k1"), Some(Arc::new(bound))),
        );
        let caller = Caller {
            authority,
            subject: Some("mia".into()),
            claims: None,
            token_id: NonZeroU64::new(7),
            ends_at: WallSeconds::from_s(5_000),
            issued_at: WallSeconds::from_s(4_000),
        };
        let mut out = CallersOut::default();
        let moved_caller = moved(&out.caller(&caller));
        let moved_tag = moved(&out.tag(&caller.tag()));
        let authorities = moved(&out.into_authorities());
        assert_eq!(authorities.len(), 1, "it is shared");
        let callers = CallersIn::new(authorities);
        let tag = callers.tag(&moved_tag).unwrap();
        let arrived = callers.caller(moved_caller).unwrap();
        assert!(arrived.may(Operation::Read, "/v1/stream/mia/a"));
        assert!(!arrived.may(Operation::Append, "/v1/stream/mia/a"));
        assert!(!arrived.may(Operation::Read, "/v1/stream/ben/a"));
        assert!(arrived.may(Operation::Read, "/v1/stream/a b/c"));
        assert_eq!(arrived.describe(), caller.describe());
        assert_eq!(arrived.ends_at(), caller.ends_at());
        assert_eq!(arrived.tag().identity(), tag.identity());
        assert_eq!(tag.token_id, caller.token_id);
    }

    #[test]
    fn an_authority_that_was_not_announced_is_refused() {
        let tag = MovedTag {
            authority: 3,
            subject: None,
            token_id: None,
            ends_at_s: 0,
            issued_at_s: 0,
        };
        let error = CallersIn::default().tag(&tag).unwrap_err();
        assert_eq!(error, UnknownAuthority(3));
    }
}
