//! A listener apart from those of the shards, for connections that get one response each: it reads a head, sends the response, and
//! the client hangs up. One thread serves all of them.
//!
//! It never touches a stream, and no client keeps others out: the connections, those of one address and their time are bounded, and
//! a newcomer takes the place of the one that is quiet for longest.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};

use crate::clients::addresses;
use crate::errors::ReactorError;
use crate::listen;
use crate::listener_places::{Doing, ListenerPlaces};
use crate::poller::{LISTENER, Poller, WAKE};
use crate::settings::NetSettings;
use crate::transport::plain;

/// Makes the responses of a [`OneShotListener`].
pub trait OneShotResponder {
    /// The response to a request, in full. `None`: its head is not complete.
    fn respond(&self, head: &[u8]) -> Option<String>;

    /// The response to a request whose head is longer than 8 KiB.
    fn head_too_long(&self) -> String;
}

/// A listener with at most 256 connections, 64 of them from one address, each for at most 5 seconds.
#[derive(Debug)]
pub struct OneShotListener {
    address: SocketAddr,
    poller: Poller,
    stop: Arc<OwnedFd>,
    listener: OwnedFd,
    open: Vec<Option<OneShotConnection>>,
    free: Vec<usize>,
    places: ListenerPlaces<usize>,
    /// Connections in the order in which they came. Those that are over are skipped.
    order: VecDeque<(Instant, u64, usize)>,
    next_id: u64,
}

/// Ends [`OneShotListener::run`].
#[derive(Debug)]
pub struct OneShotStop(Arc<OwnedFd>);

impl OneShotStop {
    /// Ends the run. Connections that are open are closed.
    pub fn stop(&self) {
        // The counter has room for this.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

#[derive(Debug)]
struct OneShotConnection {
    id: u64,
    socket: OwnedFd,
    head: Vec<u8>,
    /// The response is out; what still arrives is dropped until the client hangs up.
    answered: bool,
}

impl OneShotListener {
    /// Listens on `address`. Of the settings it uses those of sockets.
    ///
    /// # Errors
    /// The address can't be listened on, or the system refuses a descriptor.
    pub fn bind(settings: &NetSettings, address: SocketAddr) -> Result<Self, ReactorError> {
        let failed = |source| ReactorError::Listen { address, source };
        listen::check_address(address).map_err(failed)?;
        let listener = listen::listener(settings, address).map_err(failed)?;
        let address = listen::address(&listener).map_err(failed)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let poller = Poller::new(stop.as_fd())?;
        poller.listen(&listener, true)?;
        Ok(OneShotListener {
            address,
            poller,
            stop,
            listener,
            open: (0..=CONNECTIONS_MAX).map(|_| None).collect(),
            free: (0..=CONNECTIONS_MAX).collect(),
            places: ListenerPlaces::new(CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX),
            order: VecDeque::new(),
            next_id: 0,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What ends the run.
    pub fn stop_handle(&self) -> OneShotStop {
        OneShotStop(Arc::clone(&self.stop))
    }

    /// Serves connections until it is stopped.
    ///
    /// # Errors
    /// Waiting for sockets failed.
    pub fn run(&mut self, responder: &impl OneShotResponder) -> rustix::io::Result<()> {
        let mut events = Vec::with_capacity(CONNECTIONS_MAX);
        loop {
            self.poller.wait(&mut events, EXPIRY_STEP)?;
            for event in &events {
                match event.data.u64() {
                    WAKE => return Ok(()),
                    LISTENER => self.accept(),
                    number => self.read(number as usize, responder),
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
        self.open[number] = Some(OneShotConnection {
            id: self.next_id,
            socket,
            head: Vec::new(),
            answered: false,
        });
    }

    fn read(&mut self, number: usize, responder: &impl OneShotResponder) {
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
            let response = match responder.respond(&connection.head) {
                Some(response) => response,
                None if received >= room => responder.head_too_long(),
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

/// Connections at a time; a further one takes the place of the oldest.
const CONNECTIONS_MAX: usize = 256;

/// Those of one address; a further one takes the place of the oldest of them.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 64;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// The time of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How often that time is looked at.
const EXPIRY_STEP: Duration = Duration::from_millis(500);
