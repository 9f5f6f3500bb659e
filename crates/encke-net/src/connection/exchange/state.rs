//! An exchange, and what it waits for.

use encke_access::SubscriberHold;
use encke_log::ReadError;
use encke_presence::NewMember;
use encke_protocol::{
    AuditNote, CallerInfo, DispatchResponse, FeedBeside, OnRecord, OriginReader, Response,
};
use encke_stream::{Fetch, LoadError, Lookup, Outcome, Piece, StreamPage};

use super::task::Task;
use crate::broadcast::NotBroadcast;
use crate::clients::addresses::Denied;
use crate::clients::callers::CallerEnd;
use crate::clock::Monotonic;
use crate::compression::{CompressedPiece, Compressor};
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange_id::ExchangePlace;
use crate::connection::timer::Timer;
use crate::websocket::handshake::ACCEPT_BYTES;
use crate::websocket::negotiation::DeflateAgreement;

/// One request and its response.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) place: ExchangePlace,
    pub(crate) task: Task,
    pub(crate) facts: RequestFacts,
    pub(crate) timer: Timer,
    /// Since when a long body waits for its client, if it does.
    pub(super) blocked_since: Option<Monotonic>,
    /// The time of the caller has ended during a read.
    pub(super) caller_end: Option<CallerEnd>,
    /// Of a message of a channel that may begin feeds.
    pub(crate) begins: Option<Box<MessageFeeds>>,
}

/// Parts of the feeds that a message of a channel may begin.
#[derive(Debug)]
pub(crate) struct MessageFeeds {
    /// The subscription, which was counted before the channel was asked.
    pub(crate) hold: Option<SubscriberHold>,
    /// Once it is subscribed: the feed that begins with it.
    pub(crate) beside: Option<Box<FeedBeside>>,
}

/// What of a request matters for its response.
#[derive(Debug, Default)]
pub(crate) struct RequestFacts {
    pub(crate) head_only: bool,
    pub(crate) keep_alive: bool,
    pub(crate) http_1_0: bool,
    /// The client takes events, and gives up for good at any status but 200: see [`for_event_source`].
    ///
    /// [`for_event_source`]: encke_protocol::for_event_source
    pub(super) takes_events: bool,
    pub(super) tls: bool,
    pub(super) reader: OriginReader,
    /// Who a subscriber is among the members of its streams.
    pub(crate) member: Option<Box<NewMember>>,
    /// What the audit log says of the request when it is answered.
    pub(super) note: Option<Box<AuditNote>>,
    /// The request is a handshake of WebSocket.
    pub(super) is_handshake: bool,
    /// The answer to the key of a handshake over HTTP/1.1.
    pub(crate) accept: Option<Box<[u8; ACCEPT_BYTES]>>,
    /// What that handshake agrees on for the compression of messages.
    pub(crate) deflate: Option<DeflateAgreement>,
}

/// What the exchange of a request needs to know of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionFacts {
    /// The client speaks TLS: to the server, or to a proxy that says so.
    pub(crate) tls: bool,
    /// Connected to the address for operators.
    pub(crate) operator: bool,
    /// Why it is open only until its first request is refused, if it is.
    pub(crate) turned_away: Option<Denied>,
    /// Of the server itself, which probes its own health.
    pub(crate) probe: bool,
}

/// Something that an exchange waits for, or that ends it.
#[derive(Debug)]
pub(crate) enum ExchangeEvent {
    /// The order has decided its command.
    Committed(Outcome),
    /// The sequencer has no room for its command.
    NotSubmitted,
    /// Its message is handed to subscribers, or the other nodes of a fleet would not get it.
    Broadcast(Result<(), NotBroadcast>),
    /// The name that its request names was loaded.
    NameLoaded(Result<Lookup, LoadError>),
    /// A part of a stream was read.
    PieceRead(Result<Piece, ReadError>),
    /// A page of the list of streams was read.
    Listed(Result<StreamPage, LoadError>),
    /// An operator's question was answered.
    Inspected(Box<Response>),
    /// There is no room for what it wants read, loaded or answered.
    NotRead,
    /// Another thread has what its request may be parked for.
    Unparked,
    /// Too many requests are parked, or this one was parked for too long.
    NotParked,
    /// The dispatcher has an event for its request.
    Dispatched(DispatchResponse),
    /// A part of its response was compressed.
    Compressed(CompressedPiece),
    /// The reader threads have no room for its compressor.
    NotCompressed(Box<Compressor>),
    /// A long poll has its response.
    Answered(Response),
    /// The records that answer a long poll must be read.
    ReadForPoll(Fetch),
    /// The file that it has written was taken, and what is behind it.
    FileSent,
    /// Everything that it has written was taken.
    Drained,
    /// It wanted to be asked again.
    Queued,
    /// A deadline has passed.
    TimedOut,
    /// The time of its caller is over.
    CallerEnded(CallerEnd),
}

impl Exchange {
    /// An exchange whose request is not complete.
    pub(crate) fn new(place: ExchangePlace) -> Self {
        Exchange {
            place,
            task: Task::Receiving,
            facts: RequestFacts::default(),
            timer: Timer::default(),
            blocked_since: None,
            caller_end: None,
            begins: None,
        }
    }

    /// A subscription whose connection was at rest.
    pub(crate) fn subscribed(place: ExchangePlace, http_1_0: bool) -> Self {
        let mut exchange = Exchange::new(place);
        exchange.task = Task::Subscribed;
        exchange.facts.http_1_0 = http_1_0;
        exchange
    }

    /// A request begins to arrive.
    pub(crate) fn begin(&mut self, of: &ConnectionFacts) {
        self.task = Task::Receiving;
        self.caller_end = None;
        self.facts.tls = of.tls;
    }

    /// Takes the continuation of a long poll, which is answered with what it says.
    pub(crate) fn take_poll(&mut self) -> Option<Box<dyn OnRecord>> {
        if !matches!(self.task, Task::AwaitingRecord(..)) {
            return None;
        }
        self.timer.deadline = None;
        match std::mem::take(&mut self.task) {
            Task::AwaitingRecord(then, _) => Some(then),
            _ => None,
        }
    }

    /// Whether it is between two requests, or receives one.
    pub(crate) fn is_receiving(&self) -> bool {
        matches!(self.task, Task::Receiving)
    }

    /// Whether it only sends: the client has no more to say.
    pub(crate) fn is_listener(&self) -> bool {
        matches!(self.task, Task::Subscribed | Task::Working { .. })
    }

    /// Whether its response is a long body.
    pub(crate) fn is_streaming(&self) -> bool {
        matches!(self.task, Task::Streaming { .. })
    }

    /// What it is doing, in one word for operators.
    pub(crate) fn doing(&self) -> &'static str {
        match self.task {
            Task::Receiving => "receiving",
            Task::AwaitingRecord(..) => "long_poll",
            Task::AwaitingDispatch { .. } => "waiting_for_job",
            Task::Working { .. } => "working",
            Task::Streaming { .. } | Task::Responded => "sending",
            Task::Subscribed => "subscribed",
            Task::AwaitingLoad(_)
            | Task::AwaitingUnpark(_)
            | Task::AwaitingOrder(_)
            | Task::AwaitingCommit(_)
            | Task::AwaitingBroadcast(_)
            | Task::AwaitingChange(_)
            | Task::AwaitingRead(_)
            | Task::AwaitingList(_)
            | Task::AwaitingInspection
            | Task::AwaitingCompression(_)
            | Task::Opened(_) => "waiting",
        }
    }

    /// What it holds in memory, beside its own size.
    pub(crate) fn bytes(&self) -> usize {
        self.task.bytes()
    }

    /// What is counted elsewhere.
    pub(crate) fn bytes_elsewhere(&self) -> usize {
        self.task.compressor_bytes()
    }

    /// Ends the exchange in the middle of something: the client must not take the beginning for the whole.
    pub(crate) fn fail(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        let ExchangePlace {
            exchange,
            connection,
        } = self.place;
        cx.push(match exchange == connection {
            true => ConnectionEffect::Cut(reason),
            false => ConnectionEffect::Fail(exchange, reason),
        });
    }

    /// A request of the connection itself, as far as that is known without its fields.
    pub(super) fn known(&self, of: &ConnectionFacts) -> CallerInfo<'static> {
        CallerInfo {
            tls: of.tls,
            operator: of.operator,
            probe: of.probe,
            ..CallerInfo::default()
        }
    }
}

/// Why a connection whose caller's time is over is closed.
pub(crate) fn end_of_caller(end: CallerEnd, cx: &Context<'_>) -> CloseReason {
    let certificate = cx.certificate.as_ref();
    let certificate_ended = certificate.is_some_and(|one| one.has_ended(cx.clock.wall()));
    match end {
        CallerEnd::Expired if certificate_ended => CloseReason::CertificateExpired,
        CallerEnd::Expired => CloseReason::Expired,
        CallerEnd::Revoked => CloseReason::Revoked,
    }
}
