//! JSON Web Tokens (RFC 7519), signed compactly (RFC 7515).
//!
//! The issuer named by the token selects what the token is checked with, before anything else; the header selects one of the keys of
//! that issuer, and an algorithm among those that the key is bound to. Nothing else in a token has a say in how it is verified:
//! `jku`, `jwk`, `x5u` and `x5c` are not read, and a token with `crit` is refused.

mod members;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::denied::{AccessDenied, TOKEN_BYTES_MAX};
use members::Members;

/// A token that is taken apart. Its signature is not checked yet.
#[derive(Debug)]
pub(crate) struct DecodedToken<'t> {
    /// What is signed: header and claims as sent.
    pub(crate) message: &'t str,
    pub(crate) signature: &'t str,
    header: Vec<u8>,
    claims: Vec<u8>,
}

/// What a header may say.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) algorithm: String,
    pub(crate) kid: Option<String>,
}

/// The claims of a token.
#[derive(Debug)]
pub(crate) struct Claims<'a>(Members<'a>);

impl<'t> DecodedToken<'t> {
    /// Takes a token apart.
    pub(crate) fn decode(token: &'t str) -> Result<Self, AccessDenied> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(AccessDenied::TooLong { bytes: token.len() });
        }
        let (message, signature) = token
            .rsplit_once('.')
            .ok_or(AccessDenied::NotAToken("it has no three parts"))?;
        let (header, claims) = message
            .split_once('.')
            .filter(|(_, claims)| !claims.contains('.'))
            .ok_or(AccessDenied::NotAToken("it has no three parts"))?;
        let decode = |part: &str| {
            URL_SAFE_NO_PAD
                .decode(part)
                .map_err(|_| AccessDenied::NotAToken("a part is not base64url without padding"))
        };
        Ok(DecodedToken {
            message,
            signature,
            header: decode(header)?,
            claims: decode(claims)?,
        })
    }

    pub(crate) fn header(&self) -> Result<Header, AccessDenied> {
        let wrong = AccessDenied::NotAToken("its header is no JSON object with alg");
        let members = Members::parse(&self.header).ok_or(wrong.clone())?;
        if members.get("crit").is_some() {
            return Err(AccessDenied::NotAToken(
                "its header has crit, and no extension is supported",
            ));
        }
        let kid = match members.get("kid") {
            None => None,
            Some(raw) => Some(parse(raw).ok_or(AccessDenied::NotAToken("its kid is no string"))?),
        };
        Ok(Header {
            algorithm: members.get("alg").and_then(parse).ok_or(wrong)?,
            kid,
        })
    }

    pub(crate) fn claims(&self) -> Result<Claims<'_>, AccessDenied> {
        Members::parse(&self.claims)
            .map(Claims)
            .ok_or(AccessDenied::NotAToken(
                "its claims are no JSON object whose names differ",
            ))
    }
}

impl Claims<'_> {
    /// A claim as JSON.
    pub(crate) fn raw(&self, name: &str) -> Option<&str> {
        self.0.get(name)
    }

    /// A claim that must be a string if it is there.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<String>, AccessDenied> {
        match self.raw(name) {
            None => Ok(None),
            Some(raw) => parse(raw)
                .map(Some)
                .ok_or_else(|| wrong(name, "must be a string")),
        }
    }

    /// A claim that is a string; other kinds are like none. For claims that patterns name.
    pub(crate) fn text_of_any(&self, name: &str) -> Option<String> {
        self.raw(name).and_then(parse)
    }

    /// A claim that must be a time if it is there, in whole seconds since 1970.
    pub(crate) fn time(&self, name: &'static str) -> Result<Option<u64>, AccessDenied> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        // A fraction is allowed (RFC 7519, section 2).
        let time: Option<f64> = parse(raw);
        time.filter(|time| (0.0..=TIME_MAX).contains(time))
            .map(|time| Some(time as u64))
            .ok_or_else(|| wrong(name, "must be a time in seconds since 1970"))
    }

    /// Whether `aud` has one of the audiences.
    pub(crate) fn is_for(&self, audiences: &[String]) -> Result<bool, AccessDenied> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Audience {
            One(String),
            Several(Vec<String>),
        }
        let raw = self.raw("aud").ok_or_else(|| wrong("aud", "is missing"))?;
        let named = match parse(raw) {
            Some(Audience::One(one)) => vec![one],
            Some(Audience::Several(several)) => several,
            None => return Err(wrong("aud", "must be a string or a list of strings")),
        };
        Ok(named.iter().any(|one| audiences.contains(one)))
    }

    /// The OAuth scopes, of `scope` or of `scp`. `None`: it has neither.
    pub(crate) fn scopes(&self) -> Result<Option<Vec<String>>, AccessDenied> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Scopes {
            Joined(String),
            List(Vec<String>),
        }
        for name in ["scope", "scp"] {
            let Some(raw) = self.raw(name) else {
                continue;
            };
            let mut scopes = match parse(raw) {
                Some(Scopes::Joined(text)) => text.split(' ').map(str::to_owned).collect(),
                Some(Scopes::List(list)) => list,
                None => return Err(wrong(name, "must be a string or a list of strings")),
            };
            scopes.sort_unstable();
            scopes.dedup();
            return Ok(Some(scopes));
        }
        Ok(None)
    }
}

pub(crate) fn wrong(claim: &'static str, problem: impl Into<String>) -> AccessDenied {
    AccessDenied::Claim {
        claim,
        problem: problem.into(),
    }
}

fn parse<T: serde::de::DeserializeOwned>(raw: &str) -> Option<T> {
    serde_json::from_str(raw).ok()
}

/// The year 9999.
const TIME_MAX: f64 = 253_402_300_799.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn token(header: &str, claims: &str) -> String {
        let encode = |part: &str| URL_SAFE_NO_PAD.encode(part);
        format!("{}.{}.c2ln", encode(header), encode(claims))
    }

    #[test]
    fn a_token_is_taken_apart() {
        let text = token(r#"{"alg":"ES256","kid":"k"}"#, r#"{"iss":"i","exp":12.9}"#);
        let token = DecodedToken::decode(&text).unwrap();
        let header = token.header().unwrap();
        assert_eq!(
            (&*header.algorithm, header.kid.as_deref()),
            ("ES256", Some("k"))
        );
        let claims = token.claims().unwrap();
        assert_eq!(claims.text("iss").unwrap().as_deref(), Some("i"));
        assert_eq!(claims.time("exp"), Ok(Some(12)));
        assert_eq!(claims.time("nbf"), Ok(None));
        assert_eq!(format!("{}.{}", token.message, token.signature), text);
    }

    #[test]
    fn other_shapes_are_refused() {
        for text in [
            "",
            ".",
            "..",
            "a.b",
            "a.b.c.d",
            "e30.e30=.c",
            "e30.e30 .c",
            "e3.e30.c",
        ] {
            let parts = DecodedToken::decode(text).and_then(|token| {
                token.header()?;
                token.claims().map(drop)
            });
            assert!(matches!(parts, Err(AccessDenied::NotAToken(_))), "{text:?}");
        }
    }

    #[test]
    fn a_header_that_asks_for_extensions_or_says_things_twice_is_refused() {
        for header in [
            "[]",
            "{}",
            r#"{"alg":1}"#,
            r#"{"alg":"HS256","kid":1}"#,
            r#"{"alg":"HS256","crit":["b64"],"b64":false}"#,
            r#"{"alg":"HS256","crit":null}"#,
            r#"{"alg":"HS256","alg":"none"}"#,
            r#"{"alg":"HS256","kid":"a","kid":"b"}"#,
        ] {
            let text = token(header, "{}");
            assert!(
                DecodedToken::decode(&text).unwrap().header().is_err(),
                "{header}"
            );
        }
    }

    #[test]
    fn claims_of_the_wrong_type_are_refused() {
        let text = token(
            "{}",
            r#"{"iss":["a"],"exp":"12","nbf":-1,"iat":1e300,"aud":5,"scope":1}"#,
        );
        let token = DecodedToken::decode(&text).unwrap();
        let claims = token.claims().unwrap();
        assert!(claims.text("iss").is_err() && claims.scopes().is_err());
        assert!(
            ["exp", "nbf", "iat"]
                .iter()
                .all(|name| claims.time(name).is_err())
        );
        assert!(claims.is_for(&["5".into()]).is_err());
        assert!(
            DecodedToken::decode(&self::token("{}", r#"{"a":1,"a":2}"#))
                .unwrap()
                .claims()
                .is_err()
        );
    }

    #[test]
    fn scopes_come_as_text_or_list() {
        for claims in [
            r#"{"scope":"b a b"}"#,
            r#"{"scp":["a","b"]}"#,
            r#"{"scp":"a b"}"#,
        ] {
            let text = token("{}", claims);
            let token = DecodedToken::decode(&text).unwrap();
            let scopes = token.claims().unwrap().scopes().unwrap().unwrap();
            assert_eq!(scopes, ["a", "b"], "{claims}");
        }
    }
}
