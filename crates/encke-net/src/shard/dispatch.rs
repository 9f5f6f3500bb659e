//! Requests to the dispatcher: one response, or jobs as long as a worker is connected.

use encke_jobs::DispatchClient;
use encke_protocol::{DispatchRequest, DispatchResponse, Dispatched, OnDispatch, WorkerOutput};

use super::Shard;
use crate::connection::active::Task;
use crate::connection::close::CloseReason;

impl Shard {
    /// Sends a request to the dispatcher.
    pub(super) fn dispatch(
        &mut self,
        index: u32,
        request: DispatchRequest,
        then: Box<dyn OnDispatch>,
    ) {
        let request = self.send_dispatch(index, request);
        let task = Task::AwaitingDispatch { request, then };
        self.connections.begin(index, task);
    }

    /// Handles an event of the dispatcher for one of this shard's connections.
    pub(super) fn dispatched(&mut self, client: DispatchClient, event: DispatchResponse) {
        let Some(index) = self.asking(client) else {
            // The connection is gone: its jobs and its slot go to other workers.
            if event.needs_client() {
                self.send_gone(client);
            }
            return;
        };
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        match std::mem::take(&mut active.task) {
            Task::AwaitingDispatch { request, then } => match then.dispatched(event) {
                Dispatched::Respond(response) => self.respond_later(index, &response),
                Dispatched::Open(response, events) => {
                    active.task = Task::Working { request, events };
                    self.open(index, &response);
                }
            },
            Task::Working { request, events } => {
                let output = events.event(event);
                active.task = Task::Working { request, events };
                match output {
                    WorkerOutput::Send(part) => self.send_behind(index, &part, false),
                    WorkerOutput::End(part) => {
                        // A server that stops is no end of the feed.
                        let is_last = self.stopping.is_none();
                        self.send_behind(index, &part, is_last);
                        self.close_behind(index);
                    }
                }
            }
            other => active.task = other,
        }
    }

    /// Whether the connection waits for an unbounded time, so that it is closed when the client closes its side.
    pub(super) fn waits_long(&self, index: u32) -> bool {
        match self.connections.active(index).map(|active| &active.task) {
            Some(Task::AwaitingDispatch { then, .. }) => then.waits_long(),
            _ => false,
        }
    }

    /// Reports a closed connection to the dispatcher if it has a request of that connection.
    pub(super) fn forget_request(&mut self, index: u32) {
        let task = self.connections.active(index).map(|active| &active.task);
        if let Some(Task::AwaitingDispatch { request, .. } | Task::Working { request, .. }) = task {
            let client = self.client(index, *request);
            self.send_gone(client);
        }
    }

    /// The connection that waits for the response to that request.
    fn asking(&self, client: DispatchClient) -> Option<u32> {
        let index = self.connections.find(client.token)?;
        match self.connections.active(index)?.task {
            Task::AwaitingDispatch { request, .. } | Task::Working { request, .. } => {
                (request == client.request).then_some(index)
            }
            _ => None,
        }
    }

    /// Sends a part of a worker's body behind what the socket has not taken. The number of its bytes is bounded by the jobs that
    /// a worker may have at a time.
    fn send_behind(&mut self, index: u32, part: &[u8], is_last: bool) {
        let framing = self.connections.slots[index].framing();
        let active = self.connections.active_mut(index);
        let Some(pending) = active.and_then(|active| active.pending.as_mut()) else {
            self.send_part(index, part, is_last);
            return;
        };
        if !self.context.buffers.have_room() {
            self.cut(index, CloseReason::BuffersMax);
            return;
        }
        framing.part(part, &mut pending.bytes);
        if is_last {
            framing.end(&mut pending.bytes);
            self.complete_body(index, true);
        }
        self.weigh(index);
    }

    /// Has the dispatcher answer a request now if it waits for something: its caller's time is over.
    pub(super) fn end_wait(&mut self, index: u32) {
        let active = self.connections.active(index);
        if let Some(Task::AwaitingDispatch { request, .. }) = active.map(|active| &active.task) {
            let client = self.client(index, *request);
            self.send_caller_ended(client);
        }
    }

    /// Ends the work of a worker, with the reason.
    pub(super) fn end_work(&mut self, index: u32, reason: CloseReason) {
        let active = self.connections.active(index);
        let Some(Task::Working { events, .. }) = active.map(|active| &active.task) else {
            return;
        };
        let part = events.farewell(reason.why());
        self.send_behind(index, &part, true);
        self.close_behind(index);
    }

    /// Closes the connection once its pending write is out.
    fn close_behind(&mut self, index: u32) {
        let last = self.last_reason(index);
        let active = self.connections.active_mut(index);
        match active.and_then(|active| active.pending.as_mut()) {
            Some(pending) => {
                pending.close.get_or_insert(last);
            }
            None => self.close(index, CloseReason::Done),
        }
    }
}
