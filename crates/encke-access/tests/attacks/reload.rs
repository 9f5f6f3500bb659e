//! The configuration is replaced while callers are there.

use encke_access::{
    Access, AccessConfig, AccessDenied, Caller, CallerTag, CanonicalPath, ClientCertificate,
    Credentials, Grantee, Operation, RevocationTarget, Standing, api_key,
};
use encke_clock::WallTime;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::rig::*;

const KEY: [u8; 32] = [7; 32];
const OTHER_KEY: [u8; 32] = [8; 32];

fn config(json: Value) -> AccessConfig {
    serde_json::from_value(json).unwrap()
}

fn reload(access: &Access, json: Value) {
    let read = |_: &std::path::Path| Err(io::ErrorKind::NotFound.into());
    access.reload(&config(json), &read).unwrap();
}

fn reads(path: &str) -> Value {
    json!([{"actions": ["read"], "paths": [path]}])
}

fn key(name: &str, key: [u8; 32], grants: Value) -> Value {
    json!({"name": name, "sha256": api_key(key).1, "grants": grants})
}

fn keys(keys: &[Value]) -> Value {
    json!({"api-keys": keys})
}

/// An issuer with these members in place of the usual ones.
fn issuer_with(others: Value) -> Value {
    let mut issuer = issuer("i", &["ES256"], &[("k", &P256)]);
    let members = issuer.as_object_mut().unwrap();
    members.extend(others.as_object().unwrap().clone());
    json!({"issuers": [issuer]})
}

fn token(others: Value) -> String {
    es256("k", &claims("i", others), &P256)
}

fn tag(access: &Access, credential: &str) -> CallerTag {
    bearer(access, credential).unwrap().caller.tag()
}

fn may(standing: &Standing, path: &str) -> bool {
    match standing {
        Standing::Unchanged => true,
        Standing::Regranted(caller) => caller.may(Operation::Read, path),
        Standing::Refused | Standing::Unknown => false,
    }
}

#[test]
fn a_new_key_changes_nothing_for_others() {
    let first = key("first", KEY, reads("/v1/stream/**"));
    let access = access(keys(std::slice::from_ref(&first)));
    let (credential, new) = (api_key(KEY).0, api_key(OTHER_KEY).0);
    let before = bearer(&access, &credential).unwrap().caller;
    let version = access.version();
    assert_eq!(
        bearer(&access, &new).unwrap_err(),
        AccessDenied::UnknownApiKey
    );
    reload(
        &access,
        keys(&[key("new", OTHER_KEY, reads("/v1/stream/b")), first]),
    );
    assert_ne!(access.version(), version);
    assert!(bearer(&access, &new).is_ok());
    let tag = before.tag();
    assert!(matches!(access.standing(&tag), Standing::Unchanged));
    // It is the same caller, for limits by caller too.
    let now = bearer(&access, &credential).unwrap().caller;
    assert_eq!(now.tag().identity(), tag.identity());
    assert!(Arc::ptr_eq(&access.renewed(&before).unwrap(), &before));
}

#[test]
fn a_key_that_is_gone_or_replaced_is_refused() {
    let access = access(keys(&[
        key("a", KEY, reads("/**")),
        key("b", OTHER_KEY, reads("/**")),
    ]));
    let caller = bearer(&access, &api_key(KEY).0).unwrap().caller;
    let other = tag(&access, &api_key(OTHER_KEY).0);
    // The name is the same, and the key is another one.
    reload(
        &access,
        keys(&[
            key("a", [9; 32], reads("/**")),
            key("b", OTHER_KEY, reads("/**")),
        ]),
    );
    assert!(is_refused(&access, &caller.tag()) && !is_refused(&access, &other));
    assert_eq!(access.renewed(&caller).unwrap_err(), AccessDenied::Revoked);
    reload(&access, keys(&[]));
    assert!(is_refused(&access, &other));
    // What it was refused for is over.
    reload(&access, keys(&[key("b", OTHER_KEY, reads("/**"))]));
    assert!(!is_refused(&access, &other));
}

#[test]
fn fewer_grants_leave_what_they_still_allow() {
    let with = |grants| keys(&[key("a", KEY, grants)]);
    let access = access(with(reads("/v1/stream/**")));
    let caller = bearer(&access, &api_key(KEY).0).unwrap().caller;
    reload(&access, with(reads("/v1/stream/public/**")));
    let standing = access.standing(&caller.tag());
    assert!(may(&standing, "/v1/stream/public/a") && !may(&standing, "/v1/stream/secret"));
    let Standing::Regranted(regranted) = standing else {
        panic!("its grants have changed");
    };
    assert!(regranted.is_certain());
    assert!(regranted.may_below(Operation::Read, "/v1/stream/public/"));
    assert!(!regranted.may_below(Operation::Read, "/v1/stream/"));
    assert!(regranted.might_below(Operation::Read, "/v1/stream/"));
    assert!(!regranted.might(Operation::Own, "/v1/stream/public/a"));
    let renewed = access.renewed(&caller).unwrap();
    assert!(renewed.may(Operation::Read, "/v1/stream/public/a"));
    assert!(!renewed.may(Operation::Read, "/v1/stream/secret"));
    assert!(matches!(
        access.standing(&renewed.tag()),
        Standing::Unchanged
    ));
}

#[test]
fn tokens_are_judged_by_the_new_grants_of_their_issuer() {
    let own = |path: &str| issuer_with(json!({"grants": reads(path)}));
    let access = access(own("/v1/stream/**"));
    let alice = token(json!({"sub": "alice", "room": "r"}));
    let claimed = token(
        json!({"sub": "alice", "encke": {"read": ["/v1/stream/a", "/v1/stream/{room}"]}, "room": "r"}),
    );
    let (alice, claimed) = (
        bearer(&access, &alice).unwrap().caller,
        bearer(&access, &claimed).unwrap().caller,
    );
    reload(&access, own("/v1/stream/users/{sub}/**"));
    // Of the subject a subscription keeps a digest, which is enough.
    let standing = access.standing(&alice.tag());
    assert!(
        may(&standing, "/v1/stream/users/alice/x") && !may(&standing, "/v1/stream/users/bob/x")
    );
    assert!(!may(&access.standing(&claimed.tag()), "/v1/stream/a"));
    let renewed = access.renewed(&alice).unwrap();
    assert!(renewed.may(Operation::Read, "/v1/stream/users/alice/x"));
    assert!(!renewed.may(Operation::Read, "/v1/stream/users/bob/x"));
    // Other claims are not kept: only the token could say.
    reload(&access, own("/v1/stream/{room}"));
    let Standing::Regranted(regranted) = access.standing(&alice.tag()) else {
        panic!("its grants have changed");
    };
    assert!(!regranted.is_certain() && !regranted.may(Operation::Read, "/v1/stream/r"));
    // The grants in a token stay, within those of its issuer.
    reload(&access, own("/v1/stream/*"));
    let standing = access.standing(&claimed.tag());
    assert!(may(&standing, "/v1/stream/r"));
    let renewed = access.renewed(&claimed).unwrap();
    assert!(renewed.may(Operation::Read, "/v1/stream/r"));
    assert!(!renewed.may(Operation::Read, "/v1/stream/b"));
    // As before: nothing is left of what was between.
    reload(&access, own("/v1/stream/**"));
    assert!(may(&access.standing(&alice.tag()), "/v1/stream/any"));
}

#[test]
fn scopes_are_explained_anew() {
    let scopes = |scopes: Value| issuer_with(json!({"scopes": scopes}));
    let access = access(scopes(
        json!({"chat": reads("/v1/stream/chat/**"), "news": reads("/v1/stream/news")}),
    ));
    let caller = bearer(&access, &token(json!({"scope": "chat other"})))
        .unwrap()
        .caller;
    reload(
        &access,
        scopes(json!({"chat": reads("/v1/stream/chat/public"), "news": reads("/v1/stream/**")})),
    );
    let standing = access.standing(&caller.tag());
    assert!(may(&standing, "/v1/stream/chat/public") && !may(&standing, "/v1/stream/chat/a"));
    assert!(
        access
            .renewed(&caller)
            .unwrap()
            .may(Operation::Read, "/v1/stream/chat/public")
    );
}

#[test]
fn only_the_token_says_whether_a_stricter_issuer_accepts_it() {
    let changes = [
        json!({"audience": ["elsewhere"]}),
        json!({"lifetime-max": "1s"}),
        json!({"algorithms": ["ES256", "ES384"]}),
    ];
    for change in changes {
        let access = access(issuer_with(json!({"audience": ["encke", "b"]})));
        let caller = bearer(&access, &token(json!({}))).unwrap().caller;
        reload(&access, issuer_with(change.clone()));
        assert!(
            matches!(access.standing(&caller.tag()), Standing::Unknown),
            "{change}"
        );
        assert_eq!(
            access.renewed(&caller).unwrap_err(),
            AccessDenied::Expired("token")
        );
    }
    // One that accepts more accepts it.
    let access = access(issuer_with(json!({"lifetime-max": "2h"})));
    let caller = bearer(&access, &token(json!({"iat": NOW_S})))
        .unwrap()
        .caller;
    reload(
        &access,
        issuer_with(json!({"audience": ["encke", "other", "b"]})),
    );
    assert!(matches!(
        access.standing(&caller.tag()),
        Standing::Regranted(_)
    ));
    assert!(access.renewed(&caller).is_ok());
}

#[test]
fn an_issuer_that_is_gone_takes_its_tokens_along() {
    let access = access(issuer_with(json!({})));
    let good = token(json!({}));
    let caller = bearer(&access, &good).unwrap().caller;
    reload(&access, json!({}));
    assert!(is_refused(&access, &caller.tag()));
    // Also from the cache.
    assert_eq!(
        bearer(&access, &good).unwrap_err(),
        AccessDenied::UnknownIssuer
    );
    // Another key in the place of its own.
    reload(&access, issuer_with(json!({})));
    let caller = bearer(&access, &good).unwrap().caller;
    let other = issuer("i", &["ES256"], &[("k", &OTHER_P256)]);
    reload(&access, json!({"issuers": [other]}));
    assert!(is_refused(&access, &caller.tag()));
    assert_eq!(bearer(&access, &good).unwrap_err(), AccessDenied::Signature);
}

#[test]
fn fetched_keys_stay_while_their_source_does() {
    let with = |url: &str, path: &str| json!({"issuers": [{"issuer": "i", "audience": "encke", "algorithms": ["ES256"], "jwks-url": url, "grants": reads(path)}]});
    let access = access(with("https://a.example/keys", "/a"));
    let heard = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    access.when_keys_arrive(move |issuer, _| hears.lock().push(issuer.to_owned()));
    let set = jwks(&[("k", &P256)]);
    let old = access.key_fetches();
    access.keys_fetched(&old, 0, Some(set.as_bytes())).unwrap();
    let good = token(json!({}));
    let before = tag(&access, &good);
    reload(&access, with("https://a.example/keys", "/b"));
    // Requests that wait for keys are asked about again.
    assert_eq!(*heard.lock(), ["i", "i"]);
    assert!(
        bearer(&access, &good)
            .unwrap()
            .caller
            .may(Operation::Read, "/b")
    );
    // From another source nothing has come yet, which says nothing of those who are there.
    reload(&access, with("https://b.example/keys", "/b"));
    assert!(matches!(
        bearer(&access, &good).unwrap_err(),
        AccessDenied::KeysUnknown { .. }
    ));
    assert!(may(&access.standing(&before), "/b"));
    let other = jwks(&[("k", &OTHER_P256)]);
    access
        .keys_fetched(&access.key_fetches(), 0, Some(other.as_bytes()))
        .unwrap();
    assert!(is_refused(&access, &before));
    // A fetch for the configuration of before comes too late to change anything.
    access.keys_fetched(&old, 0, Some(set.as_bytes())).unwrap();
    assert!(is_refused(&access, &before));
}

#[test]
fn signed_urls_certificates_and_requests_without_credentials_are_judged_too() {
    let with = |secret: &str, path: &str, anonymous: bool| {
        let mut config = json!({
            "signing-keys": [{"kid": "u", "secret": secret, "grants": reads(path)}],
            "certificates": [{"name": "worker", "grants": reads(path)}],
        });
        if anonymous {
            config["anonymous"] = json!({"grants": reads(path)});
        }
        config
    };
    let access = access(with(SECRET, "/v1/stream/**", true));
    let url = sign_url(&access, "GET", "/v1/stream/a", &[], NOW_S + 60).unwrap();
    let signed = resolve(&access, "GET", &url, &[], NOW).unwrap().caller;
    let anonymous = access.anonymous().unwrap();
    let path = CanonicalPath::parse("/").unwrap();
    let certificate = ClientCertificate {
        names: vec!["worker".into()],
        ends_at: WallTime::from_ms(u64::MAX),
    };
    let request = Credentials {
        method: "GET",
        path: &path,
        query: None,
        headers: &[],
        client_certificate: Some(&certificate),
        address: None,
        free_parameters: &[],
    };
    let certified = access.resolve(&request, NOW).unwrap().caller;
    let all: [&Arc<Caller>; 3] = [&signed, &anonymous, &certified];
    reload(&access, with(SECRET, "/v1/stream/a", true));
    for caller in all {
        let standing = access.standing(&caller.tag());
        assert!(may(&standing, "/v1/stream/a") && !may(&standing, "/v1/stream/b"));
    }
    // What ends does so at its time.
    assert_eq!(access.renewed(&signed).unwrap().ends_at(), signed.ends_at());
    let other = SECRET.repeat(2);
    reload(&access, with(&other, "/v1/stream/a", false));
    assert!(is_refused(&access, &signed.tag()) && is_refused(&access, &anonymous.tag()));
    assert!(!is_refused(&access, &certified.tag()));
    reload(&access, json!({}));
    assert!(is_refused(&access, &certified.tag()));
}

#[test]
fn revocations_stay_in_force() {
    let first = issuer_with(json!({}));
    let access = access(first.clone());
    let good = token(json!({"sub": "alice", "iat": NOW_S - 100}));
    let alice = tag(&access, &good);
    let subject = RevocationTarget::Subject("alice".into());
    access.revoke(subject, NOW.wall).unwrap();
    reload(&access, issuer_with(json!({"grants": reads("/**")})));
    assert!(is_refused(&access, &alice));
    assert_eq!(bearer(&access, &good).unwrap_err(), AccessDenied::Revoked);
    // The leeway is that of the new configuration.
    let late = token(json!({"sub": "alice", "iat": NOW_S + 2}));
    let in_time = after(Duration::from_secs(2));
    assert_eq!(
        bearer_at(&access, &late, in_time).unwrap_err(),
        AccessDenied::Revoked
    );
    let mut strict = first;
    strict["leeway"] = json!("1s");
    reload(&access, strict);
    assert!(bearer_at(&access, &late, in_time).is_ok());
}

#[test]
fn a_wrong_configuration_changes_nothing() {
    let first = key("a", KEY, reads("/**"));
    let access = access(keys(std::slice::from_ref(&first)));
    let version = access.version();
    let read = |_: &std::path::Path| Err(io::ErrorKind::NotFound.into());
    let mut wrong = keys(&[first]);
    wrong["signing-keys"] = json!([{"kid": "u", "secret-file": "missing"}]);
    let error = access.reload(&config(wrong), &read).unwrap_err();
    assert_eq!(error.key, "access.signing-keys[0].secret-file");
    assert_eq!(access.version(), version);
    assert!(bearer(&access, &api_key(KEY).0).is_ok());
}

#[test]
fn the_counts_of_the_cache_go_on() {
    let access = access(issuer_with(json!({})));
    let good = token(json!({}));
    for _ in 0..2 {
        bearer(&access, &good).unwrap();
    }
    reload(&access, issuer_with(json!({})));
    bearer(&access, &good).unwrap();
    let counts = access.counts().tokens;
    assert_eq!((counts.entries, counts.hits, counts.misses), (1, 1, 2));
}
