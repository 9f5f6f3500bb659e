//! Certificates, and clients of TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionTrafficSecrets, HandshakeKind, RootCertStore,
    StreamOwned,
};
use tempfile::TempDir;

use super::{Encke, PATIENCE, request};

/// An authority with certificates in files.
pub(crate) struct Authority {
    dir: TempDir,
    certificate: rcgen::Certificate,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A connection of TLS.
pub(crate) struct TlsClient {
    stream: StreamOwned<ClientConnection, TcpStream>,
    input: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let dir = tempfile::tempdir().expect("the temporary directory can be written");
        let authority = Authority {
            issuer: rcgen::Issuer::new(params, key),
            certificate,
            dir,
        };
        std::fs::write(authority.file(), authority.certificate.pem()).expect("it can be written");
        authority
    }

    /// The authority's own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("authority.pem")
    }

    /// A new certificate for that name, in files of that name; those before are replaced.
    pub(crate) fn issue(&self, name: &str) -> CertificateFiles {
        self.issue_when(name, None)
    }

    /// One whose last second is at that time.
    pub(crate) fn issue_until(&self, name: &str, last: SystemTime) -> CertificateFiles {
        self.issue_when(name, Some(last))
    }

    /// One that has expired.
    pub(crate) fn issue_expired(&self, name: &str) -> CertificateFiles {
        let year = Duration::from_secs(365 * 24 * 3600);
        self.issue_when(name, Some(SystemTime::now() - year))
    }

    fn issue_when(&self, name: &str, last: Option<SystemTime>) -> CertificateFiles {
        let names = [name.to_owned(), "127.0.0.1".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).expect("names");
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        if let Some(last) = last {
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
            params.not_after = last.into();
        }
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |what: &str| self.dir.path().join(format!("{name}.{what}"));
        let files = CertificateFiles {
            certificate: file("pem"),
            key: file("key"),
        };
        // Each file changes at once, as by a tool that renews certificates.
        for (path, text) in [
            (&files.key, key.serialize_pem()),
            (&files.certificate, certificate.pem()),
        ] {
            let new = path.with_extension("new");
            std::fs::write(&new, text).expect("it can be written");
            std::fs::rename(&new, path).expect("it can be renamed");
        }
        files
    }

    /// A client that trusts this authority.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.client_with(None)
    }

    /// The same, with a certificate of its own.
    pub(crate) fn client_with(&self, own: Option<&CertificateFiles>) -> Arc<ClientConfig> {
        use rustls::pki_types::pem::PemObject;
        let mut roots = RootCertStore::empty();
        roots
            .add(self.certificate.der().clone())
            .expect("a certificate");
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::from_pem_file(&own.certificate).expect("PEM");
                let key = PrivateKeyDer::from_pem_file(&own.key).expect("PEM");
                let config = builder.with_client_auth_cert(vec![chain], key);
                config.expect("they fit")
            }
        };
        config.enable_secret_extraction = true;
        Arc::new(config)
    }
}

impl CertificateFiles {
    /// The flags of a server with this certificate.
    pub(crate) fn flags(&self) -> [&str; 4] {
        [
            "--tls-cert",
            text(&self.certificate),
            "--tls-key",
            text(&self.key),
        ]
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path is text")
}

impl TlsClient {
    /// Connects and makes the handshake.
    pub(crate) fn open(encke: &Encke, config: &Arc<ClientConfig>) -> TlsClient {
        TlsClient::open_as(encke.address, config, "127.0.0.1")
    }

    /// The same with another name of the server.
    pub(crate) fn open_as(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        name: &str,
    ) -> TlsClient {
        TlsClient::try_open(address, config, name).expect("the handshake succeeds")
    }

    pub(crate) fn try_open(
        address: SocketAddr,
        config: &Arc<ClientConfig>,
        name: &str,
    ) -> std::io::Result<TlsClient> {
        let socket = TcpStream::connect(address).expect("the server listens");
        TlsClient::over(socket, config, name)
    }

    pub(crate) fn over(
        mut socket: TcpStream,
        config: &Arc<ClientConfig>,
        name: &str,
    ) -> std::io::Result<TlsClient> {
        let set = socket.set_read_timeout(Some(PATIENCE));
        set.expect("a timeout can be set");
        let name = ServerName::try_from(name.to_owned()).expect("a name");
        let mut connection = ClientConnection::new(Arc::clone(config), name).expect("a client");
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(TlsClient {
            stream: StreamOwned::new(connection, socket),
            input: Vec::new(),
        })
    }

    /// The keys of both directions, as the server has them. The connection stays open.
    pub(crate) fn into_keys(self) -> (TcpStream, [Vec<u8>; 2]) {
        let StreamOwned { conn, sock, .. } = self.stream;
        let secrets = conn.dangerous_extract_secrets().expect("it is allowed");
        let key = |secrets: ConnectionTrafficSecrets| match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, .. }
            | ConnectionTrafficSecrets::Aes256Gcm { key, .. }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, .. } => key.as_ref().to_vec(),
            _ => panic!("an unknown cipher"),
        };
        (sock, [key(secrets.tx.1), key(secrets.rx.1)])
    }

    /// Whether the handshake resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        self.stream.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The server's own certificate.
    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        let chain = self.stream.conn.peer_certificates().expect("a chain");
        chain[0].clone().into_owned()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Ends the connection without an end of the session.
    pub(crate) fn cut(&mut self) {
        let cut = self.stream.sock.shutdown(Shutdown::Write);
        cut.expect("it is connected");
    }

    /// Changes the client's keys with the next record.
    pub(crate) fn change_keys(&mut self) {
        let changed = self.stream.conn.refresh_traffic_keys();
        changed.expect("it is TLS 1.3");
    }

    /// Sends a request; the head of the answer, and its body.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        target: &str,
        fields: &[&str],
        body: &[u8],
    ) -> (String, Vec<u8>) {
        self.send(&request(method, target, fields, body))
            .expect("the server reads");
        self.answer()
    }

    /// The next answer, which has a length.
    pub(crate) fn answer(&mut self) -> (String, Vec<u8>) {
        let head = self.until("\r\n\r\n");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
        while self.input.len() < length {
            self.fill().expect("the body is complete");
        }
        (head, self.input.drain(..length).collect())
    }

    /// Reads up to this text.
    pub(crate) fn until(&mut self, end: &str) -> String {
        self.try_until(end).expect("the server goes on")
    }

    /// The same on a connection that may be refused.
    pub(crate) fn try_until(&mut self, end: &str) -> std::io::Result<String> {
        let end = end.as_bytes();
        loop {
            let found = self.input.windows(end.len()).position(|at| at == end);
            if let Some(at) = found {
                let taken = self.input.drain(..at + end.len()).collect();
                return Ok(String::from_utf8(taken).expect("text"));
            }
            if self.fill()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads to the end. An error: the session did not end properly.
    pub(crate) fn read_to_end(&mut self) -> std::io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.input))
    }

    fn fill(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
