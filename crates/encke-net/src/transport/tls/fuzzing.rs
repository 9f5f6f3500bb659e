//! The body of the fuzz target `tls_records`, which a test runs over the saved corpus too.

use super::handshake::{Handshake, HandshakeConfig, Progress};
use super::record::{HEADER_BYTES, PAYLOAD_BYTES_MAX, frame};

/// Reads any bytes as records and as the beginning of a handshake, and panics when a record is found in a part of it, is longer
/// than allowed, or when a handshake comes about.
pub fn tls_records(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some(found)) = frame(rest) {
        assert!(found.payload <= PAYLOAD_BYTES_MAX);
        let whole = HEADER_BYTES + found.payload;
        for end in [0, 1, HEADER_BYTES - 1, whole - 1] {
            assert_eq!(frame(&rest[..end.min(whole - 1)]), Ok(None), "{end}");
        }
        assert_eq!(frame(&rest[..whole]), Ok(Some(found)));
        rest = &rest[whole..];
    }
    let Ok(mut handshake) = Handshake::new(SERVER.with(HandshakeConfig::clone)) else {
        return;
    };
    // In two parts, so that each can end within a record.
    let (first, second) = input.split_at(input.len() / 2);
    for part in [first, second] {
        handshake.receive(part);
        let unsent = handshake.unsent().len();
        handshake.sent(unsent);
    }
    assert_ne!(handshake.progress(), Progress::Complete);
}

thread_local! {
    /// A server without a certificate, which no handshake gets past.
    static SERVER: HandshakeConfig = {
        let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites of both versions")
            .with_no_client_auth()
            .with_cert_resolver(std::sync::Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
        HandshakeConfig {
            server: std::sync::Arc::new(config),
            clients: rustls::server::WebPkiClientVerifier::no_client_auth(),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tls_records");
        let mut count = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
            let path = entry.expect("it can be read").path();
            tls_records(&std::fs::read(&path).expect("it can be read"));
            count += 1;
        }
        assert!(count >= 8, "only {count} inputs");
    }
}
