//! What an exchange is doing, with its data.

use std::net::IpAddr;

use encke_access::SubscriberHold;
use encke_protocol::{
    CallerInfo, ChannelOpening, CodingOffer, NextPart, OnBroadcast, OnChange, OnCommit, OnDispatch,
    OnList, OnRead, OnRecord, OnWorkerEvent, Response,
};
use encke_stream::Lookup;

use crate::compression::Compressor;
use crate::http::head::Head;

/// The task of an exchange.
#[derive(Debug, Default)]
pub(crate) enum Task {
    /// Its request is not complete.
    #[default]
    Receiving,
    /// A reader thread loads the stream that the request names.
    AwaitingLoad(Box<ParkedRequest>),
    /// Another thread fetches keys for its request, or probes the health of the server.
    AwaitingUnpark(Box<ParkedWithReply>),
    /// On a node of a fleet: the order is to confirm that the node has everything that was acknowledged before its request.
    AwaitingOrder(Box<ParkedRequest>),
    /// The sequencer has its command.
    AwaitingCommit(Box<dyn OnCommit>),
    /// Its message is handed to subscribers.
    AwaitingBroadcast(Box<dyn OnBroadcast>),
    /// The order decides a command that is a step of its request.
    AwaitingChange(Box<dyn OnChange>),
    /// A reader thread reads a part of a stream.
    AwaitingRead(Box<dyn OnRead>),
    /// A reader thread reads a page of the list of streams.
    AwaitingList(Box<dyn OnList>),
    /// The thread that answers operators has its question.
    AwaitingInspection,
    /// A long poll: its feed waits for a record.
    AwaitingRecord(
        Box<dyn OnRecord>,
        #[expect(dead_code, reason = "it counts for as long as the task lasts")]
        Option<SubscriberHold>,
    ),
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
    },
    /// Its feed delivers records for as long as the connection lasts.
    Subscribed,
    /// Its response is written to the end.
    Responded,
    /// It opens a channel, which takes the connection over.
    Opened(Box<ChannelOpening>),
}

/// A request that waits for another thread, and the response to it where too many wait.
#[derive(Debug)]
pub(crate) struct ParkedWithReply {
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
    /// The next part is read when the last one was taken.
    Next(Box<NextPart>),
    /// A reader thread reads the next part.
    Reading(Box<NextPart>),
    /// A part that lies in a file is sent; the next one follows it, if there is one.
    Sending(Option<Box<NextPart>>),
    /// All parts are out.
    Over,
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
    pub(crate) probe: bool,
    pub(crate) forwarded: bool,
    pub(crate) address: Option<IpAddr>,
    /// How often it has waited for the order of a fleet.
    pub(crate) barriers: usize,
    /// What was found so far stays in memory until the request is answered.
    pub(crate) held: Vec<Lookup>,
}

impl Task {
    /// Whether a command of its request has an outcome that is not known yet.
    pub(crate) fn awaits_outcome(&self) -> bool {
        matches!(self, Task::AwaitingCommit(_) | Task::AwaitingChange(_))
    }

    /// Whether the response is written to the end.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Task::Responded)
    }

    /// Whether its request is complete, and waits before the router is asked again.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(
            self,
            Task::AwaitingLoad(_) | Task::AwaitingUnpark(_) | Task::AwaitingOrder(_)
        )
    }

    /// What it holds of a request, beside its own size.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Task::AwaitingLoad(parked) | Task::AwaitingOrder(parked) => parked.bytes(),
            Task::AwaitingUnpark(awaited) => awaited.request.bytes(),
            _ => 0,
        }
    }

    /// What its compressor holds, which has a share of its own.
    pub(super) fn compressor_bytes(&self) -> usize {
        match self {
            Task::Streaming {
                coding: PartCoding::Coded(compressor),
                ..
            } => compressor.bytes(),
            _ => 0,
        }
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
            probe: caller.probe,
            forwarded: caller.forwarded,
            address: caller.address,
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
