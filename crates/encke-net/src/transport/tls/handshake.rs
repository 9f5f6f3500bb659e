//! One handshake, without a socket: bytes in, bytes out, and a session at the end.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use encke_access::ClientCertificate;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, HandshakeKind, ServerConfig};

use super::client_certificate;
use super::fault::TlsFault;
use super::session::TlsSession;

/// What handshakes are made with.
#[derive(Clone, Debug)]
pub(super) struct HandshakeConfig {
    pub(super) server: Arc<ServerConfig>,
    /// Verifies the certificates of clients; the same as the server's.
    pub(super) clients: Arc<dyn ClientCertVerifier>,
}

/// A handshake that has not ended.
pub(super) struct Handshake {
    config: HandshakeConfig,
    connection: UnbufferedServerConnection,
    /// Received bytes that rustls has not taken.
    input: Vec<u8>,
    /// Bytes for the client.
    output: Vec<u8>,
    sent: usize,
    /// Content that came with the end of the handshake.
    content: Vec<u8>,
    state: State,
}

#[derive(Debug)]
enum State {
    Open,
    Complete,
    Failed(FailureReason),
}

/// The result of a handshake.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) session: Box<TlsSession>,
    /// Content that the client sent right behind its part of the handshake.
    pub(crate) content: Vec<u8>,
    /// The client's certificate, which was verified.
    pub(crate) certificate: Option<ClientCertificate>,
    /// Whether the client and the server agreed on HTTP/2.
    pub(crate) http2: bool,
    pub(super) resumed: bool,
}

/// A handshake that was complete, and whose session is refused nevertheless.
#[derive(Debug)]
pub(super) struct Unestablished {
    error: Error,
    /// To tell the client why.
    session: Option<Box<TlsSession>>,
}

impl Unestablished {
    /// Tells the client, as far as the socket takes it. Returns the reason.
    pub(super) fn tell(self, fd: BorrowedFd<'_>) -> FailureReason {
        let reason = FailureReason::of(&self.error);
        match reason {
            FailureReason::Internal => {
                tracing::error!(error = %self.error, "a handshake has no session");
            }
            _ => tracing::debug!(error = %self.error, "a session is refused"),
        }
        if let Some(mut session) = self.session {
            session.end_with(fd, &TlsFault::ClientCertificate(self.error));
        }
        reason
    }
}

/// Why a handshake failed, as metrics and logs say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// The client took too long.
    Timeout,
    /// The client took longer than is allowed while all places are taken.
    Crowded,
    /// The client took longer than is allowed while others of its address wait.
    AddressCrowded,
    /// Too many of its address waited.
    Displaced,
    /// The client hung up.
    HangUp,
    /// The client sent what is no TLS, or not in this order.
    Malformed,
    /// The client sent a request without TLS.
    PlainHttp,
    /// The client and the server have no version, cipher or protocol in common.
    Incompatible,
    /// The client does not like what the server says, such as its certificate.
    Rejected,
    /// The client's certificate is missing or not valid.
    Certificate,
    /// The server could not do its part.
    Internal,
}

/// What a handshake waits for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// For bytes of the client.
    Reads,
    /// For room in the socket.
    Writes,
    /// For nothing: it is complete, and everything is sent.
    Complete,
    Failed(FailureReason),
}

impl FailureReason {
    /// The label in metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            FailureReason::Timeout => "timeout",
            FailureReason::Crowded => "crowded",
            FailureReason::AddressCrowded => "address_crowded",
            FailureReason::Displaced => "displaced",
            FailureReason::HangUp => "hang_up",
            FailureReason::Malformed => "malformed",
            FailureReason::PlainHttp => "plain_http",
            FailureReason::Incompatible => "incompatible",
            FailureReason::Rejected => "rejected",
            FailureReason::Certificate => "certificate",
            FailureReason::Internal => "internal",
        }
    }

    fn of(error: &Error) -> Self {
        match error {
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => {
                FailureReason::Incompatible
            }
            Error::AlertReceived(_) => FailureReason::Rejected,
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => {
                FailureReason::Certificate
            }
            Error::General(_) | Error::FailedToGetCurrentTime | Error::FailedToGetRandomBytes => {
                FailureReason::Internal
            }
            _ => FailureReason::Malformed,
        }
    }
}

impl Handshake {
    pub(super) fn new(config: HandshakeConfig) -> Result<Self, Error> {
        let server = Arc::clone(&config.server);
        Ok(Handshake {
            config,
            connection: UnbufferedServerConnection::new(server)?,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            content: Vec::new(),
            state: State::Open,
        })
    }

    /// Takes bytes that were received. Bytes beyond what a handshake needs make it fail.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if !matches!(self.state, State::Open) {
            return;
        }
        if self.input.len() + bytes.len() > INPUT_BYTES_MAX {
            self.state = State::Failed(FailureReason::Malformed);
            return;
        }
        self.input.extend_from_slice(bytes);
        match self.is_plain_http() {
            true => self.refuse_plain_http(),
            false => self.process(),
        }
    }

    /// Whether the client speaks HTTP instead of TLS, whose records begin with other bytes.
    fn is_plain_http(&self) -> bool {
        self.input.first().is_some_and(u8::is_ascii_uppercase)
    }

    /// Answers the request when its head has arrived, so that the answer is not lost in a reset.
    fn refuse_plain_http(&mut self) {
        let is_whole = self.input.windows(4).any(|end| end == b"\r\n\r\n");
        if is_whole || self.input.len() > PLAIN_HEAD_BYTES_MAX {
            self.output.extend_from_slice(PLAIN_HTTP.as_bytes());
            self.state = State::Failed(FailureReason::PlainHttp);
        }
    }

    /// Bytes that are to be sent now.
    pub(super) fn unsent(&self) -> &[u8] {
        self.output.get(self.sent..).unwrap_or_default()
    }

    /// The socket has taken that many of them.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
    }

    pub(super) fn progress(&self) -> Progress {
        match (&self.state, self.unsent().is_empty()) {
            // The alert goes out as far as the socket takes it at once.
            (State::Failed(reason), _) => Progress::Failed(*reason),
            (_, false) => Progress::Writes,
            (State::Open, true) => Progress::Reads,
            (State::Complete, true) => Progress::Complete,
        }
    }

    /// The session of a handshake that is complete.
    pub(super) fn establish(self) -> Result<Established, Unestablished> {
        let resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let certificate = self.certificate(resumed);
        let connection = self.connection;
        let http2 = connection.alpn_protocol() == Some(ALPN_HTTP2);
        let session = TlsSession::new(connection, self.input);
        let session = session.map_err(|error| Unestablished {
            error,
            session: None,
        })?;
        match certificate {
            Ok(certificate) => Ok(Established {
                certificate,
                http2,
                resumed,
                content: self.content,
                session,
            }),
            Err(error) => Err(Unestablished {
                error,
                session: Some(session),
            }),
        }
    }

    /// The certificate of the client, if it has presented one in this handshake or in the one that it resumes.
    fn certificate(&self, resumed: bool) -> Result<Option<ClientCertificate>, Error> {
        let Some(chain) = self.connection.peer_certificates() else {
            return Ok(None);
        };
        let HandshakeConfig { server, clients } = &self.config;
        let now = server.time_provider.current_time();
        let now = now.ok_or(Error::FailedToGetCurrentTime)?;
        client_certificate::of_client(chain, &**clients, resumed, now).map(Some)
    }

    /// Lets rustls do what it can with the input.
    fn process(&mut self) {
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.connection.process_tls_records(&mut self.input);
            let next = match state {
                Ok(ConnectionState::EncodeTlsData(message)) => {
                    match encode(message, &mut self.output) {
                        true => None,
                        false => Some(State::Failed(FailureReason::Internal)),
                    }
                }
                Ok(ConnectionState::TransmitTlsData(message)) => {
                    message.done();
                    None
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    let mut next = None;
                    while let Some(record) = traffic.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                self.content.extend_from_slice(record.payload);
                            }
                            Err(_) => next = Some(State::Failed(FailureReason::Malformed)),
                        }
                    }
                    next
                }
                Ok(ConnectionState::BlockedHandshake) => Some(State::Open),
                Ok(ConnectionState::WriteTraffic(_)) => Some(State::Complete),
                Ok(_) => Some(State::Failed(FailureReason::HangUp)),
                Err(error) => {
                    tracing::debug!(%error, "a handshake failed");
                    Some(State::Failed(FailureReason::of(&error)))
                }
            };
            self.input.drain(..discard.min(self.input.len()));
            if let Some(next) = next {
                if matches!(next, State::Failed(_)) {
                    self.take_alert();
                }
                self.state = next;
                return;
            }
        }
    }

    /// Takes the alert that an error has left behind, and the messages before it: of TLS 1.3 the server's first one, without which a client
    /// can't read the alert.
    fn take_alert(&mut self) {
        // Behind the last of them rustls would look at the input again.
        while self.connection.wants_write()
            && let Ok(ConnectionState::EncodeTlsData(message)) =
                self.connection.process_tls_records(&mut self.input).state
        {
            if !encode(message, &mut self.output) {
                return;
            }
        }
    }
}

/// Appends a message. `false`: rustls refuses.
fn encode(mut message: EncodeTlsData<'_, ServerConnectionData>, output: &mut Vec<u8>) -> bool {
    let at = output.len();
    match message.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => {
            output.resize(at + size.required_size, 0);
            message.encode(&mut output[at..]).is_ok()
        }
        encoded => encoded.is_ok(),
    }
}

/// The name of HTTP/2 in the negotiation of protocols.
pub(super) const ALPN_HTTP2: &[u8] = b"h2";

/// The answer to a request without TLS. It names no host: an https URL is up to the redirect, which knows what is meant to be public.
const PLAIN_HTTP: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
    Content-Length: 39\r\nConnection: close\r\n\r\nthis port speaks TLS: use an https URL\n";

/// Bytes of a request without TLS that are read before it is answered.
const PLAIN_HEAD_BYTES_MAX: usize = 8 << 10;

/// Bytes that a client may have sent and rustls may not have taken: the longest message of a handshake, in its records.
const INPUT_BYTES_MAX: usize = 96 << 10;
