//! The messages of a client: each is an exchange, whose response is a message.

use std::sync::Arc;

use encke_access::Caller;
use encke_protocol::{
    Action, Body, ChannelMessage, Failure, FeedBeside, FeedEnd, Response, problem,
};
use encke_stream::{Command, FleetCommand, Outcome};

use super::long_message::write_message;
use super::state::{ChannelFeed, WebSocket};
use super::work::{PendingMessage, WaitingMessage};
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::route::load_failure;
use crate::connection::exchange::task::Task;
use crate::connection::exchange::writer::{ResponseShape, ResponseWriter};
use crate::connection::exchange::{Exchange, ExchangeEvent, MessageFeeds};
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::feed::seats::FeedSeat;
use crate::websocket::close_code::CloseCode;

impl WebSocket {
    /// Counts a message of the client as one of its requests. False: it was refused.
    pub(super) fn count(&mut self, text: &str, cx: &mut Context<'_>) -> bool {
        cx.counts.requests += 1;
        match cx.clients.count_message(self.place, cx.clock.now()) {
            Ok(()) => true,
            Err(denied) => {
                let id = cx.ids.begin_message(self.place.exchange, self.deflate);
                let response = cx.rejection(self.place, &denied.refused());
                self.refuse_with(id, text, response, cx);
                false
            }
        }
    }

    /// A message that was counted begins an exchange.
    pub(super) fn begin(&mut self, text: String, cx: &mut Context<'_>) {
        let id = cx.ids.begin_message(self.place.exchange, self.deflate);
        let waiting = WaitingMessage {
            id,
            text,
            barriers: 0,
            held: Vec::new(),
        };
        self.ask(waiting, cx);
    }

    /// Asks the channel about a message, and performs the action.
    pub(super) fn ask(&mut self, mut waiting: WaitingMessage, cx: &mut Context<'_>) {
        self.regrant(cx);
        let address = cx.limited_address(self.place);
        let asked = self.channel.message(ChannelMessage {
            text: &waiting.text,
            now: cx.clock.time(),
            barriers: waiting.barriers,
            certificate: cx.certificate.as_deref(),
            address,
        });
        let id = waiting.id;
        if let Some(caller) = asked.caller {
            if let (Some(access), Some(caller)) = (cx.router.access(), &caller) {
                access.note_use(caller);
            }
            self.keep_caller(caller, cx);
            if !self.feeds.is_empty() {
                let member = self.channel.member().map(Box::new);
                cx.push(ConnectionEffect::Reseat(self.place.exchange, member));
            }
        }
        let mut begins = None;
        // Of a subscription that begins, or may begin behind a read.
        if asked.key != 0 {
            match cx.count_subscriber(self.place.exchange) {
                Ok(hold) => begins = Some(Box::new(MessageFeeds { hold, beside: None })),
                Err(exceeded) => {
                    self.channel.ended(asked.key, FeedEnd::NeverBegan);
                    return self.refuse_with(id, &waiting.text, exceeded, cx);
                }
            }
        }
        let mut pending = PendingMessage {
            exchange: Exchange::new(ExchangePlace {
                exchange: id,
                ..self.place
            }),
            bytes: waiting.text.len(),
            key: asked.key,
        };
        pending.exchange.begins = begins;
        let mut writer = ChannelWriter::default();
        match asked.action {
            Action::Load(load) => {
                cx.push(ConnectionEffect::LoadName(id, load.name));
                self.work().waiting = Some(waiting);
            }
            Action::Park(..) => {
                cx.push(ConnectionEffect::Park(id));
                self.work().waiting = Some(waiting);
            }
            Action::AwaitOrder(log, _) => {
                waiting.barriers += 1;
                let barrier = Command::Fleet(FleetCommand::Barrier { log });
                cx.push(ConnectionEffect::Submit(id, barrier, Vec::new()));
                self.work().waiting = Some(waiting);
            }
            Action::Unsubscribe(key, response) => {
                self.end_feed(key, cx);
                let start = cx.effects.output.len();
                pending.exchange.respond(&response, &mut writer, cx);
                self.hold(start, cx);
                self.keep(pending, cx);
            }
            Action::Close(close) => {
                self.write(&close.message, cx);
                cx.push(ConnectionEffect::Ended(id, CloseReason::Done));
                self.close_as(&close, cx);
            }
            action => {
                drop(waiting);
                if asked.key != 0 && cx.router.presence().has_rules() {
                    pending.exchange.facts.member = self.channel.member().map(Box::new);
                }
                let start = cx.effects.output.len();
                pending.exchange.perform(action, &mut writer, cx);
                self.hold(start, cx);
                self.keep(pending, cx);
            }
        }
        self.end_feeds(asked.ended, cx);
        if writer.is_unserved {
            self.close_unserved(cx);
        }
    }

    /// Judges the channel by the grants that its caller has now. While it is not decided whether a feed begins, it waits for that: the
    /// feed would begin although it was ended.
    pub(crate) fn regrant(&mut self, cx: &mut Context<'_>) {
        let work = self.work.as_ref();
        if work.is_some_and(|work| work.exchanges.iter().any(|pending| pending.key != 0)) {
            return;
        }
        if let Some(regranted) = self.channel.regrant() {
            self.keep_caller(Some(regranted.caller), cx);
            self.end_feeds(regranted.ended, cx);
        }
    }

    fn keep_caller(&self, caller: Option<Arc<Caller>>, cx: &mut Context<'_>) {
        let certificate = cx.certificate.clone();
        let exchange = self.place.exchange;
        cx.keep_caller(exchange, caller, None, certificate.as_deref());
    }

    /// Ends feeds that the caller may not have, each with its last message.
    fn end_feeds(&mut self, ended: Vec<(u32, Response)>, cx: &mut Context<'_>) {
        for (key, response) in ended {
            self.end_feed(key, cx);
            self.write(response.body.as_ref(), cx);
        }
    }

    /// What a message waited for has happened, or can't.
    pub(super) fn ask_again(&mut self, event: ExchangeEvent, cx: &mut Context<'_>) {
        let Some(mut waiting) = self.work().waiting.take() else {
            return;
        };
        match event {
            ExchangeEvent::NameLoaded(Ok(known)) => {
                waiting.held.push(known);
                self.ask(waiting, cx);
            }
            ExchangeEvent::Unparked | ExchangeEvent::Committed(Outcome::Done) => {
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
    pub(super) fn refuse(
        &mut self,
        id: ExchangeId,
        text: &str,
        failure: Failure,
        cx: &mut Context<'_>,
    ) {
        self.refuse_with(id, text, problem::failed(failure), cx);
    }

    pub(super) fn refuse_with(
        &mut self,
        id: ExchangeId,
        text: &str,
        response: Response,
        cx: &mut Context<'_>,
    ) {
        let refusal = self.channel.refuse(text, response);
        self.write(refusal.body.as_ref(), cx);
        cx.push(ConnectionEffect::Ended(id, CloseReason::Done));
        if refusal.is_unavailable() {
            self.close_unserved(cx);
        }
    }

    pub(super) fn end_feed(&mut self, key: u32, cx: &mut Context<'_>) {
        if let Some(place) = self.feeds.iter().position(|feed| feed.key == key) {
            let feed = self.feeds.swap_remove(place);
            cx.push(ConnectionEffect::Ended(feed.id, CloseReason::Done));
            if self.long_feed() == Some(feed.id) {
                // Its message can't be completed.
                self.close(CloseCode::INTERNAL_ERROR, CloseReason::Done, cx);
            }
        }
    }

    /// Ends a feed for which the caller of the channel has no room.
    pub(crate) fn refuse_feed(&mut self, id: ExchangeId, refused: Response, cx: &mut Context<'_>) {
        if let Some(feed) = self.feeds.iter().find(|feed| feed.id == id) {
            let key = feed.key;
            write_message(&self.channel.refuse_feed(key, refused), cx);
            self.end_feed(key, cx);
        }
    }

    /// Keeps an exchange that waits for something; one that is answered ends, and one that is subscribed is a feed.
    pub(super) fn keep(&mut self, mut pending: PendingMessage, cx: &mut Context<'_>) {
        let (id, key) = (pending.id(), pending.key);
        match pending.exchange.task {
            Task::Subscribed => {
                self.feeds.push(ChannelFeed { id, key });
                let begins = pending.exchange.begins.take();
                if let Some(beside) = begins.and_then(|begins| begins.beside) {
                    let id = cx.ids.begin_message(self.place.exchange, self.deflate);
                    let FeedBeside { key, feed } = *beside;
                    self.feeds.push(ChannelFeed { id, key });
                    cx.push(ConnectionEffect::Subscribe(id, feed, FeedSeat::default()));
                }
            }
            Task::AwaitingCommit(_)
            | Task::AwaitingChange(_)
            | Task::AwaitingBroadcast(_)
            | Task::AwaitingRead(_) => {
                self.work().exchanges.push(pending);
            }
            _ => {
                if key != 0 {
                    self.channel.ended(key, FeedEnd::NeverBegan);
                }
                cx.push(ConnectionEffect::Ended(id, CloseReason::Done));
            }
        }
    }
}

/// Writes responses as messages.
#[derive(Default)]
pub(super) struct ChannelWriter {
    /// The response says that the message can't be served now.
    pub(super) is_unserved: bool,
}

impl ResponseWriter for ChannelWriter {
    fn begin(&mut self, response: &Response, _: ResponseShape<'_>, cx: &mut Context<'_>) {
        self.is_unserved |= response.is_unavailable();
        match &response.body {
            Body::Messages(messages) => {
                for message in messages {
                    write_message(message, cx);
                }
            }
            body => write_message(body.as_ref(), cx),
        }
    }

    fn part(&mut self, part: &[u8], _: bool, cx: &mut Context<'_>) {
        write_message(part, cx);
    }

    fn is_blocked(&self, _: &Context<'_>) -> bool {
        false
    }
}
