//! Live reads that go on while records arrive: server-sent events (section 5.8), resumed by their ids as a browser's EventSource does
//! (HTML, section 9.2), and lines of JSON.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Facts, MediaKind, Offset, Stream};

use super::state::ReadContext;
use super::{cursor, encode, lines};
use crate::action::{Action, Feed, Subscription};
use crate::live_format::LiveFormat;
use crate::response::{Body, Response};
use crate::run::Run;

/// What a request says of its live read.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveRead {
    /// The form of the records.
    pub(super) format: LiveFormat,
    /// Lines have the times of records.
    pub(super) has_times: bool,
    /// The form is the one that `Accept` names.
    pub(super) is_negotiated: bool,
    /// The last cursor that the client has; 0 if it has none.
    pub(super) client_cursor: u64,
    /// The client resumes behind the event that says that the stream is closed.
    pub(super) has_end: bool,
}

impl LiveRead {
    /// Opens a subscription. A client at the tail learns so at once.
    pub(super) fn begin(
        self,
        cx: &ReadContext,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        now: WallTime,
    ) -> Action {
        let at_tail = from == facts.tail;
        if at_tail && facts.closed && self.has_end {
            // With this status an EventSource connects no more.
            return Action::Respond(Response::shared(204));
        }
        let floor = cursor::floor(now, self.client_cursor);
        let mut first = Vec::new();
        if at_tail {
            let end = Run::at_tail(from, facts);
            match self.format {
                LiveFormat::Events => encode::position(floor, &end, now, &mut first),
                LiveFormat::Lines => lines::control(floor, &end, now, &mut first),
            }
        }
        let (encoder, is_base64) = match self.format {
            LiveFormat::Events => (cx.event_encoder, stream.media.kind == MediaKind::Binary),
            LiveFormat::Lines => (cx.line_encoders.choose(self.has_times), false),
        };
        let response = self
            .format
            .head()
            .field_if("Stream-SSE-Data-Encoding", is_base64.then_some("base64"))
            .field_if("Vary", self.is_negotiated.then_some("Accept"));
        if at_tail && facts.closed {
            return Action::Respond(response.body(first));
        }
        Action::Subscribe(Subscription {
            beside: None,
            response: response.body(Body::Open(first)),
            feed: Feed::Single {
                stream,
                from,
                encoder,
                option: floor,
            },
        })
    }
}
