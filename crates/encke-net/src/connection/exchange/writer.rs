//! Where an exchange writes its response.

use encke_protocol::{Body, OriginReader, Response};
use encke_stream::FileRange;

use super::super::context::Context;

/// The way of one exchange's output. What is written is sent as soon as it is taken; until then the exchange is blocked.
pub(crate) trait ResponseWriter {
    /// Writes a response: all of it, or the beginning of one whose body has no length yet.
    fn begin(&mut self, response: &Response, shape: ResponseShape<'_>, cx: &mut Context<'_>);
    /// Writes a part of a body without a length, and behind the last one its end.
    fn part(&mut self, part: &[u8], is_last: bool, cx: &mut Context<'_>);
    /// Whether it takes parts that lie in files.
    fn takes_files(&self) -> bool {
        false
    }
    /// Writes a part that lies in files, each with bytes before it, and ends with the bytes behind them. The exchange gets an event when
    /// it is out. Only where it takes files.
    fn file_part(
        &mut self,
        _files: Vec<(Vec<u8>, FileRange)>,
        _behind: &'static [u8],
        _is_last: bool,
        _cx: &mut Context<'_>,
    ) {
    }
    /// Whether something that was written was not taken.
    fn is_blocked(&self, cx: &Context<'_>) -> bool;
    /// Whether the window of the exchange is closed. Then nothing is read for the response, and the exchange gets an event when the
    /// window opens. A wire without windows never waits for one.
    fn awaits_window(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }
    /// How much of `wanted` may be read for the response now, in bytes: all of it, unless the exchanges of a connection share a
    /// bound.
    fn grant_read(&mut self, wanted: usize) -> usize {
        wanted
    }
    /// What was read has arrived: its share of that bound is free again.
    fn read_arrived(&mut self) {}
    /// The connection takes no further requests. Where a response says so itself, nothing else is to be done.
    fn leave(&mut self, _cx: &mut Context<'_>) {}
}

/// What a response depends on, beside what the protocol says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseShape<'a> {
    /// The request was HEAD.
    pub(crate) head_only: bool,
    /// The connection is kept for another request.
    pub(crate) keep_alive: bool,
    /// The client speaks HTTP/1.0.
    pub(crate) http_1_0: bool,
    /// The client speaks TLS.
    pub(crate) tls: bool,
    /// The origin whose scripts may read the response.
    pub(crate) reader: &'a OriginReader,
}

/// Whether the length of a response's body is known when it begins.
pub(crate) fn is_sized(response: &Response) -> bool {
    !matches!(response.body, Body::Open(_) | Body::Parts(_))
}
