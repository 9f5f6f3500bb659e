//! Client sockets: non-blocking, and from as many source addresses as the number of ports requires.

use crate::BenchError;
use crate::load::kinds::SubscriberKind;
use crate::load::wire::transport::{ClientTls, Wire};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

/// Connections per source address: a small part of the 28,232 ports that Linux has for one. It searches for a free port one by
/// one; with most of them in use or in TIME_WAIT, the search alone costs 200 µs per connection.
const CONNECTIONS_PER_SOURCE: u32 = 4_000;

/// The most source addresses (127.0.0.1 to 127.0.0.254).
const SOURCES_MAX: u32 = 254;

/// How many connections may wait to be accepted; the system's own limit holds too.
const BACKLOG: i32 = 4_096;

/// Descriptors that a process needs beside its connections: standard streams, pipes, timers, files.
pub(crate) const DESCRIPTORS_RESERVED: u64 = 64;

/// Raises the soft limit on open files to the hard one. Returns the limit that then holds.
pub(crate) fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let holds = if setrlimit(Resource::Nofile, raised).is_ok() {
        raised
    } else {
        limit
    };
    // None means no limit.
    holds.current.unwrap_or(u64::MAX)
}

/// Where connections come from.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// Nothing but loopback can have many: elsewhere the kernel chooses.
    addresses: Vec<Ipv4Addr>,
    next: usize,
    /// How large receive buffers are, in bytes; `None` for the system's.
    receive_buffer: Option<u32>,
    /// Whether connections are closed with a reset.
    reset: bool,
    /// What connections need if they are to be encrypted.
    tls: Option<ClientTls>,
}

impl Sources {
    /// Sources for `connections` to `server`.
    pub(crate) fn new(server: SocketAddr, connections: u32) -> Self {
        let loopback = matches!(server.ip(), IpAddr::V4(ip) if ip.is_loopback());
        let count = match loopback {
            true => connections
                .div_ceil(CONNECTIONS_PER_SOURCE)
                .clamp(1, SOURCES_MAX),
            false => 0,
        };
        let addresses = (1..=count)
            .map(|n| Ipv4Addr::new(127, 0, 0, n as u8))
            .collect();
        Self {
            addresses,
            next: 0,
            receive_buffer: None,
            reset: false,
            tls: None,
        }
    }

    /// Sources for `connections`, of a part of the loopback network that other blocks do not use.
    pub(crate) fn in_block(block: u8, connections: u32) -> Self {
        let count = connections
            .div_ceil(CONNECTIONS_PER_SOURCE)
            .clamp(1, SOURCES_MAX);
        let addresses = (1..=count).map(|n| Ipv4Addr::new(127, block, 1, n as u8));
        Self {
            addresses: addresses.collect(),
            next: 0,
            receive_buffer: None,
            reset: false,
            tls: None,
        }
    }

    /// With connections of TLS, if the server's URL says so.
    pub(crate) fn encrypting(self, tls: Option<&ClientTls>) -> Self {
        Self {
            tls: tls.cloned(),
            ..self
        }
    }

    /// Begins to open a connection for a client of that kind, see [`Sources::connect`].
    pub(crate) fn open(&mut self, server: SocketAddr, kind: SubscriberKind) -> Result<Wire, Errno> {
        let socket = self.connect(server)?;
        Wire::over(socket, self.tls.as_ref(), kind)
    }

    /// With receive buffers of this size, in bytes.
    pub(crate) fn receiving(self, receive_buffer: Option<u32>) -> Self {
        Self {
            receive_buffer,
            ..self
        }
    }

    /// With connections that are closed with a reset, so that no port stays in TIME_WAIT.
    pub(crate) fn resetting(self) -> Self {
        Self {
            reset: true,
            ..self
        }
    }

    /// Begins to connect. The result is known when the socket is writable.
    pub(crate) fn connect(&mut self, server: SocketAddr) -> Result<OwnedFd, Errno> {
        // When an address has no port left, the next one may have; each gets one try.
        let tries = self.addresses.len().max(1);
        let mut result = Err(Errno::ADDRNOTAVAIL);
        for _ in 0..tries {
            result = self.connect_once(server);
            if !matches!(result, Err(Errno::ADDRNOTAVAIL | Errno::ADDRINUSE)) {
                break;
            }
        }
        result
    }

    fn connect_once(&mut self, server: SocketAddr) -> Result<OwnedFd, Errno> {
        let family = if server.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(bytes) = self.receive_buffer {
            sockopt::set_socket_recv_buffer_size(&socket, bytes as usize)?;
        }
        if self.reset {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        if self.addresses.len() > 1 {
            // With a single address the kernel's own choice of ports is the better one: it sees
            // the whole connection, and takes ports that TIME_WAIT has on other connections.
            let source = self.addresses[self.next % self.addresses.len()];
            self.next = self.next.wrapping_add(1);
            bind(&socket, &SocketAddr::from((source, 0)))?;
        }
        match connect(&socket, &server) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error),
        }
    }
}

/// How an attempt to connect has ended, once the socket is writable.
pub(crate) fn connected(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::socket_error(socket)?
}

/// Listens on a loopback port of the system's choosing, with room for many connections at once.
pub(crate) fn listen() -> Result<TcpListener, BenchError> {
    let make = || {
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(TcpListener::from(socket))
    };
    make().map_err(BenchError::system::<Errno>("listen"))
}

/// Checks that a process can hold `connections`; `limit` is what [`raise_descriptor_limit`] says.
pub(crate) fn check_descriptors(limit: u64, connections: u64) -> Result<(), BenchError> {
    let wanted = connections + DESCRIPTORS_RESERVED;
    if wanted > limit {
        return Err(BenchError::TooFewDescriptors { limit, wanted });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_grow_with_the_connections_and_only_on_loopback() {
        let local: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let remote: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let count = |server, connections| Sources::new(server, connections).addresses.len();
        assert_eq!(count(local, 4_000), 1);
        assert_eq!(count(local, 4_001), 2);
        assert_eq!(count(local, u32::MAX), SOURCES_MAX as usize);
        assert_eq!(count(remote, 1_000_000), 0);
    }

    #[test]
    fn connections_come_from_each_source_in_turn() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let mut sources = Sources::new(server, 2 * CONNECTIONS_PER_SOURCE + 1);
        let mut seen = Vec::new();
        for _ in 0..4 {
            let _socket = sources.connect(server).unwrap();
            seen.push(listener.accept().unwrap().1.ip().to_string());
        }
        assert_eq!(seen, ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.1"]);
    }

    #[test]
    fn a_limit_that_is_too_low_is_said() {
        let error = check_descriptors(1_000, 1_000).unwrap_err();
        assert!(error.to_string().contains("1000"), "{error}");
        check_descriptors(raise_descriptor_limit(), 8).unwrap();
    }
}
