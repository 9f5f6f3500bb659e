//! A client of HTTP/2 without a socket.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;

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
    /// Where more is sent, until that ends.
    sender: Option<SendStream<Bytes>>,
    pub(crate) status: Option<u16>,
    /// The fields of the response.
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Its end, or the reason of its reset.
    pub(crate) ended: Option<Result<(), Option<Reason>>>,
    /// The client takes its body.
    pub(crate) takes: bool,
}

impl Http2Client {
    /// A client that gives each stream a window of `window_bytes`, and many streams together enough for all.
    pub(crate) fn new(window_bytes: u32) -> Self {
        let wire = Wire::default();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window_bytes);
        builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
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
        let number = self.begin(request.body(()).unwrap(), body.is_empty());
        if !body.is_empty() {
            self.send(number, body);
            self.end(number);
        }
        number
    }

    /// Sends an extended CONNECT. Its number among the exchanges.
    pub(crate) fn connect(
        &mut self,
        protocol: &'static str,
        path: &str,
        fields: &[(&str, &str)],
    ) -> usize {
        let mut request = http::Request::builder()
            .method("CONNECT")
            .uri(format!("http://a{path}"))
            .extension(Protocol::from_static(protocol));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        self.begin(request.body(()).unwrap(), false)
    }

    /// Sends a request of any kind. Its number among the exchanges.
    pub(crate) fn begin(&mut self, request: http::Request<()>, ends: bool) -> usize {
        let sent = self.sender.send_request(request, ends);
        let (response, sender, ended) = match sent {
            Ok((response, sender)) => (Some(response), Some(sender), None),
            Err(error) => (None, None, Some(Err(error.reason()))),
        };
        self.exchanges.push(ClientExchange {
            response,
            stream: None,
            sender,
            status: None,
            fields: HeaderMap::new(),
            body: Vec::new(),
            ended,
            takes: true,
        });
        self.exchanges.len() - 1
    }

    /// Sends more on a stream. What the windows have no room for waits in the library.
    pub(crate) fn send(&mut self, number: usize, bytes: &[u8]) {
        if let Some(sender) = &mut self.exchanges[number].sender {
            let _ = sender.send_data(Bytes::copy_from_slice(bytes), false);
        }
    }

    /// Ends the client's side of a stream.
    pub(crate) fn end(&mut self, number: usize) {
        if let Some(mut sender) = self.exchanges[number].sender.take() {
            let _ = sender.send_data(Bytes::new(), true);
        }
    }

    /// Resets a stream.
    pub(crate) fn reset(&mut self, number: usize) {
        let exchange = &mut self.exchanges[number];
        exchange.response = None;
        exchange.stream = None;
        exchange.sender = None;
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
                    self.fields = response.headers().clone();
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

/// The window of the connection.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Polls until nothing can follow from what has arrived.
const POLLS: u32 = 4;
