//! Keys that are fetched from an issuer.

use std::sync::Arc;
use std::time::Duration;

use encke_access::{
    Access, AccessDenied, JWKS_BYTES_MAX, JWKS_KEYS_MAX, JwksError, KeyFetch, KeyLocation,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::rig::*;

const URL: &str = "https://issuer.example/jwks.json";

fn fetching() -> Access {
    let issuer = |name: &str, url: &str| json!({"issuer": name, "audience": "encke", "algorithms": ["ES256", "RS256"], "jwks-url": url});
    access(json!({"issuers": [issuer("i", URL), issuer("j", "http://127.0.0.1:1/j")]}))
}

fn pending(issuer: &str) -> AccessDenied {
    AccessDenied::KeysUnknown {
        issuer: issuer.into(),
    }
}

fn good(kid: &str, key: &Key) -> String {
    es256(kid, &claims("i", json!({})), key)
}

#[test]
fn the_first_request_waits_for_the_first_fetch() {
    let access = fetching();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    access.when_keys_arrive(move |issuer, is_good| hears.lock().push((issuer.to_owned(), is_good)));
    let token = good("k", &P256);
    assert_eq!(bearer(&access, &token).unwrap_err(), pending("i"));
    for source in 0..2 {
        let due = access.key_requests().wait(source, Duration::ZERO);
        assert_eq!(due, KeyFetch::Now);
    }
    assert_eq!(bearer(&access, &token).unwrap_err(), pending("i"));
    access
        .keys_fetched(0, Some(jwks(&[("k", &P256)]).as_bytes()))
        .unwrap();
    access.keys_fetched(1, None).unwrap();
    assert!(bearer(&access, &token).is_ok());
    assert_eq!(
        *heard.lock(),
        [("i".to_owned(), true), ("j".to_owned(), false)]
    );
    let counts = access.counts();
    assert_eq!(
        (counts.key_fetches, counts.key_fetches_failed, counts.keys),
        (1, 1, 1)
    );
}

#[test]
fn an_unknown_kid_causes_one_fetch_a_minute() {
    let access = fetching();
    let requests = access.key_requests();
    requests.wait(0, Duration::ZERO);
    access
        .keys_fetched(0, Some(jwks(&[("k", &P256)]).as_bytes()))
        .unwrap();
    let mut fetches = 0;
    for second in 0..120 {
        let token = good(&format!("invented-{second}"), &P256);
        let denied = bearer_at(&access, &token, NOW_MS + second * 500).unwrap_err();
        if denied == pending("i") {
            assert_eq!(requests.wait(0, Duration::ZERO), KeyFetch::Now);
            access.keys_fetched(0, None).unwrap();
            fetches += 1;
        } else {
            assert_eq!(denied, AccessDenied::UnknownKey);
        }
    }
    assert_eq!(fetches, 1);
}

#[test]
fn the_last_good_set_stays_while_the_issuer_is_unreachable_or_wrong() {
    let access = fetching();
    access
        .keys_fetched(0, Some(jwks(&[("k", &P256)]).as_bytes()))
        .unwrap();
    let many = json!({"keys": vec![json!({"kty": "EC"}); JWKS_KEYS_MAX + 1]}).to_string();
    let same = jwks(&[("k", &P256), ("k", &OTHER_P256)]);
    for (json, error) in [
        (" ".repeat(JWKS_BYTES_MAX + 1), JwksError::TooLarge),
        (many, JwksError::TooMany(JWKS_KEYS_MAX + 1)),
        ("<html>".into(), JwksError::NotAKeySet),
        ("{\"keys\": {}}".into(), JwksError::NotAKeySet),
        ("{\"keys\": []}".into(), JwksError::NoUsableKey),
        (jwks(&[("k", &P384)]), JwksError::NoUsableKey),
        (same, JwksError::SameKid("k".into())),
    ] {
        assert_eq!(access.keys_fetched(0, Some(json.as_bytes())), Err(error));
    }
    access.keys_fetched(0, None).unwrap();
    assert!(bearer(&access, &good("k", &P256)).is_ok());
}

#[test]
fn a_rotation_ends_tokens_of_removed_keys_also_in_the_cache() {
    let access = fetching();
    access
        .keys_fetched(0, Some(jwks(&[("old", &P256)]).as_bytes()))
        .unwrap();
    let old = good("old", &P256);
    assert!(bearer(&access, &old).is_ok());
    let both = jwks(&[("old", &P256), ("new", &OTHER_P256)]);
    access.keys_fetched(0, Some(both.as_bytes())).unwrap();
    assert!(bearer(&access, &old).is_ok());
    assert!(bearer(&access, &good("new", &OTHER_P256)).is_ok());
    access
        .keys_fetched(0, Some(jwks(&[("new", &OTHER_P256)]).as_bytes()))
        .unwrap();
    assert!(bearer(&access, &old).is_err());
    // The same name, and another key.
    access
        .keys_fetched(0, Some(jwks(&[("new", &P256)]).as_bytes()))
        .unwrap();
    assert_eq!(
        bearer(&access, &good("new", &OTHER_P256)).unwrap_err(),
        AccessDenied::Signature
    );
}

#[test]
fn the_same_keys_again_keep_the_cache() {
    let access = fetching();
    let keys = jwks(&[("a", &P256), ("b", &OTHER_P256)]);
    access.keys_fetched(0, Some(keys.as_bytes())).unwrap();
    bearer(&access, &good("a", &P256)).unwrap();
    access
        .keys_fetched(
            0,
            Some(jwks(&[("b", &OTHER_P256), ("a", &P256)]).as_bytes()),
        )
        .unwrap();
    assert_eq!(access.counts().tokens.entries, 1);
}

#[test]
fn keys_for_other_purposes_are_left_out() {
    let access = fetching();
    let with = |name: &str, value: Value| {
        let mut key = P256.public.clone();
        key["kid"] = json!("x");
        key[name] = value;
        key
    };
    let mut last = P256.public.clone();
    last["kid"] = json!("k");
    last["use"] = json!("sig");
    let secret = json!({"kty": "oct", "kid": "o", "k": encode(SECRET)});
    let keys = json!({"keys": [
        with("use", json!("enc")), with("key_ops", json!(["sign"])), with("alg", json!("ECDH-ES")),
        with("x", json!("AA")), with("crv", json!("P-521")), with("kty", json!("new")), with("y", json!(null)),
        secret, 5, null, last,
    ]});
    access
        .keys_fetched(0, Some(keys.to_string().as_bytes()))
        .unwrap();
    assert_eq!(access.counts().keys, 1);
    assert!(bearer(&access, &good("k", &P256)).is_ok());
    let forged = hs256(
        SECRET.as_bytes(),
        &json!({"alg": "HS256", "kid": "o"}),
        &claims("i", json!({})),
    );
    assert_eq!(
        bearer(&access, &forged).unwrap_err(),
        AccessDenied::Algorithm
    );
}

#[test]
fn short_rsa_keys_are_left_out() {
    let access = fetching();
    for bytes in [128, 255, 1_025] {
        let key = json!({"kty": "RSA", "kid": "k", "n": encode(vec![0xC3; bytes]), "e": "AQAB"});
        let keys = json!({"keys": [key]}).to_string();
        let result = access.keys_fetched(0, Some(keys.as_bytes()));
        assert_eq!(result, Err(JwksError::NoUsableKey), "{bytes}");
    }
}

/// CVE-2026-32301: what a token claims must never become part of the URL of its keys.
#[test]
fn no_claim_becomes_part_of_a_url() {
    let access = fetching();
    let expected = [
        KeyLocation {
            issuer: "i",
            url: URL,
        },
        KeyLocation {
            issuer: "j",
            url: "http://127.0.0.1:1/j",
        },
    ];
    for claim in [
        "https://attacker.example",
        "../..",
        "i/../../x",
        "{iss}",
        "i\r\nHost: x",
    ] {
        for name in ["iss", "tid", "aud", "sub"] {
            let token = es256(claim, &claims("i", json!({name: claim})), &P256);
            let _ = bearer(&access, &token);
            assert_eq!(access.key_locations(), expected);
        }
    }
    // And a URL with a place for a claim is no URL.
    let config = json!({"issuers": [{
        "issuer": "i", "audience": "encke", "algorithms": ["ES256"], "jwks-url": "https://issuer.example/{tid}/keys"
    }]});
    let config = serde_json::from_value(config).unwrap();
    let read = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
    let error = Access::from_config(&config, &read).unwrap_err();
    assert_eq!(error.key, "access.issuers[0].jwks-url");
}
