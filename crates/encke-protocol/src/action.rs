//! What the reactor does for a request, and the continuations that it resumes.
//!
//! Each continuation is a trait object of exactly the event that it waits for, so it cannot be resumed with another one.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use encke_access::{Caller, CallersOut, ClientCertificate};
use encke_clock::{Now, WallTime};
use encke_presence::NewMember;
use encke_stream::{
    Command, EphemeralMessage, Fetch, FileRange, ListFetch, Offset, Outcome, Pattern, Sequence,
    Stream, StreamPage, Viewer, log_of,
};

use crate::admin::inquiry::Inquiry;
use crate::encoder::{AheadStream, EncoderId, MergeEncoderId, StreamGeneration};
use crate::moved_channel::MovedChannel;
use crate::response::Response;
use crate::run::Run;

/// A request to the dispatcher of the pools, and what the dispatcher sends for it.
pub use encke_jobs::{DispatchRequest, DispatchResponse};

/// What the reactor does next for a request.
#[derive(Debug)]
pub enum Action {
    /// Send this response.
    Respond(Response),
    /// Load the stream of this name into memory, then ask the router again.
    Load(LoadName),
    /// Another thread fetches the keys of the issuer of the request's token, or probes the health of the server: ask the router again
    /// whenever such work is over, or respond with this if too many requests wait. The body is the request's, given back.
    Park(Response, Vec<u8>),
    /// On a node of a fleet: wait until the log with this index has everything that was acknowledged before, then ask the router
    /// again. The body is the request's, given back.
    AwaitOrder(usize, Vec<u8>),
    /// Commit the command, then resume.
    Commit(Command, Box<dyn OnCommit>),
    /// Hand a message to those who are subscribed to its stream now, then resume.
    Broadcast(Box<Broadcast>),
    /// Commit the command, then do what follows from its outcome.
    Change(Command, Box<dyn OnChange>),
    /// Read a part of a stream, then resume.
    Read(Fetch, Box<dyn OnRead>),
    /// Read a page of the list of streams, then resume.
    List(ListFetch, Box<dyn OnList>),
    /// Have the question of an operator answered beside the shards, then send the answer.
    Inspect(Box<Inquiry>),
    /// Send this response, the beginning of a long body, then the parts that follow it.
    Stream(Response, NextPart),
    /// Send the head of a subscription, then every record that follows.
    Subscribe(Subscription),
    /// Wait for a record, then resume: a long poll.
    Wait(Wait),
    /// Send a request to the dispatcher, then resume with its answer.
    Dispatch(DispatchRequest, Box<dyn OnDispatch>),
    /// Open a channel: a conversation of messages in both directions, on a wire that has them.
    Open(ChannelOpening),
    /// On a channel: end the feed with that key, then send this response.
    Unsubscribe(u32, Response),
    /// On a channel: close it.
    Close(ChannelClose),
}

impl Action {
    /// Whether what it begins may count for a quota of its caller.
    pub fn may_count(&self) -> bool {
        matches!(
            self,
            Action::Commit(..)
                | Action::Broadcast(_)
                | Action::Change(..)
                | Action::Subscribe(_)
                | Action::Wait(_)
                | Action::Open(_)
        )
    }

    /// Whether what it begins may go on for long, as a request by which its caller gets something.
    pub(crate) fn lasts(&self) -> bool {
        match self {
            Action::Read(..)
            | Action::Stream(..)
            | Action::Subscribe(_)
            | Action::Wait(_)
            | Action::Dispatch(..) => true,
            // A channel asks for each message.
            Action::Open(_) | Action::Unsubscribe(..) | Action::Close(_) => false,
            Action::Respond(_)
            | Action::Load(_)
            | Action::Park(..)
            | Action::AwaitOrder(..)
            | Action::Commit(..)
            | Action::Broadcast(_)
            | Action::Change(..)
            | Action::List(..)
            | Action::Inspect(_) => false,
        }
    }
}

/// A channel, and how it begins.
#[derive(Debug)]
pub struct ChannelOpening {
    /// The response that opens it, with the status 101. The wire adds the fields that are its own.
    pub response: Response,
    /// The protocol's side of it.
    pub channel: Box<dyn Channel>,
    /// Messages that are handled as if the client had sent them first: the subscription that the URL names.
    pub first: Vec<Vec<u8>>,
}

/// How a protocol closes one of its channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelClose {
    /// The last message; empty for none.
    pub message: Vec<u8>,
    /// The close code, one of those that applications may send (RFC 6455, section 7.4.2).
    pub code: u16,
    /// The reason in the close frame, at most 123 bytes.
    pub why: &'static str,
    /// What stands for the code in metrics and in the access log.
    pub label: &'static str,
}

/// Why the wire closes a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEnd {
    /// The server stops, or the connection can't move to its successor.
    Stopping,
    /// Another node serves the client.
    ServedElsewhere,
    /// The client did not answer a ping.
    NoPong,
    /// A feed has ended although the client has not ended it.
    FeedEnded,
    /// A message could not be served now (503), and might be later, or by another server.
    Unserved,
}

/// The protocol's side of a channel. It keeps the caller and the names of subscriptions. Between two messages it is idle data.
pub trait Channel: Debug + Send {
    /// What to do for a text message. The bodies of all responses that it leads to are messages of the channel, whatever their status
    /// says; an empty body sends nothing. For [`Action::Load`], [`Action::Park`] and [`Action::AwaitOrder`] the reactor asks again
    /// with the same text.
    fn message(&mut self, message: ChannelMessage<'_>) -> ChannelAction;
    /// The feed with that key has ended. Returns what the client is told of it, if its last bytes have not.
    fn ended(&mut self, key: u32, end: FeedEnd) -> Vec<u8>;
    /// The channel closes: its feeds have ended. Gives up everything that counts while they last, because the last bytes may take long.
    fn closes(&mut self) {}
    /// A feed ends because it exceeds a bound of the channel's new caller. Returns the last message of the feed; `refused` is the
    /// response to the subscription as a request.
    fn refuse_feed(&mut self, key: u32, _refused: Response) -> Vec<u8> {
        self.ended(key, FeedEnd::Told)
    }
    /// The channel's form of a refusal by the reactor, such as that the server is overloaded. `text` is the client's message. With the
    /// status 503 the channel ends as [`ChannelEnd::Unserved`].
    fn refuse(&self, text: &str, refused: Response) -> Response;
    /// Judges the channel by the grants that its caller has now; the reactor asks before each message, and when the configuration has
    /// changed. `None`: nothing has changed, or the caller's credential is not accepted any more, which ends the channel soon.
    fn regrant(&mut self) -> Option<RegrantedChannel>;
    /// The message that tells the client that its caller's time is over, before the channel is closed. `why` is one line.
    fn farewell(&self, why: &str) -> Vec<u8>;
    /// Whether it has a caller, or needs none. A channel without one accepts nothing but credentials; the wire closes it if none come in
    /// time.
    fn has_caller(&self) -> bool;
    /// The channel in a form in which another process takes it over: [`Router::move_in`](crate::Router::move_in) makes the same channel
    /// of it.
    fn moved(&self, callers: &mut CallersOut) -> MovedChannel;
    /// The close code that its clients know for such an end. `None`: the one of the wire. [`ChannelEnd::FeedEnded`] and
    /// [`ChannelEnd::Unserved`] close only channels that have a code for it.
    fn close_code(&self, _end: ChannelEnd) -> Option<u16> {
        None
    }
    /// Who its client is among the members of the streams that it subscribes to. `None`: nobody, or the protocol has members of its own.
    fn member(&self) -> Option<NewMember> {
        None
    }
    /// The number by which messages name the channel that has caused them ([`Omission`](crate::Omission)). It gets none of those.
    fn number(&self) -> Option<u64> {
        None
    }
}

/// A text message of a client.
#[derive(Clone, Copy, Debug)]
pub struct ChannelMessage<'a> {
    /// The text.
    pub text: &'a str,
    /// The time.
    pub now: Now,
    /// On a node of a fleet: how often the message has waited for the order ([`Action::AwaitOrder`]).
    pub barriers: usize,
    /// The certificate of the channel's connection.
    pub certificate: Option<&'a ClientCertificate>,
    /// The address to which limits apply, unless the client is exempt from them.
    pub address: Option<IpAddr>,
}

/// What follows from a message.
#[derive(Debug)]
pub struct ChannelAction {
    /// What the reactor does.
    pub action: Action,
    /// The key of the feed that [`Action::Subscribe`] begins, unique on the channel while the feed lasts; 0 otherwise. With
    /// [`Action::Read`] it is the key of the feed that may begin behind the read: if none does, [`Channel::ended`] is called. Until that
    /// is decided no further message is looked at.
    pub key: u32,
    /// The caller from now on, if the message has changed it.
    pub caller: Option<Option<Arc<Caller>>>,
    /// Feeds that end after the action, by their keys, because the new caller may not have them. Each response is sent behind the last
    /// bytes of its feed. [`Channel::ended`] is not called for them, as for [`Action::Unsubscribe`].
    pub ended: Vec<(u32, Response)>,
}

/// What is left of a channel whose caller is granted something else.
#[derive(Debug)]
pub struct RegrantedChannel {
    /// The caller from now on.
    pub caller: Arc<Caller>,
    /// Feeds that end, as those of [`ChannelAction::ended`].
    pub ended: Vec<(u32, Response)>,
}

/// Waits for the outcome of a command.
pub trait OnCommit: Debug + Send {
    /// The response to the request.
    fn committed(self: Box<Self>, outcome: Outcome) -> Response;
    /// The response to a request whose command the reactor could not hand over. `refused` is the one of plain requests.
    fn not_submitted(self: Box<Self>, refused: Response) -> Response {
        refused
    }
}

/// A message for those who are subscribed to its stream now.
#[derive(Debug)]
pub struct Broadcast {
    /// The message.
    pub message: EphemeralMessage,
    /// The channel that sends it gets it, too, if it is subscribed. Without effect for a request.
    pub echoes: bool,
    /// The continuation.
    pub then: Box<dyn OnBroadcast>,
}

/// Waits until a message is handed over.
pub trait OnBroadcast: Debug + Send {
    /// The response when it is. That does not say who gets it.
    fn handed_over(self: Box<Self>) -> Response;
    /// The response to a message that the reactor could not hand over. `refused` is the one of plain requests.
    fn not_handed_over(self: Box<Self>, refused: Response) -> Response {
        refused
    }
}

/// Waits for the outcome of a command that is a step of a request.
pub trait OnChange: Debug + Send {
    /// What follows from the outcome.
    fn changed(self: Box<Self>, outcome: Outcome, now: Now) -> Action;
    /// The response to a request whose command the reactor could not hand over. `refused` is the one of plain requests.
    fn not_submitted(self: Box<Self>, refused: Response) -> Response {
        refused
    }
}

/// Waits for a page of the list of streams.
pub trait OnList: Debug + Send {
    /// The response.
    fn listed(self: Box<Self>, page: Result<StreamPage, Failure>) -> Response;
}

/// Waits for a part of a stream.
pub trait OnRead: Debug + Send {
    /// What follows from the records that were read.
    fn read(self: Box<Self>, run: Result<Run<'_>, Failure>, now: WallTime) -> Action;
}

/// Waits for a part of a long body.
pub trait OnPart: Debug + Send {
    /// Whether it takes [`Run::joined`] where that is at hand, and needs no items then.
    fn takes_joined(&self) -> bool {
        false
    }
    /// The next part of the body. `None`: the stream has ended, and the reactor cuts the response off.
    fn part(self: Box<Self>, run: &Run<'_>) -> Option<BodyPart>;
}

/// How a feed of a channel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedEnd {
    /// It has never begun, and the client was told why.
    NeverBegan,
    /// Its stream has ended, and its last bytes have told the client.
    Told,
    /// The client was told, or is told by the close code, to come back.
    Dismissed,
    /// Its stream was deleted, and no encoder knows the stream's name any more.
    Deleted,
    /// It can't go on. The client may subscribe again. The words say why.
    Failed(&'static str),
}

/// Waits for a record of a stream. It becomes an [`OnRead`] when the record must be read from the log.
pub trait OnRecord: OnRead {
    /// The response when records have arrived, or when the stream is closed.
    fn arrived(self: Box<Self>, run: Run<'_>, now: WallTime) -> Response;
    /// The response when no record arrives in time.
    fn timed_out(self: Box<Self>, now: WallTime) -> Response;
    /// The response when the stream is deleted.
    fn ended(self: Box<Self>) -> Response;
}

/// Waits for the dispatcher.
pub trait OnDispatch: Debug + Send {
    /// What follows from the dispatcher's first event.
    fn dispatched(self: Box<Self>, event: DispatchResponse) -> Dispatched;
    /// Whether the answer may take long. Then the reactor gives the request up when the client closes its side.
    fn waits_long(&self) -> bool;
}

/// Encodes the events that the dispatcher sends to a worker for as long as its connection lasts.
pub trait OnWorkerEvent: Debug + Send {
    /// The bytes of one event.
    fn event(&self, event: DispatchResponse) -> WorkerOutput;
    /// The last bytes to a worker whose connection the server closes. `why` is one line for the worker.
    fn farewell(&self, why: &str) -> Vec<u8>;
    /// The bytes that keep a quiet connection alive.
    fn heartbeat(&self) -> &'static [u8];
}

/// What follows from the dispatcher's first event.
#[derive(Debug)]
pub enum Dispatched {
    /// Send this response.
    Respond(Response),
    /// Send the head of a stream of events, then what the continuation makes of each further event.
    Open(Response, Box<dyn OnWorkerEvent>),
}

/// Bytes for a worker.
#[derive(Debug)]
pub enum WorkerOutput {
    /// More follow.
    Send(Vec<u8>),
    /// Close the connection behind them.
    End(Vec<u8>),
}

/// A name of which nothing is in memory. The reactor repeats the request when a reader thread has loaded it.
#[derive(Debug)]
pub struct LoadName {
    /// The name.
    pub name: Box<str>,
    /// The request's body, given back.
    pub body: Vec<u8>,
}

/// A subscription for as long as the connection lasts.
#[derive(Debug)]
pub struct Subscription {
    /// The response that opens it.
    pub response: Response,
    /// What it delivers.
    pub feed: Feed,
    /// On a channel: a feed of its own that begins with it.
    pub beside: Option<Box<FeedBeside>>,
}

/// A feed that begins with another one.
#[derive(Debug)]
pub struct FeedBeside {
    /// Its key, as [`ChannelAction::key`].
    pub key: u32,
    /// What it delivers.
    pub feed: Feed,
}

/// What a subscription delivers.
#[derive(Debug)]
pub enum Feed {
    /// The records of one stream.
    Single {
        /// The stream.
        stream: Arc<Stream>,
        /// The position behind which the records begin.
        from: Offset,
        /// The encoder of its records.
        encoder: EncoderId,
        /// The encoder's own option, see [`Variant::option`](crate::Variant::option).
        option: u64,
    },
    /// All records of the stream of a name that no stream has yet, when one is created.
    Awaited {
        /// The name.
        name: Arc<str>,
        /// Groups such names, which [`Views::awaited`](encke_stream::Views::awaited) counts.
        group: u64,
        /// A record of the log that is the name's home: no stream had the name then.
        at: Sequence,
        /// The encoder of its records.
        encoder: EncoderId,
        /// The encoder's own option.
        option: u64,
    },
    /// The records of several streams, merged in the order of the log.
    Merged {
        /// What it has records of; at least one source.
        sources: Vec<MergeSource>,
        /// The client has every record up to these positions, whatever the stream: one for each log, by index.
        after: Vec<Sequence>,
        /// The streams that the client's positions are of, those that have ended included.
        generations: Box<[StreamGeneration]>,
        /// A digest of the names in the client's request, for its positions.
        names: u32,
        /// The encoder of their records.
        encoder: MergeEncoderId,
        /// The name of the subscription, for encoders that state it; empty otherwise.
        label: Box<str>,
        /// Streams that the request names and that have ended, if the client has more of them than `after` says.
        ended: Vec<AheadStream>,
    },
}

/// What a merged feed has records of.
#[derive(Debug)]
pub struct MergeSource {
    /// A stream, or a pattern of names in one of the logs.
    pub kind: SourceKind,
    /// The position behind which its records begin, unless the client has everything up to there already.
    pub from: Offset,
    /// Its place in the request, from 0.
    pub place: u8,
}

/// One stream of a merged feed, or all that match a pattern.
#[derive(Clone, Debug)]
pub enum SourceKind {
    /// A stream.
    Stream(Arc<Stream>),
    /// The streams of a log that match a pattern, those that are created later included.
    Pattern {
        /// The names.
        pattern: Arc<ViewedPattern>,
        /// The index of the log.
        log: u8,
    },
}

/// The names that a client has asked for, and whose streams it gets of those.
#[derive(Debug)]
pub struct ViewedPattern {
    /// The names.
    pub names: Arc<Pattern>,
    /// Whose streams.
    pub viewer: Viewer,
}

impl SourceKind {
    /// The index of the log.
    pub fn log(&self) -> usize {
        match self {
            SourceKind::Stream(stream) => log_of(stream.no),
            SourceKind::Pattern { log, .. } => usize::from(*log),
        }
    }

    /// The stream, if it is one.
    pub fn stream(&self) -> Option<&Arc<Stream>> {
        match self {
            SourceKind::Stream(stream) => Some(stream),
            SourceKind::Pattern { .. } => None,
        }
    }
}

/// A long poll: waits for one response.
#[derive(Debug)]
pub struct Wait {
    /// The stream whose record it waits for.
    pub stream: Arc<Stream>,
    /// The position behind which the record lies.
    pub from: Offset,
    /// How long it waits, in milliseconds.
    pub wait_ms: u64,
    /// The continuation.
    pub then: Box<dyn OnRecord>,
}

/// A part of a long body.
#[derive(Debug)]
pub struct BodyPart {
    /// What follows the bytes and lies in files, each with what is before it.
    pub files: Vec<(Vec<u8>, FileRange)>,
    /// What follows the files.
    pub behind: &'static [u8],
    /// Its bytes; possibly none.
    pub bytes: Vec<u8>,
    /// The part behind it; `None` after the last.
    pub next: Option<NextPart>,
}

/// The part of a long body that is read when the socket has taken the one before.
#[derive(Debug)]
pub struct NextPart {
    /// What is read for it.
    pub fetch: Fetch,
    /// The continuation.
    pub then: Box<dyn OnPart>,
}

/// Why an event that a continuation waits for does not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Retention has removed the data.
    NoLongerKept,
    /// A queue is full; the client may try again.
    Overloaded,
    /// The data could not be read.
    Unreadable,
    /// The server stops.
    Stopping,
}
