//! In which form records are sent to a client that follows them.

use crate::ndjson;
use crate::quality::weight;
use crate::request::Headers;
use crate::response::Response;
use crate::sse;

/// The form of a response that goes on while records arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveFormat {
    /// Server-sent events.
    Events,
    /// Lines of JSON.
    Lines,
}

impl LiveFormat {
    /// The form that a client prefers: lines if `Accept` names them, and does not name events with at least the same weight.
    pub(crate) fn accepted(headers: Headers<'_>) -> Self {
        let (mut events, mut lines) = (0, 0);
        let members = headers
            .all("Accept")
            .flat_map(|list| list.split(|byte| *byte == b','));
        for member in members {
            let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(weight).unwrap_or(1000);
            if name.eq_ignore_ascii_case(ndjson::MEDIA_TYPE.as_bytes()) {
                lines = weight.max(lines);
            } else if name.eq_ignore_ascii_case(sse::MEDIA_TYPE.as_bytes()) {
                events = weight.max(events);
            }
        }
        match lines > events {
            true => LiveFormat::Lines,
            false => LiveFormat::Events,
        }
    }

    /// The head of a response.
    pub(crate) fn head(self) -> Response {
        match self {
            LiveFormat::Events => sse::head(),
            LiveFormat::Lines => ndjson::head(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_for_clients_that_ask_for_them() {
        use LiveFormat::{Events, Lines};
        for (accept, expected) in [
            (&[][..], Events),
            (&["*/*"], Events),
            (&["application/json"], Events),
            (&["text/event-stream"], Events),
            (&["application/x-ndjson"], Lines),
            (&["Application/X-NDJSON; charset=utf-8"], Lines),
            (&["application/x-ndjson, */*;q=0.1"], Lines),
            (&["application/x-ndjson, text/event-stream"], Events),
            (&["application/x-ndjson, text/event-stream;q=0.9"], Lines),
            (&["text/event-stream;q=0.5", "application/x-ndjson"], Lines),
            (&["application/x-ndjson;q=0"], Events),
            (&["application/x-ndjsons"], Events),
        ] {
            let fields: Vec<_> = accept
                .iter()
                .map(|value| ("Accept", value.as_bytes()))
                .collect();
            assert_eq!(
                LiveFormat::accepted(Headers(&fields)),
                expected,
                "{accept:?}"
            );
        }
    }
}
