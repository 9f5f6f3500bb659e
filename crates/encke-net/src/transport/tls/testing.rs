//! What the tests of sessions share: certificates, and a client of rustls at the other end of a socket.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedCipherSuite};

use super::fault::TlsFault;
use super::handshake::{Handshake, HandshakeConfig, Progress};
use super::session::{ReadOutcome, TlsSession};

/// A session and its client, connected by a socket.
pub(super) struct Pair {
    pub(super) session: Box<TlsSession>,
    pub(super) socket: UnixStream,
    pub(super) client: ClientConnection,
    pub(super) wire: UnixStream,
    pub(super) scratch: Vec<u8>,
}

/// A certificate for `localhost` of its own authority, and its key.
pub(super) fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    (made.cert.der().clone(), key)
}

/// All suites of the provider.
pub(super) fn suites() -> Vec<SupportedCipherSuite> {
    aws_lc_rs::ALL_CIPHER_SUITES.to_vec()
}

impl Pair {
    /// After a handshake with this suite.
    pub(super) fn of(suite: SupportedCipherSuite) -> Pair {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![suite],
            ..aws_lc_rs::default_provider()
        });
        let (mut certificate, mut key) = certificate();
        if suite
            .suite()
            .as_str()
            .is_some_and(|name| name.contains("_RSA_"))
        {
            let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
            let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            certificate = params.self_signed(&pair).unwrap().der().clone();
            key = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        }
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        server.enable_secret_extraction = true;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let config = HandshakeConfig {
            server: Arc::new(server),
            clients: WebPkiClientVerifier::no_client_auth(),
        };
        Pair::established(shake(config, Arc::new(client)))
    }

    fn established((handshake, client): (Handshake, ClientConnection)) -> Pair {
        let (socket, wire) = UnixStream::pair().unwrap();
        for end in [&socket, &wire] {
            end.set_nonblocking(true).unwrap();
        }
        Pair {
            session: handshake.establish().unwrap().session,
            socket,
            client,
            wire,
            scratch: vec![0; 64 << 10],
        }
    }

    /// Sends content to the session.
    pub(super) fn client_sends(&mut self, content: &[u8]) {
        self.client.writer().write_all(content).unwrap();
        self.client_flushes();
    }

    pub(super) fn client_flushes(&mut self) {
        while self.client.wants_write() {
            self.client.write_tls(&mut self.wire).unwrap();
        }
    }

    /// Sends what the client has to send, as far as the socket takes it.
    pub(super) fn client_sends_what_fits(&mut self) {
        while self.client.wants_write() {
            match self.client.write_tls(&mut self.wire) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The records that the client would send.
    pub(super) fn client_records(&mut self, content: &[u8]) -> Vec<u8> {
        self.client.writer().write_all(content).unwrap();
        let mut records = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut records).unwrap();
        }
        records
    }

    /// Reads once. The content, and how it ended.
    pub(super) fn read(&mut self) -> (Vec<u8>, Result<ReadOutcome, TlsFault>) {
        let mut content = Vec::new();
        let outcome = self
            .session
            .read(self.socket.as_fd(), &mut self.scratch, &mut content);
        (content, outcome)
    }

    /// Writes as a shard does: goes on with what was not taken, while the client reads.
    pub(super) fn session_sends(&mut self, content: &[u8]) -> Vec<u8> {
        let (mut taken, mut got) = (0, Vec::new());
        loop {
            taken += self.write(&content[taken..]).unwrap();
            got.extend(self.client_reads());
            if taken == content.len() && !self.session.has_unsent() {
                return got;
            }
        }
    }

    pub(super) fn write(&mut self, content: &[u8]) -> Result<usize, TlsFault> {
        self.session.write(self.socket.as_fd(), content)
    }

    /// All content that has arrived at the client.
    pub(super) fn client_reads(&mut self) -> Vec<u8> {
        let mut got = Vec::new();
        loop {
            match self.client.read_tls(&mut self.wire) {
                Ok(0) => break,
                Ok(_) => {
                    self.client.process_new_packets().unwrap();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
            match self.client.reader().read_to_end(&mut got) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        got
    }
}

/// Makes a handshake, up to the point at which the server can establish its session.
pub(super) fn shake(
    config: HandshakeConfig,
    client: Arc<ClientConfig>,
) -> (Handshake, ClientConnection) {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut handshake = Handshake::new(config).unwrap();
    while handshake.progress() != Progress::Complete {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        handshake.receive(&bytes);
        let mut answer = handshake.unsent();
        let length = answer.len();
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().unwrap();
        }
        handshake.sent(length);
    }
    (handshake, client)
}

/// Makes a handshake that fails, and returns what the client fails with.
pub(super) fn failed_shake(config: HandshakeConfig, client: Arc<ClientConfig>) -> rustls::Error {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut handshake = Handshake::new(config).unwrap();
    loop {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        handshake.receive(&bytes);
        let mut answer = handshake.unsent();
        let length = answer.len();
        assert!(length > 0, "the client learns nothing");
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            if let Err(error) = client.process_new_packets() {
                return error;
            }
        }
        handshake.sent(length);
    }
}
