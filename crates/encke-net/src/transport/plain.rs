//! Plain sockets: bytes of the application are bytes of the socket. Neither call waits.

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use rustix::net::{RecvFlags, SendFlags};

/// Receives into a buffer; 0 when the peer has ended its side.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize> {
    loop {
        match rustix::net::recv(fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((received, _)) => return Ok(received),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends bytes. Returns how many the socket took, which is 0 if it is full.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    loop {
        match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            sent => return sent,
        }
    }
}
