//! Callers: who makes a request, and what they may do.
//!
//! [`Access::resolve`] turns the credentials of a request (a token, a cookie, a signed URL, an API key, a client certificate, or none)
//! into one [`Caller`], and [`Caller::may`] says whether it may do an [`Operation`] on a path. Nothing else decides about access.
//!
//! The invariant: **a request is authorised for the path that routes it.** Both use the one [`CanonicalPath`], and a path without
//! a canonical form is refused.
//!
//! The crate has no network, no clock and no randomness: the time is a parameter, files are read by a function of the server, and keys
//! that must be fetched are handed in by a thread that waits on [`KeyFetches`]. Start reading in `access.rs`, at `resolve`; `rules.rs` is what
//! a reload replaces, and `standing.rs` says what that leaves to those who are there.

mod access;
mod accounts;
mod authorities;
mod cache;
mod caller;
mod config;
mod credentials;
mod denied;
mod digest;
mod duration;
mod entries;
mod failed_tokens;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod grants;
mod issuer;
mod key_fetches;
mod key_requests;
mod keys;
mod mint;
mod moved;
mod operation;
mod path;
mod pattern;
mod quotas;
mod revocation;
mod rules;
mod signed_fields;
mod signed_url;
mod standing;
mod token;
mod unknown_keys;

pub use access::{Access, AccessCounts, Resolved, UnknownIssuer};
pub use accounts::{AccountUsage, SubscriberHold};
pub use authorities::SHARED_GRANTS_MAX;
pub use cache::TokenCacheCounts;
pub use caller::{Caller, CallerIdentity, CallerKind, CallerTag, name_of_identity};
pub use config::{
    AccessConfig, AccessConfigError, AnonymousConfig, ApiKeyConfig, CertificateConfig,
    IssuerConfig, QuotaOverride, QuotasConfig, Secret, SigningKeyConfig,
};
pub use credentials::{ClientCertificate, Credentials, LAST_EVENT_ID, SIGNING_PARAMETERS};
pub use denied::{AccessDenied, TOKEN_BYTES_MAX};
pub use duration::parse_duration;
pub use grants::{Grant, Grants, PATTERNS_PER_TOKEN_MAX};
pub use key_fetches::{KeyFetches, KeyLocation};
pub use key_requests::KeyFetch;
pub use keys::{JWKS_BYTES_MAX, JWKS_KEYS_MAX, JwksError};
pub use mint::{Mint, MintError, NewToken, api_key};
pub use moved::{CallersIn, CallersOut, MovedAuthority, MovedCaller, MovedTag, UnknownAuthority};
pub use operation::{Operation, OperationSet, UnknownOperation};
pub use path::{CanonicalPath, PathError};
pub use pattern::{PathPattern, PatternError};
pub use quotas::{Quota, QuotaExceeded, QuotaLimits};
pub use revocation::{REVOCATIONS_MAX, Revocation, RevocationTarget, TooManyRevocations};
pub use rules::API_KEYS_MAX;
pub use signed_fields::{NotAField, SIGNED_FIELDS_MAX, SignedField, SignedFields};
pub use signed_url::{SignError, SignedUrl, UrlToSign};
pub use standing::{Grantee, RegrantedCaller, Standing};
pub use unknown_keys::{FETCH_INTERVAL, FETCHES_AT_ONCE, UNKNOWN_KEYS_MAX};
