//! Signed URLs, API keys, cookies, several credentials at once, revocations, and spellings of paths.

use encke_access::{
    Access, AccessDenied, CallerKind, CanonicalPath, ClientCertificate, Credentials, Operation,
    RevocationTarget, SIGNED_FIELDS_MAX, api_key,
};
use encke_clock::Now;
use serde_json::json;
use std::time::Duration;

use crate::rig::*;

const KEY: [u8; 32] = [7; 32];

fn everything() -> Access {
    let (_, sha256) = api_key(KEY);
    let reads = json!([{"actions": ["read"], "paths": ["/v1/stream/**"]}]);
    access(json!({
        "cookie": "encke_token",
        "issuers": [issuer("i", &["ES256"], &[("k", &P256)])],
        "anonymous": {"grants": [{"actions": ["read"], "paths": ["/v1/stream/public/**"]}]},
        "api-keys": [{"name": "backend", "sha256": sha256, "grants": reads}],
        "signing-keys": [
            {"kid": "u", "secret": SECRET},
            {"kid": "limited", "secret": SECRET, "grants": reads},
        ],
        "certificates": [{"name": "worker.example", "grants": [{"actions": ["work"], "paths": ["/v1/pool/**"]}]}],
    }))
}

fn signed(access: &Access, method: &str, target: &str) -> String {
    sign_url(access, method, target, &[], NOW_S + 60).unwrap()
}

fn get(access: &Access, target: &str) -> Result<encke_access::Resolved, AccessDenied> {
    resolve(access, "GET", target, &[], NOW)
}

#[test]
fn a_signed_url_is_good_for_what_was_signed() {
    let access = everything();
    let url = signed(&access, "GET", "/v1/stream/a%20b?offset=-1&live=sse");
    for method in ["GET", "HEAD"] {
        let resolved = resolve(&access, method, &url, &[], NOW).unwrap();
        assert!(resolved.signed_url.is_some() && !resolved.by_cookie);
        assert_eq!(resolved.caller.key_name(), "u");
        assert_eq!(
            resolved.caller.ends_at(),
            Some(after(Duration::from_secs(60)).wall)
        );
        assert!(resolved.caller.may(Operation::Read, "/v1/stream/a b"));
        assert!(!resolved.caller.may(Operation::Admin, "/v1/admin/revoke"));
    }
    // The same path and parameters, spelled otherwise.
    let spelled = url.replace("/v1/stream/a%20b?", "/v1/%73tream/%61%20b?");
    assert!(get(&access, &spelled).is_ok());
    let (path, query) = url.split_once('?').unwrap();
    let reversed: Vec<_> = query.split('&').rev().collect();
    assert!(get(&access, &format!("{path}?{}", reversed.join("&"))).is_ok());
}

#[test]
fn a_signed_url_is_good_for_nothing_else() {
    let access = everything();
    let url = signed(&access, "GET", "/v1/stream/a?offset=-1");
    for changed in [
        url.replace("stream/a", "stream/b"),
        url.replace("offset=-1", "offset=now"),
        url.replace("offset=-1&", ""),
        url.replace("offset=-1", "offset=-1&live=sse"),
        url.replace("offset=-1", "offset=-1&offset=-1"),
        url.replace(
            &format!("expires={}", NOW_S + 60),
            &format!("expires={}", NOW_S + 6_000),
        ),
        url.replace("kid=u", "kid=limited")
            .replace("offset=-1", "offset=-2"),
        format!("{url}A"),
        url.split("&signature").next().unwrap().to_owned() + "&signature=",
    ] {
        assert_eq!(
            get(&access, &changed).unwrap_err(),
            AccessDenied::Signature,
            "{changed}"
        );
    }
    for method in ["POST", "PUT", "DELETE", "get"] {
        let denied = resolve(&access, method, &url, &[], NOW).unwrap_err();
        assert_eq!(denied, AccessDenied::Signature, "{method}");
    }
    let other = url.replace("kid=u", "kid=x");
    assert_eq!(get(&access, &other).unwrap_err(), AccessDenied::UnknownKey);
    let expired = resolve(&access, "GET", &url, &[], after(Duration::from_secs(60))).unwrap_err();
    assert_eq!(expired, AccessDenied::Expired("signed URL"));
    assert!(
        resolve(
            &access,
            "GET",
            &url,
            &[],
            after(Duration::from_millis(59_999))
        )
        .is_ok()
    );
}

#[test]
fn parameters_of_a_signature_come_once_and_whole() {
    let access = everything();
    let url = signed(&access, "GET", "/v1/stream/a");
    for changed in [
        format!("{url}&signature=x"),
        format!("{url}&%73ignature=x"),
        format!("{url}&kid=u"),
        format!("{url}&expires=1"),
        format!("{url}&x=%zz"),
        url.replace("signature=", "%73ignature="),
        url.replace("kid=", "ki%64="),
        url.replace("expires=", "%65xpires="),
        format!("{url}&signed-fields="),
        format!("{url}&signed%2Dfields=a"),
        format!("{url}&signed-fields=a&signed-fields=b"),
        "/v1/stream/a?signature=x".to_owned(),
        "/v1/stream/a?%73ignature=x".to_owned(),
        "/v1/stream/a?signature=x&kid=u".to_owned(),
    ] {
        let denied = get(&access, &changed).unwrap_err();
        assert!(
            matches!(denied, AccessDenied::Malformed(_)),
            "{changed} {denied:?}"
        );
    }
    for target in [
        "/a?kid=x",
        "/a?expires=1",
        "/a?signature=1",
        "/a?signed-fields=b",
    ] {
        assert!(
            sign_url(&access, "GET", target, &[], NOW_S).is_err(),
            "{target}"
        );
    }
}

#[test]
fn a_url_leaves_the_parameters_of_its_reading_to_whoever_has_it() {
    let access = everything();
    let url = signed(&access, "GET", "/v1/stream/a?x=1");
    for more in ["", "&offset=-1", "&offset=5&live=sse", "&live=sse&live=sse"] {
        let resolved = get(&access, &format!("{url}{more}")).unwrap();
        assert!(resolved.signed_url.unwrap().leaves_parameters, "{more}");
    }
    let (path, query) = url.split_once('?').unwrap();
    assert!(get(&access, &format!("{path}?offset=%2D1&{query}")).is_ok());
    for more in ["&y=1", "&x=1", "&offset=1&y=1", "&Offset=1"] {
        let refused = get(&access, &format!("{url}{more}")).unwrap_err();
        assert_eq!(refused, AccessDenied::Signature, "{more}");
    }
    // One that is signed is good as it is, and nothing can be added to it or taken from it.
    let url = signed(&access, "GET", "/v1/stream/a?offset=7");
    let resolved = get(&access, &url).unwrap();
    assert!(!resolved.signed_url.unwrap().leaves_parameters);
    for changed in [
        url.replace("offset=7", "offset=6"),
        url.replace("offset=7&", ""),
        format!("{url}&live=sse"),
        format!("{url}&offset=7"),
        format!("{url}&offset=6"),
    ] {
        let refused = get(&access, &changed).unwrap_err();
        assert_eq!(refused, AccessDenied::Signature, "{changed}");
    }
}

#[test]
fn what_is_signed_is_stable() {
    let access = everything();
    assert_eq!(
        sign_url(
            &access,
            "GET",
            "/v1/stream/a%20b?x=%C3%A4&offset=-1",
            &[],
            1_800_000_000
        )
        .unwrap(),
        "/v1/stream/a%20b?x=%C3%A4&offset=-1&expires=1800000000&kid=u&signature=SIGNATURE".replace(
            "SIGNATURE",
            &{
                let text = "GET\n/v1/stream/a b\nexpires=1800000000&kid=u&offset=-1&x=%C3%A4";
                let key =
                    aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, SECRET.as_bytes());
                encode(aws_lc_rs::hmac::sign(&key, text.as_bytes()))
            }
        )
    );
}

#[test]
fn a_signed_url_is_good_with_the_fields_that_it_signs() {
    let access = everything();
    let fields = ["Stream-Closed: true", "Last-Event-ID"].map(|field| field.parse().unwrap());
    let url = sign_url(&access, "POST", "/v1/stream/a?x=1", &fields, 1_800_000_000).unwrap();
    let text = "POST\n/v1/stream/a\nexpires=1800000000&kid=u&signed-fields=stream-closed%2Clast-event-id%2A&x=1\nstream-closed:true";
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = encode(aws_lc_rs::hmac::sign(&key, text.as_bytes()));
    assert_eq!(
        url,
        format!(
            "/v1/stream/a?x=1&expires=1800000000&kid=u&signed-fields=stream-closed,last-event-id*&signature={signature}"
        )
    );
    let post = |url: &str, headers: &[(&str, &[u8])]| resolve(&access, "POST", url, headers, NOW);
    let closed = ("stream-closed", &b" true "[..]);
    let id = ("Last-Event-ID", &b"anything"[..]);
    for headers in [&[closed][..], &[id, ("x", b"y"), closed]] {
        let signed = post(&url, headers).unwrap().signed_url.unwrap().fields;
        assert!(signed.covers("Stream-Closed") && signed.covers("Last-Event-ID"));
        assert!(!signed.covers("Encke-Truncate"));
    }
    let missing = AccessDenied::SignedField {
        name: "stream-closed".into(),
    };
    assert_eq!(post(&url, &[id]).unwrap_err(), missing);
    assert_eq!(post(&url, &[closed, closed]).unwrap_err(), missing);
    // What is signed can't be changed, and nothing can be added to the list or taken from it.
    let other = ("Stream-Closed", &b"false"[..]);
    assert_eq!(post(&url, &[other]).unwrap_err(), AccessDenied::Signature);
    for list in [
        "stream-closed",
        "stream-closed*,last-event-id*",
        "last-event-id*,stream-closed",
        "stream-closed,last-event-id*,encke-truncate*",
    ] {
        let changed = url.replace("stream-closed,last-event-id*", list);
        assert_eq!(
            post(&changed, &[closed]).unwrap_err(),
            AccessDenied::Signature,
            "{list}"
        );
    }
    let without = url.replace("&signed-fields=stream-closed,last-event-id*", "");
    assert_eq!(
        post(&without, &[closed]).unwrap_err(),
        AccessDenied::Signature
    );
    let many: Vec<_> = (0..=SIGNED_FIELDS_MAX)
        .map(|number| format!("f{number}").parse().unwrap())
        .collect();
    assert!(sign_url(&access, "GET", "/a", &many, 1).is_err());
}

#[test]
fn an_api_key_is_compared_by_its_digest() {
    let access = everything();
    let (key, sha256) = api_key(KEY);
    let caller = bearer(&access, &key).unwrap().caller;
    assert_eq!(
        (caller.name(), caller.kind()),
        ("backend", CallerKind::ApiKey)
    );
    assert!(
        caller.may(Operation::Read, "/v1/stream/a")
            && !caller.may(Operation::Append, "/v1/stream/a")
    );
    for wrong in [
        &sha256[..],
        &key[..key.len() - 1],
        &format!("{key}A"),
        &key.to_uppercase(),
        "x",
    ] {
        assert_eq!(
            bearer(&access, wrong).unwrap_err(),
            AccessDenied::UnknownApiKey,
            "{wrong}"
        );
    }
}

#[test]
fn wrong_credentials_do_not_make_a_request_anonymous() {
    let access = everything();
    assert_eq!(
        get(&access, "/v1/stream/public/a").unwrap().caller.name(),
        "anonymous"
    );
    for field in [
        "Bearer x",
        "Bearer a.b.c",
        "Basic eDp5",
        "Bearer",
        "Bearer ",
        "",
        "x",
        "Bearer a b",
        "Bearer ä",
    ] {
        let headers = [("authorization", field.as_bytes())];
        assert!(
            resolve(&access, "GET", "/v1/stream/public/a", &headers, NOW).is_err(),
            "{field:?}"
        );
    }
    let headers = [("cookie", &b"encke_token=x"[..])];
    assert!(resolve(&access, "GET", "/v1/stream/public/a", &headers, NOW).is_err());
}

#[test]
fn credentials_in_two_places_are_refused_unless_they_are_the_same() {
    let access = everything();
    let alice = es256("k", &claims("i", json!({})), &P256);
    let bob = es256("k", &claims("i", json!({"sub": "bob"})), &P256);
    let url = signed(&access, "GET", "/v1/stream/a");
    let of = |token: &str| format!("Bearer {token}");
    let cookie = |token: &str| format!("other=1; encke_token={token}; b=2");
    let with = |target: &str, headers: &[(&str, String)]| {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        resolve(&access, "GET", target, &headers, NOW)
    };
    let plain = "/v1/stream/a";
    for (target, headers) in [
        (
            plain,
            vec![("Authorization", of(&alice)), ("Authorization", of(&alice))],
        ),
        (
            plain,
            vec![("Authorization", of(&alice)), ("authorization", of(&bob))],
        ),
        (
            plain,
            vec![("Authorization", of(&alice)), ("Cookie", cookie(&bob))],
        ),
        (
            plain,
            vec![("Cookie", cookie(&alice)), ("Cookie", cookie(&bob))],
        ),
        (
            plain,
            vec![(
                "Cookie",
                format!("encke_token={alice}; encke_token={alice}"),
            )],
        ),
        (&url, vec![("Authorization", of(&alice))]),
        (&url, vec![("Cookie", cookie(&alice))]),
    ] {
        let denied = with(target, &headers).unwrap_err();
        assert!(matches!(denied, AccessDenied::Conflicting(_)), "{denied:?}");
        assert_eq!(denied.status(), 400);
    }
    let both = with(
        plain,
        &[("Authorization", of(&alice)), ("Cookie", cookie(&alice))],
    )
    .unwrap();
    assert!(!both.by_cookie);
    let by_cookie = with(plain, &[("Cookie", cookie(&alice))]).unwrap();
    assert!(by_cookie.by_cookie && by_cookie.caller.name() == "alice");
    // Names that only look like it.
    let other = with(
        "/v1/stream/public/a",
        &[(
            "Cookie",
            "xencke_token=1; encke_tokenx=1; ENCKE_TOKEN=1".into(),
        )],
    );
    assert_eq!(other.unwrap().caller.name(), "anonymous");
}

#[test]
fn a_certificate_is_a_caller_by_its_names() {
    let access = everything();
    let path = CanonicalPath::parse("/v1/pool/p/work").unwrap();
    let of = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = ClientCertificate {
            names,
            ends_at: NOW.wall.after(Duration::from_secs(60)),
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
        access.resolve(&request, NOW).unwrap().caller
    };
    assert_eq!(of(&["x", "worker.example"]).name(), "worker.example");
    assert!(of(&["worker.example"]).may(Operation::Work, path.as_str()));
    for other in [
        "worker.example.attacker.example",
        "*.example",
        "WORKER.EXAMPLE",
        "",
    ] {
        assert_eq!(of(&[other]).name(), "anonymous", "{other}");
    }
}

/// A connection, and a session that is resumed, last longer than the certificate that was verified in the handshake.
#[test]
fn a_certificate_is_good_up_to_its_end_whatever_else_a_request_presents() {
    let access = everything();
    let path = CanonicalPath::parse("/v1/pool/p/work").unwrap();
    let certificate = |name: &str| ClientCertificate {
        names: vec![name.to_owned()],
        ends_at: NOW.wall.after(Duration::from_secs(60)),
    };
    let bearer = format!("Bearer {}", api_key(KEY).0);
    let token = [("Authorization", bearer.as_bytes())];
    for (name, headers) in [
        ("worker.example", &[][..]),
        ("unknown.example", &[]),
        ("worker.example", &token),
    ] {
        let certificate = certificate(name);
        let request = Credentials {
            method: "GET",
            path: &path,
            query: None,
            headers,
            client_certificate: Some(&certificate),
            address: None,
            free_parameters: &[],
        };
        let ends_at = certificate.ends_at;
        let before = Now::at(ends_at.before(Duration::from_millis(1)));
        let resolved = access.resolve(&request, before).unwrap();
        if resolved.caller.kind() == CallerKind::Certificate {
            assert_eq!(resolved.caller.ends_at(), Some(ends_at));
            assert_eq!(resolved.caller.tag().ends_at(), Some(ends_at));
            assert_eq!(resolved.caller.name(), "worker.example");
        }
        let denied = access.resolve(&request, Now::at(ends_at)).unwrap_err();
        assert_eq!(denied, AccessDenied::Expired("client certificate"));
    }
}

/// GHSA-m4f6-p2j8-rq76: a rule for the decoded path, and a request with another spelling.
#[test]
fn every_spelling_of_a_path_meets_the_same_rule() {
    let access = everything();
    let caller = access.anonymous().unwrap();
    for raw in [
        "/v1/stream/secret",
        "/v1/%73tream/secret",
        "/v1/stream/%73ecret",
        "/v1%2fstream%2Fsecret",
        "/v1/stream/public%2F..%2Fsecret",
        "/v1/stream/public/../secret",
        "/v1/stream/public/%2e%2e/secret",
        "/v1/stream/public/.%2E/secret",
        "/v1/stream//secret",
        "/v1//stream/public/a",
        "/v1/stream/public/a/",
        "/v1/stream/public%2f",
        "/v1/stream/public%00/secret",
        "/v1/stream/%70ublic/%2e",
    ] {
        let may =
            CanonicalPath::parse(raw).is_ok_and(|path| caller.may(Operation::Read, path.as_str()));
        assert!(!may, "{raw}");
    }
    for raw in [
        "/v1/stream/public/a",
        "/v1/%73tream/%70ublic/a",
        "/v1/stream/public%2Fa",
    ] {
        let path = CanonicalPath::parse(raw).unwrap();
        assert!(caller.may(Operation::Read, path.as_str()), "{raw}");
    }
}

#[test]
fn revoked_credentials_are_refused_also_from_the_cache() {
    let access = everything();
    let token = |id: &str| {
        let others = json!({"jti": id, "iat": NOW_S - 10, "sub": id});
        es256("k", &claims("i", others), &P256)
    };
    let (one, two, three) = (token("1"), token("2"), token("3"));
    let held = bearer(&access, &one).unwrap().caller;
    let tag = held.tag();
    assert!(!access.is_revoked(&held) && !is_refused(&access, &tag));
    access
        .revoke(RevocationTarget::Token("1".into()), NOW.wall)
        .unwrap();
    assert!(access.is_revoked(&held) && is_refused(&access, &tag));
    assert_eq!(bearer(&access, &one).unwrap_err(), AccessDenied::Revoked);
    assert!(bearer(&access, &two).is_ok());
    access
        .revoke(RevocationTarget::Subject("2".into()), NOW.wall)
        .unwrap();
    assert_eq!(bearer(&access, &two).unwrap_err(), AccessDenied::Revoked);
    assert!(bearer(&access, &three).is_ok());
    let record = access
        .revoke(RevocationTarget::Key("i/k".into()), NOW.wall)
        .unwrap();
    assert_eq!(bearer(&access, &three).unwrap_err(), AccessDenied::Revoked);
    // After a restart.
    let again = everything();
    assert!(bearer(&again, &three).is_ok());
    let stored = serde_json::to_string(&record).unwrap();
    again
        .restore(serde_json::from_str(&stored).unwrap(), NOW.wall)
        .unwrap();
    assert_eq!(bearer(&again, &three).unwrap_err(), AccessDenied::Revoked);
    for (key, credential) in [("backend", api_key(KEY).0), ("u", String::new())] {
        again
            .revoke(RevocationTarget::Key(key.into()), NOW.wall)
            .unwrap();
        let denied = match credential.is_empty() {
            true => get(&again, &signed(&again, "GET", "/v1/stream/a")),
            false => bearer(&again, &credential),
        };
        assert_eq!(denied.unwrap_err(), AccessDenied::Revoked, "{key}");
    }
}

/// A subject that is revoked keeps no token because the clock of its issuer is fast.
#[test]
fn a_revoked_subject_keeps_no_token_of_a_fast_clock() {
    let access = access(json!({
        "leeway": "30s",
        "issuers": [issuer("i", &["ES256"], &[("k", &P256)])],
    }));
    let issued = |ahead_s: u64| {
        let others = json!({"iat": NOW_S + ahead_s, "exp": NOW_S + 3_600});
        es256("k", &claims("i", others), &P256)
    };
    let held: Vec<_> = [0, 1, 30]
        .into_iter()
        .map(|ahead_s| bearer(&access, &issued(ahead_s)).unwrap().caller)
        .collect();
    access
        .revoke(RevocationTarget::Subject("alice".into()), NOW.wall)
        .unwrap();
    for (caller, ahead_s) in held.iter().zip([0, 1, 30]) {
        assert!(access.is_revoked(caller), "{ahead_s}");
        let denied = bearer(&access, &issued(ahead_s)).unwrap_err();
        assert_eq!(denied, AccessDenied::Revoked, "{ahead_s}");
    }
    // A token that was issued so much later is a new one, whatever the clocks say.
    assert!(bearer_at(&access, &issued(31), after(Duration::from_secs(1))).is_ok());
}

#[test]
fn refusals_never_hold_the_credential() {
    let access = everything();
    let token = es256("k", &claims("other-issuer-secret", json!({})), &P256);
    let denied = bearer(&access, &token).unwrap_err();
    for text in [
        denied.to_string(),
        denied.challenge(),
        format!("{denied:?}"),
        format!("{access:?}"),
    ] {
        assert!(
            !text.contains("other-issuer-secret") && !text.contains(&token),
            "{text}"
        );
        assert!(!text.contains(SECRET), "{text}");
    }
}
