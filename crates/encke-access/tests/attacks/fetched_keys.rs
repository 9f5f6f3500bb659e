//! Keys that are fetched from an issuer.

use std::sync::Arc;
use std::time::Duration;

use encke_access::{
    Access, AccessDenied, FETCH_INTERVAL, FETCHES_AT_ONCE, JWKS_BYTES_MAX, JWKS_KEYS_MAX,
    JwksError, KeyFetch, KeyLocation, UNKNOWN_KEYS_MAX,
};
use encke_clock::{Now, WallTime};
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
        let due = access.key_fetches().wait(source, Duration::ZERO);
        assert_eq!(due, KeyFetch::Now);
    }
    assert_eq!(bearer(&access, &token).unwrap_err(), pending("i"));
    access
        .keys_fetched(
            &access.key_fetches(),
            0,
            Some(jwks(&[("k", &P256)]).as_bytes()),
        )
        .unwrap();
    access.keys_fetched(&access.key_fetches(), 1, None).unwrap();
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

/// Fetches what is due, if something is, with these keys.
fn fetch(access: &Access, keys: Option<&[(&str, &Key)]>) {
    assert_eq!(access.key_fetches().wait(0, Duration::ZERO), KeyFetch::Now);
    let json = keys.map(jwks);
    let json = json.as_ref().map(|json| json.as_bytes());
    access.keys_fetched(&access.key_fetches(), 0, json).unwrap();
}

#[test]
fn invented_kids_cause_a_bounded_number_of_fetches() {
    let access = fetching();
    let known = [("k", &*P256)];
    fetch(&access, Some(&known));
    let mut fetches = 0;
    let minute = 60_000;
    for ms in (0..minute).step_by(500) {
        let token = good(&format!("invented-{ms}"), &P256);
        let denied = bearer_at(&access, &token, after(Duration::from_millis(ms))).unwrap_err();
        if denied == pending("i") {
            fetch(&access, Some(&known));
            fetches += 1;
            let again = bearer_at(&access, &token, after(Duration::from_millis(ms))).unwrap_err();
            assert_eq!(again, AccessDenied::UnknownKey);
        } else {
            assert!(matches!(denied, AccessDenied::KeysUnavailable { .. }));
            assert_eq!(denied.status(), 503);
        }
    }
    assert_eq!(
        fetches,
        FETCHES_AT_ONCE + (minute - 1) / FETCH_INTERVAL.as_millis() as u64
    );
    assert!(access.counts().unknown_keys <= UNKNOWN_KEYS_MAX);
}

/// One unsigned token with an invented name delayed the keys of a rotation by a minute, in which the new key got 401.
#[test]
fn an_invented_kid_keeps_no_rotated_key_out() {
    let access = fetching();
    fetch(&access, Some(&[("old", &P256)]));
    let invented = |number: u64| good(&format!("invented-{number}"), &P256);
    let both = [("old", &*P256), ("new", &*OTHER_P256)];
    let rotated = good("new", &OTHER_P256);
    // One invented name, and the rotated key is fetched at once.
    assert_eq!(bearer(&access, &invented(0)).unwrap_err(), pending("i"));
    fetch(&access, Some(&[("old", &P256)]));
    assert_eq!(bearer(&access, &rotated).unwrap_err(), pending("i"));
    fetch(&access, Some(&both));
    assert!(bearer(&access, &rotated).is_ok());
    // Any number of them, and it is fetched after an interval; it is never refused for good.
    let access = fetching();
    fetch(&access, Some(&[("old", &P256)]));
    for number in 0..100 {
        if bearer(&access, &invented(number)).unwrap_err() == pending("i") {
            fetch(&access, Some(&[("old", &P256)]));
        }
    }
    let retry_s = FETCH_INTERVAL.as_secs();
    let later = AccessDenied::KeysUnavailable { retry_s };
    assert_eq!(bearer(&access, &rotated).unwrap_err(), later);
    let then = after(FETCH_INTERVAL);
    let invented = bearer_at(&access, &invented(100), then);
    assert_eq!(invented.unwrap_err(), pending("i"));
    fetch(&access, Some(&both));
    assert!(bearer_at(&access, &rotated, then).is_ok());
}

/// The spacing of fetches and the refusal of a key that the issuer lacks have durations. A step of the time of day once let any name
/// cause [`FETCHES_AT_ONCE`] fetches again.
#[test]
fn a_step_of_the_time_of_day_causes_no_fetch_and_delays_none() {
    for stepped in [(NOW_S + 59) * 1_000, 0] {
        let access = fetching();
        fetch(&access, Some(&[("old", &P256)]));
        let invented = |number: u64| good(&format!("invented-{number}"), &P256);
        for number in 0..FETCHES_AT_ONCE {
            assert_eq!(
                bearer(&access, &invented(number)).unwrap_err(),
                pending("i")
            );
            fetch(&access, Some(&[("old", &P256)]));
        }
        let at = |time: Duration| Now {
            wall: WallTime::from_ms(stepped),
            ..after(time)
        };
        let denied = |number, time| bearer_at(&access, &invented(number), at(time)).unwrap_err();
        let retry_s = FETCH_INTERVAL.as_secs();
        let later = AccessDenied::KeysUnavailable { retry_s };
        assert_eq!(denied(100, Duration::ZERO), later);
        let missing = denied(0, Duration::ZERO);
        assert_eq!(missing, AccessDenied::UnknownKey);
        assert_eq!(denied(100, FETCH_INTERVAL), pending("i"));
    }
}

#[test]
fn a_failed_fetch_is_no_evidence_against_a_key() {
    let access = fetching();
    fetch(&access, Some(&[("old", &P256)]));
    let rotated = good("new", &OTHER_P256);
    assert_eq!(bearer(&access, &rotated).unwrap_err(), pending("i"));
    fetch(&access, None);
    let denied = bearer(&access, &rotated).unwrap_err();
    assert!(matches!(denied, AccessDenied::KeysUnavailable { .. }));
    let then = after(FETCH_INTERVAL);
    assert_eq!(
        bearer_at(&access, &rotated, then).unwrap_err(),
        pending("i")
    );
    fetch(&access, Some(&[("new", &OTHER_P256)]));
    assert!(bearer_at(&access, &rotated, then).is_ok());
}

#[test]
fn the_last_good_set_stays_while_the_issuer_is_unreachable_or_wrong() {
    let access = fetching();
    access
        .keys_fetched(
            &access.key_fetches(),
            0,
            Some(jwks(&[("k", &P256)]).as_bytes()),
        )
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
        assert_eq!(
            access.keys_fetched(&access.key_fetches(), 0, Some(json.as_bytes())),
            Err(error)
        );
    }
    access.keys_fetched(&access.key_fetches(), 0, None).unwrap();
    assert!(bearer(&access, &good("k", &P256)).is_ok());
}

#[test]
fn a_rotation_ends_tokens_of_removed_keys_also_in_the_cache() {
    let access = fetching();
    access
        .keys_fetched(
            &access.key_fetches(),
            0,
            Some(jwks(&[("old", &P256)]).as_bytes()),
        )
        .unwrap();
    let old = good("old", &P256);
    assert!(bearer(&access, &old).is_ok());
    let both = jwks(&[("old", &P256), ("new", &OTHER_P256)]);
    access
        .keys_fetched(&access.key_fetches(), 0, Some(both.as_bytes()))
        .unwrap();
    assert!(bearer(&access, &old).is_ok());
    assert!(bearer(&access, &good("new", &OTHER_P256)).is_ok());
    access
        .keys_fetched(
            &access.key_fetches(),
            0,
            Some(jwks(&[("new", &OTHER_P256)]).as_bytes()),
        )
        .unwrap();
    assert!(bearer(&access, &old).is_err());
    // The same name, and another key.
    access
        .keys_fetched(
            &access.key_fetches(),
            0,
            Some(jwks(&[("new", &P256)]).as_bytes()),
        )
        .unwrap();
    assert_eq!(
        bearer(&access, &good("new", &OTHER_P256)).unwrap_err(),
        AccessDenied::Signature
    );
}

/// The keys of live subscriptions are compared as well: a key that its issuer has withdrawn is the end of what it signed.
#[test]
fn a_rotation_ends_subscriptions_of_removed_keys() {
    let access = fetching();
    let version = access.version();
    let both = jwks(&[("old", &P256), ("new", &OTHER_P256)]);
    access
        .keys_fetched(&access.key_fetches(), 0, Some(both.as_bytes()))
        .unwrap();
    let tag = |kid: &str, key: &Key| bearer(&access, &good(kid, key)).unwrap().caller.tag();
    let (old, new) = (tag("old", &P256), tag("new", &OTHER_P256));
    assert!(!is_refused(&access, &old) && !is_refused(&access, &new));
    let before = access.version();
    assert_ne!(before, version);
    // The same keys, and a fetch that failed, end nothing.
    access
        .keys_fetched(&access.key_fetches(), 0, Some(both.as_bytes()))
        .unwrap();
    access.keys_fetched(&access.key_fetches(), 0, None).unwrap();
    assert_eq!(access.version(), before);
    let new_only = jwks(&[("new", &OTHER_P256)]);
    access
        .keys_fetched(&access.key_fetches(), 0, Some(new_only.as_bytes()))
        .unwrap();
    assert_ne!(access.version(), before);
    assert!(is_refused(&access, &old) && !is_refused(&access, &new));
    // Another key of the same name is another key, and the name of a removed one may come back.
    let replaced = jwks(&[("new", &P256), ("old", &P256)]);
    access
        .keys_fetched(&access.key_fetches(), 0, Some(replaced.as_bytes()))
        .unwrap();
    assert!(is_refused(&access, &new) && !is_refused(&access, &old));
}

#[test]
fn the_same_keys_again_keep_the_cache() {
    let access = fetching();
    let keys = jwks(&[("a", &P256), ("b", &OTHER_P256)]);
    access
        .keys_fetched(&access.key_fetches(), 0, Some(keys.as_bytes()))
        .unwrap();
    bearer(&access, &good("a", &P256)).unwrap();
    access
        .keys_fetched(
            &access.key_fetches(),
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
        .keys_fetched(&access.key_fetches(), 0, Some(keys.to_string().as_bytes()))
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
        let result = access.keys_fetched(&access.key_fetches(), 0, Some(keys.as_bytes()));
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
            assert_eq!(access.key_fetches().locations(), expected);
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
