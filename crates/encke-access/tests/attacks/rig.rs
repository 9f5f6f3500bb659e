//! Issuers with keys of every kind, and tokens of any shape.

use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair, RsaKeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use encke_access::{
    Access, AccessConfig, AccessDenied, CanonicalPath, Credentials, Resolved, SignError,
    SignedField, UrlToSign,
};
use encke_clock::Now;
use jsonwebtoken::crypto::sign;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};

/// The time of all tests, in seconds since 1970.
pub(crate) const NOW_S: u64 = 1_790_000_000;

pub(crate) const NOW: Now = Now::from_ms(NOW_S * 1_000);

pub(crate) const SECRET: &str =
    "an-hmac-secret-of-more-than-sixty-four-bytes-for-all-three-algorithms";

/// A private key and the members of its public JSON Web Key.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) private: EncodingKey,
    pub(crate) public: Value,
}

pub(crate) static RSA: LazyLock<Key> = LazyLock::new(rsa);
pub(crate) static P256: LazyLock<Key> = LazyLock::new(p256);
pub(crate) static OTHER_P256: LazyLock<Key> = LazyLock::new(p256);
pub(crate) static P384: LazyLock<Key> =
    LazyLock::new(|| ec(&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384"));
pub(crate) static ED: LazyLock<Key> = LazyLock::new(ed);

fn rsa() -> Key {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let private = EncodingKey::from_rsa_pem(pem("PRIVATE KEY", der.as_ref()).as_bytes()).unwrap();
    let public = pair.public_key();
    let n = encode(public.modulus().big_endian_without_leading_zero());
    let e = encode(public.exponent().big_endian_without_leading_zero());
    Key {
        private,
        public: json!({"kty": "RSA", "n": n, "e": e}),
    }
}

fn p256() -> Key {
    ec(&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256")
}

fn ec(algorithm: &'static aws_lc_rs::signature::EcdsaSigningAlgorithm, curve: &str) -> Key {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref()).unwrap();
    let point = &pair.public_key().as_ref()[1..];
    let (x, y) = point.split_at(point.len() / 2);
    Key {
        private: EncodingKey::from_ec_der(pkcs8.as_ref()),
        public: json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y)}),
    }
}

fn ed() -> Key {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap();
    Key {
        private: EncodingKey::from_ed_der(pkcs8.as_ref()),
        public: json!({"kty": "OKP", "crv": "Ed25519", "x": encode(pair.public_key().as_ref())}),
    }
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(64)
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        lines.join("\n")
    )
}

pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// A key set of these keys with their names.
pub(crate) fn jwks(keys: &[(&str, &Key)]) -> String {
    let keys = keys.iter().map(|(kid, key)| {
        let mut public = key.public.clone();
        public["kid"] = json!(kid);
        public
    });
    json!({"keys": keys.collect::<Vec<_>>()}).to_string()
}

/// An entry of `[[access.issuers]]` with these keys, whose tokens may read everything if they say nothing.
pub(crate) fn issuer(issuer: &str, algorithms: &[&str], keys: &[(&str, &Key)]) -> Value {
    json!({
        "issuer": issuer, "audience": ["encke", "other"], "algorithms": algorithms, "keys": jwks(keys),
        "grants": [{"actions": ["read", "append"], "paths": ["/**"]}],
    })
}

pub(crate) fn access(config: Value) -> Access {
    let config: AccessConfig = serde_json::from_value(config).unwrap();
    Access::from_config(&config, &|_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

/// Claims of a token that is good now, with others instead or besides.
pub(crate) fn claims(issuer: &str, others: Value) -> Value {
    let mut claims = json!({"iss": issuer, "aud": "encke", "sub": "alice", "exp": NOW_S + 60});
    for (name, value) in others.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

/// A signed token with exactly this header.
pub(crate) fn token(
    header: &Value,
    claims: &Value,
    algorithm: Algorithm,
    key: &EncodingKey,
) -> String {
    let message = format!(
        "{}.{}",
        encode(header.to_string()),
        encode(claims.to_string())
    );
    let signature = sign(message.as_bytes(), key, algorithm).unwrap();
    format!("{message}.{signature}")
}

/// An ES256 token.
pub(crate) fn es256(kid: &str, claims: &Value, key: &Key) -> String {
    token(
        &json!({"alg": "ES256", "kid": kid}),
        claims,
        Algorithm::ES256,
        &key.private,
    )
}

pub(crate) fn hs256(secret: &[u8], header: &Value, claims: &Value) -> String {
    token(
        header,
        claims,
        Algorithm::HS256,
        &EncodingKey::from_secret(secret),
    )
}

/// The moment so much later.
pub(crate) fn after(time: Duration) -> Now {
    Now {
        steady: NOW.steady.after(time),
        wall: NOW.wall.after(time),
    }
}

pub(crate) fn bearer(access: &Access, token: &str) -> Result<Resolved, AccessDenied> {
    bearer_at(access, token, NOW)
}

pub(crate) fn bearer_at(access: &Access, token: &str, now: Now) -> Result<Resolved, AccessDenied> {
    let value = format!("Bearer {token}");
    resolve(
        access,
        "GET",
        "/v1/stream/a",
        &[("Authorization", value.as_bytes())],
        now,
    )
}

pub(crate) fn resolve(
    access: &Access,
    method: &str,
    target: &str,
    headers: &[(&str, &[u8])],
    now: Now,
) -> Result<Resolved, AccessDenied> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let path = CanonicalPath::parse(path).unwrap();
    let request = Credentials {
        method,
        path: &path,
        query,
        headers,
        client_certificate: None,
        address: None,
        free_parameters: FREE_PARAMETERS,
    };
    access.resolve(&request, now)
}

/// Parameters of a request that a signed URL does not sign.
pub(crate) const FREE_PARAMETERS: &[&str] = &["offset", "live"];

/// Signs a URL with the key `u`.
pub(crate) fn sign_url(
    access: &Access,
    method: &str,
    target: &str,
    fields: &[SignedField],
    expires_s: u64,
) -> Result<String, SignError> {
    let path = CanonicalPath::parse(target.split('?').next().unwrap()).unwrap();
    let url = UrlToSign {
        method,
        target,
        path: &path,
        fields,
        stream: None,
        expires_s,
    };
    access.sign_url("u", &url)
}

/// Whether what a caller does must end, because its credential is not accepted any more.
pub(crate) fn is_refused(access: &Access, tag: &encke_access::CallerTag) -> bool {
    matches!(access.standing(tag), encke_access::Standing::Refused)
}
