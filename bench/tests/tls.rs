//! Load tools over https, against the real server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod encke;

use encke::Encke;
use encke_bench::load::{FloodArgs, StormArgs, SubscriberKind, TrustArgs, flood, storm};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Writes `authority.pem`, and `server.pem` with `server.key`, which it has signed.
fn write_certificates(folder: &Path) {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(names).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    for (name, text) in [
        ("authority.pem", authority.pem()),
        ("server.pem", certificate.pem()),
        ("server.key", key.serialize_pem()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

#[test]
fn storms_and_floods_run_over_https() {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let options = ["--tls-cert", "server.pem", "--tls-key", "server.key"];
    let server = Encke::start(folder.path(), &options);
    let trust = TrustArgs {
        tls_ca: Some(folder.path().join("authority.pem")),
        insecure: false,
    };
    let stop = AtomicBool::new(false);
    let args = StormArgs {
        url: server.url.clone(),
        trust: trust.clone(),
        websocket: false,
        subscribers: 20,
        storms: 2,
        away: Duration::from_millis(20),
        serve_timeout: Duration::from_secs(60),
        prefix: "s".into(),
        no_create: false,
        server_pid: None,
        json: false,
    };
    let report = storm(&args, &stop).unwrap();
    assert_eq!(report.exit_code(), 0, "{report}");
    // The clients of the second storm resume the TLS sessions of the first.
    assert_eq!(report.storms[1].resumed, 20, "{report}");
    let args = FloodArgs {
        url: server.url.clone(),
        trust,
        subscribers: 30,
        kinds: vec![
            SubscriberKind::Http1,
            SubscriberKind::Http2,
            SubscriberKind::Websocket,
        ],
        one: Some("f".into()),
        publish: Some(200.0),
        duration: Some(Duration::from_secs(1)),
        ..FloodArgs::default()
    };
    let report = flood(&args, &stop).unwrap();
    assert_eq!(report.exit_code(), 0, "{report}");
}
