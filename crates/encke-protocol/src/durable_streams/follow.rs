//! Live reads by server-sent events (section 5.8).

use std::sync::Arc;

use encke_stream::{Facts, MediaKind, Offset, Stream};

use super::{answer, cursor, events};
use crate::action::{Action, Subscribe};
use crate::run::{Run, Style};
use crate::{Body, Request};

/// Opens a subscription. Whoever is at the tail is told so at once.
pub(super) fn subscribe(
    request: &Request<'_>,
    stream: Arc<Stream>,
    facts: Facts,
    from: Offset,
    brought: u64,
) -> Action {
    let kind = stream.media.kind;
    let floor = cursor::floor(request.now_ms, brought);
    let style = Style::DurableStreams {
        kind,
        cursor_floor: floor,
    };
    let mut first = Vec::new();
    let at_tail = from == facts.tail;
    if at_tail {
        let end = Run {
            items: &[],
            end: from,
            at_tail: true,
            closed: facts.closed,
        };
        events::control(floor, &end, request.now_ms, &mut first);
    }
    let response = answer(200)
        .field("Content-Type", "text/event-stream")
        .field("Cache-Control", "no-cache")
        .field_if(
            "Stream-SSE-Data-Encoding",
            (kind == MediaKind::Binary).then_some("base64"),
        )
        // Proxies that gather responses would hold back events.
        .field("X-Accel-Buffering", "no")
        .body(Body::Open(first));
    if at_tail && facts.closed {
        return Action::Respond(response);
    }
    Action::Subscribe(Subscribe {
        stream,
        from,
        response,
        style,
    })
}
