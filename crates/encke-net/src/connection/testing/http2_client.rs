//! A client of HTTP/2 without a socket.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};

use crate::http2::wire::{Wire, WireEnd};

/// A client, and what it has received.
pub(crate) struct Http2Client {
    wire: Wire,
    connection: Connection<WireEnd, Bytes>,
    sender: SendRequest<Bytes>,
    pub(crate) exchanges: Vec<ClientExchange>,
    /// The connection has ended, with a reason if there was one.
    pub(crate) over: Option<Result<(), Option<Reason>>>,
}

/// A request and its response.
pub(crate) struct ClientExchange {
    response: Option<ResponseFuture>,
    stream: Option<RecvStream>,
    pub(crate) status: Option<u16>,
    pub(crate) body: Vec<u8>,
    /// Its end, or the reason of its reset.
    pub(crate) ended: Option<Result<(), Option<Reason>>>,
    /// The client takes its body.
    pub(crate) takes: bool,
}

impl Http2Client {
    /// A client that gives each stream a window of `window_bytes`.
    pub(crate) fn new(window_bytes: u32) -> Self {
        let wire = Wire::default();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window_bytes);
        builder.enable_push(false);
        let mut handshake = Box::pin(builder.handshake(wire.end()));
        let ready = handshake.as_mut().poll(&mut context());
        let Poll::Ready(Ok((sender, connection))) = ready else {
            panic!("a client sends its preface at once");
        };
        Http2Client {
            wire,
            connection,
            sender,
            exchanges: Vec::new(),
            over: None,
        }
    }

    /// Sends a request. Its number among the exchanges.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> usize {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("http://a{path}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).unwrap();
        let sent = self.sender.send_request(request, body.is_empty());
        let (response, ended) = match sent {
            Ok((response, mut sender)) => {
                if !body.is_empty() {
                    // What the windows have no room for waits in the library.
                    let _ = sender.send_data(Bytes::copy_from_slice(body), true);
                }
                (Some(response), None)
            }
            Err(error) => (None, Some(Err(error.reason()))),
        };
        self.exchanges.push(ClientExchange {
            response,
            stream: None,
            status: None,
            body: Vec::new(),
            ended,
            takes: true,
        });
        self.exchanges.len() - 1
    }

    /// Resets a stream.
    pub(crate) fn reset(&mut self, number: usize) {
        let exchange = &mut self.exchanges[number];
        exchange.response = None;
        exchange.stream = None;
        exchange.ended = Some(Err(Some(Reason::CANCEL)));
    }

    /// Takes what the server has sent, and returns what is to be sent to it.
    pub(crate) fn exchange(&mut self, received: &[u8]) -> Vec<u8> {
        self.wire.receive(received);
        self.poll();
        self.wire.take_output()
    }

    fn poll(&mut self) {
        for _ in 0..POLLS {
            if self.over.is_none()
                && let Poll::Ready(over) = Pin::new(&mut self.connection).poll(&mut context())
            {
                self.over = Some(over.map_err(|error| error.reason()));
            }
            for exchange in &mut self.exchanges {
                exchange.poll();
            }
        }
    }
}

impl ClientExchange {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn poll(&mut self) {
        if let Some(response) = &mut self.response
            && let Poll::Ready(response) = Pin::new(response).poll(&mut context())
        {
            self.response = None;
            match response {
                Ok(response) => {
                    self.status = Some(response.status().as_u16());
                    self.stream = Some(response.into_body());
                }
                Err(error) => self.ended = Some(Err(error.reason())),
            }
        }
        while self.takes
            && let Some(stream) = &mut self.stream
            && let Poll::Ready(data) = stream.poll_data(&mut context())
        {
            match data {
                Some(Ok(data)) => {
                    self.body.extend_from_slice(&data);
                    let _ = stream.flow_control().release_capacity(data.len());
                }
                Some(Err(error)) => {
                    self.ended = Some(Err(error.reason()));
                    self.stream = None;
                }
                None => {
                    self.ended = Some(Ok(()));
                    self.stream = None;
                }
            }
        }
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Polls until nothing can follow from what has arrived.
const POLLS: u32 = 4;
