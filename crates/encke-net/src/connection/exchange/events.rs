//! Events of an exchange.

use encke_protocol::{Failure, Response, problem};
use encke_stream::Outcome;

use super::route::load_failure;
use super::state::{Exchange, ExchangeEvent, end_of_caller};
use super::task::Task;
use super::writer::ResponseWriter;
use crate::broadcast::NotBroadcast;
use crate::clients::callers::CallerEnd;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::ending::Ending;

impl Exchange {
    /// Handles an event.
    pub(crate) fn on(
        &mut self,
        event: ExchangeEvent,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match event {
            ExchangeEvent::Committed(outcome) => self.committed(outcome, out, cx),
            ExchangeEvent::NotSubmitted => self.not_submitted(out, cx),
            ExchangeEvent::Broadcast(handed_over) => self.broadcast(handed_over, out, cx),
            ExchangeEvent::NameLoaded(known) => self.name_loaded(known, out, cx),
            ExchangeEvent::PieceRead(piece) => {
                out.read_arrived();
                self.piece_read(piece, out, cx);
                self.end_later(out, cx);
            }
            ExchangeEvent::Listed(page) => {
                if let Task::AwaitingList(then) = std::mem::take(&mut self.task) {
                    let page = page.map_err(|error| load_failure(&error));
                    self.respond(&then.listed(page), out, cx);
                }
                self.end_later(out, cx);
            }
            ExchangeEvent::Inspected(response) => {
                if matches!(self.task, Task::AwaitingInspection) {
                    self.respond(&response, out, cx);
                }
            }
            ExchangeEvent::NotRead => self.not_read(out, cx),
            ExchangeEvent::Unparked => self.unparked(out, cx),
            ExchangeEvent::NotParked => match std::mem::take(&mut self.task) {
                Task::AwaitingUnpark(awaited) => self.respond(&awaited.response, out, cx),
                other => self.task = other,
            },
            ExchangeEvent::Dispatched(event) => self.dispatched(event, out, cx),
            ExchangeEvent::Compressed(piece) => self.compressed(piece, out, cx),
            ExchangeEvent::NotCompressed(compressor) => self.not_compressed(compressor, out, cx),
            ExchangeEvent::Answered(response) => {
                cx.push(ConnectionEffect::Unsubscribe(self.place.exchange));
                self.timer.deadline = None;
                self.respond(&response, out, cx);
            }
            ExchangeEvent::ReadForPoll(fetch) => {
                if let Some(then) = self.take_poll() {
                    cx.push(ConnectionEffect::Unsubscribe(self.place.exchange));
                    self.read(fetch, then, out, cx);
                }
            }
            ExchangeEvent::FileSent => self.file_sent(out, cx),
            ExchangeEvent::Drained | ExchangeEvent::Queued => self.stream_on(out, cx),
            ExchangeEvent::TimedOut => {
                if let Some(then) = self.take_poll() {
                    cx.push(ConnectionEffect::Unsubscribe(self.place.exchange));
                    self.respond(&then.timed_out(cx.clock.wall()), out, cx);
                }
            }
            ExchangeEvent::CallerEnded(end) => self.caller_ended(end, out, cx),
        }
    }

    fn broadcast(
        &mut self,
        handed_over: Result<(), NotBroadcast>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match std::mem::take(&mut self.task) {
            Task::AwaitingBroadcast(then) => {
                let response = match handed_over {
                    Ok(()) => then.handed_over(),
                    Err(why) => then.not_handed_over(not_broadcast(why)),
                };
                self.respond(&response, out, cx);
            }
            other => self.task = other,
        }
    }

    fn not_submitted(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        let refused = problem::failed(Failure::Overloaded);
        match std::mem::take(&mut self.task) {
            Task::AwaitingCommit(then) => self.respond(&then.not_submitted(refused), out, cx),
            Task::AwaitingChange(then) => self.respond(&then.not_submitted(refused), out, cx),
            Task::AwaitingOrder(_) => self.respond(&refused, out, cx),
            other => self.task = other,
        }
    }

    fn not_read(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        out.read_arrived();
        match std::mem::take(&mut self.task) {
            Task::AwaitingRead(then) => {
                let action = then.read(Err(Failure::Overloaded), cx.clock.wall());
                self.perform(action, out, cx);
            }
            Task::AwaitingLoad(_) | Task::AwaitingList(_) | Task::AwaitingInspection => {
                self.respond(&problem::failed(Failure::Overloaded), out, cx);
            }
            other => self.task = other,
        }
        // A long body tries again.
        if self.is_streaming() {
            self.part_not_read();
            cx.push(ConnectionEffect::Queue(self.place.exchange));
        }
    }

    fn committed(&mut self, outcome: Outcome, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        match std::mem::take(&mut self.task) {
            Task::AwaitingCommit(then) => {
                cx.count_refused_creation(self.place.exchange, &outcome);
                self.respond(&then.committed(outcome), out, cx);
            }
            Task::AwaitingChange(then) => {
                let action = then.changed(outcome, cx.clock.time());
                self.perform(action, out, cx);
            }
            Task::AwaitingOrder(parked) => self.order_awaited(parked, outcome, out, cx),
            other => self.task = other,
        }
    }

    /// Ends what a read has led to, if the time of the caller has ended meanwhile.
    fn end_later(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        if let Some(end) = self.caller_end.take() {
            self.caller_ended(end, out, cx);
        }
    }

    /// The time of the caller is over: ends what the exchange does, in the way of its protocol.
    fn caller_ended(&mut self, end: CallerEnd, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        let reason = end_of_caller(end, cx);
        match Ending::of(&self.task, end) {
            Ending::Dismiss => cx.push(ConnectionEffect::Dismiss(self.place.exchange, reason)),
            Ending::AnswerPoll => self.on(ExchangeEvent::TimedOut, out, cx),
            Ending::EndWork => self.end_work(reason, out, cx),
            Ending::EndWait => {
                if let Task::AwaitingDispatch { request, .. } = &self.task {
                    cx.push(ConnectionEffect::EndDispatch(self.place.exchange, *request));
                }
            }
            Ending::Finish => {
                let cut_off = cx.clock.monotonic().after(cx.settings.body_timeout);
                self.timer.cut_off = Some(cut_off);
                cx.push(ConnectionEffect::Remind(self.place.exchange));
            }
            Ending::Cut => self.fail(reason, cx),
            Ending::Later => self.caller_end = Some(end),
            Ending::Nothing => {}
        }
    }
}

/// The response to a message that the other nodes of a fleet would not get.
fn not_broadcast(why: NotBroadcast) -> Response {
    match why {
        NotBroadcast::Disconnected | NotBroadcast::QueueFull => {
            problem::rejected(503, "fleet_unreachable", &why.to_string(), 1)
        }
        NotBroadcast::TooLarge { .. } => problem::rejected(413, "too_large", &why.to_string(), 0),
    }
}
