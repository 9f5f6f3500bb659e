//! Active connections: the task of each, with its data.

use std::sync::Arc;

use encke_log::Sequence;
use encke_protocol::{
    CallerInfo, CodingOffer, EncoderId, NextPart, OnCommit, OnDispatch, OnPart, OnRead, OnRecord,
    OnWorkerEvent, Response,
};
use encke_stream::{Lookup, Offset};

use super::close::CloseReason;
use super::slot::SlotState;
use crate::buffers::{BufferShare, Buffers};
use crate::clock::Monotonic;
use crate::compression::Compressor;
use crate::http::body::Incoming;
use crate::http::head::Head;
use crate::http2::connection::Http2Connection;
use crate::http2::stream::IncomingBody;

/// A connection that is doing something: kept beside its slot, and only while something in it matters.
#[derive(Debug, Default)]
pub(crate) struct Active {
    pub(crate) task: Task,
    /// Received bytes that are not parsed yet.
    pub(crate) input: Vec<u8>,
    /// What the socket did not take; the connection is blocked while there is something.
    pub(crate) pending: Option<UnsentOutput>,
    /// Its share of the memory of all connections.
    memory: BufferShare,
    /// When the timer wheel reminds of the deadline, if it does.
    pub(crate) reminder: Option<Monotonic>,
    /// When the client or the poll times out, if it does.
    pub(crate) deadline: Option<Monotonic>,
    /// When a response whose caller's time is over is cut off.
    pub(crate) cut_off: Option<Monotonic>,
    /// The origin that the response to its request names as its reader, where not all are allowed.
    pub(crate) reader: Option<Box<str>>,
}

// What an active connection costs, beside what it holds.
const _: () = assert!(size_of::<Active>() <= 256);

/// The task of a connection.
#[derive(Debug)]
pub(crate) enum Task {
    /// Its socket is with a handshake thread.
    Handshaking,
    /// Receives a request.
    Reading {
        /// Its body, once the head is complete.
        body: Option<Incoming>,
        /// When the body must be complete, if there is one.
        body_until: Option<Monotonic>,
    },
    /// A reader thread loads the stream that the request names.
    AwaitingLoad(Box<ParkedRequest>),
    /// The keys of the issuer of its request's token are being fetched.
    AwaitingKeys(Box<AwaitedKeys>),
    /// On a node of a fleet: the order is to confirm that the node has everything that was acknowledged before its request.
    AwaitingOrder(Box<ParkedRequest>),
    /// The sequencer has its command.
    AwaitingCommit(Box<dyn OnCommit>),
    /// A reader thread reads a part of a stream.
    AwaitingRead(Box<dyn OnRead>),
    /// A long poll: on its topic's list until a record arrives.
    AwaitingRecord {
        /// Its position, if that lies inside a record.
        position: Option<Offset>,
        /// A reader thread loads its stream.
        loading: bool,
        then: Box<dyn OnRecord>,
    },
    /// The dispatcher has its request.
    AwaitingDispatch {
        request: u32,
        then: Box<dyn OnDispatch>,
    },
    /// A worker: gets jobs for as long as the connection lasts.
    Working {
        request: u32,
        events: Box<dyn OnWorkerEvent>,
    },
    /// A reader thread compresses its response.
    AwaitingCompression(Box<CodedBody>),
    /// Its response goes out in parts.
    Streaming {
        step: StreamingStep,
        coding: PartCoding,
        behind: Option<Behind>,
    },
    /// Subscribed for as long as the connection lasts.
    Subscribed(Subscriber),
    /// Refused: further input is discarded until it closes.
    Lingering,
    /// A stream of an HTTP/2 connection that receives the body of its request.
    ReceivingBody(Box<IncomingBody>),
    /// The socket of an HTTP/2 connection, whose streams have slots of their own.
    Http2(Box<Http2Connection>),
}

/// A request that waits for keys, and the response to it where too many wait.
#[derive(Debug)]
pub(crate) struct AwaitedKeys {
    pub(crate) request: ParkedRequest,
    pub(crate) response: Response,
}

/// A response without its body, which is being compressed.
#[derive(Debug)]
pub(crate) struct CodedBody {
    pub(crate) response: Response,
    pub(crate) offer: CodingOffer,
}

/// How the parts of a long body are coded.
#[derive(Debug)]
pub(crate) enum PartCoding {
    /// As they are.
    Identity,
    /// By this compressor, which may have input.
    Coded(Box<Compressor>),
    /// The compressor is with a reader thread.
    AtReader,
}

/// The state of a long body.
#[derive(Debug)]
pub(crate) enum StreamingStep {
    /// The next part is read when the socket has taken the last one.
    Next(Box<NextPart>),
    /// A reader thread reads the next part.
    Reading(Box<dyn OnPart>),
    /// All parts are out.
    Over,
}

/// A subscriber that needs more than its slot.
#[derive(Debug)]
pub(crate) struct Subscriber {
    pub(crate) feed: FeedState,
    /// Since when it is behind, if it is.
    pub(crate) behind: Option<Behind>,
    /// A reader thread reads or loads for it.
    pub(crate) reading: bool,
    /// The socket took the last piece of older records at once: the next piece may be larger.
    pub(crate) eager: bool,
}

/// The records that a subscriber gets.
#[derive(Debug)]
pub(crate) enum FeedState {
    /// The records of the stream of its topic.
    Single(SingleFeed),
    /// The records of several streams.
    Merged(Box<super::merged_feed::MergedFeed>),
}

/// A feed of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleFeed {
    pub(crate) encoder: EncoderId,
    /// The encoder's option.
    pub(crate) option: u64,
    /// The subscriber's position, if that lies inside a record.
    pub(crate) position: Option<Offset>,
}

/// Bytes that the socket did not take.
#[derive(Debug, Default)]
pub(crate) struct UnsentOutput {
    pub(crate) bytes: Vec<u8>,
    /// How many of them it has taken meanwhile.
    pub(crate) sent: usize,
    /// A subscriber's position behind them.
    pub(crate) reached: Option<Offset>,
    /// Why the connection is closed behind them, if it is.
    pub(crate) close: Option<CloseReason>,
}

/// A client's lag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Behind {
    pub(crate) since: Monotonic,
    /// How much of its streams the subscriber has, in the unit of [`Topic::appended`].
    ///
    /// [`Topic::appended`]: crate::fanout::topics::Topic::appended
    pub(crate) has: u32,
}

/// A complete request that waits before the router is asked again.
#[derive(Debug)]
pub(crate) struct ParkedRequest {
    pub(crate) method: Box<str>,
    pub(crate) path: Box<str>,
    pub(crate) query: Option<Box<str>>,
    pub(crate) fields: Vec<(Box<str>, Box<[u8]>)>,
    pub(crate) body: Vec<u8>,
    pub(crate) tls: bool,
    pub(crate) host: Option<Box<str>>,
    pub(crate) operator: bool,
    pub(crate) forwarded: bool,
    /// How often it has waited for the order of a fleet.
    pub(crate) barriers: usize,
    /// What was found so far stays in memory until the request is answered.
    pub(crate) held: Vec<Lookup>,
}

impl Active {
    /// The state of its slot once this entry is removed.
    pub(crate) fn rest(&self) -> Option<SlotState> {
        let is_answered = self.reader.is_none();
        if !is_answered || !self.input.is_empty() || self.pending.is_some() {
            return None;
        }
        match &self.task {
            Task::Reading { body: None, .. } => Some(SlotState::Idle),
            Task::Subscribed(subscriber) => subscriber.rest(),
            _ => None,
        }
    }

    /// Updates its share of the memory of all connections. Returns what it holds, with what is counted elsewhere.
    pub(crate) fn weigh(&mut self, buffers: &Arc<Buffers>) -> usize {
        let pending = self.pending.as_ref();
        let pending = pending.map_or(0, |pending| pending.bytes.capacity());
        let bytes = match self.input.capacity() + pending + self.task.bytes() {
            0 => 0,
            bytes => bytes + size_of::<Active>(),
        };
        self.memory.set(bytes, buffers);
        bytes + self.task.compressor_bytes()
    }

    /// Since when it is behind, if it is.
    pub(crate) fn behind(&self) -> Option<Behind> {
        match &self.task {
            Task::Subscribed(subscriber) => subscriber.behind,
            Task::Streaming { behind, .. } => *behind,
            _ => None,
        }
    }

    /// The same, mutable. None: it cannot be behind.
    pub(crate) fn behind_mut(&mut self) -> Option<&mut Option<Behind>> {
        match &mut self.task {
            Task::Subscribed(subscriber) => Some(&mut subscriber.behind),
            Task::Streaming { behind, .. } => Some(behind),
            _ => None,
        }
    }

    /// Whether the subscriber was sent a farewell.
    pub(crate) fn is_dismissed(&self) -> bool {
        let close = self.pending.as_ref().and_then(|pending| pending.close);
        close.is_some_and(CloseReason::is_dismissal)
    }

    pub(crate) fn subscriber(&self) -> Option<&Subscriber> {
        match &self.task {
            Task::Subscribed(subscriber) => Some(subscriber),
            _ => None,
        }
    }

    pub(crate) fn subscriber_mut(&mut self) -> Option<&mut Subscriber> {
        match &mut self.task {
            Task::Subscribed(subscriber) => Some(subscriber),
            _ => None,
        }
    }
}

impl Task {
    /// What it holds of a request or for a response, beside its own size.
    fn bytes(&self) -> usize {
        match self {
            Task::Reading {
                body: Some(body), ..
            } => body.bytes(),
            Task::ReceivingBody(body) => body.held(),
            Task::Http2(http2) => http2.bytes(),
            Task::AwaitingLoad(parked) | Task::AwaitingOrder(parked) => parked.bytes(),
            Task::AwaitingKeys(awaited) => awaited.request.bytes(),
            Task::Subscribed(Subscriber {
                feed: FeedState::Merged(merged),
                ..
            }) => merged.bytes(),
            _ => 0,
        }
    }

    /// What its compressor holds, which has a share of its own.
    fn compressor_bytes(&self) -> usize {
        match self {
            Task::Streaming {
                coding: PartCoding::Coded(compressor),
                ..
            } => compressor.bytes(),
            _ => 0,
        }
    }
}

impl Default for Task {
    fn default() -> Self {
        Task::Reading {
            body: None,
            body_until: None,
        }
    }
}

impl Subscriber {
    pub(crate) fn new(feed: FeedState) -> Self {
        Subscriber {
            feed,
            behind: None,
            reading: false,
            eager: false,
        }
    }

    fn rest(&self) -> Option<SlotState> {
        let quiet = self.behind.is_none() && !self.reading && !self.eager;
        match &self.feed {
            FeedState::Single(SingleFeed {
                encoder,
                option: 0,
                position: None,
            }) if quiet => Some(SlotState::Subscribed(*encoder)),
            _ => None,
        }
    }

    /// The position of a subscriber of one stream whose slot's cursor stands there.
    pub(crate) fn position(&self, cursor: Sequence) -> Offset {
        match &self.feed {
            FeedState::Single(feed) => feed.position.unwrap_or(Offset::behind(cursor)),
            FeedState::Merged(_) => Offset::behind(cursor),
        }
    }
}

impl Behind {
    /// How much of `appended` it lacks.
    pub(crate) fn lag(self, appended: u32) -> u32 {
        appended.wrapping_sub(self.has)
    }
}

impl ParkedRequest {
    pub(crate) fn new(
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        caller: CallerInfo<'_>,
        body: Vec<u8>,
    ) -> Self {
        let fields = fields.iter();
        ParkedRequest {
            method: head.method.into(),
            path: head.path.into(),
            query: head.query.map(Box::from),
            fields: fields
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            body,
            tls: caller.tls,
            host: caller.host.map(Box::from),
            operator: caller.operator,
            forwarded: caller.forwarded,
            barriers: 0,
            held: Vec::new(),
        }
    }

    /// What it takes in memory, about.
    fn bytes(&self) -> usize {
        let fields = self.fields.iter();
        let fields: usize = fields.map(|(name, value)| name.len() + value.len()).sum();
        let query = self.query.as_ref().map_or(0, |query| query.len());
        size_of::<Self>() + self.path.len() + query + fields + self.body.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber(option: u64) -> Active {
        let feed = FeedState::Single(SingleFeed {
            encoder: encoder(),
            option,
            position: None,
        });
        Active {
            task: Task::Subscribed(Subscriber::new(feed)),
            ..Active::default()
        }
    }

    fn encoder() -> EncoderId {
        crate::synthetic::encoder()
    }

    #[test]
    fn a_connection_rests_once_nothing_of_it_matters() {
        assert_eq!(Active::default().rest(), Some(SlotState::Idle));
        let mut active = subscriber(0);
        assert_eq!(active.rest(), Some(SlotState::Subscribed(encoder())));
        active.input.push(b'x');
        assert_eq!(active.rest(), None);
        active.input.clear();
        active.pending = Some(UnsentOutput::default());
        assert_eq!(active.rest(), None);
        active.pending = None;
        active.subscriber_mut().unwrap().reading = true;
        assert_eq!(active.rest(), None);
        assert_eq!(subscriber(7).rest(), None, "its option is kept here");
        let waiting = Active {
            task: Task::Lingering,
            ..Active::default()
        };
        assert_eq!(waiting.rest(), None);
    }

    #[test]
    fn memory_is_counted_while_something_is_held() {
        let buffers = Arc::new(Buffers::new(1 << 20, []));
        let mut active = subscriber(0);
        active.weigh(&buffers);
        assert_eq!(buffers.bytes(), 0);
        active.input = Vec::with_capacity(100);
        active.weigh(&buffers);
        assert_eq!(buffers.bytes(), 100 + size_of::<Active>());
        drop(active);
        assert_eq!(buffers.bytes(), 0);
    }
}
