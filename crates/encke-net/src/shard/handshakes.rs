//! Handshakes of TLS: the socket of a new connection goes to a handshake thread and comes back with a session.

use std::net::{IpAddr, SocketAddr};

use rustix::net::getpeername;

use super::Shard;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;
use crate::connection::slot::{Flags, Token};
use crate::transport::tls::{Established, HandshakeTask, Handshaken};

impl Shard {
    /// Hands a connection's socket over for its handshake. `received` is what was read of it, and `client` where its client is; a
    /// proxy that does not say is the client itself.
    pub(super) fn begin_handshake(
        &mut self,
        index: u32,
        received: Vec<u8>,
        client: Option<IpAddr>,
    ) {
        let Some(handshakes) = self.context.handshakes.clone() else {
            return self.close(index, CloseReason::Internal);
        };
        let token = self.connections.slots.token(index);
        let was_added = self.newcomer != Some(index);
        let Some(socket) = self.connections.slots[index].take_socket() else {
            return self.close(index, CloseReason::Internal);
        };
        if was_added {
            // The other epoll instance reports it from now on.
            let _ = self.poller.remove(&socket);
        }
        let active = self.connections.begin(index, Task::Handshaking);
        active.input = Vec::new();
        // The thread has a bound of its own.
        active.deadline = None;
        let client = client.or_else(|| {
            let peer = getpeername(&socket).ok()??;
            SocketAddr::try_from(peer).ok().map(|peer| peer.ip())
        });
        let task = HandshakeTask {
            client,
            socket,
            received,
            token,
            shard: self.context.sender.clone(),
        };
        if !handshakes.begin(task) {
            self.count_refused("handshakes_max");
            self.close(index, CloseReason::Handshake);
        }
    }

    /// Takes a connection back. If it was closed meanwhile, dropping the socket ends it.
    pub(super) fn handshaken(&mut self, token: Token, ended: Handshaken) {
        let Some(index) = self.connections.find(token) else {
            return;
        };
        let Handshaken { socket, outcome } = ended;
        let slot = &mut self.connections.slots[index];
        slot.set_socket(socket);
        let established = match outcome {
            Ok(established) => established,
            Err(reason) => {
                tracing::debug!(
                    client = %self.client_name(index),
                    reason = reason.label(),
                    "a handshake failed"
                );
                return self.close(index, CloseReason::Handshake);
            }
        };
        slot.active_s = self.clock.now_s();
        slot.flags.set(Flags::ENCRYPTED, true);
        slot.flags.set(Flags::TLS, true);
        self.connections.begin_reading(index);
        // Until its first request it is idle, and is closed as such.
        self.connections.settle(index);
        let Established {
            session,
            content,
            certificate,
            http2,
            ..
        } = established;
        self.connections
            .transports
            .enter(index, session, certificate);
        self.newcomer = Some(index);
        self.counts.bytes_in += content.len() as u64;
        if http2 {
            self.begin_http2(index, &content);
        } else if !content.is_empty() {
            self.received(index, &content, false);
        }
        self.read_newcomer(index);
    }
}
