//! hyper's http1 server over a wire in memory, polled by hand: no runtime, no time, the same result every time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

use super::conversation::{Conversation, HEAD_BYTES_MAX, InputEnd, ParsedRequest, by_name};
use crate::http::head::FIELDS_MAX;

/// What hyper makes of an input that comes in these pieces, and then no more.
pub(super) fn conversation(input: &[u8], pieces: &[usize]) -> Conversation {
    let wire = Wire(Rc::new(RefCell::new(Line {
        input: input.to_vec(),
        pieces: pieces.iter().copied().collect(),
        ended: false,
    })));
    let asked = Rc::new(RefCell::new(Vec::new()));
    let answered = Rc::clone(&asked);
    let service = service_fn(move |request: Request<Incoming>| {
        let answered = Rc::clone(&answered);
        async move {
            let (head, body) = request.into_parts();
            // A body that is malformed or cut short ends the connection, as a request that was never made.
            let body = body.collect().await?.to_bytes();
            answered.borrow_mut().push(ParsedRequest {
                version: u8::from(head.version != hyper::Version::HTTP_10),
                method: head.method.to_string(),
                target: target(&head.uri),
                fields: fields(&head.headers),
                body: body.to_vec(),
            });
            Ok::<_, hyper::Error>(Response::new(Empty::<&[u8]>::new()))
        }
    });
    let connection = http1::Builder::new()
        .half_close(true)
        .header_read_timeout(None)
        .max_headers(FIELDS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(wire.clone(), service);
    let mut connection = pin!(connection);
    let end = match run(connection.as_mut()) {
        Some(Ok(())) => InputEnd::Closed,
        Some(Err(error)) => InputEnd::Refused(error),
        None => {
            wire.0.borrow_mut().ended = true;
            match run(connection) {
                Some(Ok(())) => InputEnd::Open,
                Some(Err(_)) => InputEnd::Partial,
                None => unreachable!("hyper waits though its input has ended"),
            }
        }
    };
    let requests = asked.take();
    Conversation { requests, end }
}

/// Polls until there is a result, or nothing more that would change anything.
fn run(
    connection: Pin<&mut impl Future<Output = Result<(), hyper::Error>>>,
) -> Option<Result<(), String>> {
    let mut connection = connection;
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    while woken.0.swap(false, Ordering::Relaxed) {
        if let Poll::Ready(result) = connection.as_mut().poll(&mut context) {
            return Some(result.map_err(|error| format!("{error:?}")));
        }
    }
    None
}

fn target(uri: &hyper::Uri) -> String {
    let path = uri.path();
    match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

fn fields(headers: &hyper::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let all = headers.iter();
    by_name(all.map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// The server's end of the connection.
#[derive(Clone)]
struct Wire(Rc<RefCell<Line>>);

struct Line {
    /// What has not been read yet.
    input: Vec<u8>,
    /// How much of it comes at a time; all the rest at once when this is over.
    pieces: VecDeque<usize>,
    /// Whether the client closes its side behind it.
    ended: bool,
}

impl Read for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut line = self.0.borrow_mut();
        if line.input.is_empty() {
            return if line.ended {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            };
        }
        let all = line.input.len();
        let piece = line.pieces.pop_front().unwrap_or(all).max(1);
        let rest = line.input.split_off(piece.min(all).min(buffer.remaining()));
        buffer.put_slice(&line.input);
        line.input = rest;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
