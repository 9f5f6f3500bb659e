//! What must work: every algorithm, minted tokens, scopes, sharing of grants.

use encke_access::{AccessDenied, Mint, NewToken, Operation};
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};
use std::time::Duration;

use crate::rig::*;

#[test]
fn tokens_of_every_algorithm_are_verified() {
    let secret = EncodingKey::from_secret(SECRET.as_bytes());
    for (names, key, public) in [
        (
            vec!["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"],
            &RSA.private,
            Some(&*RSA),
        ),
        (vec!["ES256"], &P256.private, Some(&*P256)),
        (vec!["ES384"], &P384.private, Some(&*P384)),
        (vec!["EdDSA"], &ED.private, Some(&*ED)),
        (vec!["HS256", "HS384", "HS512"], &secret, None),
    ] {
        let mut entry = json!({"issuer": "i", "audience": "encke", "algorithms": names});
        match public {
            Some(public) => entry["keys"] = json!(jwks(&[("k", public)])),
            None => entry["secret"] = json!(SECRET),
        }
        let access = access(json!({"issuers": [entry]}));
        for name in names {
            let algorithm: Algorithm = name.parse().unwrap();
            for header in [
                json!({"alg": name, "kid": "k", "typ": "JWT"}),
                json!({"alg": name}),
            ] {
                let token = token(&header, &claims("i", json!({})), algorithm, key);
                let caller = bearer(&access, &token).unwrap().caller;
                assert_eq!((caller.name(), caller.issuer()), ("alice", "i"), "{name}");
                assert!(!caller.may(Operation::Read, "/"), "{name}");
                let mut wrong = token.clone();
                let at = token.rfind('.').unwrap() + 5;
                let other = if &token[at..=at] == "A" { "B" } else { "A" };
                wrong.replace_range(at..=at, other);
                assert_eq!(
                    bearer(&access, &wrong).unwrap_err(),
                    AccessDenied::Signature,
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn a_minted_token_is_verified() {
    let config = json!({
        "issuer": "i", "name": "mine", "audience": ["encke"], "algorithms": ["HS256"], "secret-file": "secret.txt",
    });
    let read = |path: &std::path::Path| match path.to_str() {
        Some("secret.txt") => Ok(format!("{SECRET}\n").into_bytes()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    let issuer = serde_json::from_value(config.clone()).unwrap();
    let mint = Mint::new(&issuer, "access.issuers[0]", &read).unwrap();
    let mut new = NewToken {
        subject: Some("alice".into()),
        id: Some("1".into()),
        grants: Some(vec![
            (Operation::Read, "/v1/stream/{sub}/**".parse().unwrap()),
            (Operation::Append, "/v1/stream/{team}".parse().unwrap()),
        ]),
        claims: [("team".to_owned(), "red".to_owned())].into(),
        issued_at_s: NOW_S,
        expires_s: NOW_S + 60,
    };
    let config = serde_json::from_value(json!({"issuers": [config]})).unwrap();
    let access = encke_access::Access::from_config(&config, &read).unwrap();
    let caller = bearer(&access, &mint.token(&new).unwrap()).unwrap().caller;
    assert_eq!((caller.name(), caller.key_name()), ("alice", "mine"));
    assert!(caller.may(Operation::Read, "/v1/stream/alice/x"));
    assert!(caller.may(Operation::Append, "/v1/stream/red"));
    assert!(!caller.may(Operation::Append, "/v1/stream/alice/x"));
    assert!(
        caller
            .explain(Operation::Read, "/v1/stream/alice/x")
            .contains("/v1/stream/{sub}/**")
    );
    assert!(caller.explain(Operation::Delete, "/").contains("no grant"));
    new.claims.insert("exp".into(), "1".into());
    assert!(mint.token(&new).is_err());
}

#[test]
fn scopes_grant_what_the_configuration_maps_them_to() {
    let mut entry = issuer("i", &["ES256"], &[("k", &P256)]);
    entry["scopes"] = json!({
        "chat:read": [{"actions": ["read"], "paths": ["/v1/stream/chat/**"]}],
        "chat:write": [{"actions": ["append"], "paths": ["/v1/stream/chat/**"]}],
    });
    let access = access(json!({"issuers": [entry]}));
    let may = |others: Value| {
        let caller = bearer(&access, &es256("k", &claims("i", others), &P256))
            .unwrap()
            .caller;
        [Operation::Read, Operation::Append].map(|one| caller.may(one, "/v1/stream/chat/a"))
    };
    assert_eq!(may(json!({"scope": "openid chat:read"})), [true, false]);
    assert_eq!(
        may(json!({"scp": ["chat:write", "chat:read"]})),
        [true, true]
    );
    // No scope that is known is no grant, though the issuer could grant more.
    assert_eq!(may(json!({"scope": "openid"})), [false, false]);
    assert_eq!(may(json!({})), [false, false]);
    // The claim goes first.
    assert_eq!(
        may(json!({"scope": "chat:read", "encke": {}})),
        [false, false]
    );
}

#[test]
fn a_lifetime_is_bounded_if_it_is_configured() {
    let mut entry = issuer("i", &["ES256"], &[("k", &P256)]);
    entry["lifetime-max"] = json!("1h");
    let access = access(json!({"issuers": [entry]}));
    let with = |others: Value| bearer(&access, &es256("k", &claims("i", others), &P256)).map(drop);
    assert_eq!(with(json!({"iat": NOW_S, "exp": NOW_S + 3_600})), Ok(()));
    assert_eq!(
        with(json!({"iat": NOW_S, "exp": NOW_S + 3_601})),
        Err(AccessDenied::Lifetime)
    );
    assert!(matches!(
        with(json!({})),
        Err(AccessDenied::Claim { claim: "iat", .. })
    ));
    // So a revocation ends, too.
    let revoke = encke_access::RevocationTarget::Token("x".into());
    let revocation = access.revoke(revoke, NOW.wall).unwrap();
    assert_eq!(
        revocation.until,
        Some(NOW.wall.after(Duration::from_secs(3_600 + 60)))
    );
}

#[test]
fn tokens_with_the_same_grants_share_them() {
    let access = access(json!({"issuers": [issuer("i", &["ES256"], &[("k", &P256)])]}));
    let callers: Vec<_> = (0..20)
        .map(|number| {
            let others =
                json!({"sub": format!("user-{number}"), "encke": {"read": ["/v1/stream/{sub}"]}});
            bearer(&access, &es256("k", &claims("i", others), &P256))
                .unwrap()
                .caller
        })
        .collect();
    assert_eq!(access.counts().shared_grants, 1);
    for (number, caller) in callers.iter().enumerate() {
        assert!(caller.may(Operation::Read, &format!("/v1/stream/user-{number}")));
        assert!(!caller.may(Operation::Read, "/v1/stream/user-20"));
    }
    assert!(size_of::<encke_access::Caller>() <= 48 && size_of::<encke_access::CallerTag>() <= 32);
}
