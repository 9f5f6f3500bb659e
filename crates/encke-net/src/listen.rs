//! Listening sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, listen, socket_with,
    sockopt,
};

use crate::Settings;

/// Fails if somebody listens there already. With SO_REUSEPORT alone we would join another server of this user, and the
/// kernel would give each of the two a part of the clients.
pub(crate) fn is_free(address: SocketAddr) -> rustix::io::Result<()> {
    let socket = unbound(address)?;
    bind(&socket, &address)
}

/// A listener of a shard's own: with SO_REUSEPORT the kernel spreads connections evenly.
pub(crate) fn listener(settings: &Settings, address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = unbound(address)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Connections inherit these, which saves a system call for each. By default the kernel would
    // swallow 4 MB for every slow reader before it says so.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_send_buffer_size(&socket, settings.send_buffer_bytes)?;
    bind(&socket, &address)?;
    listen(&socket, ACCEPT_BACKLOG)?;
    Ok(socket)
}

/// Where a listener really listens, when the port was left to the system.
pub(crate) fn address(socket: &OwnedFd) -> rustix::io::Result<SocketAddr> {
    let address = getsockname(socket)?;
    SocketAddr::try_from(address).map_err(|_| rustix::io::Errno::AFNOSUPPORT)
}

fn unbound(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    // What the system still remembers of the connections of an earlier listener does not count.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

/// Connections that wait to be accepted; the kernel's somaxconn bounds it too.
pub const ACCEPT_BACKLOG: i32 = 4096;
