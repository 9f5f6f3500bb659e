//! The cost of a request's credentials: a token seen before, and a new one of each algorithm.

#![allow(clippy::unwrap_used, missing_docs)] // A benchmark that can't begin should say so.

#[path = "../../crates/encke-access/tests/attacks/rig.rs"]
#[allow(dead_code)] // Of what the tests share.
mod rig;

use criterion::{Criterion, criterion_group, criterion_main};
use jsonwebtoken::{Algorithm, EncodingKey};
use rig::{ED, NOW, P256, P384, RSA, SECRET, access, bearer, claims, jwks, token};
use serde_json::json;

fn resolve(criterion: &mut Criterion) {
    let secret = EncodingKey::from_secret(SECRET.as_bytes());
    for (name, key, public) in [
        ("HS256", &secret, None),
        ("RS256", &RSA.private, Some(&*RSA)),
        ("PS256", &RSA.private, Some(&*RSA)),
        ("ES256", &P256.private, Some(&*P256)),
        ("ES384", &P384.private, Some(&*P384)),
        ("EdDSA", &ED.private, Some(&*ED)),
    ] {
        let mut issuer = json!({"issuer": "i", "audience": "encke", "algorithms": [name]});
        match public {
            Some(public) => issuer["keys"] = json!(jwks(&[("k", public)])),
            None => issuer["secret"] = json!(SECRET),
        }
        let algorithm: Algorithm = name.parse().unwrap();
        let claims = claims("i", json!({"encke": {"read": ["/v1/stream/{sub}/**"]}}));
        let token = token(&json!({"alg": name, "kid": "k"}), &claims, algorithm, key);
        let cached = access(json!({"issuers": [issuer.clone()]}));
        let uncached = access(json!({"issuers": [issuer], "token-cache": 0}));
        criterion.bench_function(&format!("cached {name}"), |bench| {
            bench.iter(|| bearer(&cached, &token).unwrap());
        });
        criterion.bench_function(&format!("new {name}"), |bench| {
            bench.iter(|| bearer(&uncached, &token).unwrap());
        });
    }
    let urls = access(json!({"signing-keys": [{"kid": "u", "secret": SECRET}]}));
    let target = "/v1/stream/a?offset=-1";
    let url = rig::sign_url(&urls, "GET", target, &[], rig::NOW_S + 60).unwrap();
    criterion.bench_function("signed URL", |bench| {
        bench.iter(|| rig::resolve(&urls, "GET", &url, &[], NOW).unwrap());
    });
}

criterion_group!(benches, resolve);
criterion_main!(benches);
