//! A client's connection to the server: plain, or TLS for `https://`.
//!
//! rustls does everything of TLS. A connection of it takes tens of kilobytes; here that is the generator's memory.

use crate::BenchError;
use crate::load::args::TrustArgs;
use crate::load::kinds::SubscriberKind;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, NamedGroup,
    RootCertStore, SignatureScheme,
};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// What clients need for `https://`: whom they trust, and the tickets of earlier connections.
#[derive(Debug, Clone)]
pub(crate) struct ClientTls {
    config: Arc<ClientConfig>,
    /// The same, for clients that speak HTTP/2.
    http2: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Wire {
    /// Bytes go as they are.
    Plain(OwnedFd),
    /// Bytes go in records of TLS.
    Tls(Box<TlsWire>),
}

/// A connection of TLS.
#[derive(Debug)]
pub(crate) struct TlsWire {
    socket: OwnedFd,
    connection: ClientConnection,
}

impl ClientTls {
    /// For the server of that name.
    pub(crate) fn new(host: &str, trust: &TrustArgs) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::Tls { why };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?;
        let mut config = match (&trust.tls_ca, trust.insecure) {
            (Some(path), _) => {
                let mut roots = RootCertStore::empty();
                let found = CertificateDer::pem_file_iter(path)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .map_err(|error| failed(format!("{}: {error}", path.display())))?;
                for certificate in found {
                    let added = roots.add(certificate);
                    added.map_err(|error| failed(format!("{}: {error}", path.display())))?;
                }
                builder.with_root_certificates(roots).with_no_client_auth()
            }
            (None, true) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms)))
                .with_no_client_auth(),
            (None, false) => {
                return Err(failed("https:// needs --tls-ca FILE or --insecure".into()));
            }
        };
        // The usual store keeps eight tickets of a server, and here thousands of clients come back to one.
        config.resumption = Resumption::store(Arc::new(Tickets::default()));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| failed(format!("{host} is no name of a server")))?;
        let mut http2 = config.clone();
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            http2: Arc::new(http2),
            name,
        })
    }
}

impl Wire {
    /// Over a socket that is being connected, for a client of that kind.
    pub(crate) fn over(
        socket: OwnedFd,
        tls: Option<&ClientTls>,
        kind: SubscriberKind,
    ) -> Result<Self, Errno> {
        let Some(tls) = tls else {
            return Ok(Self::Plain(socket));
        };
        let config = match kind {
            SubscriberKind::Http2 => &tls.http2,
            SubscriberKind::Http1 | SubscriberKind::Websocket => &tls.config,
        };
        let connection = ClientConnection::new(Arc::clone(config), tls.name.clone());
        Ok(Self::Tls(Box::new(TlsWire {
            socket,
            connection: connection.map_err(|_| Errno::PROTO)?,
        })))
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &OwnedFd {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(wire) => &wire.socket,
        }
    }

    /// Its socket alone: what TLS has not sent is dropped.
    pub(crate) fn into_socket(self) -> OwnedFd {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(wire) => wire.socket,
        }
    }

    /// Sends bytes. Returns how many were taken. TLS keeps what its socket does not take, for [`Wire::flush`].
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        match self {
            Self::Plain(socket) => rustix::net::send(socket, bytes, SendFlags::NOSIGNAL),
            Self::Tls(wire) => {
                let taken = wire.connection.writer().write(bytes).map_err(errno)?;
                wire.flush()?;
                match taken {
                    0 if !bytes.is_empty() => Err(Errno::AGAIN),
                    taken => Ok(taken),
                }
            }
        }
    }

    /// Sends what TLS has kept. To be called when the socket is writable.
    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(wire) => wire.flush(),
        }
    }

    /// Reads bytes; 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Plain(socket) => rustix::io::read(socket, buffer),
            Self::Tls(wire) => wire.read(buffer),
        }
    }

    /// Whether a read of so many bytes into so large a buffer has emptied the socket.
    pub(crate) fn is_drained(&self, length: usize, buffer: usize) -> bool {
        matches!(self, Self::Plain(_)) && length < buffer
    }

    /// Whether TLS resumed an earlier session.
    pub(crate) fn is_resumed(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(wire) => wire.connection.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl TlsWire {
    fn flush(&mut self) -> Result<(), Errno> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Raw(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match self.connection.reader().read(buffer) {
                Ok(length) => return Ok(length),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The socket has ended without an end of the session.
                Err(_) => return Err(Errno::CONNRESET),
            }
            match self.connection.read_tls(&mut Raw(&self.socket)) {
                Ok(_) => {
                    let processed = self.connection.process_new_packets();
                    // An alert says what the server did wrong.
                    self.flush()?;
                    processed.map_err(|_| Errno::PROTO)?;
                }
                Err(error) => return Err(errno(error)),
            }
        }
    }
}

/// A socket as rustls reads and writes it.
struct Raw<'a>(&'a OwnedFd);

impl Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| {
            rustix::io::read(self.0, &mut *buffer)
        })?)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::net::send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(match error.kind() {
        ErrorKind::WouldBlock => Errno::AGAIN,
        _ => Errno::PROTO,
    })
}

/// The tickets of all clients of a run. A ticket is used once.
#[derive(Debug, Default)]
struct Tickets(Mutex<VecDeque<Tls13ClientSessionValue>>);

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tickets.len() == TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }
}

/// Takes any certificate: for measurements of a server with a certificate of its own.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Tickets that are kept: two for each of many clients.
const TICKETS_MAX: usize = 100_000;
