//! How bytes of the application get through a connection's socket.
//!
//! A connection is plain unless [`Flags::ENCRYPTED`] says otherwise; then its state is in a table beside the slots. So a plain
//! connection pays one test of a bit, and its slot stays as small as it is.
//!
//! [`Flags::ENCRYPTED`]: crate::feed::slot::Flags::ENCRYPTED

pub(crate) mod plain;
pub(crate) mod tls;

use std::sync::Arc;

use encke_access::ClientCertificate;

use crate::by_slot::BySlot;
use crate::connection::exchange_id::ExchangeId;
use tls::TlsSession;

/// The state of transports that are not plain.
#[derive(Debug, Default)]
pub(crate) struct Transports {
    sessions: BySlot<TlsSession>,
    /// Of clients that presented one.
    certificates: BySlot<Arc<ClientCertificate>>,
}

impl Transports {
    /// Enters the session of a connection whose handshake is complete.
    pub(crate) fn enter(
        &mut self,
        connection: ExchangeId,
        session: Box<TlsSession>,
        certificate: Option<ClientCertificate>,
    ) {
        self.sessions.insert_boxed(connection.slot(), session);
        if let Some(certificate) = certificate {
            self.certificates
                .insert(connection.slot(), Arc::new(certificate));
        }
    }

    /// The session of a connection that is encrypted.
    pub(crate) fn session(&mut self, connection: ExchangeId) -> Option<&mut TlsSession> {
        self.sessions.get_mut(connection.slot())
    }

    /// The names in the certificate that the client of a connection presented.
    pub(crate) fn certificate(&self, connection: ExchangeId) -> Option<Arc<ClientCertificate>> {
        self.certificates.get(connection.slot()).cloned()
    }

    /// Drops the state of a connection.
    pub(crate) fn remove(&mut self, connection: ExchangeId) -> Option<Box<TlsSession>> {
        self.certificates.remove(connection.slot());
        self.sessions.remove(connection.slot())
    }
}
