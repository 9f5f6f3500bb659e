//! Performs the actions of protocols.

use std::time::Duration;

use encke_log::ReadError;
use encke_protocol::{Action, Broadcast, Failure, Feed, OnRead, Response, Run, problem};
use encke_stream::{Fetch, Item, Piece};

use super::state::Exchange;
use super::task::{PartCoding, StreamingStep, Task};
use super::writer::ResponseWriter;
use crate::clients::quotas::messages;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::feed::seats::FeedSeat;

impl Exchange {
    /// Performs the action for the request.
    pub(crate) fn perform(
        &mut self,
        action: Action,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let exchange = self.place.exchange;
        match action {
            Action::Respond(response) => match response.coding {
                Some(offer) => self.respond_coded(response, offer, out, cx),
                None => self.respond(&response, out, cx),
            },
            // Only a request leads to this action, and it is handled there.
            Action::Load(_)
            | Action::Park(..)
            | Action::AwaitOrder(..)
            | Action::Unsubscribe(..)
            | Action::Close(_) => {
                self.fail(CloseReason::Internal, cx);
            }
            Action::Commit(command, then) => match cx.submit(exchange, command) {
                Ok(()) => self.task = Task::AwaitingCommit(then),
                Err(exceeded) => self.respond(&then.not_submitted(exceeded), out, cx),
            },
            Action::Broadcast(broadcast) => {
                let Broadcast {
                    message,
                    echoes,
                    then,
                } = *broadcast;
                if let Err(exceeded) = cx.count_messages(exchange, messages(&message.data)) {
                    return self.respond(&then.not_handed_over(exceeded), out, cx);
                }
                self.task = Task::AwaitingBroadcast(then);
                cx.push(ConnectionEffect::Broadcast {
                    id: exchange,
                    message: Box::new(message),
                    echoes,
                });
            }
            Action::Change(command, then) => match cx.submit(exchange, command) {
                Ok(()) => self.task = Task::AwaitingChange(then),
                Err(exceeded) => self.respond(&then.not_submitted(exceeded), out, cx),
            },
            Action::Read(fetch, then) => self.read(fetch, then, out, cx),
            Action::List(fetch, then) => {
                self.task = Task::AwaitingList(then);
                cx.push(ConnectionEffect::List(exchange, fetch));
            }
            Action::Inspect(mut inquiry) => {
                self.task = Task::AwaitingInspection;
                self.facts.note = inquiry.note.take();
                cx.push(ConnectionEffect::Inspect(exchange, inquiry));
            }
            Action::Stream(response, next) => match response.coding {
                Some(offer) => self.stream_coded(response, next, offer, out, cx),
                None => {
                    let step = StreamingStep::Next(Box::new(next));
                    self.stream(&response, step, PartCoding::Identity, out, cx);
                }
            },
            // A stream that would end at once has some clients come back at once, or give up after the third.
            Action::Subscribe(_) if cx.stopping => {
                self.respond(&problem::failed(Failure::Stopping), out, cx);
            }
            Action::Subscribe(subscription) => {
                let seat = match self.take_seat(&subscription.feed, cx) {
                    Ok(seat) => seat,
                    Err(refused) => return self.respond(&refused, out, cx),
                };
                self.task = Task::Subscribed;
                if let Some(begins) = &mut self.begins {
                    begins.beside = subscription.beside;
                }
                self.open(&subscription.response, out, cx);
                cx.push(ConnectionEffect::Subscribe(
                    exchange,
                    subscription.feed,
                    seat,
                ));
            }
            Action::Wait(wait) => {
                let hold = match cx.count_subscriber(exchange) {
                    Ok(hold) => hold,
                    Err(exceeded) => return self.respond(&exceeded, out, cx),
                };
                self.task = Task::AwaitingRecord(wait.then, hold);
                let timeout = Duration::from_millis(wait.wait_ms);
                self.timer.deadline = Some(cx.clock.monotonic().after(timeout));
                cx.push(ConnectionEffect::Remind(exchange));
                cx.push(ConnectionEffect::Poll(exchange, wait.stream, wait.from));
            }
            Action::Dispatch(request, then) => self.dispatch(request, then, cx),
            Action::Open(opening) => self.task = Task::Opened(Box::new(opening)),
        }
    }

    /// Counts a feed for the caller, and among the members of its streams.
    ///
    /// # Errors
    /// The response to a subscription for which there is no room.
    fn take_seat(&mut self, feed: &Feed, cx: &mut Context<'_>) -> Result<FeedSeat, Response> {
        let exchange = self.place.exchange;
        let hold = match &mut self.begins {
            Some(begins) => begins.hold.take(),
            None => cx.count_subscriber(exchange)?,
        };
        let member = self.facts.member.take().map(|member| *member);
        let now = cx.clock.time().steady;
        let presence = cx.router.presence().enter(feed, member, now)?;
        Ok(FeedSeat {
            hold,
            presence: presence.map(Box::new),
        })
    }

    /// Reads a part of a stream for the request.
    pub(super) fn read(
        &mut self,
        mut fetch: Fetch,
        then: Box<dyn OnRead>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        fetch.bytes_max = out.grant_read(fetch.bytes_max);
        self.task = Task::AwaitingRead(then);
        cx.push(ConnectionEffect::Read(self.place.exchange, fetch));
    }

    pub(super) fn piece_read(
        &mut self,
        piece: Result<Piece, ReadError>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match std::mem::take(&mut self.task) {
            Task::AwaitingRead(then) => {
                let now = cx.clock.wall();
                let action = match &piece {
                    Ok(piece) => {
                        let items: Vec<Item<'_>> = piece.items().collect();
                        let run = Run {
                            items: &items,
                            joined: piece.joined(),
                            at_tail: !piece.more,
                            large: &piece.large,
                            cut: piece.cut,
                            ends_cut: piece.ends_cut(),
                            ..Run::position(piece.end)
                        };
                        then.read(Ok(run), now)
                    }
                    Err(ReadError::BelowFloor { .. }) => then.read(Err(Failure::NoLongerKept), now),
                    Err(_) => then.read(Err(Failure::Unreadable), now),
                };
                self.perform(action, out, cx);
            }
            other => {
                self.task = other;
                if self.is_streaming() {
                    self.part_read(piece, out, cx);
                }
            }
        }
    }
}
