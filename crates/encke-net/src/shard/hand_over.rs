//! What a shard hands to other threads: commands to the sequencers, tasks to the reader threads, messages to the dispatcher.
//!
//! Where there is no room for something, the result is the event of the exchange that asked for it.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;
use encke_jobs::{DispatchClient, DispatcherMessage, DispatcherSender};
use encke_log::StreamNo;
use encke_protocol::{DispatchRequest, Inquiry};
use encke_stream::{
    Command, Fetch, ListFetch, OrderFetch, Piece, Sequencers, StorageHold, Submission, Submitter,
};
use encke_trace::CommandTrace;

use crate::clock::Monotonic;
use crate::compression::Compressor;
use crate::connection::exchange::ExchangeEvent;
use crate::feed::slot::Token;
use crate::inspector::Inspector;
use crate::outbox::Outbox;
use crate::readers::{CompressTask, Readers};
use crate::shard_channel::ShardSender;

/// The ways from a shard to other threads, and what is collected for them.
pub(crate) struct HandOver {
    shard: u16,
    /// Where commands go. Those that wait for no disk are committed inline.
    sequencers: Sequencers,
    dispatcher: DispatcherSender,
    readers: Readers,
    inspector: Inspector,
    /// The way back.
    sender: Arc<ShardSender>,
    outbox: Outbox,
    /// Exchanges whose requests wait for keys or for a probe, and until when.
    parked: Vec<(Token, Monotonic)>,
    /// Until when the request may wait that is asked about again.
    parked_until: Option<Monotonic>,
}

/// What is to be read for a subscriber.
pub(super) enum FeedRead {
    /// A part of its stream.
    Stream(Fetch),
    /// A part of the order of a log.
    Order(OrderFetch),
    /// Its stream itself, which was evicted while nothing happened.
    Load(StreamNo),
}

impl HandOver {
    /// The ways of the shard with that number, to which `sender` leads back.
    pub(crate) fn new(
        shard: u16,
        sequencers: Sequencers,
        dispatcher: DispatcherSender,
        readers: Readers,
        inspector: Inspector,
        sender: Arc<ShardSender>,
    ) -> Self {
        HandOver {
            shard,
            sequencers,
            dispatcher,
            readers,
            inspector,
            sender,
            outbox: Outbox::default(),
            parked: Vec::new(),
            parked_until: None,
        }
    }

    /// Adds a command to those that are handed over next.
    pub(super) fn add_command(
        &mut self,
        token: Token,
        command: Command,
        trace: Option<Arc<CommandTrace>>,
        holds: Vec<StorageHold>,
    ) {
        let bytes = command.weight_bytes();
        let from = Submitter {
            shard: self.shard,
            token,
        };
        let submission = Submission {
            command,
            from,
            trace,
            holds,
        };
        self.outbox.add_command(submission, bytes);
    }

    /// Hands all commands to the sequencers. Returns the exchanges for whose commands there is no room.
    pub(super) fn submit_commands(&mut self, now: Now) -> Vec<Token> {
        let mut commands = self.outbox.take_commands();
        self.sequencers.submit(&mut commands, now);
        let refused = commands.drain(..).map(|(request, _)| request.from.token);
        let refused = refused.collect();
        self.outbox.give_back(commands);
        refused
    }

    /// Adds a request to the messages for the dispatcher.
    pub(super) fn dispatch(&mut self, token: Token, number: u32, request: DispatchRequest) {
        let client = self.client(token, number);
        self.add_message(DispatcherMessage::Request(client, request));
    }

    /// The time of a request's caller is over: the dispatcher answers it now.
    pub(super) fn end_dispatch(&mut self, token: Token, number: u32) {
        let client = self.client(token, number);
        self.add_message(DispatcherMessage::CallerEnded(client));
    }

    /// The client of a request is gone.
    pub(super) fn abandon_dispatch(&mut self, token: Token, number: u32) {
        let client = self.client(token, number);
        self.abandon_client(client);
    }

    /// A client of the dispatcher is gone.
    pub(super) fn abandon_client(&mut self, client: DispatchClient) {
        self.add_message(DispatcherMessage::Disconnected(client));
    }

    /// Hands all messages to the dispatcher. Returns the clients for whose requests there is no room; that a client is gone is sent
    /// again later.
    pub(super) fn send_messages(&mut self) -> Vec<DispatchClient> {
        if !self.outbox.has_messages() {
            return Vec::new();
        }
        let mut messages = self.outbox.take_messages();
        self.dispatcher.put_many(&mut messages);
        self.outbox.refused(messages)
    }

    /// Has what is known of a name loaded.
    pub(super) fn load_name(&self, token: Token, name: Box<str>) -> Option<ExchangeEvent> {
        let is_asked = self.readers.load_name(name, token, &self.sender);
        (!is_asked).then_some(ExchangeEvent::NotRead)
    }

    /// Has a page of the list of streams read.
    pub(super) fn list(&self, token: Token, fetch: ListFetch) -> Option<ExchangeEvent> {
        let is_asked = self.readers.list(fetch, token, &self.sender);
        (!is_asked).then_some(ExchangeEvent::NotRead)
    }

    /// Has an operator's question answered.
    pub(super) fn inspect(&self, token: Token, inquiry: Box<Inquiry>) -> Option<ExchangeEvent> {
        let is_asked = self.inspector.ask(inquiry, token, &self.sender);
        (!is_asked).then_some(ExchangeEvent::NotRead)
    }

    /// A part of a stream that is in memory.
    pub(super) fn kept_piece(&self, fetch: &Fetch) -> Option<Piece> {
        self.readers.kept(fetch)
    }

    /// Has a part of a stream read.
    pub(super) fn read(&self, token: Token, fetch: Fetch) -> Option<ExchangeEvent> {
        let is_asked = self.readers.read(fetch, token, &self.sender);
        (!is_asked).then_some(ExchangeEvent::NotRead)
    }

    /// Has something read for a subscriber. False: the readers are overloaded.
    pub(super) fn read_for_feed(&self, token: Token, wanted: FeedRead) -> bool {
        match wanted {
            FeedRead::Stream(fetch) => self.readers.read(fetch, token, &self.sender),
            FeedRead::Order(fetch) => self.readers.read_order(fetch, token, &self.sender),
            FeedRead::Load(no) => self.readers.load_stream(no, token, &self.sender),
        }
    }

    /// Has a compressor with input compress it.
    pub(super) fn compress(
        &self,
        token: Token,
        compressor: Box<Compressor>,
    ) -> Option<ExchangeEvent> {
        let task = CompressTask {
            compressor,
            token,
            sender: Arc::clone(&self.sender),
        };
        let refused = self.readers.compress(task).err();
        refused.map(ExchangeEvent::NotCompressed)
    }

    /// Notes that an exchange waits until [`ShardEvent::Unpark`](crate::shard_channel::ShardEvent::Unpark) comes.
    pub(super) fn park(&mut self, token: Token, now: Monotonic) -> Option<ExchangeEvent> {
        if self.parked.len() >= PARKED_MAX {
            return Some(ExchangeEvent::NotParked);
        }
        let until = self.parked_until.unwrap_or(now.after(PARKED_TIME_MAX));
        self.parked.push((token, until));
        None
    }

    /// The exchanges that are parked, and until when they may be; they wait no longer.
    pub(super) fn take_parked(&mut self) -> Vec<(Token, Monotonic)> {
        std::mem::take(&mut self.parked)
    }

    /// Sets until when the request may wait that is asked about again. It may have to wait for another issuer than its own.
    pub(super) fn limit_parking(&mut self, until: Option<Monotonic>) {
        self.parked_until = until;
    }

    /// The exchanges whose time is over; they wait no longer.
    pub(super) fn take_expired(&mut self, now: Monotonic) -> Vec<Token> {
        let expired = self.parked.extract_if(.., |(_, until)| *until <= now);
        expired.map(|(token, _)| token).collect()
    }

    pub(super) fn has_commands(&self) -> bool {
        self.outbox.has_commands()
    }

    pub(super) fn has_messages(&self) -> bool {
        self.outbox.has_messages()
    }

    fn client(&self, token: Token, request: u32) -> DispatchClient {
        DispatchClient {
            node: 0,
            shard: self.shard,
            token,
            request,
        }
    }

    fn add_message(&mut self, message: DispatcherMessage) {
        let bytes = self.dispatcher.weight_bytes(&message);
        self.outbox.add_message(message, bytes);
    }
}

/// Requests of a shard that may be parked; further ones are refused at once.
const PARKED_MAX: usize = 1_024;

/// How long a request may be parked. The thread that it waits for has time limits of its own; this holds if that thread hangs.
const PARKED_TIME_MAX: Duration = Duration::from_secs(30);
