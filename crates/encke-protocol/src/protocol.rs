//! What a protocol is: where it is served, what its requests need, which fields it reads, and what it does.
//!
//! The router, the gate, `encke token explain`, the lists for scripts of other origins, the check of misspelled fields and the text at
//! `/` ask here, and have no lists of their own.

use std::fmt;

use encke_access::{CallersIn, UnknownAuthority};

use crate::action::{Action, Channel};
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::moved_channel::MovedChannel;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

/// A protocol over the committed streams. To add one, write its folder and register it in [`Protocols`](crate::protocols::Protocols).
pub(crate) trait Protocol: fmt::Debug + Send + Sync {
    /// Where it is served. Of all protocols the one with the longest mount that matches gets a request.
    fn mounts(&self) -> &[Mount];

    /// The methods that it serves. Pages of allowed origins may use them.
    fn methods(&self) -> &'static [&'static str];

    /// The header fields of its requests and responses.
    fn fields(&self) -> &'static KnownFields;

    /// Its lines of the text at `/`, each ended by a line feed.
    fn overview(&self) -> &'static str {
        ""
    }

    /// All rights that a request needs. None: any caller may send it, or there is nothing at its path.
    ///
    /// # Errors
    /// The response to a request that is refused whoever sends it.
    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response>;

    /// Refuses a request that its caller may not make, by its head alone: no byte of its body is read before. Credentials of the
    /// protocol's own are checked here. What the request needs elsewhere than at its own path, such as at the source of a fork,
    /// [`Protocol::request`] asks for.
    fn authorise(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        let needed = self.requirements(&admitted.head(request))?;
        needed
            .first()
            .map_or(Ok(()), |needed| admitted.meet(needed))
    }

    /// Whether a request may change something. `below`: the part of its path that the mount's `**` stands for.
    fn changes(&self, method: &str, _below: &str) -> bool {
        is_unsafe(method)
    }

    /// The parameters of a GET that a signed URL need not sign: they say how the request reads, and
    /// nothing of what it may read. `below` as above.
    fn free_parameters(&self, _below: &str) -> &'static [&'static str] {
        &[]
    }

    /// Whether requests bring credentials that only the protocol knows: then those of the access control are not
    /// looked for, the request passes without rights, and [`Protocol::authorise`] checks it. `below` as above.
    fn has_own_credentials(&self, _method: &str, _below: &str) -> bool {
        false
    }

    /// The number of the app whose secret has signed a request that [`Protocol::authorise`] let pass. The memory of its body counts for
    /// that app. `below` as above.
    fn signing_app(&self, _below: &str) -> Option<u32> {
        None
    }

    /// Whether a GET, if it is served, opens a stream of server-sent events.
    fn opens_events(&self, _below: &str, _query: Option<&str>) -> bool {
        false
    }

    /// Whether a GET opens a channel if it asks for one ([`Request::upgrade`]). `below` as above.
    fn opens_channel(&self, _below: &str, _query: Option<&str>) -> bool {
        false
    }

    /// Whether it judges itself which pages may open a channel: then the origins of the server's settings mean nothing for its channels.
    /// `below` as above.
    fn judges_origins(&self, _below: &str) -> bool {
        false
    }

    /// Takes a channel over from another process. `None`: it is one of another protocol.
    fn move_in(&self, _channel: &MovedChannel, _callers: &CallersIn) -> Option<ChannelMovedIn> {
        None
    }

    /// What to do for a request. One that asks for a channel comes only where [`Protocol::opens_channel`] is true.
    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action;
}

/// A channel that was taken over, or why it could not be.
pub(crate) type ChannelMovedIn = Result<Box<dyn Channel>, UnknownAuthority>;

/// Whether a method may change something by its definition (RFC 9110, section 9.2.1).
pub(crate) fn is_unsafe(method: &str) -> bool {
    !matches!(method, "GET" | "HEAD")
}
