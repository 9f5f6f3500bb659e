//! Calls with TLS: the name of the URL is checked, whatever address it leads to.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};

use encke_client::ClientRules;
use encke_subscriptions::DeliveryResult;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::receiver::{request, response};
use crate::rig::{FixedNames, Rig, failure};

/// A receiver with a certificate for this name, and the configuration that trusts it.
fn receiver(name: &str) -> (SocketAddr, ClientRules, mpsc::Receiver<String>) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let server = Arc::new(server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, heads) = mpsc::channel();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let session = ServerConnection::new(Arc::clone(&server)).unwrap();
            let mut stream = StreamOwned::new(session, connection.unwrap());
            // A client that refuses the certificate sends none.
            if let Some((head, _)) = request(&mut stream) {
                let _ = sender.send(head);
                let _ = stream.write_all(&response("200 OK", r#"{"done":true}"#));
                let _ = stream.flush();
            }
        }
    });
    let root = Certificate::from_der(&certificate).to_owned();
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::from(vec![root]))
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let rules = ClientRules {
        tls: Some(tls),
        ..ClientRules::default()
    };
    (address, rules, heads)
}

#[test]
fn the_certificate_is_for_the_name_of_the_url() {
    let (address, rules, heads) = receiver("hook.example");
    let names = FixedNames::one("hook.example", &[address]);
    let rig = Rig::with_rules(1, &["127.0.0.0/8"], names, rules);
    assert_eq!(rig.call("https://hook.example/x"), DeliveryResult::Done);
    let head = heads.recv().unwrap();
    assert!(head.contains("hook.example"), "{head}");
}

#[test]
fn another_certificate_is_refused() {
    let (address, rules, heads) = receiver("other.example");
    let names = FixedNames::one("hook.example", &[address]);
    let rig = Rig::with_rules(1, &["127.0.0.0/8"], names, rules);
    failure(rig.call("https://hook.example/x"));
    assert!(heads.try_recv().is_err());
    // Nor is a certificate that nothing vouches for.
    let (address, _, heads) = receiver("hook.example");
    let (_, rules, _) = receiver("hook.example");
    let names = FixedNames::one("hook.example", &[address]);
    let rig = Rig::with_rules(1, &["127.0.0.0/8"], names, rules);
    failure(rig.call("https://hook.example/x"));
    assert!(heads.try_recv().is_err());
}
