//! What a server and its successor say to each other, over a socket that only they have: messages of JSON, each behind its length in four
//! bytes, with the descriptors that belong to one behind it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Context;
use encke_access::MovedAuthority;
use encke_server::MovedConnection;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// What a successor says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FromSuccessor {
    /// It has read its configuration and can go on; nothing of the server was touched.
    Prepared(Prepared),
    /// It has opened the log and has all connections, and has sent nothing to a client.
    Ready,
    /// It serves.
    Serving,
    /// It gives up.
    Failed(String),
}

/// What a successor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Prepared {
    /// The version of its program, for people.
    pub(super) version: String,
    /// The first and the last form of what it takes over.
    pub(super) forms: [u32; 2],
    /// By the kind of data on the disk: the first format that it reads, and the one that it writes.
    #[serde(default)]
    pub(super) data: BTreeMap<String, [u32; 2]>,
    pub(super) shape: ServerShape,
    /// Whether it takes the locks of directories. Otherwise the server releases them.
    #[serde(default)]
    pub(super) takes_locks: bool,
}

/// What a successor must have in common with the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerShape {
    pub(super) data: std::path::PathBuf,
    pub(super) listen: SocketAddr,
    pub(super) admin_listen: Option<SocketAddr>,
    pub(super) shards: usize,
    pub(super) tls: bool,
    pub(super) proxy_protocol: bool,
}

/// What a server says to its successor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ToSuccessor {
    /// Where it listens; so many descriptors for clients follow, and one for operators.
    Listeners { clients: usize, operators: bool },
    /// Connections, whose sockets follow.
    #[expect(
        clippy::vec_box,
        reason = "each goes on by itself, and is large to copy"
    )]
    Connections(Vec<Box<MovedConnection>>),
    /// All connections were named; these are the authorities of their callers. The log may be closed before or behind this.
    Callers(Vec<MovedAuthority>),
    /// The directories of the logs, which the server keeps locked; that number of descriptors follows. Before `LogClosed`.
    Directories { count: usize },
    /// The log is closed.
    LogClosed,
    /// The server has let go. `attendant`: the process that waits for the successor's end, which is the server itself if that stays.
    Serve { attendant: Option<u32> },
}

/// One end of the socket.
pub(super) struct Wire {
    socket: UnixStream,
}

impl Wire {
    pub(super) fn new(socket: UnixStream) -> Self {
        Wire { socket }
    }

    /// The socket that a server has started this process with. Later reads of standard input find its end.
    ///
    /// # Errors
    /// Standard input is no socket, because no server has started this process.
    pub(super) fn of_standard_input() -> anyhow::Result<Self> {
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        socket
            .peer_addr()
            .context("only a server that is upgraded starts a successor")?;
        let nothing = std::fs::File::open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        Ok(Wire::new(socket))
    }

    /// The process that has made the socket.
    pub(super) fn peer(&self) -> io::Result<u32> {
        let peer = rustix::net::sockopt::socket_peercred(&self.socket)?;
        Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Wire {
            socket: self.socket.try_clone()?,
        })
    }

    /// How long each of its reads and writes may take; `None`: for ever.
    pub(super) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.socket.set_read_timeout(patience)?;
        self.socket.set_write_timeout(patience)
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        // It may hold keys. What grows is copied, so that it begins large.
        let mut body = Zeroizing::new(Vec::with_capacity(MESSAGE_BYTES_USUAL));
        serde_json::to_writer(&mut *body, message)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        self.socket.write_all(&length.to_be_bytes())?;
        self.socket.write_all(&body)
    }

    pub(super) fn receive<M: DeserializeOwned>(&mut self) -> io::Result<M> {
        let mut length = [0; 4];
        self.socket.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX {
            let why = format!("a message of {length} bytes; at most {MESSAGE_BYTES_MAX} are read");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut body = Zeroizing::new(vec![0; length]);
        self.socket.read_exact(&mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }

    /// Sends a message, and copies of the descriptors that belong to it.
    pub(super) fn send_with(
        &mut self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.send(message)?;
        self.send_descriptors(descriptors)
    }

    pub(super) fn send_descriptors(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for some in descriptors.chunks(DESCRIPTORS_AT_ONCE) {
            let mut space = ancillary_space();
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(some));
            let data = [io::IoSlice::new(&[0])];
            let mut sent = sendmsg(&self.socket, &data, &mut ancillary, SendFlags::NOSIGNAL)?;
            while sent == 0 {
                sent = sendmsg(&self.socket, &data, &mut ancillary, SendFlags::NOSIGNAL)?;
            }
        }
        Ok(())
    }

    /// Receives so many descriptors.
    pub(super) fn receive_descriptors(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let mut received = Vec::with_capacity(count);
        while received.len() < count {
            let mut space = ancillary_space();
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let mut data = [io::IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let message = recvmsg(self.socket.as_fd(), &mut data, &mut ancillary, flags)?;
            let before = received.len();
            for part in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = part {
                    received.extend(descriptors);
                }
            }
            let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
            if is_cut || received.len() == before || received.len() > count {
                let got = received.len();
                let why =
                    format!("{got} of {count} descriptors; the limit on open files may be too low");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        Ok(received)
    }
}

fn ancillary_space() -> [MaybeUninit<u8>; ANCILLARY_BYTES] {
    [MaybeUninit::uninit(); ANCILLARY_BYTES]
}

/// Descriptors of one system call. Linux allows 253.
const DESCRIPTORS_AT_ONCE: usize = 250;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE));

/// Connections of one message.
pub(super) const CONNECTIONS_AT_ONCE: usize = 250;

/// A message of connections that have nothing to send is smaller.
const MESSAGE_BYTES_USUAL: usize = 1 << 19;

/// A message holds what the sockets of its connections have not taken, which is at most a few hundred kilobytes for each.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

/// The form of what is handed over. A successor reads its own and [`FORM_READ_FROM`]. Fields that it does not know it ignores; a change that
/// would lose something that way is a new form.
pub(super) const FORM: u32 = 1;

/// The first form that this version reads.
pub(super) const FORM_READ_FROM: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Wire::new(one), Wire::new(other));
        let count = 600;
        let sender = std::thread::spawn(move || {
            let pairs: Vec<_> = (0..count).map(|_| UnixStream::pair().unwrap()).collect();
            let sockets: Vec<_> = pairs.iter().map(|(socket, _)| socket.as_fd()).collect();
            let listeners = ToSuccessor::Listeners {
                clients: count,
                operators: false,
            };
            one.send_with(&listeners, &sockets).unwrap();
            one.send(&ToSuccessor::LogClosed).unwrap();
            for (number, (_, mut peer)) in pairs.into_iter().enumerate() {
                peer.write_all(&(number as u32).to_be_bytes()).unwrap();
            }
        });
        let ToSuccessor::Listeners { clients, .. } = other.receive().unwrap() else {
            panic!("another message");
        };
        let descriptors = other.receive_descriptors(clients).unwrap();
        assert!(matches!(other.receive().unwrap(), ToSuccessor::LogClosed));
        for (number, descriptor) in descriptors.into_iter().enumerate() {
            let mut bytes = [0; 4];
            UnixStream::from(descriptor).read_exact(&mut bytes).unwrap();
            assert_eq!(u32::from_be_bytes(bytes), number as u32);
        }
        sender.join().unwrap();
    }

    #[test]
    fn a_message_without_its_descriptors_is_an_error() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&[0]).unwrap();
        let error = Wire::new(other).receive_descriptors(1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
