//! Live reads by server-sent events (section 5.8).

use std::sync::Arc;

use encke_stream::{Facts, MediaKind, Offset, Stream};

use super::{DurableStreams, cursor, encode};
use crate::action::{Action, Feed, Subscription};
use crate::request::Request;
use crate::response::Body;
use crate::run::Run;
use crate::sse;

impl DurableStreams {
    /// Opens a subscription. A client at the tail learns so at once.
    pub(super) fn subscribe(
        &self,
        request: &Request<'_>,
        stream: Arc<Stream>,
        facts: Facts,
        from: Offset,
        client_cursor: u64,
    ) -> Action {
        let floor = cursor::floor(request.now_ms, client_cursor);
        let mut first = Vec::new();
        let at_tail = from == facts.tail;
        if at_tail {
            let end = Run {
                items: &[],
                end: from,
                at_tail: true,
                closed: facts.closed,
            };
            encode::control(floor, &end, request.now_ms, &mut first);
        }
        let base64 = stream.media.kind == MediaKind::Binary;
        let response = sse::head()
            .field_if("Stream-SSE-Data-Encoding", base64.then_some("base64"))
            .body(Body::Open(first));
        if at_tail && facts.closed {
            return Action::Respond(response);
        }
        Action::Subscribe(Subscription {
            response,
            feed: Feed::Single {
                stream,
                from,
                encoder: self.encoder,
                option: floor,
            },
            ends_at_ms: None,
        })
    }
}
