//! Live reads by server-sent events (section 5.8), resumed by their ids as a browser's EventSource does (HTML, section 9.2).

use std::sync::Arc;

use encke_stream::{Facts, MediaKind, Offset, Stream};

use super::{DurableStreams, cursor, encode};
use crate::action::{Action, Feed, Subscription};
use crate::request::Request;
use crate::response::{Body, Response};
use crate::run::Run;
use crate::sse;

/// What a request says of its live read by events.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveEvents {
    /// The last cursor that the client has; 0 if it has none.
    pub(super) client_cursor: u64,
    /// The client resumes behind an event that it has.
    pub(super) resumes: bool,
}

impl DurableStreams {
    /// Opens a subscription. A client at the tail learns so at once.
    pub(super) fn subscribe(
        &self,
        request: &Request<'_>,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        live: LiveEvents,
    ) -> Action {
        let at_tail = from == facts.tail;
        if at_tail && facts.closed && live.resumes {
            // With this status an EventSource connects no more.
            return Action::Respond(Response::shared(204));
        }
        let floor = cursor::floor(request.now.wall_ms, live.client_cursor);
        let mut first = Vec::new();
        if at_tail {
            let end = Run {
                items: &[],
                end: from,
                at_tail: true,
                closed: facts.closed,
            };
            encode::position(floor, &end, request.now.wall_ms, &mut first);
        }
        let base64 = stream.media.kind == MediaKind::Binary;
        let response = sse::head().field_if("Stream-SSE-Data-Encoding", base64.then_some("base64"));
        if at_tail && facts.closed {
            return Action::Respond(response.body(first));
        }
        Action::Subscribe(Subscription {
            response: response.body(Body::Open(first)),
            feed: Feed::Single {
                stream,
                from,
                encoder: self.encoder,
                option: floor,
            },
        })
    }
}
