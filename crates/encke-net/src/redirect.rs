//! The redirect from http to https: a listener of its own, with one thread, that answers each request and hangs up.
//!
//! It never touches a stream. A request that is not GET or HEAD is refused: its body has crossed the network readable already,
//! and a client that is redirected without a word would go on sending it so.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::clients::addresses;
use crate::errors::StartError;
use crate::listen;
use crate::listener_places::{Doing, ListenerPlaces};
use crate::poller::{LISTENER, Poller, WAKE};
use crate::settings::NetSettings;
use crate::transport::plain;

/// The running thread.
#[derive(Debug)]
pub(crate) struct Redirect {
    address: SocketAddr,
    stop: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

impl Redirect {
    /// Listens on `address` and redirects to `https_port` of the host that a client names.
    pub(crate) fn start(
        settings: &NetSettings,
        address: SocketAddr,
        https_port: u16,
    ) -> Result<Self, StartError> {
        let failed = |source| StartError::Listen { address, source };
        listen::check_address(address).map_err(failed)?;
        let listener = listen::listener(settings, address).map_err(failed)?;
        let address = listen::address(&listener).map_err(failed)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let poller = Poller::new(stop.as_fd())?;
        poller.listen(&listener, true)?;
        let worker = RedirectThread {
            poller,
            _stop: Arc::clone(&stop),
            listener,
            https_port,
            open: (0..=CONNECTIONS_MAX).map(|_| None).collect(),
            free: (0..=CONNECTIONS_MAX).collect(),
            places: ListenerPlaces::new(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX),
            order: VecDeque::new(),
            next_id: 0,
        };
        let thread = std::thread::Builder::new().name("redirect".to_owned());
        Ok(Redirect {
            address,
            stop,
            thread: thread.spawn(move || worker.run())?,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops. `false`: the thread panicked.
    pub(crate) fn stop(self) -> bool {
        // The counter has room for this.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        self.thread.join().is_ok()
    }
}

struct RedirectThread {
    poller: Poller,
    _stop: Arc<OwnedFd>,
    listener: OwnedFd,
    https_port: u16,
    open: Vec<Option<PlainConnection>>,
    free: Vec<usize>,
    places: ListenerPlaces<usize>,
    /// Connections in the order in which they came. Those that are over are skipped.
    order: VecDeque<(Instant, u64, usize)>,
    next_id: u64,
}

struct PlainConnection {
    id: u64,
    socket: OwnedFd,
    head: Vec<u8>,
    /// The response is out; what still arrives is dropped until the client hangs up.
    answered: bool,
}

impl RedirectThread {
    fn run(mut self) {
        let mut events = Vec::with_capacity(CONNECTIONS_MAX);
        loop {
            if let Err(error) = self.poller.wait(&mut events, EXPIRY_STEP) {
                tracing::error!(%error, "epoll failed; plain requests are not redirected any more");
                return;
            }
            for event in &events {
                match event.data.u64() {
                    WAKE => return,
                    LISTENER => self.accept(),
                    number => self.read(number as usize),
                }
            }
            self.expire();
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Level-triggered: what is left is reported again.
        let Ok((socket, peer)) = acceptfrom_with(&self.listener, flags) else {
            return;
        };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        let Some(number) = self.take_place(addresses::key(address)) else {
            return;
        };
        if self.poller.add(&socket, number as u64, false).is_err() {
            self.places.leave(number);
            self.free.push(number);
            return;
        }
        self.next_id += 1;
        self.order.push_back((Instant::now(), self.next_id, number));
        self.open[number] = Some(PlainConnection {
            id: self.next_id,
            socket,
            head: Vec::new(),
            answered: false,
        });
    }

    fn read(&mut self, number: usize) {
        let mut buffer = [0; HEAD_BYTES_MAX];
        loop {
            let Some(Some(connection)) = self.open.get_mut(number) else {
                return;
            };
            let received = match plain::receive(connection.socket.as_fd(), &mut buffer) {
                Ok(0) => return self.close(number),
                Ok(received) => received,
                Err(Errno::AGAIN) => return,
                Err(_) => return self.close(number),
            };
            if connection.answered {
                continue;
            }
            let room = HEAD_BYTES_MAX - connection.head.len();
            let taken = received.min(room);
            connection.head.extend_from_slice(&buffer[..taken]);
            let response = match respond(&connection.head, self.https_port) {
                Some(response) => response,
                None if received >= room => refusal(431, "Request Header Fields Too Large"),
                None => continue,
            };
            connection.answered = true;
            // A fresh socket takes these few bytes. Then the client hangs up, or its time is over.
            let _ = plain::send(connection.socket.as_fd(), response.as_bytes());
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Write);
        }
    }

    /// Closes connections that have been there for too long.
    fn expire(&mut self) {
        while let Some(&(since, id, number)) = self.order.front() {
            if self.is_open(id, number) {
                if since.elapsed() < TIMEOUT {
                    return;
                }
                self.close(number);
            }
            self.order.pop_front();
        }
    }

    /// A place for a newcomer, which may be the one of another connection.
    fn take_place(&mut self, key: addresses::Key) -> Option<usize> {
        // There is one number more than places: that of a connection which makes room is free only afterwards.
        let number = self.free.pop()?;
        match self.places.enter(number, key, |_| Doing::Nothing) {
            Ok(None) => Some(number),
            Ok(Some(other)) => {
                self.open[other] = None;
                self.free.push(other);
                Some(number)
            }
            Err(_) => None,
        }
    }

    fn is_open(&self, id: u64, number: usize) -> bool {
        let connection = self.open[number].as_ref();
        connection.is_some_and(|connection| connection.id == id)
    }

    fn close(&mut self, number: usize) {
        if self.open[number].take().is_some() {
            self.places.leave(number);
            self.free.push(number);
        }
    }
}

/// The response to a request. `None`: its head is not complete.
fn respond(head: &[u8], https_port: u16) -> Option<String> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Some(refusal(400, "Bad Request")),
    }
    if !matches!(request.method, Some("GET" | "HEAD")) {
        return Some(refusal(403, "Forbidden"));
    }
    let host = request
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("host"))
        .and_then(|field| std::str::from_utf8(field.value).ok())
        .and_then(host_name);
    let (Some(host), Some(path)) = (host, request.path.filter(|path| path.starts_with('/'))) else {
        return Some(refusal(400, "Bad Request"));
    };
    let port = match https_port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    Some(format!(
        "HTTP/1.1 308 Permanent Redirect\r\nLocation: https://{host}{port}{path}\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    ))
}

/// The name in a Host field, without its port.
fn host_name(host: &str) -> Option<&str> {
    let name = match host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(end) => &host[..end + 2],
        None => host.split(':').next()?,
    };
    let allowed =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']' | ':');
    (!name.is_empty() && name.chars().all(allowed)).then_some(name)
}

fn refusal(status: u16, phrase: &str) -> String {
    let text = "this port only redirects GET and HEAD to https; use https\n";
    format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
}

/// Connections at a time; a further one takes the place of the oldest.
const CONNECTIONS_MAX: usize = 256;

/// Those of one address; a further one takes the place of the oldest of them.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 64;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Fields of a request.
const FIELDS_MAX: usize = 100;

/// The time of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often that time is looked at.
const EXPIRY_STEP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn location(head: &str, port: u16) -> Option<String> {
        let response = respond(head.as_bytes(), port)?;
        let line = response.lines().find(|line| line.starts_with("Location"));
        Some(line.unwrap_or(&response[..12]).to_owned())
    }

    #[test]
    fn requests_that_read_are_redirected() {
        for (head, port, answer) in [
            (
                "GET /a?b=c HTTP/1.1\r\nHost: x.example:80\r\n\r\n",
                443,
                "Location: https://x.example/a?b=c",
            ),
            (
                "HEAD / HTTP/1.1\r\nhost: [::1]:8080\r\n\r\n",
                4437,
                "Location: https://[::1]:4437/",
            ),
            ("POST / HTTP/1.1\r\nHost: x\r\n\r\n", 443, "HTTP/1.1 403"),
            ("GET / HTTP/1.1\r\n\r\n", 443, "HTTP/1.1 400"),
            ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 443, "HTTP/1.1 400"),
            (
                "GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n",
                443,
                "HTTP/1.1 400",
            ),
            ("\u{1}\u{2}\r\n\r\n", 443, "HTTP/1.1 400"),
        ] {
            assert_eq!(location(head, port).as_deref(), Some(answer), "{head}");
        }
        assert_eq!(location("GET / HTTP/1.1\r\nHost: x\r\n", 443), None);
    }
}
