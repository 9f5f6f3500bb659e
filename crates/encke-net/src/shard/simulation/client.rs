//! Clients of the simulation: each has a socket, and remembers what it asked for.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt,
};

use serde_json::Value;

use super::channel_client::ChannelClient;
use crate::connection::testing::{Http2Client, ReceivedResponse, responses};

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Create,
    /// Appends the message with that number to a stream.
    Append {
        stream: usize,
        message: u32,
    },
    /// Reads a whole stream.
    Read {
        stream: usize,
    },
    /// Follows a stream from its beginning, or from now on.
    Follow {
        stream: usize,
        from_now: bool,
    },
    /// Follows all streams from their beginning.
    FollowAll,
    /// Waits for something behind the end of a stream.
    Poll,
    /// Ends a subscription to a stream on a channel.
    Unsubscribe,
    /// Posts the job with that number; `waits` for its result.
    Post {
        job: u32,
        waits: bool,
    },
    /// Waits for a job.
    Work,
    /// Acknowledges a job.
    Finish,
    /// Anything that must only be answered.
    Other,
}

/// A request, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) purpose: Purpose,
    /// `None`: nothing came.
    pub(super) status: Option<u16>,
    pub(super) body: String,
    pub(super) is_complete: bool,
    /// The client has ended it.
    pub(super) is_given_up: bool,
}

/// A client with a connection.
pub(super) struct Client {
    socket: Option<OwnedFd>,
    wire: ClientWire,
    /// What the client has still to send.
    unsent: Vec<u8>,
    /// The server has closed the connection.
    pub(super) is_over: bool,
    /// The client sends nothing more.
    pub(super) is_half_closed: bool,
    /// Something that is no request may have been sent.
    pub(super) is_wrong: bool,
    /// How many jobs it has acknowledged.
    finished: usize,
}

enum ClientWire {
    Http1 {
        purposes: Vec<Purpose>,
        received: Vec<u8>,
    },
    Http2 {
        purposes: Vec<Purpose>,
        client: Box<Http2Client>,
    },
    WebSocket(Box<ChannelClient>),
}

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
    WebSocket,
}

impl Client {
    /// A client, and the other end of its socket. The kernel keeps about so many bytes for each of them.
    pub(super) fn connect(spoken: Spoken, buffer_bytes: usize) -> (Client, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let (own, other) = pair.unwrap();
        for socket in [&own, &other] {
            sockopt::set_socket_send_buffer_size(socket, buffer_bytes).unwrap();
        }
        let mut unsent = Vec::new();
        let wire = match spoken {
            Spoken::Http2 => ClientWire::Http2 {
                purposes: Vec::new(),
                client: Box::new(Http2Client::new(buffer_bytes as u32)),
            },
            Spoken::Http1 => ClientWire::Http1 {
                purposes: Vec::new(),
                received: Vec::new(),
            },
            Spoken::WebSocket => {
                let (client, first) = ChannelClient::new();
                unsent = first;
                ClientWire::WebSocket(Box::new(client))
            }
        };
        let client = Client {
            socket: Some(own),
            wire,
            unsent,
            is_over: false,
            is_half_closed: false,
            is_wrong: false,
            finished: 0,
        };
        (client, other)
    }

    /// Whether it still can do something.
    pub(super) fn is_open(&self) -> bool {
        self.socket.is_some() && !self.is_over
    }

    /// Whether nothing may be asked behind the last request: it never ends by itself.
    pub(super) fn follows(&self) -> bool {
        match &self.wire {
            ClientWire::Http1 { purposes, .. } => matches!(
                purposes.last(),
                Some(Purpose::Follow { .. } | Purpose::FollowAll)
            ),
            ClientWire::Http2 { .. } | ClientWire::WebSocket(_) => false,
        }
    }

    pub(super) fn spoken(&self) -> Spoken {
        match &self.wire {
            ClientWire::Http1 { .. } => Spoken::Http1,
            ClientWire::Http2 { .. } => Spoken::Http2,
            ClientWire::WebSocket(_) => Spoken::WebSocket,
        }
    }

    /// Asks for something, as soon as the socket takes it. `split`: where a message of a channel is split, if it is.
    pub(super) fn ask(
        &mut self,
        purpose: Purpose,
        method: &str,
        target: &str,
        body: &str,
        split: u64,
    ) {
        let typed = method != "GET" && method != "HEAD";
        match &mut self.wire {
            ClientWire::Http1 { purposes, .. } => {
                let mut request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n");
                if purpose == Purpose::Work {
                    request += "Accept: application/json\r\n";
                }
                if typed {
                    request += "Content-Type: text/plain\r\n";
                    request += &format!("Content-Length: {}\r\n", body.len());
                }
                request += "\r\n";
                request += body;
                purposes.push(purpose);
                self.unsent.extend_from_slice(request.as_bytes());
            }
            ClientWire::Http2 { purposes, client } => {
                let fields: &[(&str, &str)] = match (&purpose, typed) {
                    (Purpose::Work, _) => &[
                        ("content-type", "text/plain"),
                        ("accept", "application/json"),
                    ],
                    (_, true) => &[("content-type", "text/plain")],
                    (_, false) => &[],
                };
                purposes.push(purpose);
                client.request(method, target, fields, body.as_bytes());
                self.unsent.extend(client.exchange(&[]));
            }
            ClientWire::WebSocket(client) => {
                let frames = client.ask(purpose, target, body, split);
                self.unsent.extend(frames);
            }
        }
    }

    /// Acknowledges the next job that it has got and not acknowledged, with its result. False: there is none.
    pub(super) fn finish_job(&mut self) -> bool {
        let answers = self.answers();
        let mut jobs = answers.iter().filter(|one| {
            one.purpose == Purpose::Work && one.status == Some(200) && one.is_complete
        });
        let Some(job) = jobs.nth(self.finished) else {
            return false;
        };
        let job: Value = serde_json::from_str(&job.body).unwrap();
        self.finished += 1;
        let target = format!(
            "/v1/pool/{POOL}/job/{}/ack?attempt={}",
            job["job"], job["attempt"]
        );
        let result = job["data"].as_str().unwrap().replace('j', "r");
        self.ask(Purpose::Finish, "POST", &target, &result, 0);
        true
    }

    /// Sends bytes that may mean nothing.
    pub(super) fn ask_nonsense(&mut self, bytes: &[u8]) {
        self.is_wrong = true;
        self.unsent.extend_from_slice(bytes);
    }

    /// Resets an exchange of several.
    pub(super) fn reset(&mut self, which: u64) {
        if let ClientWire::Http2 { client, .. } = &mut self.wire
            && !client.exchanges.is_empty()
        {
            client.reset(which as usize % client.exchanges.len());
            self.unsent.extend(client.exchange(&[]));
        }
    }

    /// Takes what the server has sent on one of several exchanges, or not.
    pub(super) fn take_exchange(&mut self, which: u64, takes: bool) {
        if let ClientWire::Http2 { client, .. } = &mut self.wire
            && !client.exchanges.is_empty()
        {
            let number = which as usize % client.exchanges.len();
            client.exchanges[number].takes = takes;
        }
    }

    /// Takes everything from now on.
    pub(super) fn take_all(&mut self) {
        if let ClientWire::Http2 { client, .. } = &mut self.wire {
            for exchange in &mut client.exchanges {
                exchange.takes = true;
            }
            self.unsent.extend(client.exchange(&[]));
        }
    }

    /// Sends so many bytes at most of what it has to send. Whether there were any.
    pub(super) fn send(&mut self, count: usize) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let part = &self.unsent[..count.min(self.unsent.len())];
        if part.is_empty() || self.is_half_closed {
            return false;
        }
        match send(socket, part, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) => {
                self.unsent.drain(..sent);
                sent > 0
            }
            Err(Errno::AGAIN) => false,
            Err(_) => {
                self.unsent.clear();
                false
            }
        }
    }

    /// Receives so many bytes at most. Whether there were any.
    pub(super) fn receive(&mut self, count: usize) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let mut buffer = vec![0; count];
        match recv(socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) if count > 0 => {
                self.is_over = true;
                false
            }
            Ok((received, _)) => {
                let bytes = &buffer[..received];
                match &mut self.wire {
                    ClientWire::Http1 { received, .. } => received.extend_from_slice(bytes),
                    ClientWire::Http2 { client, .. } => self.unsent.extend(client.exchange(bytes)),
                    ClientWire::WebSocket(client) => self.unsent.extend(client.receive(bytes)),
                }
                received > 0
            }
            Err(Errno::AGAIN) => false,
            Err(_) => {
                self.is_over = true;
                false
            }
        }
    }

    /// Whether everything was sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.unsent.is_empty()
    }

    pub(super) fn half_close(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = shutdown(socket.as_fd(), Shutdown::Write);
            self.is_half_closed = true;
        }
    }

    pub(super) fn hang_up(&mut self) {
        self.socket = None;
    }

    /// What came of its requests.
    pub(super) fn answers(&self) -> Vec<Answered> {
        match &self.wire {
            ClientWire::Http1 { purposes, received } => {
                let mut all = responses(received, |_| false).into_iter();
                let answered = purposes
                    .iter()
                    .map(|purpose| Answered::of(purpose, all.next()));
                let answered = answered.collect();
                let more: Vec<ReceivedResponse> = all.collect();
                assert!(
                    more.is_empty() || self.is_wrong,
                    "no request has led to {more:?}"
                );
                answered
            }
            ClientWire::Http2 { purposes, client } => {
                let exchanges = purposes.iter().zip(&client.exchanges);
                let answered = exchanges.map(|(purpose, exchange)| Answered {
                    purpose: purpose.clone(),
                    status: exchange.status,
                    body: exchange.text(),
                    is_complete: exchange.ended == Some(Ok(())),
                    is_given_up: false,
                });
                answered.collect()
            }
            ClientWire::WebSocket(client) => client.answers(),
        }
    }

    /// Whether exchanges may have been ended by the client itself.
    pub(super) fn has_reset(&self) -> bool {
        match &self.wire {
            ClientWire::Http1 { .. } | ClientWire::WebSocket(_) => false,
            ClientWire::Http2 { client, .. } => client
                .exchanges
                .iter()
                .any(|exchange| matches!(exchange.ended, Some(Err(_)))),
        }
    }
}

impl Answered {
    fn of(purpose: &Purpose, received: Option<ReceivedResponse>) -> Self {
        Answered {
            purpose: purpose.clone(),
            status: received.as_ref().map(|received| received.status),
            body: received
                .as_ref()
                .map_or(String::new(), ReceivedResponse::text),
            is_complete: received.is_some_and(|received| received.is_complete),
            is_given_up: false,
        }
    }
}

/// The pool of the simulation.
pub(super) const POOL: &str = "p";
