//! The input of a connection of HTTP/1.1: requests are cut off what arrives, and wait while another one is in work.

use encke_protocol::Response;

use super::state::{AfterInput, Http1, SharedWithWire};
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::exchange::task::Task;
use crate::connection::request_count::{count_request, last_reason};
use crate::http::Rejection;
use crate::http::head::{self, NO_FIELDS};
use crate::http::take::{ParseStep, take};
use crate::http2::frames::{PREFACE, PREFACE_LINE};
use crate::proxy::{self, NotPreface};

impl Http1 {
    /// Handles received bytes. `full`: the socket holds more.
    pub(crate) fn received(
        &mut self,
        bytes: &[u8],
        full: bool,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        if self.reads(shared.is_blocked) {
            self.exchange.begin(shared.facts);
            return self.take_input(bytes, shared, cx);
        }
        if self.exchange.is_listener() {
            // It is not kept, so nothing that follows it is understood.
            self.exchange.facts.keep_alive = false;
            // A subscriber has no reason to send this much.
            if full {
                cx.push(ConnectionEffect::Close(CloseReason::Talkative));
            }
        } else {
            // Most other clients read the response only after they have sent everything.
            self.input.extend_from_slice(bytes);
        }
        AfterInput::Http1
    }

    /// Handles an event of the exchange.
    pub(crate) fn on(
        &mut self,
        event: ExchangeEvent,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) {
        let mut writer = self.writer(shared);
        self.exchange.on(event, &mut writer, cx);
        self.notice_half_close(shared.is_blocked, cx);
    }

    /// The client has closed its side. It gets the responses to its earlier requests; for a subscriber it is a hang-up.
    pub(crate) fn half_closed(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        let is_waiting = match &self.exchange.task {
            Task::AwaitingDispatch { .. } => !self.exchange.waits_long(),
            Task::AwaitingCommit(_)
            | Task::AwaitingBroadcast(_)
            | Task::AwaitingChange(_)
            | Task::AwaitingLoad(_)
            | Task::AwaitingUnpark(_)
            | Task::AwaitingOrder(_)
            | Task::AwaitingRead(_)
            | Task::AwaitingList(_)
            | Task::AwaitingInspection
            | Task::AwaitingCompression(_)
            | Task::Streaming { .. }
            | Task::Responded
            | Task::Opened(_) => true,
            // The rest of a request may wait behind an invitation to send it that the client has not taken.
            Task::Receiving => is_blocked && !self.input.is_empty(),
            Task::AwaitingRecord(..) | Task::Working { .. } | Task::Subscribed => false,
        };
        if !is_waiting {
            return cx.push(ConnectionEffect::Close(CloseReason::HangUp));
        }
        self.is_half_closed = true;
        if self.input.is_empty() {
            self.exchange.facts.keep_alive = false;
        }
    }

    /// The socket has taken everything: the next part or the next request follows.
    pub(crate) fn drained(
        &mut self,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        self.exchange.end_wait_for_client(cx);
        if self.exchange.is_streaming() {
            let mut writer = self.writer(shared);
            self.exchange.on(ExchangeEvent::Drained, &mut writer, cx);
        }
        if !cx.effects.output.is_empty() {
            return AfterInput::Http1;
        }
        if self.exchange.is_receiving() {
            // An invitation to send the body was taken: what came meanwhile is looked at, and the rest has a deadline again.
            return self.next_request(shared, cx);
        }
        if !self.exchange.task.is_over() {
            return AfterInput::Http1;
        }
        cx.requests.complete_request(self.exchange.place.exchange);
        if !self.exchange.facts.keep_alive {
            cx.push(ConnectionEffect::Close(last_reason(*shared.requests, cx)));
            return AfterInput::Http1;
        }
        self.exchange.begin(shared.facts);
        self.next_request(shared, cx)
    }

    /// The feed has ended, and its last chunk is out: the next request follows, if the client wants that.
    pub(crate) fn feed_ended(
        &mut self,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        let facts = &self.exchange.facts;
        if facts.http_1_0 || !facts.keep_alive || self.is_half_closed || cx.stopping {
            cx.push(ConnectionEffect::Close(CloseReason::Ended));
            return AfterInput::Http1;
        }
        let exchange = self.exchange.place.exchange;
        cx.push(ConnectionEffect::Unsubscribe(exchange));
        cx.requests.end_feed(exchange);
        self.exchange.begin(shared.facts);
        self.next_request(shared, cx)
    }

    /// Continues with input that was left in the buffers while a request was in work.
    fn next_request(
        &mut self,
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        let next = self.take_input(&[], shared, cx);
        if next == AfterInput::Http1 && self.exchange.is_receiving() {
            cx.push(ConnectionEffect::Receive);
        }
        self.notice_half_close(shared.is_blocked, cx);
        next
    }

    /// The client has closed its side before: looks at what that means for what the connection does now.
    fn notice_half_close(&mut self, is_blocked: bool, cx: &mut Context<'_>) {
        if self.is_half_closed {
            self.half_closed(is_blocked, cx);
        }
    }

    /// Takes requests off the input until one must wait.
    fn take_input(
        &mut self,
        new: &[u8],
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> AfterInput {
        let mut kept = std::mem::take(&mut self.input);
        if !kept.is_empty() {
            kept.extend_from_slice(new);
        }
        let mut rest = if kept.is_empty() { new } else { &kept[..] };
        while !rest.is_empty() && self.reads(shared.is_blocked) {
            match self.take_step(&mut rest, shared, cx) {
                Ok(Step::Taken) => {}
                Ok(Step::More) => break,
                Ok(Step::Discard) => return AfterInput::Http1,
                Ok(Step::Leave(next)) => return next,
                Err(rejection) => {
                    self.refuse_named(&[], &rejection, cx);
                    return AfterInput::Http1;
                }
            }
        }
        if !rest.is_empty() {
            self.input = rest.to_vec();
        }
        if self.reads(shared.is_blocked) {
            self.await_rest(cx);
        }
        AfterInput::Http1
    }

    /// Sets the deadline for the rest of a request.
    fn await_rest(&mut self, cx: &mut Context<'_>) {
        let exchange = self.exchange.place.exchange;
        let timer = &mut self.exchange.timer;
        if self.body.is_none() && self.input.is_empty() {
            if !self.awaits_proxy {
                timer.deadline = None;
            }
            return;
        }
        let now = cx.clock.monotonic();
        let deadline = now.after(cx.settings.request_timeout);
        // A head has one deadline, so that single bytes do not extend it. A body has a new one with each part, because it may be
        // large.
        if self.body.is_some() {
            let until = now.after(cx.settings.body_timeout);
            let until = *self.body_until.get_or_insert(until);
            timer.deadline = Some(deadline.min(until));
        } else {
            timer.deadline.get_or_insert(deadline);
        }
        cx.push(ConnectionEffect::Remind(exchange));
        cx.push(ConnectionEffect::Grow(exchange));
    }

    /// Takes one step: a complete request, its head, or a part of its body.
    fn take_step(
        &mut self,
        rest: &mut &[u8],
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Step, Rejection> {
        if self.awaits_proxy {
            return self.take_proxy_header(rest, shared, cx);
        }
        let mut body = self.body.take();
        if *shared.requests == 0 && body.is_none() {
            if rest.len() < PREFACE.len() && PREFACE.starts_with(rest) {
                return Ok(Step::More);
            }
            if rest.starts_with(PREFACE_LINE) {
                // What is no preface behind its first line is a violation of HTTP/2, to which it says so.
                return Ok(Step::Leave(AfterInput::Http2(rest.to_vec())));
            }
        }
        let before = *rest;
        let limits = cx.settings.request_limits();
        let is_admitted = body.is_some();
        let facts = *shared.facts;
        let step = take(&mut body, rest, limits, |head, fields, content| {
            self.body_until = None;
            let keep_alive = count_request(shared.requests, cx);
            let mut writer = self.writer(shared);
            let how = (is_admitted, keep_alive);
            self.exchange
                .ask(head, fields, content, how, &facts, &mut writer, cx);
        });
        let step = match step {
            Ok(step) => step,
            Err(rejection) => {
                let place = self.exchange.place;
                cx.requests.begin_refused_request(place, before, cx.peer);
                if !is_admitted {
                    self.exchange.name_reader_of_input(before, &facts, cx);
                }
                return Err(rejection);
            }
        };
        self.body = body;
        if let ParseStep::Head { invites } = step {
            if let Err(response) = self.admit_head(shared, cx) {
                // What comes of the body is discarded.
                self.refuse_with(&response, cx);
                return Ok(Step::Discard);
            }
            if invites {
                let invitation = b"HTTP/1.1 100 Continue\r\n\r\n";
                cx.effects.output.extend_from_slice(invitation);
            }
        }
        Ok(match step {
            ParseStep::More => Step::More,
            ParseStep::Head { .. } | ParseStep::Request => Step::Taken,
        })
    }

    /// A head is complete whose body is still to come.
    fn admit_head(
        &mut self,
        shared: &SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Box<Response>> {
        let Some(body) = &self.body else {
            return Ok(());
        };
        let mut fields = NO_FIELDS;
        // It was parsed before it was kept.
        let Ok(Some((head, count))) = head::parse(&body.head, &mut fields) else {
            return Ok(());
        };
        // Its time counts from now on.
        let place = self.exchange.place;
        let fields = &fields[..count];
        if !shared.facts.probe {
            cx.requests.begin_request(place, &head, fields, cx.peer);
        }
        self.exchange.admit_head(&head, fields, shared.facts, cx)
    }

    /// Takes the header of the PROXY protocol off the input.
    fn take_proxy_header(
        &mut self,
        rest: &mut &[u8],
        shared: &mut SharedWithWire<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Step, Rejection> {
        let header = match proxy::parse(rest) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Step::More),
            Err(NotPreface(why)) => {
                self.exchange.name_reader_of_input(&[], shared.facts, cx);
                return Err(Rejection::new(400, "proxy_protocol", why));
            }
        };
        *rest = &rest[header.bytes..];
        self.awaits_proxy = false;
        shared.facts.tls = header.tls;
        // A request has time of its own.
        self.exchange.timer.deadline = None;
        let connection = self.exchange.place.connection;
        if let Some(client) = header.client {
            cx.requests.keep_client(connection, client);
            if let Err(denied) = cx.clients.name(connection, client, cx.clock.now()) {
                shared.facts.turned_away.get_or_insert(denied);
                cx.push(ConnectionEffect::AwaitRefusal);
            }
        }
        if cx.makes_handshakes {
            let received = std::mem::take(rest).to_vec();
            cx.push(ConnectionEffect::Handshake(received, header.client));
            return Ok(Step::Leave(AfterInput::Handshake));
        }
        Ok(Step::Taken)
    }
}

/// What a step through the input led to.
enum Step {
    /// Something was taken, and more may follow.
    Taken,
    /// More must come.
    More,
    /// Nothing that follows is looked at.
    Discard,
    /// What follows is not for this wire.
    Leave(AfterInput),
}
