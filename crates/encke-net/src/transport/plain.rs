//! Plain sockets: bytes of the application are bytes of the socket. Neither call waits.

use std::os::fd::BorrowedFd;

use encke_stream::FileRange;
use rustix::fs::sendfile;
use rustix::io::{Errno, Result, ioctl_fionbio};
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

/// Sends a part of a file. Returns how many bytes the socket took. Fails with [`Errno::IO`] if the file has become shorter.
pub(crate) fn send_file(fd: BorrowedFd<'_>, part: &FileRange) -> Result<u64> {
    let Some(file) = part.fd() else {
        return Err(Errno::BADF);
    };
    // The other calls say themselves that they do not wait.
    ioctl_fionbio(fd, true)?;
    let mut at = part.at;
    let end = part.at + part.bytes;
    while at < end {
        let left = (end - at) as usize;
        match sendfile(fd, file, Some(&mut at), left) {
            Ok(0) => return Err(Errno::IO),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(at - part.at)
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
