//! Who makes a request.

use std::fmt::Write;
use std::sync::Arc;

use encke_clock::{WallSeconds, WallTime};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::grants::Grants;
use crate::keys::KeyFingerprint;
use crate::operation::Operation;

/// Who makes a request, and what it may do. Small, because each cached token has one: grants are shared by all callers whose
/// credentials grant the same.
#[derive(Debug)]
pub struct Caller {
    pub(crate) authority: Arc<Authority>,
    /// The claim `sub`.
    pub(crate) subject: Option<Box<str>>,
    /// Values of the claims that the grants name, in the order of [`Authority::claims`]. `None`: they name none but `sub`.
    #[expect(clippy::box_collection, reason = "8 bytes where there are none")]
    pub(crate) claims: Option<Box<Vec<Option<Box<str>>>>>,
    /// A digest of the claim `jti`, if there is one.
    pub(crate) token_id: Option<std::num::NonZeroU64>,
    /// When the credential ends, the leeway included. `NEVER`: it does not.
    pub(crate) ends_at: WallSeconds,
    /// The claim `iat`. 1970: unknown.
    pub(crate) issued_at: WallSeconds,
}

/// What the callers of one key with the same grants share.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) kind: CallerKind,
    /// The name of the issuer, the API key, the signing key or the certificate.
    pub(crate) name: Box<str>,
    /// A digest of the name, by which quotas are counted.
    pub(crate) name_digest: std::num::NonZeroU64,
    /// What [`Caller::key_name`] says.
    pub(crate) key: Box<str>,
    pub(crate) grants: Grants,
    /// What the configuration allows at most.
    pub(crate) bound: Option<Arc<Grants>>,
    /// Claims that grants or bound name, other than `sub`; sorted.
    pub(crate) claims: Box<[Box<str>]>,
    /// The key that is presented, or that signs what is presented. `None`: there is none, as with a certificate.
    pub(crate) signed_by: Option<KeyFingerprint>,
    /// Of tokens: what their grants follow from.
    pub(crate) source: GrantSource,
    /// Of tokens: the version of the configuration ([`crate::rules::AccessRules::version`]) that their issuer is of.
    pub(crate) version: u64,
    /// Of tokens: another process has accepted them, by a configuration that may have been another one.
    pub(crate) is_moved: bool,
}

/// What the grants of a caller follow from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GrantSource {
    /// The configuration alone.
    #[default]
    Configured,
    /// The claim `encke`, which a change of the configuration does not change.
    Claim,
    /// These scopes, which the configuration explains.
    Scopes(Box<[String]>),
}

/// How a caller was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallerKind {
    /// No credentials.
    Anonymous,
    /// A JSON Web Token.
    Token,
    /// An API key.
    ApiKey,
    /// A signed URL.
    SignedUrl,
    /// A client certificate.
    Certificate,
}

impl CallerKind {
    /// Its name for operators.
    pub fn name(self) -> &'static str {
        match self {
            CallerKind::Anonymous => "anonymous",
            CallerKind::Token => "token",
            CallerKind::ApiKey => "api_key",
            CallerKind::SignedUrl => "signed_url",
            CallerKind::Certificate => "certificate",
        }
    }
}

/// Who a caller is, see [`Caller::identity`]. It is stored with what belongs to callers, so its form must not change.
pub(crate) fn identity(kind: CallerKind, issuer: &str, subject: &str) -> String {
    format!("{kind:?}\0{issuer}\0{subject}")
}

/// The name of the caller with an identity, for people: the subject of a token, or the name of a key or certificate.
pub fn name_of_identity(identity: &str) -> &str {
    let mut parts = identity.splitn(3, '\0').skip(1);
    let (issuer, subject) = (parts.next(), parts.next());
    let subject = subject.filter(|subject| !subject.is_empty());
    subject.or(issuer).unwrap_or(identity)
}

impl Caller {
    /// Whether it may do this to a canonical path.
    pub fn may(&self, operation: Operation, path: &str) -> bool {
        let has = |name: &str, value: &str| self.claim(name) == Some(value);
        let allows = |grants: &Grants| grants.allow(operation, path, has);
        allows(&self.authority.grants) && self.authority.bound.as_deref().is_none_or(allows)
    }

    /// Whether it may do this to every path below a canonical path: for subscriptions to all streams below a prefix. One grant
    /// must cover all of them.
    pub fn may_below(&self, operation: Operation, prefix: &str) -> bool {
        let has = |name: &str, value: &str| self.claim(name) == Some(value);
        let allows = |grants: &Grants| grants.allow_below(operation, prefix, has);
        allows(&self.authority.grants) && self.authority.bound.as_deref().is_none_or(allows)
    }

    /// A caller with this authority and nothing of its own.
    pub(crate) fn of(authority: Arc<Authority>) -> Arc<Caller> {
        Arc::new(Caller {
            authority,
            subject: None,
            claims: None,
            token_id: None,
            ends_at: NEVER,
            issued_at: WallSeconds::default(),
        })
    }

    /// When its credential ends; the leeway for clocks is included, so that a client that comes
    /// back before then is admitted with the same credential. `None`: it does not end.
    pub fn ends_at(&self) -> Option<WallTime> {
        (self.ends_at != NEVER).then(|| self.ends_at.start())
    }

    /// The same caller without a token, by a credential that ends.
    pub(crate) fn ending_at(&self, ends_at: WallTime) -> Caller {
        Caller {
            authority: Arc::clone(&self.authority),
            subject: None,
            claims: None,
            token_id: None,
            ends_at: ends_at.in_seconds(),
            issued_at: self.issued_at,
        }
    }

    /// A name for people and the audit log: the subject of a token, the name of a key or certificate, or `anonymous`.
    pub fn name(&self) -> &str {
        self.subject.as_deref().unwrap_or(&self.authority.name)
    }

    /// How it was resolved.
    pub fn kind(&self) -> CallerKind {
        self.authority.kind
    }

    /// The issuer of its token, or its key or certificate by name.
    pub fn issuer(&self) -> &str {
        &self.authority.name
    }

    /// Who it is, in one text: the same for all tokens of one subject at one issuer, and for one API key or certificate. None: others
    /// may have the same credentials, as without any, by a signed URL, or by tokens without a subject.
    pub fn identity(&self) -> Option<String> {
        let subject = self
            .subject
            .as_deref()
            .filter(|subject| !subject.is_empty());
        let subject = match self.kind() {
            CallerKind::Anonymous | CallerKind::SignedUrl => return None,
            CallerKind::Token => subject?,
            CallerKind::ApiKey | CallerKind::Certificate => "",
        };
        Some(identity(self.kind(), self.issuer(), subject))
    }

    /// The key by which a revocation names it: the name of an API key, a signing key or a certificate; of a token the name of its
    /// issuer and, if there is one, a slash and the `kid`.
    pub fn key_name(&self) -> &str {
        &self.authority.key
    }

    /// What a long-lived subscription keeps of its caller.
    pub fn tag(&self) -> CallerTag {
        CallerTag {
            authority: Arc::clone(&self.authority),
            subject: self
                .subject
                .as_deref()
                .map(|subject| Digest::of(subject).short()),
            token_id: self.token_id,
            ends_at: self.ends_at,
            issued_at: self.issued_at,
        }
    }

    /// What it is and what it may do, on several lines.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let authority = &*self.authority;
        let _ = writeln!(text, "caller: {}", self.name());
        let _ = match authority.kind {
            CallerKind::Token => writeln!(text, "issuer: {}", authority.name),
            _ => Ok(()),
        };
        if authority.kind != CallerKind::Anonymous {
            let _ = writeln!(text, "key: {}", self.key_name());
        }
        let _ = write!(text, "grants:\n{}", authority.grants);
        if let Some(bound) = &authority.bound {
            let _ = write!(text, "at most, by the configuration:\n{bound}");
        }
        for name in authority.all_claims() {
            let _ = match self.claim(name) {
                Some(value) => writeln!(text, "claim {name}: {value}"),
                None => writeln!(
                    text,
                    "claim {name}: missing, so that patterns with it match nothing"
                ),
            };
        }
        text
    }

    /// Why it may or may not do something, in one sentence.
    pub fn explain(&self, operation: Operation, path: &str) -> String {
        let claim = |name: &str| self.claim(name);
        let own = self.authority.grants.allowing(operation, path, claim);
        let Some(own) = own else {
            return format!("no grant of the caller allows {operation} on {path}");
        };
        let Some(bound) = &self.authority.bound else {
            return format!("{operation} on {path} is allowed by {own}");
        };
        match bound.allowing(operation, path, claim) {
            Some(bound) => format!(
                "{operation} on {path} is allowed by {own}, and within the configured grants by {bound}"
            ),
            None => format!(
                "{own} would allow {operation} on {path}, but the configured grants of {:?} do not",
                self.authority.name
            ),
        }
    }

    pub(crate) fn claim(&self, name: &str) -> Option<&str> {
        if name == SUBJECT {
            return self.subject.as_deref();
        }
        let names = &self.authority.claims;
        let at = names.iter().position(|known| **known == *name)?;
        self.claims.as_ref()?.get(at)?.as_deref()
    }
}

impl Authority {
    /// A caller without a token: it ends never and has no claims.
    pub(crate) fn new(kind: CallerKind, name: &str, grants: Grants) -> Self {
        Authority {
            kind,
            name: name.into(),
            name_digest: Digest::of(name).short(),
            key: name.into(),
            claims: Box::default(),
            grants,
            bound: None,
            signed_by: None,
            source: GrantSource::Configured,
            version: 0,
            is_moved: false,
        }
    }

    /// The same by a key with that fingerprint.
    pub(crate) fn with_key(self, key: KeyFingerprint) -> Self {
        Authority {
            signed_by: Some(key),
            ..self
        }
    }

    /// Whether another authority without tokens comes from the same key and grants the same.
    pub(crate) fn is_same(&self, other: &Authority) -> bool {
        self.kind == other.kind && self.signed_by == other.signed_by && self.grants == other.grants
    }

    pub(crate) fn with_bound(mut self, kid: Option<&str>, bound: Option<Arc<Grants>>) -> Self {
        let mut claims = self.grants.claims();
        claims.extend(bound.iter().flat_map(|bound| bound.claims()));
        claims.remove(SUBJECT);
        self.claims = claims.into_iter().map(Into::into).collect();
        if let Some(kid) = kid {
            self.key = format!("{}/{kid}", self.name).into();
        }
        self.bound = bound;
        self
    }

    fn all_claims(&self) -> impl Iterator<Item = &str> {
        let own = self.grants.claims();
        let bound = self.bound.iter().flat_map(|bound| bound.claims());
        let subject = own.into_iter().chain(bound).find(|name| *name == SUBJECT);
        subject
            .into_iter()
            .chain(self.claims.iter().map(|name| &**name))
    }
}

/// What a subscription keeps of its caller: enough to end it in time and to revoke it, and no more. 32 bytes, no allocation of its own.
#[derive(Clone, Debug)]
pub struct CallerTag {
    pub(crate) authority: Arc<Authority>,
    pub(crate) subject: Option<std::num::NonZeroU64>,
    pub(crate) token_id: Option<std::num::NonZeroU64>,
    pub(crate) ends_at: WallSeconds,
    pub(crate) issued_at: WallSeconds,
}

impl CallerTag {
    /// What tells it from other callers; `None` without credentials.
    pub fn identity(&self) -> Option<CallerIdentity> {
        (self.authority.kind != CallerKind::Anonymous).then(|| CallerIdentity {
            authority: Arc::as_ptr(&self.authority).addr(),
            credential: self.subject.or(self.token_id),
        })
    }

    /// As [`Caller::ends_at`].
    pub fn ends_at(&self) -> Option<WallTime> {
        (self.ends_at != NEVER).then(|| self.ends_at.start())
    }

    /// The issuer of its token, or its key or certificate by name.
    pub fn issuer(&self) -> &str {
        &self.authority.name
    }

    /// A digest of the subject of its token, for [`Access::subjects`](crate::Access::subjects): the subject itself is not kept.
    pub fn subject_digest(&self) -> Option<std::num::NonZeroU64> {
        self.subject
    }

    /// Whether this is the name of its caller, see [`Caller::name`].
    pub fn is_named(&self, name: &str) -> bool {
        match self.subject {
            Some(digest) => Digest::of(name).short() == digest,
            None => *self.authority.name == *name,
        }
    }
}

/// Tells callers with credentials apart, for as long as a tag of each is kept: by the subject or the id of a token, or else by what
/// the callers of one key with the same grants share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallerIdentity {
    authority: usize,
    credential: Option<std::num::NonZeroU64>,
}

impl CallerIdentity {
    /// Whether it is that of one subject or of one token, and not of all who have the same key.
    pub fn is_personal(&self) -> bool {
        self.credential.is_some()
    }
}

/// The name of callers without credentials.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// The claim of the subject.
pub(crate) const SUBJECT: &str = "sub";

/// No end.
pub(crate) const NEVER: WallSeconds = WallSeconds::from_s(u32::MAX);
