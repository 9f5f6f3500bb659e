//! The Durable Streams protocol, version 1.0: a stream is a URL.
//!
//! `read` answers GET and HEAD by way of `catch_up`, `poll` and `follow`; `write` answers POST and DELETE, `create` PUT;
//! `fields` reads the fields of requests, `response_fields` has those of responses, `encode` and `lines` write the records of live subscribers. Section numbers are those of the
//! protocol's text.

mod catch_up;
mod create;
mod cursor;
mod encode;
mod fields;
mod follow;
mod lines;
mod poll;
mod read;
mod requirements;
mod response_fields;
mod state;
mod write;

#[cfg(test)]
pub(crate) use self::encode::EventEncoder;
#[cfg(test)]
pub(crate) use self::lines::LineEncoder;

use encke_jobs::pool_of_stream;
use encke_stream::home;

use crate::action::Action;
use crate::append;
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::pool;
use crate::protocol::Protocol;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;
use crate::streams::load;
pub(crate) use state::DurableStreams;
pub use state::DurableStreamsSettings;

impl DurableStreams {
    /// Refuses a request that its caller may not make of the stream at its path.
    fn check_rights(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        let name = admitted.below;
        let rights = &self.streams.rights;
        let head = RequestHead {
            method: request.method,
            path: admitted.path,
            below: name,
            query: request.query,
            headers: request.headers,
        };
        admitted.meet(&requirements::at_its_path(&head, rights)?)?;
        rights.check_writer(
            requirements::operation(request.method, request.headers)?,
            name,
        )
    }

    /// Whether the request must wait for the order of its log before it is answered.
    fn awaits_order(&self, request: &Request<'_>, name: &str) -> bool {
        if !self.streams.in_fleet || request.barriers > 0 {
            return false;
        }
        match request.method {
            "GET" | "HEAD" => true,
            "PUT" => request.headers.first("Stream-Forked-From").is_some(),
            _ => {
                let asked = request.headers.first("Content-Type");
                let asked = asked.and_then(|asked| std::str::from_utf8(asked).ok());
                append::awaits_order(&self.streams, name, asked, request.now)
            }
        }
    }
}

impl Protocol for DurableStreams {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        requirements::METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &requirements::FIELDS
    }

    fn overview(&self) -> &'static str {
        "Streams      PUT, POST, GET, HEAD, DELETE  /v1/stream/{name}\n\
         Follow one   GET /v1/stream/{name}?offset=-1&live=sse    (EventSource)\n\
         In lines     GET /v1/stream/{name}?offset=-1&live=true   with Accept: application/x-ndjson\n\
         WebSocket    GET /v1/events or /v1/stream/{name}?offset=-1&live=websocket\n\
         Poll one     GET /v1/stream/{name}?offset={offset}&live=long-poll\n"
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        let [streams] = &self.mounts;
        requirements::requirements(head, streams, &self.streams.rights)
    }

    fn authorise(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        self.streams.check_name(admitted.below)?;
        let needed = self.requirements(&admitted.head(request))?;
        needed
            .first()
            .map_or(Ok(()), |needed| admitted.meet(needed))
    }

    fn free_parameters(&self, _below: &str) -> &'static [&'static str] {
        read::FREE_PARAMETERS
    }

    fn opens_events(&self, _below: &str, query: Option<&str>) -> bool {
        let mut pairs = query.unwrap_or_default().split('&');
        pairs.any(|pair| matches!(pair, "live=sse" | "live=true"))
    }

    fn opens_channel(&self, _below: &str, query: Option<&str>) -> bool {
        let mut pairs = query.unwrap_or_default().split('&');
        pairs.any(|pair| pair == "live=websocket")
    }

    fn request(&self, mut request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let name = admitted.below;
        if let Err(response) = self.streams.check_name(name) {
            return Action::Respond(response);
        }
        // What a fork needs at its source is asked when the fields of the creation are read. A channel's client without credentials
        // learns from the first message that it must send some.
        let checked = match request.upgrade && admitted.is_unidentified() {
            true => Ok(()),
            false => self.check_rights(&request, admitted),
        };
        if let Err(refused) = checked {
            return Action::Respond(refused);
        }
        if request.upgrade {
            let action = self.open_channel(&request, name, admitted);
            return action.unwrap_or_else(Action::Respond);
        }
        if request.method == "DELETE"
            && let Some(pool) = pool_of_stream(name)
        {
            return pool::delete_stream(pool, name);
        }
        if self.awaits_order(&request, name) {
            return Action::AwaitOrder(home(name, self.streams.views.logs()), request.body);
        }
        // Held until the action is decided, so that the stream stays in memory.
        let Some(known) = self.streams.known(name) else {
            return load(name, request.body);
        };
        let action = match request.method {
            "GET" => self.get(&request, name, admitted),
            "HEAD" => self.head(&request, name, admitted),
            "POST" => self.post(&mut request, name, admitted),
            "PUT" => self.put(&mut request, name, known, admitted),
            _ => self.delete(&request, name, admitted),
        };
        action.unwrap_or_else(Action::Respond)
    }
}
