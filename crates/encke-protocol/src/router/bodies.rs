//! Bodies are received for requests that their heads admit: no route takes that of a stranger.

use std::sync::Arc;

use encke_access::{Access, AccessConfig};
use encke_clock::{Now, SteadyTime, WallTime};
use encke_stream::View;

use super::*;
use crate::admin::{Probes, ReadyState};
use crate::gate::Policy;
use crate::pusher::PusherApp;
use crate::request::CallerInfo;

const KEY: &str = "278d425bdf160c739803";

/// An event that an app has signed, as in the documentation of Channels.
const SIGNED: &str = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0&body_md5=ec365a775a4cd0599faeb73354201b6f&auth_signature=da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c";
const SIGNED_AT_MS: u64 = 1_353_088_179_000;

/// A router with every protocol, behind an access control that grants strangers nothing.
fn router() -> Router {
    let app = |id: &str, key: &str| PusherApp::new(id, key, "7ad3773142a6692b25b8".into());
    let settings = ProtocolSettings {
        pusher: PusherSettings::new(vec![app("2", "another"), app("3", KEY)], [0; 32]).unwrap(),
        ..ProtocolSettings::default()
    };
    let access = Access::from_config(&AccessConfig::default(), &|_| Ok(Vec::new())).unwrap();
    let gate = Gate {
        access: Policy::Controlled(Arc::new(access)),
        ..Gate::default()
    };
    let probes = Probes {
        readiness: Arc::new(|| ReadyState::Ready),
        metrics: Arc::new(Vec::new),
    };
    let views = Views::one(Arc::new(View::default()));
    Router::new(views, settings, gate, Admin::new(probes))
}

fn head(
    router: &Router,
    (method, target): (&str, &str),
    fields: &[(&str, &str)],
    caller: CallerInfo<'_>,
) -> Result<BodyOwner, Box<Response>> {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let fields: Vec<(&str, &[u8])> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_bytes()))
        .collect();
    router.head(&Request {
        method,
        path,
        query,
        headers: Headers(&fields),
        body: Vec::new(),
        caller,
        now: Now {
            wall: WallTime::from_ms(SIGNED_AT_MS),
            steady: SteadyTime::default(),
        },
        barriers: 0,
        upgrade: false,
    })
}

/// The paths of all mounts and aliases, with what protocols know below them, and with what they do not.
fn paths(router: &Router) -> Vec<String> {
    let below = [
        "x",
        "x/y",
        "p/work",
        "p/job/1/ack",
        "subscriptions/s",
        "subscriptions/s/streams",
        "subscriptions/s/claim",
        "3/events",
        "3/batch_events",
        "3/users/u/terminate_connections",
        "3/nothing",
        "4/events",
        KEY,
        "revoke",
        "explain",
    ];
    let mounts = router.protocols.patterns();
    let paths = mounts.flat_map(|pattern| match pattern.strip_suffix("**") {
        None => vec![pattern.to_owned()],
        Some(root) => below.map(|below| format!("{root}{below}")).to_vec(),
    });
    paths.chain(["/nothing".to_owned()]).collect()
}

#[test]
fn no_route_takes_the_body_of_a_stranger() {
    let router = router();
    let paths = paths(&router);
    assert!(paths.iter().any(|path| path == "/apps/3/events"));
    let forged = SIGNED.replace("auth_signature=da", "auth_signature=00");
    for path in paths {
        // The wires bound the bodies of all other methods to a few bytes.
        for method in ["POST", "PUT"] {
            for query in [
                "",
                "?attempt=1",
                &format!("?{forged}"),
                "?signature=x&kid=k",
            ] {
                for field in [
                    ("Content-Type", "application/json"),
                    ("Authorization", "Bearer x"),
                    ("Job-Token", "AAAAAAAAAAAAAAAAAAAAAA"),
                ] {
                    let target = format!("{path}{query}");
                    let caller = CallerInfo::default();
                    let expects = ("Expect", "100-continue");
                    let length = ("Content-Length", "10000000");
                    let fields = [expects, length, field];
                    let admission = head(&router, (method, &target), &fields, caller);
                    assert!(admission.is_err(), "{method} {target} {field:?}");
                }
            }
        }
    }
}

#[test]
fn an_app_has_signed_what_it_is_to_receive() {
    let router = router();
    let ask = |target: &str| {
        let target = ("POST", target);
        match head(&router, target, &[], CallerInfo::default()) {
            Ok(BodyOwner::App(app)) => Ok(app),
            Ok(other) => panic!("{other:?}"),
            Err(response) => Err(response.status),
        }
    };
    let signed = format!("/apps/3/events?{SIGNED}");
    assert_eq!(ask(&signed), Ok(1));
    assert_eq!(ask("/apps/3/events"), Err(401));
    assert_eq!(ask(&signed.replace("/3/", "/4/")), Err(404));
    assert_eq!(ask(&signed.replace("/3/", "/2/")), Err(401));
    assert_eq!(ask(&signed.replace("events", "batch_events")), Err(401));
    assert_eq!(ask(&signed.replace("body_md5", "body")), Err(401));
}
