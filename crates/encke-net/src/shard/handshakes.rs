//! Handshakes of TLS: the socket of a new connection goes to a handshake thread.

use std::net::{IpAddr, SocketAddr};

use rustix::net::getpeername;

use super::state::Shard;
use crate::connection::close::CloseReason;
use crate::transport::tls::HandshakeTask;

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
            return self.close_connection(index, CloseReason::Internal);
        };
        let connections = &mut self.connections;
        let token = connections.slots.token(index);
        let was_added = connections.newcomer != Some(index);
        let Some(socket) = connections.slots[index].take_socket() else {
            return self.close_connection(index, CloseReason::Internal);
        };
        if was_added {
            // The other epoll instance reports it from now on.
            let _ = connections.poller.remove(&socket);
        }
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
            self.connections.count_refused("handshakes_max");
            self.close_connection(index, CloseReason::Handshake);
        }
    }
}
