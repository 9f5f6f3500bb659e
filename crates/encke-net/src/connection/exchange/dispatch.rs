//! Requests to the dispatcher: one response, or jobs as long as a worker is connected.

use encke_protocol::{DispatchRequest, DispatchResponse, Dispatched, OnDispatch, WorkerOutput};

use super::state::Exchange;
use super::task::Task;
use super::writer::ResponseWriter;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;

impl Exchange {
    /// Whether it waits for events of the dispatcher about the request with that number.
    pub(crate) fn awaits_dispatch(&self, number: u32) -> bool {
        self.dispatch_request() == Some(number)
    }

    /// The number of its request that the dispatcher has, if it has one.
    pub(crate) fn dispatch_request(&self) -> Option<u32> {
        match self.task {
            Task::AwaitingDispatch { request, .. } | Task::Working { request, .. } => Some(request),
            _ => None,
        }
    }

    /// Whether it waits for an unbounded time, so that it is given up when the client closes its side.
    pub(crate) fn waits_long(&self) -> bool {
        match &self.task {
            Task::AwaitingDispatch { then, .. } => then.waits_long(),
            _ => false,
        }
    }

    /// What keeps a quiet worker's connection alive.
    pub(crate) fn worker_heartbeat(&self) -> Option<&'static [u8]> {
        match &self.task {
            Task::Working { events, .. } => Some(events.heartbeat()),
            _ => None,
        }
    }

    /// Sends a request to the dispatcher.
    pub(super) fn dispatch(
        &mut self,
        request: DispatchRequest,
        then: Box<dyn OnDispatch>,
        cx: &mut Context<'_>,
    ) {
        let number = cx.effects.next_request();
        self.task = Task::AwaitingDispatch {
            request: number,
            then,
        };
        cx.push(ConnectionEffect::Dispatch(
            self.place.exchange,
            number,
            request,
        ));
    }

    /// Handles an event of the dispatcher.
    pub(super) fn dispatched(
        &mut self,
        event: DispatchResponse,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match std::mem::take(&mut self.task) {
            Task::AwaitingDispatch { request, then } => match then.dispatched(event) {
                Dispatched::Respond(response) => self.respond(&response, out, cx),
                Dispatched::Open(response, events) => {
                    self.task = Task::Working { request, events };
                    self.open(&response, out, cx);
                }
            },
            Task::Working { request, events } => match events.event(event) {
                // The number of bytes that wait is bounded by the jobs that a worker may have at a time.
                WorkerOutput::Send(part) => {
                    self.task = Task::Working { request, events };
                    out.part(&part, false, cx);
                }
                WorkerOutput::End(part) => {
                    // A server that stops is no end of the feed.
                    let is_last = !cx.stopping;
                    self.end_worker(request, &part, is_last, out, cx);
                }
            },
            other => self.task = other,
        }
    }

    /// Ends the work of a worker, with the reason.
    pub(super) fn end_work(
        &mut self,
        reason: CloseReason,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        match std::mem::take(&mut self.task) {
            Task::Working { request, events } => {
                let part = events.farewell(reason.why());
                self.end_worker(request, &part, true, out, cx);
            }
            other => self.task = other,
        }
    }

    /// Sends a worker its last part. Its jobs go to others.
    fn end_worker(
        &mut self,
        request: u32,
        part: &[u8],
        is_last: bool,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        self.facts.keep_alive = false;
        self.task = Task::Responded;
        out.part(part, is_last, cx);
        cx.push(ConnectionEffect::AbandonDispatch(
            self.place.exchange,
            request,
        ));
    }
}
