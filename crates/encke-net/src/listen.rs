//! Listening sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, listen, socket_with,
    sockopt,
};

use crate::Settings;

/// A listener of a shard's own: with SO_REUSEPORT the kernel spreads connections evenly.
pub(crate) fn listener(settings: &Settings, address: SocketAddr) -> rustix::io::Result<OwnedFd> {
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
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Connections inherit these, which saves a system call for each. By default the kernel would
    // swallow 4 MB for every slow reader before it says so.
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_send_buffer_size(&socket, settings.send_buffer_bytes)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Where a listener really listens, when the port was left to the system.
pub(crate) fn address(socket: &OwnedFd) -> rustix::io::Result<SocketAddr> {
    let address = getsockname(socket)?;
    SocketAddr::try_from(address).map_err(|_| rustix::io::Errno::AFNOSUPPORT)
}

/// Connections that wait to be accepted; the kernel's somaxconn bounds it too.
const BACKLOG: i32 = 4096;
