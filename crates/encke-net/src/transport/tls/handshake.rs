//! One handshake, without a socket: bytes in, bytes out, and a session at the end.

use std::sync::Arc;

use encke_access::ClientCertificate;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{Error, HandshakeKind, ServerConfig};

use super::client_certificate;
use super::session::TlsSession;

/// A handshake that has not ended.
pub(super) struct Handshake {
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
    pub(crate) session: TlsSession,
    /// Content that the client sent right behind its part of the handshake.
    pub(crate) content: Vec<u8>,
    /// The client's certificate, which was verified.
    pub(crate) certificate: Option<ClientCertificate>,
    /// Whether the client and the server agreed on HTTP/2.
    pub(crate) http2: bool,
    pub(super) resumed: bool,
}

/// Why a handshake failed, as metrics and logs say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// The client took too long.
    Timeout,
    /// The client took longer than is allowed while all places are taken.
    Crowded,
    /// The client hung up.
    HangUp,
    /// The client sent what is no TLS, or not in this order.
    Malformed,
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
            FailureReason::HangUp => "hang_up",
            FailureReason::Malformed => "malformed",
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
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<Self, Error> {
        Ok(Handshake {
            connection: UnbufferedServerConnection::new(config)?,
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
        self.process();
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
    pub(super) fn establish(self) -> Result<Established, Error> {
        let connection = self.connection;
        let chain = connection.peer_certificates();
        let certificate = chain.and_then(|chain| client_certificate::names(chain.first()?));
        Ok(Established {
            certificate,
            http2: connection.alpn_protocol() == Some(ALPN_HTTP2),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            content: self.content,
            session: TlsSession::new(connection, self.input)?,
        })
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

    /// Takes the alert that an error has left behind. Only once: with the next step rustls would look at the input again.
    fn take_alert(&mut self) {
        let status = self.connection.process_tls_records(&mut self.input);
        if let Ok(ConnectionState::EncodeTlsData(message)) = status.state {
            encode(message, &mut self.output);
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

/// Bytes that a client may have sent and rustls may not have taken: the longest message of a handshake, in its records.
const INPUT_BYTES_MAX: usize = 96 << 10;
