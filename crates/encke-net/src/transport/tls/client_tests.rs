//! Certificates of clients: up to when they are good, also in sessions that are resumed.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use encke_clock::WallTime;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, ClientConfig, Error, RootCertStore, ServerConfig, SupportedProtocolVersion,
};

use super::client_certificate::of_client;
use super::handshake::{FailureReason, HandshakeConfig};
use super::testing::{certificate, failed_shake, shake};

/// A clock that stands still until it is set.
#[derive(Debug, Default)]
struct SetClock(AtomicU64);

impl TimeProvider for SetClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(at(self.0.load(Ordering::Relaxed)))
    }
}

/// An authority or a client, and its certificate.
struct Named {
    der: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

fn at(s: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(s))
}

fn now_s() -> u64 {
    UNIX_EPOCH.elapsed().unwrap().as_secs()
}

/// A certificate whose last second is that one, by this issuer or by itself.
fn named(name: &str, last_s: u64, is_authority: bool, by: Option<&Named>) -> Named {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    params.not_after = (UNIX_EPOCH + Duration::from_secs(last_s)).into();
    if is_authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    let pair = KeyPair::generate().unwrap();
    let signed = match by {
        Some(by) => params.signed_by(&pair, &by.issuer).unwrap(),
        None => params.self_signed(&pair).unwrap(),
    };
    Named {
        der: signed.der().clone(),
        key: PrivateKeyDer::try_from(pair.serialize_der()).unwrap(),
        issuer: Issuer::new(params, pair),
    }
}

fn verifier(root: &Named) -> Arc<dyn ClientCertVerifier> {
    let mut roots = RootCertStore::empty();
    roots.add(root.der.clone()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .unwrap()
}

#[test]
fn a_chain_is_good_up_to_its_first_end() {
    let now_s = now_s();
    let root = named("root", now_s + 5, true, None);
    let middle = named("middle", now_s + 50, true, Some(&root));
    let unused = named("unused", now_s + 20, true, Some(&root));
    let direct = named("direct", now_s + 100, false, Some(&root));
    let below = named("below", now_s + 100, false, Some(&middle));
    let verifier = verifier(&root);
    let ends_in = |chain: &[&Named]| {
        let chain: Vec<_> = chain.iter().map(|one| one.der.clone()).collect();
        let found = of_client(&chain, &*verifier, true, at(now_s)).unwrap();
        found.ends_at.as_ms() / 1_000 - now_s
    };
    assert_eq!(ends_in(&[&direct]), 101);
    // What a configured authority says of its own end does not matter, and neither does what no one needs.
    assert_eq!(ends_in(&[&direct, &unused]), 101);
    assert_eq!(ends_in(&[&below, &middle]), 51);
    assert_eq!(ends_in(&[&below, &unused, &middle]), 51);
}

#[test]
fn a_session_is_not_resumed_behind_the_end_of_its_clients_certificate() {
    let begin_s = now_s();
    let root = named("root", begin_s + 1_000, true, None);
    let own = named("worker-7", begin_s + 60, false, Some(&root));
    let (server_certificate, server_key) = certificate();
    let clients = verifier(&root);
    let clock = Arc::new(SetClock(AtomicU64::new(begin_s)));
    let provider = Arc::new(aws_lc_rs::default_provider());
    let time: Arc<dyn TimeProvider> = Arc::<SetClock>::clone(&clock);
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        clock.0.store(begin_s, Ordering::Relaxed);
        let mut server =
            ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&time))
                .with_protocol_versions(&[version])
                .unwrap()
                .with_client_cert_verifier(Arc::clone(&clients))
                .with_single_cert(vec![server_certificate.clone()], server_key.clone_key())
                .unwrap();
        server.ticketer = aws_lc_rs::Ticketer::new().unwrap();
        server.enable_secret_extraction = true;
        let config = HandshakeConfig {
            server: Arc::new(server),
            clients: Arc::clone(&clients),
        };
        let mut roots = RootCertStore::empty();
        roots.add(server_certificate.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own.der.clone()], own.key.clone_key())
            .unwrap();
        let client = Arc::new(client);
        let mut resumed = Vec::new();
        for passed_s in [0, 0, 60] {
            clock.0.store(begin_s + passed_s, Ordering::Relaxed);
            let (handshake, _client) = shake(config.clone(), Arc::clone(&client));
            let established = handshake.establish().unwrap();
            let found = established.certificate.unwrap();
            assert_eq!(found.names.first().unwrap(), "worker-7");
            assert_eq!(found.ends_at, WallTime::from_ms((begin_s + 61) * 1_000));
            resumed.push(established.resumed);
        }
        assert_eq!(resumed, [false, true, true], "{version:?}");
        clock.0.store(begin_s + 61, Ordering::Relaxed);
        let (handshake, mut client) = shake(config.clone(), Arc::clone(&client));
        let refused = handshake.establish().unwrap_err();
        // The client learns why.
        let (socket, mut wire) = UnixStream::pair().unwrap();
        assert_eq!(refused.tell(socket.as_fd()), FailureReason::Certificate);
        client.read_tls(&mut wire).unwrap();
        let error = client.process_new_packets().unwrap_err();
        let alert = rustls::AlertDescription::CertificateExpired;
        assert_eq!(error, rustls::Error::AlertReceived(alert), "{version:?}");
    }
}

/// The error of a client with these versions, protocols and certificate.
fn refusal(
    server_versions: &[&'static SupportedProtocolVersion],
    client_versions: &[&'static SupportedProtocolVersion],
    protocol: &str,
    own: Option<&Named>,
) -> Error {
    let root = named("authority", now_s() + 1_000, true, None);
    let clients = verifier(&root);
    let (server_certificate, key) = certificate();
    let mut roots = RootCertStore::empty();
    roots.add(server_certificate.clone()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(server_versions)
        .unwrap()
        .with_client_cert_verifier(Arc::clone(&clients))
        .with_single_cert(vec![server_certificate], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(client_versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut client = match own {
        Some(own) => client
            .with_client_auth_cert(vec![own.der.clone()], own.key.clone_key())
            .unwrap(),
        None => client.with_no_client_auth(),
    };
    client.alpn_protocols = vec![protocol.into()];
    let config = HandshakeConfig {
        server: Arc::new(server),
        clients,
    };
    failed_shake(config, Arc::new(client))
}

/// Whatever a handshake fails for, its client gets the alert (RFC 8446, section 6.2; RFC 7301, section 3.2).
#[test]
fn a_refused_client_gets_the_alert() {
    let stranger = named("stranger", now_s() + 1_000, false, None);
    let (old, new) = (&[&TLS12][..], &[&TLS13][..]);
    for (server, client, protocol, own, alert) in [
        (
            new,
            new,
            "other",
            None,
            AlertDescription::NoApplicationProtocol,
        ),
        (
            old,
            old,
            "other",
            None,
            AlertDescription::NoApplicationProtocol,
        ),
        (new, old, "h2", None, AlertDescription::ProtocolVersion),
        (old, new, "h2", None, AlertDescription::ProtocolVersion),
        (new, new, "h2", None, AlertDescription::CertificateRequired),
        (old, old, "h2", None, AlertDescription::CertificateRequired),
        (new, new, "h2", Some(&stranger), AlertDescription::UnknownCA),
        (old, old, "h2", Some(&stranger), AlertDescription::UnknownCA),
    ] {
        let refused = refusal(server, client, protocol, own);
        assert_eq!(
            refused,
            Error::AlertReceived(alert),
            "{protocol} {server:?} {client:?}"
        );
    }
}
