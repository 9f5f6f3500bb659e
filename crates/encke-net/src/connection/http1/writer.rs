//! Responses of HTTP/1.1.

use std::collections::VecDeque;

use encke_protocol::Response;
use encke_stream::FileRange;

use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::writer::{ResponseShape, ResponseWriter};
use crate::connection::exchange_id::ExchangeId;
use crate::connection::outbound::FileOutput;
use crate::http::framing::ResponseFraming;
use crate::http::response::{Shape, encode};

/// Writes responses as HTTP/1.1.
pub(super) struct Http1Writer {
    exchange: ExchangeId,
    framing: ResponseFraming,
    /// The socket has not taken what was written before.
    is_blocked: bool,
    /// The bytes of responses go through the socket as they are.
    is_plain: bool,
}

impl Http1Writer {
    pub(super) fn new(
        exchange: ExchangeId,
        http_1_0: bool,
        is_blocked: bool,
        is_plain: bool,
    ) -> Self {
        Http1Writer {
            exchange,
            framing: framing(http_1_0),
            is_blocked,
            is_plain,
        }
    }
}

impl ResponseWriter for Http1Writer {
    fn begin(&mut self, response: &Response, shape: ResponseShape<'_>, cx: &mut Context<'_>) {
        self.framing = framing(shape.http_1_0);
        let shape = Shape {
            head_only: shape.head_only,
            keep_alive: shape.keep_alive,
            cross_origin: cx.router.cross_origin(shape.reader),
            hsts: cx.hsts.filter(|_| shape.tls),
            framing: self.framing,
            request_id: cx.requests.request_id(self.exchange),
        };
        let date = cx.clock.date();
        let head_bytes = encode(response, shape, date, &mut cx.effects.output);
        cx.requests
            .begin_response(self.exchange, response.status, head_bytes);
    }

    fn part(&mut self, part: &[u8], is_last: bool, cx: &mut Context<'_>) {
        let out = &mut cx.effects.output;
        self.framing.part(part, out);
        if is_last {
            self.framing.end(out);
        }
    }

    fn takes_files(&self) -> bool {
        self.is_plain
    }

    fn file_part(
        &mut self,
        files: Vec<(Vec<u8>, FileRange)>,
        behind: &'static [u8],
        is_last: bool,
        cx: &mut Context<'_>,
    ) {
        let framing = self.framing;
        let mut ranges = VecDeque::with_capacity(files.len());
        let mut tail = Vec::new();
        for (bytes, range) in files {
            framing.begin_part(bytes.len() as u64 + range.bytes, &mut tail);
            tail.extend_from_slice(&bytes);
            ranges.push_back((std::mem::take(&mut tail), range));
            framing.end_part(&mut tail);
        }
        framing.part(behind, &mut tail);
        if is_last {
            framing.end(&mut tail);
        }
        cx.push(ConnectionEffect::SendFiles(Box::new(FileOutput {
            ranges,
            tail,
        })));
    }

    fn is_blocked(&self, cx: &Context<'_>) -> bool {
        self.is_blocked || !cx.effects.output.is_empty()
    }
}

fn framing(http_1_0: bool) -> ResponseFraming {
    match http_1_0 {
        true => ResponseFraming::Connection,
        false => ResponseFraming::Chunks,
    }
}
