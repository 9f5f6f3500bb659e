//! Why a request is refused before a protocol sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a token; a longer one is refused before any of it is decoded.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Why no caller can be resolved. The texts never hold a token, a signature or a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessDenied {
    /// There are no credentials, and anonymous requests are not allowed.
    #[error("the request needs a token, an API key or a signed URL")]
    NoCredentials,
    /// Credentials that can't be read.
    #[error("the credentials can't be read: {0}")]
    Malformed(&'static str),
    /// Credentials in two places, or twice in one.
    #[error("the request has more than one credential: {0}")]
    Conflicting(&'static str),
    /// A token that is too long to be looked at.
    #[error("the token has {bytes} bytes, at most {TOKEN_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The token is no JSON Web Token.
    #[error("the token is no JSON Web Token: {0}")]
    NotAToken(&'static str),
    /// The claim `iss` names no configured issuer.
    #[error("the issuer of the token is not known")]
    UnknownIssuer,
    /// The header `kid` names no key of the issuer.
    #[error("the key of the token is not known")]
    UnknownKey,
    /// The keys of the issuer are being fetched: the request can be resolved again when the fetch has ended.
    #[error("the key of the token is not known yet; the keys of its issuer are being fetched")]
    KeysUnknown {
        /// The name of the issuer.
        issuer: Arc<str>,
    },
    /// The key of the token is not known, and the keys of its issuer can't be fetched at the moment.
    #[error(
        "the key of the token is not known, and the keys of its issuer can't be fetched at the moment"
    )]
    KeysUnavailable {
        /// Seconds after which the request may be tried again; at least 1.
        retry_s: u64,
    },
    /// The algorithm is not allowed for this issuer and key.
    #[error("the algorithm of the token is not allowed for its issuer and key")]
    Algorithm,
    /// The signature of a token or a URL is wrong.
    #[error("the signature is wrong")]
    Signature,
    /// A header field that the URL signs is missing, or is there more than once.
    #[error("the signed URL is good only with one field {name}, of the value that was signed")]
    SignedField {
        /// Its name, in lower case.
        name: Box<str>,
    },
    /// The token, the URL or the client certificate has expired.
    #[error("the {0} has expired")]
    Expired(&'static str),
    /// The token's `nbf` or `iat` is in the future.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token is for another audience.
    #[error("the token is for another audience")]
    Audience,
    /// A claim is missing or wrong.
    #[error("the claim {claim} of the token {problem}")]
    Claim {
        /// The claim.
        claim: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The token lives longer than its issuer's tokens may.
    #[error("the token is valid for longer than allowed")]
    Lifetime,
    /// A credential that has not the form of a token, and is no API key that is known.
    #[error("the credential is no JSON Web Token and no known API key")]
    UnknownApiKey,
    /// The credential was revoked.
    #[error("the credential was revoked")]
    Revoked,
    /// Many tokens from the client's address were refused, so that this one is not verified.
    #[error("too many tokens from this address were refused; this one was not verified")]
    TooManyFailures {
        /// Seconds after which the request may be tried again; at least 1.
        retry_s: u64,
    },
}

impl AccessDenied {
    /// The status of the response: 400, 401, 429 or 503.
    pub fn status(&self) -> u16 {
        match self {
            AccessDenied::Malformed(_) | AccessDenied::Conflicting(_) => 400,
            AccessDenied::KeysUnknown { .. } | AccessDenied::KeysUnavailable { .. } => 503,
            AccessDenied::TooManyFailures { .. } => 429,
            _ => 401,
        }
    }

    /// A short name of the reason, for metrics, logs and problem documents.
    pub fn reason(&self) -> &'static str {
        REASONS[self.index()]
    }

    /// The value of `WWW-Authenticate`, for responses with status 400 and 401 (RFC 6750, section 3).
    pub fn challenge(&self) -> String {
        let error = match self.status() {
            _ if *self == AccessDenied::NoCredentials => return "Bearer".to_owned(),
            400 => "invalid_request",
            _ => "invalid_token",
        };
        // What may stand between quotes.
        let is_plain = |c: &char| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
        let description: String = self.to_string().chars().filter(is_plain).collect();
        format!("Bearer error=\"{error}\", error_description=\"{description}\"")
    }

    fn index(&self) -> usize {
        match self {
            AccessDenied::NoCredentials => 0,
            AccessDenied::Malformed(_) => 1,
            AccessDenied::Conflicting(_) => 2,
            AccessDenied::TooLong { .. } => 3,
            AccessDenied::NotAToken(_) => 4,
            AccessDenied::UnknownIssuer => 5,
            AccessDenied::UnknownKey => 6,
            AccessDenied::KeysUnknown { .. } => 7,
            AccessDenied::KeysUnavailable { .. } => 8,
            AccessDenied::Algorithm => 9,
            AccessDenied::Signature => 10,
            AccessDenied::Expired(_) => 11,
            AccessDenied::NotYetValid => 12,
            AccessDenied::Audience => 13,
            AccessDenied::Claim { .. } => 14,
            AccessDenied::Lifetime => 15,
            AccessDenied::UnknownApiKey => 16,
            AccessDenied::Revoked => 17,
            AccessDenied::SignedField { .. } => 18,
            AccessDenied::TooManyFailures { .. } => 19,
        }
    }
}

/// How often requests were refused, by reason.
#[derive(Debug, Default)]
pub(crate) struct DenialCounts([AtomicU64; REASONS.len()]);

impl DenialCounts {
    pub(crate) fn count(&self, denied: &AccessDenied) {
        self.0[denied.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        REASONS.into_iter().zip(counts)
    }
}

/// By [`AccessDenied::index`].
const REASONS: [&str; 20] = [
    "no_credentials",
    "malformed_credentials",
    "conflicting_credentials",
    "token_too_long",
    "not_a_token",
    "unknown_issuer",
    "unknown_key",
    "keys_unknown",
    "keys_unavailable",
    "algorithm",
    "signature",
    "expired",
    "not_yet_valid",
    "audience",
    "claim",
    "lifetime",
    "unknown_api_key",
    "revoked",
    "signed_field",
    "too_many_failures",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_holds_nothing_that_ends_its_quotes() {
        let denied = AccessDenied::Claim {
            claim: "encke",
            problem: "has \"quotes\", a \\ and\r\nlines".into(),
        };
        assert_eq!(
            denied.challenge(),
            "Bearer error=\"invalid_token\", \
             error_description=\"the claim encke of the token has quotes, a  andlines\""
        );
        assert_eq!(AccessDenied::NoCredentials.challenge(), "Bearer");
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let counts = DenialCounts::default();
        counts.count(&AccessDenied::Revoked);
        counts.count(&AccessDenied::Revoked);
        counts.count(&AccessDenied::NoCredentials);
        let counted: Vec<_> = counts.get().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("no_credentials", 1), ("revoked", 2)]);
    }
}
