//! Hang-ups, and when the server notices them.
//!
//! A hang-up closes the client's side and waits until the server closes the other. On the wire it is the FIN of a
//! `close`, so a server cannot distinguish the two before its next write; but here the close by the server is visible. The
//! measured time is an upper bound: it includes the way there and back, and the generator's own delay.

use crate::load::clock::SECOND_NS;
use crate::load::latency::Latencies;
use crate::load::poller::Poller;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;

/// How long the server may take to notice a hang-up before it counts as one that it never noticed.
const NOTICE_NS_MAX: u64 = 5 * SECOND_NS;

/// The most connections of one worker that wait for the server to notice. Beyond, the oldest is given up before its time.
pub(crate) const LEAVING_MAX: usize = 512;

/// Tokens from here on belong to connections that have hung up.
const TOKENS: u64 = 1 << 40;

/// The connections that have hung up and wait for the server to notice.
#[derive(Debug)]
pub(super) struct Leaving {
    /// By token, so the oldest first.
    waiting: BTreeMap<u64, Left>,
    next: u64,
    /// How long the server took to notice.
    pub(super) notices: Latencies,
    /// Hang-ups that it has not noticed in [`NOTICE_NS_MAX`].
    pub(super) unnoticed: u64,
    /// Hang-ups that were given up before that, because too many waited.
    pub(super) unmeasured: u64,
}

#[derive(Debug)]
struct Left {
    socket: OwnedFd,
    since_ns: u64,
}

impl Leaving {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            next: TOKENS,
            notices: Latencies::new(),
            unnoticed: 0,
            unmeasured: 0,
        }
    }

    /// Whether a token is of a connection that has hung up.
    pub(super) fn owns(token: u64) -> bool {
        (TOKENS..u64::MAX >> 1).contains(&token)
    }

    /// Whether no connection waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many hang-ups the server has noticed.
    pub(super) fn noticed(&self) -> u64 {
        self.notices.count()
    }

    /// Hangs up on a connection that `poller` watches.
    pub(super) fn hang_up(&mut self, socket: OwnedFd, poller: &Poller, now_ns: u64) {
        while self.waiting.len() >= LEAVING_MAX {
            self.waiting.pop_first();
            self.unmeasured += 1;
        }
        let token = self.next;
        self.next += 1;
        let left = poller
            .move_socket(&socket, token)
            .and_then(|()| shutdown(&socket, Shutdown::Write));
        match left {
            Ok(()) => {
                let since_ns = now_ns;
                self.waiting.insert(token, Left { socket, since_ns });
            }
            // The server was faster: the connection is gone already.
            Err(_) => self.unmeasured += 1,
        }
    }

    /// Reads and drops what arrives after the hang-up; only the end matters.
    pub(super) fn serve(&mut self, token: u64, buffer: &mut [u8], now_ns: impl Fn() -> u64) {
        let Some(left) = self.waiting.get(&token) else {
            return;
        };
        loop {
            match rustix::io::read(&left.socket, &mut *buffer) {
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok(length) if length > 0 => {}
                // A reset is an end as well: the server has given the connection up.
                Ok(_) | Err(_) => break,
            }
        }
        self.notices.record(now_ns().saturating_sub(left.since_ns));
        self.waiting.remove(&token);
    }

    /// Gives up those that the server does not notice. Returns when the next one is.
    pub(super) fn due(&mut self, now_ns: u64) -> u64 {
        while let Some(oldest) = self.waiting.first_entry() {
            let due_ns = oldest.get().since_ns.saturating_add(NOTICE_NS_MAX);
            if due_ns > now_ns {
                return due_ns;
            }
            oldest.remove();
            self.unnoticed += 1;
        }
        u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::clock::{MILLISECOND_NS, monotonic_ns};
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    fn pair(listener: &TcpListener) -> (OwnedFd, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        (client.into(), listener.accept().unwrap().0)
    }

    fn run(leaving: &mut Leaving, poller: &mut Poller, until_ns: u64) {
        let mut buffer = [0; 4_096];
        while !leaving.is_empty() && monotonic_ns() < until_ns {
            let mut tokens = Vec::new();
            poller
                .wait(until_ns, |ready| tokens.push(ready.token))
                .unwrap();
            for token in tokens {
                assert!(Leaving::owns(token));
                leaving.serve(token, &mut buffer, monotonic_ns);
            }
        }
    }

    #[test]
    fn a_server_that_closes_has_noticed_when_it_did() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut poller = Poller::new().unwrap();
        let mut leaving = Leaving::new();
        let (client, mut server) = pair(&listener);
        poller.add_socket(&client, 3).unwrap();
        let begun_ns = monotonic_ns();
        leaving.hang_up(client, &poller, begun_ns);
        // The server sees the end as that of a closed connection.
        assert_eq!(server.read(&mut [0; 10]).unwrap(), 0);
        server.write_all(b"a last event").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert_eq!(leaving.noticed(), 0);
        drop(server);
        run(&mut leaving, &mut poller, monotonic_ns() + 60 * SECOND_NS);
        let took_ns = monotonic_ns() - begun_ns;
        assert_eq!((leaving.noticed(), leaving.unnoticed), (1, 0));
        assert_eq!(leaving.notices.above(29 * MILLISECOND_NS), 1);
        assert_eq!(leaving.notices.above(took_ns), 0);
    }

    #[test]
    fn a_server_that_does_not_notice_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let poller = Poller::new().unwrap();
        let mut leaving = Leaving::new();
        let (client, _server) = pair(&listener);
        poller.add_socket(&client, 3).unwrap();
        let now_ns = monotonic_ns();
        leaving.hang_up(client, &poller, now_ns);
        assert_eq!(leaving.due(now_ns), now_ns + NOTICE_NS_MAX);
        assert_eq!(leaving.due(now_ns + NOTICE_NS_MAX), u64::MAX);
        assert!(leaving.is_empty());
        assert_eq!((leaving.noticed(), leaving.unnoticed), (0, 1));
    }

    #[test]
    fn no_more_wait_than_may() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let poller = Poller::new().unwrap();
        let mut leaving = Leaving::new();
        let mut servers = Vec::new();
        for _ in 0..LEAVING_MAX + 3 {
            let (client, server) = pair(&listener);
            servers.push(server);
            poller.add_socket(&client, 3).unwrap();
            leaving.hang_up(client, &poller, monotonic_ns());
        }
        assert_eq!(
            (leaving.waiting.len(), leaving.unmeasured),
            (LEAVING_MAX, 3)
        );
    }
}
