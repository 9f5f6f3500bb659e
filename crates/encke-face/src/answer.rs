//! What a face makes of a request.

use std::sync::Arc;

use encke_jobs::PoolRequest;
use encke_stream::{Command, Fetch, Offset, Sequence, Stream};

use crate::durable_streams::Pending;
use crate::pool::Asked;
use crate::{Response, Style};

/// What is to be done for a request.
#[derive(Debug)]
pub enum Answer {
    /// Say this.
    Respond(Response),
    /// Look this name up in the store, then ask again.
    Look(Look),
    /// Commit this, then ask [`Faces::committed`](crate::Faces::committed).
    Commit(Command, Then),
    /// Read this, then ask [`Faces::fetched`](crate::Faces::fetched).
    Fetch(Fetch, Then),
    /// Say this, the beginning of a long answer; when it is out, read what follows, then ask
    /// [`Faces::continued`](crate::Faces::continued).
    Stream(Response, Fetch, Then),
    /// Say this, then send every record from there on until one of the two hangs up.
    Subscribe(Subscribe),
    /// Say this, then send every record of all of these streams from there on.
    SubscribeAll(SubscribeAll),
    /// Ask the pools this, and send what [`Faces::told`](crate::Faces::told) makes of what they say, once
    /// or as long as the connection holds.
    Ask(PoolRequest, Then),
    /// Wait for a record, then ask [`Faces::polled`](crate::Faces::polled).
    Poll(Poll),
}

/// A name of which nothing is known in memory. Once a reader thread has loaded it, and as long as
/// what it found is held, the same request gets on.
#[derive(Debug)]
pub struct Look {
    /// The name.
    pub name: Box<str>,
    /// The request's body, given back.
    pub body: Vec<u8>,
}

/// A subscription for as long as the connection holds.
#[derive(Debug)]
pub struct Subscribe {
    /// To what.
    pub stream: Arc<Stream>,
    /// From where.
    pub from: Offset,
    /// The response that opens it.
    pub response: Response,
    /// How its records are written.
    pub style: Style,
}

/// A subscription to several streams for as long as the connection holds.
#[derive(Debug)]
pub struct SubscribeAll {
    /// To which, and from where.
    pub members: Vec<Member>,
    /// Every record up to this one is the client's already, whatever the stream: a position for each log, by their
    /// indices.
    pub after: Vec<Sequence>,
    /// The response that opens it.
    pub response: Response,
}

/// One of the streams of a subscription to several.
#[derive(Debug)]
pub struct Member {
    /// The stream.
    pub stream: Arc<Stream>,
    /// From where, unless everything up to there is the client's already.
    pub from: Offset,
    /// Its place in the request, from 0.
    pub place: u8,
}

/// A subscription for one response.
#[derive(Debug)]
pub struct Poll {
    /// To what.
    pub stream: Arc<Stream>,
    /// From where; nothing is known to be there yet.
    pub from: Offset,
    /// When to give up, in milliseconds since 1970.
    pub until_ms: u64,
    /// What to ask the face with.
    pub then: Then,
}

/// A part of a long answer.
#[derive(Debug)]
pub struct Part {
    /// Its bytes; there may be none.
    pub bytes: Vec<u8>,
    /// What to read for the next part once this one is out; nothing after the last.
    pub next: Option<(Fetch, Then)>,
}

/// What a face remembers of a request that waits.
#[derive(Debug)]
pub struct Then(pub(crate) Box<Pending>);

impl Then {
    /// Whether it is a question to the pools whose answer may take long: who hangs up meanwhile wants
    /// none.
    pub fn waits_long(&self) -> bool {
        matches!(&*self.0, Pending::Pool(asked) if !matches!(asked, Asked::Once { .. }))
    }
}

/// Why something that was waited for will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It was let go of.
    NoLongerKept,
    /// More waits already than is allowed; the client may come back.
    Overloaded,
    /// The data could not be read.
    Unreadable,
    /// The server is going away.
    Stopping,
}
