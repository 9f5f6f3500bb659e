//! WebSocket (RFC 6455): one channel, on which the client may send messages at any time, and feeds come and go. It has a connection of
//! HTTP/1.1 to itself, or a stream of HTTP/2, and does not know which: it writes to the output of its event.
//!
//! Each message of the client is an exchange, whose response is a message. A message is looked at when the one before it is
//! decided: its command is on its way, or its response is written. A subscription is an exchange that stays: its feed delivers
//! messages until the client ends it, or the stream does.
//!
//! The one invariant: **messages are whole and in order.** What the socket takes of a message in part is kept, and nothing else is
//! written before its rest.

use encke_protocol::{Action, Channel, ChannelMessage, ChannelOpening, Failure, Response, problem};
use encke_stream::{Command, FleetCommand, Lookup, Outcome};

use super::close::CloseReason;
use super::context::Context;
use super::effect::ConnectionEffect;
use super::exchange::route::load_failure;
use super::exchange::task::Task;
use super::exchange::writer::{ResponseShape, ResponseWriter};
use super::exchange::{Exchange, ExchangeEvent, end_of_caller};
use super::exchange_id::{ExchangeId, ExchangePlace};
use crate::byte_queue::ByteQueue;
use crate::clients::callers::CallerEnd;
use crate::clock::Monotonic;
use crate::websocket::close::{encode_close, encode_empty_close};
use crate::websocket::close_code::CloseCode;
use crate::websocket::frame::{ControlPayload, DataKind, encode_message, encode_ping, encode_pong};
use crate::websocket::frame_meter::LightFrameMeter;
use crate::websocket::message::Message;
use crate::websocket::receive::{MessageEvent, MessageReceiver, ReceiveOptions};
use crate::websocket::violation::Violation;

/// A channel.
#[derive(Debug)]
pub(crate) struct WebSocket {
    /// Its exchange, which is its connection over HTTP/1.1 and one of several over HTTP/2.
    place: ExchangePlace,
    channel: Box<dyn Channel>,
    receiver: MessageReceiver,
    meter: LightFrameMeter,
    /// Messages may be compressed, in both directions.
    deflate: bool,
    /// Feeds, with the keys by which the channel knows them.
    feeds: Vec<ChannelFeed>,
    /// What is under way; `None` while the channel only delivers.
    work: Option<Box<Work>>,
    /// A ping was sent, and nothing has arrived since.
    awaits_pong: bool,
    /// It ends: what still arrives means nothing. A close frame was sent, or is sent behind the last acknowledgement.
    is_closing: bool,
}

/// A channel that a request has opened.
#[derive(Debug)]
pub(crate) struct OpenedChannel {
    pub(crate) opening: ChannelOpening,
    /// Compression of messages was agreed on.
    pub(crate) deflate: bool,
    /// What was received behind the request.
    pub(crate) input: Vec<u8>,
}

/// A feed of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChannelFeed {
    id: ExchangeId,
    key: u32,
}

/// What is under way on a channel.
#[derive(Debug, Default)]
struct Work {
    /// Received bytes that are not looked at yet.
    input: ByteQueue,
    /// Messages that are handled as if the client had sent them before these bytes.
    first: Vec<Vec<u8>>,
    /// Messages whose responses are still to come.
    exchanges: Vec<PendingMessage>,
    /// The message that is asked about again.
    waiting: Option<WaitingMessage>,
    /// Until when the client has to say who it is, if it has to.
    caller_until: Option<Monotonic>,
    /// Until when the rest of a message has to come, if a part of it is there.
    rest: Option<RestUntil>,
    /// The client sends nothing more.
    is_half_closed: bool,
    /// How the channel ends, as soon as what is under way is answered.
    ending: Option<Ending>,
}

/// Until when the rest of a message has to come.
#[derive(Clone, Copy, Debug)]
struct RestUntil {
    /// The next part of it.
    part: Monotonic,
    /// All of it.
    whole: Monotonic,
}

/// How a channel ends.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// The code of the close frame; `None` in the answer to one without a code.
    code: Option<CloseCode>,
    reason: CloseReason,
    /// How long what is under way may take.
    until: Monotonic,
}

/// A message whose response is still to come.
#[derive(Debug)]
struct PendingMessage {
    exchange: Exchange,
    /// How long it was: its command holds about as much.
    bytes: usize,
    /// The key of the feed that it begins; 0 if it begins none.
    key: u32,
}

/// A message that must wait before the channel is asked again.
#[derive(Debug)]
struct WaitingMessage {
    id: ExchangeId,
    text: String,
    /// How often it has waited for the order of a fleet.
    barriers: usize,
    /// What was found so far stays in memory until the message is answered.
    held: Vec<Lookup>,
}

impl WebSocket {
    /// A channel that has just been opened.
    pub(crate) fn new(place: ExchangePlace, opened: OpenedChannel, cx: &mut Context<'_>) -> Self {
        let caller_until = cx.clock.monotonic().after(cx.settings.request_timeout);
        let mut websocket = WebSocket {
            place,
            channel: opened.opening.channel,
            receiver: MessageReceiver::new(),
            meter: LightFrameMeter::new(),
            deflate: opened.deflate,
            feeds: Vec::new(),
            work: Some(Box::new(Work {
                input: opened.input.into(),
                first: opened.opening.first,
                caller_until: Some(caller_until),
                ..Work::default()
            })),
            awaits_pong: false,
            is_closing: false,
        };
        websocket.go_on(false, cx);
        websocket
    }

    /// Handles received bytes.
    pub(crate) fn received(&mut self, bytes: &[u8], is_blocked: bool, cx: &mut Context<'_>) {
        self.awaits_pong = false;
        if self.is_closing {
            return;
        }
        let holds_input = self
            .work
            .as_ref()
            .is_some_and(|work| !work.input.is_empty() || !work.first.is_empty());
        if holds_input || is_blocked {
            self.work().input.append(bytes);
            self.go_on(is_blocked, cx);
        } else {
            let mut rest = bytes;
            self.take_frames(&mut rest, is_blocked, cx);
            if !rest.is_empty() && !self.is_closing {
                self.work().input.append(rest);
            }
            self.settle(cx);
        }
        self.await_rest(cx);
    }

    /// The client sends nothing more: it gets the responses to what it has sent. One that only listens has hung up.
    pub(crate) fn half_closed(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        match &mut self.work {
            Some(work) if work.is_busy() && !is_blocked => work.is_half_closed = true,
            _ => cx.push(ConnectionEffect::CloseChannel(
                self.place.exchange,
                CloseReason::HangUp,
            )),
        }
    }

    /// The socket has taken everything.
    pub(crate) fn drained(&mut self, cx: &mut Context<'_>) {
        for feed in &self.feeds {
            cx.push(ConnectionEffect::Deliver(feed.id, None));
        }
        self.go_on(false, cx);
        cx.push(ConnectionEffect::Receive);
    }

    /// Handles an event of one of its exchanges.
    pub(crate) fn on(
        &mut self,
        id: ExchangeId,
        event: ExchangeEvent,
        is_blocked: bool,
        cx: &mut Context<'_>,
    ) {
        if self.waits(id) {
            self.ask_again(event, cx);
        } else if let Some(place) = self.exchange(id) {
            let mut pending = self.work().exchanges.swap_remove(place);
            pending.exchange.on(event, &mut ChannelWriter, cx);
            self.keep(pending, cx);
        }
        self.go_on(is_blocked, cx);
        // What was left in the socket because so much was under way.
        cx.push(ConnectionEffect::Receive);
    }

    /// Ends a feed in the middle of something, or behind its last bytes.
    pub(crate) fn end_exchange(
        &mut self,
        id: ExchangeId,
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        if let Some(place) = self.feeds.iter().position(|feed| feed.id == id) {
            let feed = self.feeds.swap_remove(place);
            self.channel.ended(feed.key);
            cx.push(ConnectionEffect::Ended(id, reason));
        } else if let Some(place) = self.exchange(id) {
            self.work().exchanges.swap_remove(place);
            cx.push(ConnectionEffect::Ended(id, reason));
            self.close(CloseCode::INTERNAL_ERROR, reason, cx);
        }
        self.settle(cx);
    }

    /// Sends the last message of a feed, which has lost more than it may, or is sent elsewhere.
    pub(crate) fn dismiss(
        &mut self,
        id: ExchangeId,
        farewell: &[u8],
        reason: CloseReason,
        cx: &mut Context<'_>,
    ) {
        cx.effects.output.extend_from_slice(farewell);
        self.end_exchange(id, reason, cx);
    }

    /// Nothing was sent for a while: asks the client whether it is still there. One that has not answered the last time is gone.
    pub(crate) fn beat(&mut self, cx: &mut Context<'_>) {
        if self.awaits_pong {
            return self.close(CloseCode::TIMED_OUT, CloseReason::NoPong, cx);
        }
        self.awaits_pong = true;
        encode_ping(&ControlPayload::default(), &mut cx.effects.output);
    }

    /// The time of the channel's caller is over.
    pub(crate) fn end_caller(&mut self, end: CallerEnd, cx: &mut Context<'_>) {
        let reason = end_of_caller(end, cx);
        let farewell = self.channel.farewell(reason.why());
        write_message(&farewell, cx);
        let code = match end {
            CallerEnd::Expired => CloseCode::CALLER_EXPIRED,
            CallerEnd::Revoked => CloseCode::CALLER_REVOKED,
        };
        self.close(code, reason, cx);
    }

    /// The server stops, or does not follow its fleet.
    pub(crate) fn leave(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        let code = match reason {
            CloseReason::Stopping => CloseCode::GOING_AWAY,
            _ => CloseCode::SERVED_ELSEWHERE,
        };
        self.close(code, reason, cx);
    }

    /// The connection is closed: gives up what its exchanges have elsewhere.
    pub(crate) fn forget_all(&mut self, reason: CloseReason, cx: &mut Context<'_>) {
        let work = self.work.take().unwrap_or_default();
        let exchanges = work.exchanges.iter().map(PendingMessage::id);
        let waiting = work.waiting.iter().map(|waiting| waiting.id);
        let feeds = self.feeds.drain(..).map(|feed| feed.id);
        for id in exchanges.chain(waiting).chain(feeds) {
            cx.push(ConnectionEffect::Ended(id, reason));
        }
    }

    /// Whether so much waits that nothing is read from the socket.
    pub(crate) fn has_enough(&self, is_blocked: bool, input_bytes_max: usize) -> bool {
        let work = self.work.as_ref();
        let waits = is_blocked || work.is_some_and(|work| work.is_full());
        waits && work.is_some_and(|work| work.input.rest().len() >= input_bytes_max)
    }

    /// How many bytes of its input are not looked at yet.
    pub(crate) fn input_bytes(&self) -> usize {
        let work = self.work.as_ref();
        work.map_or(0, |work| work.input.rest().len())
    }

    /// Whether something waits that can go on.
    pub(crate) fn has_work(&self) -> bool {
        let work = self.work.as_ref();
        work.is_some_and(|work| {
            !work.is_full() && (!work.input.is_empty() || !work.first.is_empty())
        })
    }

    /// The first of its deadlines.
    pub(crate) fn deadline(&self) -> Option<Monotonic> {
        let work = self.work.as_ref()?;
        let rest = work.rest.map(|rest| rest.part.min(rest.whole));
        let ending = work.ending.map(|ending| ending.until);
        let deadlines = [work.caller_until, rest, ending];
        deadlines.into_iter().flatten().min()
    }

    /// A deadline has passed.
    pub(crate) fn time_out(&mut self, cx: &mut Context<'_>) {
        let now = cx.clock.monotonic();
        let Some(work) = &self.work else {
            return;
        };
        let has_passed = |until: Option<Monotonic>| until.is_some_and(|until| until <= now);
        if has_passed(work.ending.map(|ending| ending.until)) {
            self.end(cx);
        } else if has_passed(work.caller_until) {
            self.close(CloseCode::TIMED_OUT, CloseReason::Unauthenticated, cx);
        } else if has_passed(work.rest.map(|rest| rest.part.min(rest.whole))) {
            self.close(CloseCode::TIMED_OUT, CloseReason::SlowMessage, cx);
        }
    }

    /// Whether it only delivers, and nothing is half received.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_none() && self.receiver.is_idle() && !self.is_closing
    }

    /// What it holds in memory, beside its own size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let work = self.work.as_ref().map_or(0, |work| work.bytes());
        work + self.receiver.bytes()
    }

    /// Its feeds.
    pub(crate) fn feeds(&self) -> Vec<ExchangeId> {
        self.feeds.iter().map(|feed| feed.id).collect()
    }

    fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    fn waits(&self, id: ExchangeId) -> bool {
        let work = self.work.as_ref();
        let waiting = work.and_then(|work| work.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.id == id)
    }

    fn exchange(&self, id: ExchangeId) -> Option<usize> {
        let mut exchanges = self.work.as_ref()?.exchanges.iter();
        exchanges.position(|pending| pending.id() == id)
    }

    /// Goes on with what has arrived, until a message must wait.
    fn go_on(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        while let Some(work) = &mut self.work
            && !is_blocked
            && !work.is_full()
            && !self.is_closing
        {
            if !work.first.is_empty() {
                let first = work.first.remove(0);
                match String::from_utf8(first) {
                    Ok(text) => self.begin(text, cx),
                    Err(_) => self.close(CloseCode::INTERNAL_ERROR, CloseReason::Internal, cx),
                }
                continue;
            }
            if work.input.is_empty() {
                break;
            }
            let mut input = std::mem::take(&mut work.input);
            let mut rest = input.rest();
            self.take_frames(&mut rest, is_blocked, cx);
            let taken = input.rest().len() - rest.len();
            input.take(taken);
            if !self.is_closing {
                self.work().input = input;
            }
        }
        self.settle(cx);
    }

    /// Takes frames off the input until a message must wait.
    fn take_frames(&mut self, rest: &mut &[u8], is_blocked: bool, cx: &mut Context<'_>) {
        while !rest.is_empty() && !self.is_closing && !is_blocked {
            if self.work.as_ref().is_some_and(|work| work.is_full()) {
                return;
            }
            let message_bytes_max = match self.channel.has_caller() {
                true => cx.settings.body_bytes_max,
                false => cx.settings.body_bytes_max.min(STRANGER_BYTES_MAX),
            };
            let options = ReceiveOptions {
                message_bytes_max,
                deflate: self.deflate,
            };
            let now = cx.clock.elapsed();
            let received = self.receiver.receive(rest, options, &mut self.meter, now);
            match received {
                Ok(None) => return,
                Ok(Some(event)) => self.take(event, cx),
                Err(violation) => return self.violated(violation, cx),
            }
        }
    }

    fn take(&mut self, event: MessageEvent, cx: &mut Context<'_>) {
        if let (MessageEvent::Message(_) | MessageEvent::Compressed(_), Some(work)) =
            (&event, &mut self.work)
        {
            work.rest = None;
        }
        match event {
            MessageEvent::Message(message) => self.take_message(message, cx),
            MessageEvent::Compressed(compressed) => {
                let settings = cx.settings;
                let bytes_max = settings.websocket_inflated_bytes_max;
                match compressed.inflate_here(bytes_max.min(settings.body_bytes_max)) {
                    Ok(message) => self.take_message(message, cx),
                    Err(violation) => self.violated(violation, cx),
                }
            }
            MessageEvent::Ping(payload) => encode_pong(&payload, &mut cx.effects.output),
            MessageEvent::Pong(_) => {}
            MessageEvent::Close(close) => {
                let code = close.map(|close| close.code);
                self.begin_end(code, CloseReason::HangUp, cx);
            }
        }
    }

    fn take_message(&mut self, message: Message, cx: &mut Context<'_>) {
        match message {
            Message::Text(text) => self.begin(text, cx),
            Message::Binary(_) => {
                let reason = CloseReason::WebSocketViolation;
                self.close(CloseCode::UNSUPPORTED_DATA, reason, cx);
            }
        }
    }

    fn violated(&mut self, violation: Violation, cx: &mut Context<'_>) {
        tracing::debug!(%violation, "a client violated WebSocket");
        let reason = CloseReason::WebSocketViolation;
        self.close(violation.close_code(), reason, cx);
    }

    /// A message of the client begins an exchange, and counts as a request of its client.
    fn begin(&mut self, text: String, cx: &mut Context<'_>) {
        cx.counts.requests += 1;
        let id = cx.ids.begin_message(self.place.exchange, self.deflate);
        if let Err(denied) = cx.clients.count_message(self.place, cx.clock.now()) {
            let response = cx.rejection(self.place, &denied.refused());
            return self.refuse_with(id, &text, response, cx);
        }
        let waiting = WaitingMessage {
            id,
            text,
            barriers: 0,
            held: Vec::new(),
        };
        self.ask(waiting, cx);
    }

    /// Asks the channel about a message, and performs the action.
    fn ask(&mut self, mut waiting: WaitingMessage, cx: &mut Context<'_>) {
        let asked = self.channel.message(ChannelMessage {
            text: &waiting.text,
            now: cx.clock.time(),
            barriers: waiting.barriers,
            certificate: cx.certificate.as_deref(),
        });
        let id = waiting.id;
        if let Some(caller) = asked.caller {
            let certificate = cx.certificate.clone();
            cx.clients
                .keep_caller(self.place.exchange, caller, certificate.as_deref());
        }
        let mut pending = PendingMessage {
            exchange: Exchange::new(ExchangePlace {
                exchange: id,
                ..self.place
            }),
            bytes: waiting.text.len(),
            key: asked.key,
        };
        match asked.action {
            Action::Load(load) => {
                cx.push(ConnectionEffect::LoadName(id, load.name));
                self.work().waiting = Some(waiting);
            }
            Action::AwaitKeys(..) => {
                cx.push(ConnectionEffect::AwaitKeys(id));
                self.work().waiting = Some(waiting);
            }
            Action::AwaitOrder(log, _) => {
                waiting.barriers += 1;
                let barrier = Command::Fleet(FleetCommand::Barrier { log });
                cx.push(ConnectionEffect::Submit(id, barrier));
                self.work().waiting = Some(waiting);
            }
            Action::Unsubscribe(key, response) => {
                self.end_feed(key, cx);
                pending.exchange.respond(&response, &mut ChannelWriter, cx);
                self.keep(pending, cx);
            }
            action => {
                drop(waiting);
                pending.exchange.perform(action, &mut ChannelWriter, cx);
                self.keep(pending, cx);
            }
        }
        for (key, response) in asked.ended {
            self.end_feed(key, cx);
            write_message(response.body.as_ref(), cx);
        }
    }

    /// What a message waited for has happened, or can't.
    fn ask_again(&mut self, event: ExchangeEvent, cx: &mut Context<'_>) {
        let Some(mut waiting) = self.work().waiting.take() else {
            return;
        };
        match event {
            ExchangeEvent::NameLoaded(Ok(known)) => {
                waiting.held.push(known);
                self.ask(waiting, cx);
            }
            ExchangeEvent::KeysFetched | ExchangeEvent::Committed(Outcome::Done) => {
                self.ask(waiting, cx);
            }
            ExchangeEvent::NameLoaded(Err(error)) => {
                self.refuse(waiting.id, &waiting.text, load_failure(&error), cx);
            }
            ExchangeEvent::Committed(outcome) => {
                let response = problem::order_unknown(&outcome);
                self.refuse_with(waiting.id, &waiting.text, response, cx);
            }
            _ => self.refuse(waiting.id, &waiting.text, Failure::Overloaded, cx),
        }
    }

    /// Answers a message that the server itself can't serve.
    fn refuse(&self, id: ExchangeId, text: &str, failure: Failure, cx: &mut Context<'_>) {
        self.refuse_with(id, text, problem::failed(failure), cx);
    }

    fn refuse_with(&self, id: ExchangeId, text: &str, response: Response, cx: &mut Context<'_>) {
        let refusal = self.channel.refuse(text, response);
        write_message(refusal.body.as_ref(), cx);
        cx.push(ConnectionEffect::Ended(id, CloseReason::Done));
    }

    fn end_feed(&mut self, key: u32, cx: &mut Context<'_>) {
        if let Some(place) = self.feeds.iter().position(|feed| feed.key == key) {
            let feed = self.feeds.swap_remove(place);
            cx.push(ConnectionEffect::Ended(feed.id, CloseReason::Done));
        }
    }

    /// Keeps an exchange that waits for something; one that is answered ends, and one that is subscribed is a feed.
    fn keep(&mut self, pending: PendingMessage, cx: &mut Context<'_>) {
        let (id, key) = (pending.id(), pending.key);
        match pending.exchange.task {
            Task::Subscribed => self.feeds.push(ChannelFeed { id, key }),
            Task::AwaitingCommit(_) | Task::AwaitingRead(_) => self.work().exchanges.push(pending),
            _ => {
                if key != 0 {
                    self.channel.ended(key);
                }
                cx.push(ConnectionEffect::Ended(id, CloseReason::Done));
            }
        }
    }

    fn close(&mut self, code: CloseCode, reason: CloseReason, cx: &mut Context<'_>) {
        self.begin_end(Some(code), reason, cx);
    }

    /// Looks at nothing more, and sends a close frame behind the responses to what is under way.
    fn begin_end(&mut self, code: Option<CloseCode>, reason: CloseReason, cx: &mut Context<'_>) {
        if self.is_closing {
            return;
        }
        self.is_closing = true;
        self.receiver = MessageReceiver::new();
        let work = self.work.take().unwrap_or_default();
        let (pending, begun): (Vec<_>, Vec<_>) = work
            .exchanges
            .into_iter()
            .partition(|pending| pending.key == 0);
        let feeds = self.feeds.drain(..).map(|feed| feed.id);
        let begun = begun.iter().map(PendingMessage::id);
        let waiting = work.waiting.iter().map(|waiting| waiting.id);
        for id in feeds.chain(begun).chain(waiting) {
            cx.push(ConnectionEffect::Ended(id, reason));
        }
        let ending = Ending {
            code,
            reason,
            until: cx.clock.monotonic().after(cx.settings.request_timeout),
        };
        *self.work() = Work {
            exchanges: pending,
            ending: Some(ending),
            ..Work::default()
        };
        self.settle(cx);
    }

    /// Sends the close frame, behind which nothing follows.
    fn end(&mut self, cx: &mut Context<'_>) {
        let ending = self.work.as_ref().and_then(|work| work.ending);
        let Some(Ending { code, reason, .. }) = ending else {
            return;
        };
        match (code, reason) {
            (None, _) => encode_empty_close(&mut cx.effects.output),
            (Some(code), CloseReason::HangUp) => encode_close(code, "", &mut cx.effects.output),
            (Some(code), reason) => encode_close(code, reason.why(), &mut cx.effects.output),
        }
        self.forget_all(reason, cx);
        cx.push(ConnectionEffect::CloseChannel(self.place.exchange, reason));
    }

    /// Sets the deadlines of a message of which a part is there. The parts of the next message have time of their own.
    fn await_rest(&mut self, cx: &mut Context<'_>) {
        if self.receiver.is_idle() || self.is_closing {
            return;
        }
        let now = cx.clock.monotonic();
        let (part, whole) = (
            now.after(cx.settings.request_timeout),
            now.after(cx.settings.body_timeout),
        );
        let rest = &mut self.work().rest;
        let whole = rest.map_or(whole, |rest| rest.whole);
        *rest = Some(RestUntil { part, whole });
        cx.push(ConnectionEffect::Grow(self.place.exchange));
    }

    /// Gives up what is not needed while nothing is under way, and ends a channel that waits for that.
    fn settle(&mut self, cx: &mut Context<'_>) {
        let has_caller = self.channel.has_caller();
        let Some(work) = &mut self.work else {
            return cx.push(ConnectionEffect::Weigh(self.place.exchange));
        };
        if has_caller {
            work.caller_until = None;
        }
        if work.ending.is_some() && work.exchanges.is_empty() {
            return self.end(cx);
        }
        if work.is_half_closed && !work.is_busy() {
            work.is_half_closed = false;
            return self.begin_end(None, CloseReason::HangUp, cx);
        }
        let is_large = !work.input.is_empty();
        if work.is_over() {
            self.work = None;
        }
        cx.push(match is_large {
            true => ConnectionEffect::Grow(self.place.exchange),
            false => ConnectionEffect::Weigh(self.place.exchange),
        });
    }
}

impl Work {
    /// What it holds in memory, beside its own size, in bytes.
    fn bytes(&self) -> usize {
        let first: usize = self.first.iter().map(Vec::capacity).sum();
        let exchanges = self.exchanges.capacity() * size_of::<PendingMessage>();
        let waiting = self.waiting.as_ref().map_or(0, WaitingMessage::bytes);
        self.input.capacity() + first + exchanges + self.pending_bytes() + waiting
    }

    /// What the commands hold that are on their way, in bytes.
    fn pending_bytes(&self) -> usize {
        self.exchanges.iter().map(|pending| pending.bytes).sum()
    }

    /// Whether no further message may be looked at now. While a subscription waits for its beginning none may: it could end it.
    fn is_full(&self) -> bool {
        self.waiting.is_some()
            || self.exchanges.iter().any(|pending| pending.key != 0)
            || self.exchanges.len() >= PENDING_MESSAGES_MAX
            || self.pending_bytes() >= PENDING_BYTES_MAX
    }

    /// Whether something is to be looked at, or to be answered.
    fn is_busy(&self) -> bool {
        !self.input.is_empty()
            || !self.first.is_empty()
            || !self.exchanges.is_empty()
            || self.waiting.is_some()
    }

    fn is_over(&self) -> bool {
        !self.is_busy()
            && self.caller_until.is_none()
            && self.rest.is_none()
            && self.ending.is_none()
    }
}

impl PendingMessage {
    fn id(&self) -> ExchangeId {
        self.exchange.place.exchange
    }
}

impl WaitingMessage {
    /// What it holds in memory, beside its own size, in bytes. What it has found is in memory for all.
    fn bytes(&self) -> usize {
        self.text.capacity() + self.held.capacity() * size_of::<Lookup>()
    }
}

/// Writes responses as messages.
struct ChannelWriter;

impl ResponseWriter for ChannelWriter {
    fn begin(&mut self, response: &Response, _: ResponseShape<'_>, cx: &mut Context<'_>) {
        write_message(response.body.as_ref(), cx);
    }

    fn part(&mut self, part: &[u8], _: bool, cx: &mut Context<'_>) {
        write_message(part, cx);
    }

    fn is_blocked(&self, _: &Context<'_>) -> bool {
        false
    }
}

fn write_message(message: &[u8], cx: &mut Context<'_>) {
    if !message.is_empty() {
        encode_message(DataKind::Text, false, message, &mut cx.effects.output);
    }
}

/// Bytes of a message of a client that has not said who it is: a token, and what stands around it.
const STRANGER_BYTES_MAX: usize = 16 << 10;

/// Messages of a client whose commands are on their way, at most: a client that sends more waits.
const PENDING_MESSAGES_MAX: usize = 256;

/// Bytes of messages whose commands are on their way: a client that has sent so many waits, too.
const PENDING_BYTES_MAX: usize = 256 << 10;
