//! The text at `/`: what this server is, and the lines of all protocols.

use crate::action::Action;
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::problem::check_method;
use crate::protocol::Protocol;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

/// The text at `/`.
#[derive(Debug)]
pub(crate) struct Overview {
    mounts: [Mount; 1],
    text: String,
}

impl Overview {
    /// The text about these protocols.
    pub(crate) fn of(protocols: &[Box<dyn Protocol>]) -> Self {
        let lines = protocols.iter().map(|protocol| protocol.overview());
        let lines: String = lines.collect();
        Overview {
            mounts: [Mount::at("/").public()],
            text: format!("{TITLE}\n{lines}\n{ADVICE}"),
        }
    }
}

impl Protocol for Overview {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn requirements<'a>(&self, _head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        Ok(Vec::new())
    }

    fn authorise(&self, request: &Request<'_>, _admitted: &Admitted<'_>) -> Result<(), Response> {
        check_method(request.method, METHODS)
    }

    fn request(&self, request: Request<'_>, _admitted: &Admitted<'_>) -> Action {
        Action::Respond(match check_method(request.method, METHODS) {
            Ok(()) => Response::plain_text(200).body(self.text.clone()),
            Err(refused) => refused,
        })
    }
}

const METHODS: &[&str] = &["GET", "HEAD"];

const TITLE: &str = "This is Encke, a real-time push server.\n";

const ADVICE: &str = "A browser opens at most six HTTP/1.1 connections to one origin, for all tabs together, and each EventSource takes one:\n\
    follow many streams over one connection. Programs use the same URLs, or an official Durable Streams client; poll where\n\
    connections cannot stay open, or through a cache.\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::{ProtocolSettings, Protocols};
    use crate::request::{CallerInfo, Headers};

    #[test]
    fn the_text_has_the_lines_of_all_protocols() {
        let protocols = Protocols::without_streams(&ProtocolSettings::default());
        let at = protocols.find("/");
        let admitted = at.admitted("GET", "/", crate::gate::Rights::Nobody);
        let request = Request {
            method: "GET",
            path: "/",
            query: None,
            headers: Headers(&[]),
            body: Vec::new(),
            caller: CallerInfo::default(),
            now: encke_clock::Now::default(),
            barriers: 0,
            upgrade: false,
        };
        let protocol = at.protocol().expect("it is mounted");
        let Action::Respond(response) = protocol.request(request, &admitted) else {
            panic!("the text is there at once");
        };
        assert_eq!(String::from_utf8_lossy(response.body.as_ref()), TEXT);
    }

    const TEXT: &str = "This is Encke, a real-time push server.\n\
    \n\
    Streams      PUT, POST, GET, HEAD, DELETE  /v1/stream/{name}\n\
    Follow one   GET /v1/stream/{name}?offset=-1&live=sse    (EventSource)\n\
    In lines     GET /v1/stream/{name}?offset=-1&live=true   with Accept: application/x-ndjson\n\
    WebSocket    GET /v1/events or /v1/stream/{name}?offset=-1&live=websocket\n\
    Poll one     GET /v1/stream/{name}?offset={offset}&live=long-poll\n\
    List them    GET /v1/stream?prefix={prefix}\n\
    Webhooks     PUT, GET, DELETE  /v1/stream/__ds/subscriptions/{id}\n\
    Follow many  GET /v1/events?stream={name}&stream=chat/**  (chat/* is every stream below chat/)\n\
    Pools        PUT, PATCH, POST, GET, DELETE  /v1/pool/{name}\n\
    Work for one POST /v1/pool/{name}/work?worker={worker}\n\
    Health       /healthz  /readyz  /metrics\n\
    Operators    /admin\n\
    \n\
    A browser opens at most six HTTP/1.1 connections to one origin, for all tabs together, and each EventSource takes one:\n\
    follow many streams over one connection. Programs use the same URLs, or an official Durable Streams client; poll where\n\
    connections cannot stay open, or through a cache.\n";
}
