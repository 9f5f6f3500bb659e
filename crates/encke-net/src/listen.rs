//! Listening sockets.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, fcntl_dupfd_cloexec, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, listen, socket_with,
    sockopt,
};

use crate::settings::NetSettings;

/// Fails if the address is in use. With SO_REUSEPORT alone this server would join another one of the same user, and the kernel
/// would give each of the two a part of the clients.
///
/// # Errors
/// Why the address can't be listened on.
pub fn check_address(address: SocketAddr) -> rustix::io::Result<()> {
    let socket = unbound(address)?;
    bind(&socket, &address)
}

/// A listener of a shard's own: with SO_REUSEPORT the kernel spreads connections evenly.
pub(crate) fn listener(settings: &NetSettings, address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let socket = unbound(address)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    set_options(settings, &socket)?;
    bind(&socket, &address)?;
    listen(&socket, ACCEPT_BACKLOG)?;
    Ok(socket)
}

/// A listener that another process has made, for one shard of several: all of them accept from one queue.
pub(crate) fn inherited(
    settings: &NetSettings,
    listener: &TcpListener,
) -> rustix::io::Result<OwnedFd> {
    let socket = fcntl_dupfd_cloexec(listener, 0)?;
    ioctl_fionbio(&socket, true)?;
    set_options(settings, &socket)?;
    // The queue may be longer than the other process has asked for.
    listen(&socket, ACCEPT_BACKLOG)?;
    Ok(socket)
}

fn set_options(settings: &NetSettings, socket: &OwnedFd) -> rustix::io::Result<()> {
    // Connections inherit these, which saves a system call for each. By default the kernel would
    // swallow 4 MB for every slow reader before it says so.
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_send_buffer_size(socket, settings.send_buffer_bytes)?;
    // Of what a slow client is sent it keeps this much, beside what the client's own window takes. The rest would be copied
    // for nothing if the client never reads it, and be held here while it waits.
    let unsent = u32::try_from(settings.unsent_bytes_max).unwrap_or(u32::MAX);
    let set = |result: std::io::Result<()>| {
        result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    };
    let options = socket2::SockRef::from(socket);
    set(options.set_tcp_notsent_lowat(unsent))?;
    // A client that vanishes without a word takes small writes, such as heartbeats, for a quarter of an hour.
    set(options.set_tcp_user_timeout(Some(settings.silence_max())))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rustix::net::{SendFlags, accept, send};

    #[test]
    fn a_client_that_acknowledges_nothing_is_gone_after_some_heartbeats() {
        let settings = |heartbeat_s, stall_s| NetSettings {
            heartbeat: Duration::from_secs(heartbeat_s),
            stall_timeout: Duration::from_secs(stall_s),
            ..NetSettings::default()
        };
        for (heartbeat_s, stall_s, silence_s) in [(30, 60, 90), (5, 60, 65), (5, 5, 15)] {
            let settings = settings(heartbeat_s, stall_s);
            let listener = listener(&settings, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let client = std::net::TcpStream::connect(address(&listener).unwrap()).unwrap();
            let socket = loop {
                match accept(&listener) {
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    accepted => break accepted.unwrap(),
                }
            };
            let timeout = socket2::SockRef::from(&socket).tcp_user_timeout().unwrap();
            assert_eq!(timeout, Some(Duration::from_secs(silence_s)));
            drop(client);
        }
    }

    #[test]
    fn a_socket_takes_no_more_than_is_set_beyond_what_the_client_has_room_for() {
        for unsent_bytes_max in [16 << 10, 64 << 10] {
            let settings = NetSettings {
                unsent_bytes_max,
                ..NetSettings::default()
            };
            let listener = listener(&settings, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
            let client = unbound(address(&listener).unwrap()).unwrap();
            let room = 4 << 10;
            sockopt::set_socket_recv_buffer_size(&client, room).unwrap();
            let connecting = rustix::net::connect(&client, &address(&listener).unwrap());
            assert!(matches!(connecting, Ok(()) | Err(Errno::INPROGRESS)));
            let socket = loop {
                match accept(&listener) {
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    accepted => break accepted.unwrap(),
                }
            };
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let mut taken = 0;
            while let Ok(sent) = send(&socket, &[0; 256 << 10], flags) {
                taken += sent;
            }
            // The kernel doubles what it is asked for, and fills its last packet.
            assert!(
                (unsent_bytes_max..unsent_bytes_max + 4 * room).contains(&taken),
                "{taken} of {unsent_bytes_max}"
            );
        }
    }
}
