//! Forged tokens.

use encke_access::{AccessDenied, Operation, TOKEN_BYTES_MAX};
use encke_clock::Now;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};
use std::time::Duration;

use crate::rig::*;

fn es_access() -> encke_access::Access {
    access(json!({"issuers": [issuer("i", &["ES256"], &[("k", &P256)])]}))
}

#[test]
fn alg_none_is_refused_in_every_spelling() {
    let access = es_access();
    let claims = encode(claims("i", json!({})).to_string());
    for name in ["none", "None", "NONE", "nOnE", "", "null"] {
        let header = encode(json!({"alg": name, "kid": "k"}).to_string());
        for signature in ["", "AA", "bm9uZQ"] {
            let denied = bearer(&access, &format!("{header}.{claims}.{signature}")).unwrap_err();
            assert_eq!(denied, AccessDenied::Algorithm, "{name} {signature}");
        }
    }
}

#[test]
fn no_configuration_allows_alg_none() {
    let config = json!({"issuers": [issuer("i", &["none"], &[("k", &P256)])]});
    let config = serde_json::from_value(config).unwrap();
    let read = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
    let error = encke_access::Access::from_config(&config, &read).unwrap_err();
    assert_eq!(error.key, "access.issuers[0].algorithms");
}

#[test]
fn an_rsa_public_key_is_no_hmac_secret() {
    let access = access(json!({"issuers": [issuer("i", &["RS256"], &[("k", &RSA)])]}));
    let (n, e) = (
        RSA.public["n"].as_str().unwrap(),
        RSA.public["e"].as_str().unwrap(),
    );
    let jwk = jwks(&[("k", &RSA)]);
    for secret in [n, e, &jwk, &RSA.public.to_string(), ""] {
        for algorithm in ["HS256", "HS384", "HS512"] {
            let header = json!({"alg": algorithm, "kid": "k"});
            let token = token(
                &header,
                &claims("i", json!({})),
                algorithm.parse().unwrap(),
                &EncodingKey::from_secret(secret.as_bytes()),
            );
            assert_eq!(
                bearer(&access, &token).unwrap_err(),
                AccessDenied::Algorithm
            );
        }
    }
}

#[test]
fn secrets_and_public_keys_are_never_configured_together() {
    let read = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
    for (issuer, key) in [
        (
            json!({"algorithms": ["RS256", "HS256"], "keys": jwks(&[("k", &RSA)])}),
            "algorithms",
        ),
        (json!({"algorithms": ["RS256"], "secret": SECRET}), "secret"),
        (
            json!({"algorithms": ["HS256"], "jwks-url": "https://a.example/"}),
            "jwks-url",
        ),
        (
            json!({"algorithms": ["HS256"], "public-key-file": "key.pem"}),
            "public-key-file",
        ),
        (
            json!({"algorithms": ["HS256"], "keys": jwks(&[("k", &RSA)])}),
            "keys",
        ),
        (
            json!({"algorithms": ["HS256"], "secret": "short"}),
            "secret",
        ),
        (
            json!({"algorithms": ["HS512"], "secret": "0123456789012345678901234567890123456789"}),
            "secret",
        ),
        (
            json!({"algorithms": ["HS256"], "secret": SECRET, "jwks-url": "https://a.example/"}),
            "secret",
        ),
    ] {
        let mut issuer: Value = issuer;
        issuer["issuer"] = json!("i");
        issuer["audience"] = json!("encke");
        let config = serde_json::from_value(json!({"issuers": [issuer.clone()]})).unwrap();
        let error = encke_access::Access::from_config(&config, &read).unwrap_err();
        assert_eq!(
            error.key,
            format!("access.issuers[0].{key}"),
            "{issuer} {error}"
        );
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}

#[test]
fn another_algorithm_of_the_same_family_needs_to_be_allowed() {
    let access = access(json!({"issuers": [issuer("i", &["RS256"], &[("k", &RSA)])]}));
    for algorithm in [Algorithm::PS256, Algorithm::RS512] {
        let header = json!({"alg": format!("{algorithm:?}"), "kid": "k"});
        let token = token(&header, &claims("i", json!({})), algorithm, &RSA.private);
        assert_eq!(
            bearer(&access, &token).unwrap_err(),
            AccessDenied::Algorithm
        );
    }
}

#[test]
fn a_key_is_bound_to_its_curve_and_its_alg() {
    let both = access(json!({"issuers": [issuer("i", &["ES256", "ES384"], &[("k", &P256)])]}));
    let header = json!({"alg": "ES384", "kid": "k"});
    let forged = token(
        &header,
        &claims("i", json!({})),
        Algorithm::ES384,
        &P384.private,
    );
    assert_eq!(bearer(&both, &forged).unwrap_err(), AccessDenied::Algorithm);
    let mut only = RSA.clone();
    only.public["alg"] = json!("RS256");
    let access = access(json!({"issuers": [issuer("i", &["RS256", "PS256"], &[("k", &only)])]}));
    let header = json!({"alg": "PS256", "kid": "k"});
    let token = token(
        &header,
        &claims("i", json!({})),
        Algorithm::PS256,
        &RSA.private,
    );
    assert_eq!(
        bearer(&access, &token).unwrap_err(),
        AccessDenied::Algorithm
    );
}

#[test]
fn a_kid_is_a_name_and_nothing_else() {
    let access = access(json!({"issuers": [
        issuer("i", &["ES256"], &[("k", &P256), ("l", &OTHER_P256)]),
        {"issuer": "h", "audience": "encke", "algorithms": ["HS256"], "secret": SECRET},
    ]}));
    for kid in [
        "../../../../../../dev/null",
        "/dev/null",
        "' UNION SELECT 'key' -- ",
        "k' OR '1'='1",
        "https://attacker.example/jwks.json",
        "k\u{0}",
        "K",
        "",
        "|/bin/sh",
    ] {
        let forged = es256(kid, &claims("i", json!({})), &P256);
        assert_eq!(
            bearer(&access, &forged).unwrap_err(),
            AccessDenied::UnknownKey,
            "{kid:?}"
        );
        // An empty file or a known text as a secret.
        for secret in ["", "key", kid] {
            let header = json!({"alg": "HS256", "kid": kid});
            let forged = hs256(secret.as_bytes(), &header, &claims("h", json!({})));
            assert_eq!(
                bearer(&access, &forged).unwrap_err(),
                AccessDenied::Signature
            );
        }
    }
}

#[test]
fn keys_in_the_header_are_not_read() {
    let access = es_access();
    let mut own = OTHER_P256.public.clone();
    own["kid"] = json!("k");
    for (name, value) in [
        ("jwk", own),
        ("jku", json!("https://attacker.example/jwks.json")),
        ("jku", json!("file:///etc/passwd")),
        ("x5u", json!("https://attacker.example/cert.pem")),
        ("x5c", json!(["MIIB"])),
    ] {
        let header = json!({"alg": "ES256", "kid": "k", name: value});
        let forged = token(
            &header,
            &claims("i", json!({})),
            Algorithm::ES256,
            &OTHER_P256.private,
        );
        assert_eq!(
            bearer(&access, &forged).unwrap_err(),
            AccessDenied::Signature,
            "{name}"
        );
    }
}

#[test]
fn critical_extensions_are_refused() {
    let header = json!({"alg": "ES256", "kid": "k", "crit": ["exp"], "exp": 1});
    let token = token(
        &header,
        &claims("i", json!({})),
        Algorithm::ES256,
        &P256.private,
    );
    let denied = bearer(&es_access(), &token).unwrap_err();
    assert!(matches!(denied, AccessDenied::NotAToken(_)), "{denied:?}");
}

#[test]
fn a_token_ends_and_begins_with_leeway() {
    let access = es_access();
    let with = |others: Value| es256("k", &claims("i", others), &P256);
    let expires = |at: u64| bearer(&access, &with(json!({"exp": at}))).map(drop);
    // The default leeway is 30 s.
    assert_eq!(expires(NOW_S - 29), Ok(()));
    assert_eq!(expires(NOW_S - 30), Err(AccessDenied::Expired("token")));
    assert_eq!(expires(0), Err(AccessDenied::Expired("token")));
    let begins = |name: &str, at: u64| bearer(&access, &with(json!({name: at}))).map(drop);
    for name in ["nbf", "iat"] {
        assert_eq!(begins(name, NOW_S + 30), Ok(()), "{name}");
        assert_eq!(
            begins(name, NOW_S + 31),
            Err(AccessDenied::NotYetValid),
            "{name}"
        );
    }
}

#[test]
fn a_token_in_the_cache_expires() {
    let access = es_access();
    let token = es256("k", &claims("i", json!({"exp": NOW_S + 1})), &P256);
    let resolved = bearer(&access, &token).unwrap();
    let ends_at = resolved.caller.ends_at().unwrap();
    assert_eq!(ends_at, after(Duration::from_secs(31)).wall);
    let before = Now::at(ends_at.before(Duration::from_millis(1)));
    assert!(bearer_at(&access, &token, before).is_ok());
    assert_eq!(access.counts().tokens.hits, 1);
    let denied = bearer_at(&access, &token, Now::at(ends_at)).unwrap_err();
    assert_eq!(denied, AccessDenied::Expired("token"));
    assert_eq!(access.counts().tokens.entries, 0);
}

#[test]
fn times_must_be_there_and_be_numbers() {
    let access = es_access();
    for others in [
        json!({"exp": null}),
        json!({"exp": "1790000060"}),
        json!({"exp": -1}),
        json!({"exp": 1e300}),
        json!({"nbf": "0"}),
        json!({"iat": []}),
    ] {
        let token = es256("k", &claims("i", others.clone()), &P256);
        let denied = bearer(&access, &token).unwrap_err();
        assert!(
            matches!(denied, AccessDenied::Claim { .. }),
            "{others} {denied:?}"
        );
    }
    let mut without = claims("i", json!({}));
    without.as_object_mut().unwrap().remove("exp");
    let denied = bearer(&access, &es256("k", &without, &P256)).unwrap_err();
    assert!(matches!(denied, AccessDenied::Claim { claim: "exp", .. }));
}

#[test]
fn a_token_for_another_audience_is_refused() {
    let access = es_access();
    let with = |audience: Value| {
        let token = es256("k", &claims("i", json!({"aud": audience})), &P256);
        bearer(&access, &token).map(drop)
    };
    assert_eq!(with(json!("encke")), Ok(()));
    assert_eq!(with(json!(["x", "other"])), Ok(()));
    for audience in [
        json!("encke2"),
        json!("Encke"),
        json!(["x"]),
        json!([]),
        json!(""),
    ] {
        assert_eq!(
            with(audience.clone()),
            Err(AccessDenied::Audience),
            "{audience}"
        );
    }
    for audience in [json!(null), json!(5), json!({"encke": 1})] {
        assert!(matches!(
            with(audience),
            Err(AccessDenied::Claim { claim: "aud", .. })
        ));
    }
}

#[test]
fn a_token_of_an_unknown_issuer_is_refused() {
    let access = es_access();
    for issuer in ["", "I", "i ", "i/", "https://i"] {
        let token = es256("k", &claims(issuer, json!({})), &P256);
        assert_eq!(
            bearer(&access, &token).unwrap_err(),
            AccessDenied::UnknownIssuer
        );
    }
    let mut without = claims("i", json!({}));
    without.as_object_mut().unwrap().remove("iss");
    let denied = bearer(&access, &es256("k", &without, &P256)).unwrap_err();
    assert_eq!(denied, AccessDenied::UnknownIssuer);
}

#[test]
fn a_key_of_one_issuer_signs_nothing_for_another() {
    let access = access(json!({"issuers": [
        issuer("a", &["ES256"], &[("ka", &P256)]),
        issuer("b", &["ES256"], &[("kb", &OTHER_P256)]),
    ]}));
    let forged = es256("kb", &claims("a", json!({})), &OTHER_P256);
    assert_eq!(
        bearer(&access, &forged).unwrap_err(),
        AccessDenied::UnknownKey
    );
    let forged = es256("ka", &claims("a", json!({})), &OTHER_P256);
    assert_eq!(
        bearer(&access, &forged).unwrap_err(),
        AccessDenied::Signature
    );
}

#[test]
fn two_issuers_with_keys_of_the_same_kid_are_kept_apart() {
    let access = access(json!({"issuers": [
        issuer("a", &["ES256"], &[("k", &P256)]),
        issuer("b", &["ES256"], &[("k", &OTHER_P256)]),
    ]}));
    let of_a = es256("k", &claims("a", json!({})), &P256);
    let of_b = es256("k", &claims("b", json!({})), &OTHER_P256);
    for _ in 0..2 {
        assert_eq!(bearer(&access, &of_a).unwrap().caller.key_name(), "a/k");
        assert_eq!(bearer(&access, &of_b).unwrap().caller.key_name(), "b/k");
    }
    for (issuer, key) in [("a", &*OTHER_P256), ("b", &*P256)] {
        let forged = es256("k", &claims(issuer, json!({})), key);
        assert_eq!(
            bearer(&access, &forged).unwrap_err(),
            AccessDenied::Signature
        );
    }
}

#[test]
fn changed_claims_are_refused() {
    let access = es_access();
    let good = es256("k", &claims("i", json!({})), &P256);
    let parts: Vec<&str> = good.split('.').collect();
    let admin = encode(claims("i", json!({"encke": {"admin": ["/**"]}})).to_string());
    let forged = format!("{}.{admin}.{}", parts[0], parts[2]);
    assert_eq!(
        bearer(&access, &forged).unwrap_err(),
        AccessDenied::Signature
    );
    assert!(bearer(&access, &good).is_ok());
    assert_eq!(
        bearer(&access, &forged).unwrap_err(),
        AccessDenied::Signature
    );
}

/// CVE-2026-39972: a cache entry must answer for the whole token only.
#[test]
fn tokens_that_share_parts_share_no_cache_entry() {
    let access = es_access();
    let alice = es256("k", &claims("i", json!({})), &P256);
    let bob = es256("k", &claims("i", json!({"sub": "bob"})), &P256);
    assert_eq!(bearer(&access, &alice).unwrap().caller.name(), "alice");
    assert_eq!(bearer(&access, &bob).unwrap().caller.name(), "bob");
    let (of_alice, of_bob): (Vec<&str>, Vec<&str>) =
        (alice.split('.').collect(), bob.split('.').collect());
    for header in [of_alice[0], of_bob[0]] {
        for (claims, signature) in [(of_alice[1], of_bob[2]), (of_bob[1], of_alice[2])] {
            let mixed = format!("{header}.{claims}.{signature}");
            assert_eq!(
                bearer(&access, &mixed).unwrap_err(),
                AccessDenied::Signature
            );
        }
    }
    // Other spellings of the same bytes.
    for spelled in [
        format!("{alice}="),
        format!("{alice}A"),
        alice[..alice.len() - 1].to_owned(),
    ] {
        assert!(bearer(&access, &spelled).is_err());
    }
    assert_eq!(access.counts().tokens.entries, 2);
    assert_eq!(bearer(&access, &alice).unwrap().caller.name(), "alice");
}

#[test]
fn an_oversized_token_is_refused_before_it_is_decoded() {
    let access = es_access();
    for bytes in [TOKEN_BYTES_MAX + 1, 10 << 20] {
        let denied = bearer(&access, &"a.".repeat(bytes)[..bytes]).unwrap_err();
        assert_eq!(denied, AccessDenied::TooLong { bytes });
    }
    // Nothing was looked up, and so nothing was hashed or parsed.
    assert_eq!(access.counts().tokens.misses, 0);
    let padding = "x".repeat(TOKEN_BYTES_MAX / 2);
    let large = es256("k", &claims("i", json!({"padding": padding})), &P256);
    assert!(large.len() < TOKEN_BYTES_MAX);
    assert!(bearer(&access, &large).is_ok());
}

#[test]
fn deeply_nested_claims_exhaust_no_stack() {
    let access = es_access();
    let nested = format!("{}{}", "[".repeat(2_000), "]".repeat(2_000));
    for (name, is_read) in [
        ("x", false),
        ("aud", true),
        ("scope", false),
        ("encke", true),
        ("sub", true),
    ] {
        let claims = match name {
            "aud" => format!(r#"{{"iss":"i","exp":{},"aud":{nested}}}"#, NOW_S + 60),
            name => format!(
                r#"{{"iss":"i","aud":"encke","exp":{},"{name}":{nested}}}"#,
                NOW_S + 60
            ),
        };
        let message = format!(
            "{}.{}",
            encode(r#"{"alg":"ES256","kid":"k"}"#),
            encode(claims)
        );
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &P256.private, Algorithm::ES256);
        let result = bearer(&access, &format!("{message}.{}", signature.unwrap()));
        assert_eq!(result.is_err(), is_read, "{name}");
    }
}

#[test]
fn a_token_gets_no_more_than_its_issuer_may_grant() {
    let mut bounded = issuer("i", &["ES256"], &[("k", &P256)]);
    bounded["grants"] = json!([{"actions": ["read"], "paths": ["/v1/stream/chat/**"]}]);
    let access = access(json!({"issuers": [bounded]}));
    let wants =
        json!({"encke": {"read": ["/**"], "admin": ["/**"], "delete": ["/v1/stream/chat/**"]}});
    let caller = bearer(&access, &es256("k", &claims("i", wants), &P256))
        .unwrap()
        .caller;
    assert!(caller.may(Operation::Read, "/v1/stream/chat/a"));
    assert!(!caller.may(Operation::Read, "/v1/stream/other"));
    assert!(!caller.may(Operation::Admin, "/v1/admin/revoke"));
    assert!(!caller.may(Operation::Delete, "/v1/stream/chat/a"));
    assert!(caller.may_below(Operation::Read, "/v1/stream/chat"));
    assert!(!caller.may_below(Operation::Read, "/v1/stream"));
}

#[test]
fn a_claim_can_not_widen_a_pattern() {
    let mut templated = issuer("i", &["ES256"], &[("k", &P256)]);
    templated["grants"] =
        json!([{"actions": ["read"], "paths": ["/v1/stream/{sub}/**", "/v1/stream/of/{team}"]}]);
    let access = access(json!({"issuers": [templated]}));
    for subject in ["**", "*", "a/../b", "..", "", "a/b", "{sub}"] {
        let token = es256(
            "k",
            &claims("i", json!({"sub": subject, "team": subject})),
            &P256,
        );
        let caller = bearer(&access, &token).unwrap().caller;
        for path in [
            "/v1/stream/alice/x",
            "/v1/stream/a/b",
            "/v1/stream/of/alice",
        ] {
            assert!(!caller.may(Operation::Read, path), "{subject} {path}");
        }
    }
    let token = es256("k", &claims("i", json!({"team": "red"})), &P256);
    let caller = bearer(&access, &token).unwrap().caller;
    assert!(caller.may(Operation::Read, "/v1/stream/alice/x"));
    assert!(caller.may(Operation::Read, "/v1/stream/of/red"));
    assert!(!caller.may(Operation::Read, "/v1/stream/of/alice"));
}
