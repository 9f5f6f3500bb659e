//! What can be wrong with a session, and the alert that says so.

use rustix::io::Errno;
use rustls::{AlertDescription, CertificateError};

use super::record::NotRecord;

/// Why a session can't go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum TlsFault {
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(Errno),
    /// The peer says that something is wrong, or leaves without a proper end.
    #[error("the peer sent the alert {0:?}")]
    Alert(AlertDescription),
    /// What arrived is no record.
    #[error(transparent)]
    NotRecord(#[from] NotRecordFault),
    /// A record can't be decrypted.
    #[error("a record can't be decrypted: {0}")]
    Undecryptable(rustls::Error),
    /// A record or a message that must not come now.
    #[error("unexpected: {0}")]
    Unexpected(&'static str),
    /// The client of TLS 1.2 wants another handshake.
    #[error("renegotiation is refused")]
    Renegotiation,
    /// More records without content, or changes of keys, than allowed.
    #[error("too many {0} without data")]
    Futile(&'static str),
    /// The key of TLS 1.2 has encrypted as many records as it may.
    #[error("the key of the session is used up")]
    Exhausted,
    /// The certificate of the client is not valid any more.
    #[error("the certificate of the client is refused: {0}")]
    ClientCertificate(rustls::Error),
    /// The provider failed.
    #[error("the provider failed: {0}")]
    Provider(rustls::Error),
}

/// Wraps what the parser of records says, which is private to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no record: {0}")]
pub(crate) struct NotRecordFault(NotRecord);

impl From<NotRecord> for TlsFault {
    fn from(why: NotRecord) -> Self {
        TlsFault::NotRecord(NotRecordFault(why))
    }
}

impl From<Errno> for TlsFault {
    fn from(error: Errno) -> Self {
        TlsFault::Socket(error)
    }
}

impl TlsFault {
    /// The alert that tells the peer. `None`: it knows, or is gone.
    pub(super) fn alert(&self) -> Option<AlertDescription> {
        Some(match self {
            TlsFault::Socket(_) | TlsFault::Alert(_) => return None,
            TlsFault::NotRecord(NotRecordFault(NotRecord::Oversized(_))) => {
                AlertDescription::RecordOverflow
            }
            TlsFault::NotRecord(_) => AlertDescription::UnexpectedMessage,
            TlsFault::Undecryptable(rustls::Error::PeerSentOversizedRecord) => {
                AlertDescription::RecordOverflow
            }
            TlsFault::Undecryptable(_) => AlertDescription::BadRecordMac,
            TlsFault::Unexpected(_) | TlsFault::Futile(_) => AlertDescription::UnexpectedMessage,
            TlsFault::Renegotiation => AlertDescription::NoRenegotiation,
            TlsFault::Exhausted => AlertDescription::CloseNotify,
            TlsFault::ClientCertificate(rustls::Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            )) => AlertDescription::CertificateExpired,
            TlsFault::ClientCertificate(_) => AlertDescription::BadCertificate,
            TlsFault::Provider(_) => AlertDescription::InternalError,
        })
    }
}
