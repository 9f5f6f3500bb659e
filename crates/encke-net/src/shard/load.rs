//! Requests for streams that are not in memory: a reader thread loads the name, then the router is asked again.

use std::sync::Arc;

use encke_protocol::{Failure, problem};
use encke_stream::{LoadError, Lookup, Stream};

use super::Shard;
use crate::connection::active::{ParkedRequest, Task};
use crate::connection::close::CloseReason;
use crate::connection::slot::Token;

impl Shard {
    /// Loads a name for a request.
    pub(super) fn load_name(&mut self, index: u32, name: Box<str>, parked: Box<ParkedRequest>) {
        let token = self.connections.slots.token(index);
        let sender = &self.context.sender;
        if self.context.readers.load_name(name, token, sender) {
            self.connections.begin(index, Task::AwaitingLoad(parked));
        } else {
            self.respond(index, &problem::failed(Failure::Overloaded));
        }
    }

    /// A name was loaded: responds to its request, and continues with the next one of the connection.
    pub(super) fn name_loaded(&mut self, token: Token, known: Result<Lookup, LoadError>) {
        let Some(index) = self.connections.find(token) else {
            return;
        };
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        if !matches!(active.task, Task::AwaitingLoad(_)) {
            return;
        }
        let Task::AwaitingLoad(parked) = std::mem::take(&mut active.task) else {
            return;
        };
        match known {
            Ok(known) => {
                let mut parked = parked;
                parked.held.push(known);
                self.route_again(index, parked);
            }
            Err(error) => {
                let failure = match error {
                    LoadError::Contended => Failure::Overloaded,
                    _ => Failure::Unreadable,
                };
                self.respond(index, &problem::failed(failure));
            }
        }
        self.resume(index);
    }

    /// Loads the stream of a subscriber that was evicted while nothing happened.
    pub(super) fn load_stream(&mut self, index: u32) {
        let token = self.connections.slots.token(index);
        let topic = self.connections.slots[index].topic;
        let no = self.fan_out.topics.no(topic);
        let sender = &self.context.sender;
        if self.context.readers.load_stream(no, token, sender) {
            self.set_reading(index, true);
        } else {
            // The readers are overloaded: the subscriber keeps its position and tries again.
            self.queue(index);
        }
    }

    /// A subscriber's stream was loaded.
    pub(super) fn stream_loaded(
        &mut self,
        token: Token,
        stream: Result<Option<Arc<Stream>>, LoadError>,
    ) {
        let Some(index) = self.connections.find(token) else {
            return;
        };
        if !self.set_reading(index, false) {
            return;
        }
        match stream {
            Ok(Some(stream)) => {
                let topic = self.connections.slots[index].topic;
                self.fan_out.topics.bring(topic, &stream);
                self.flush(index);
            }
            // It has ended, and the record that ended it is no longer in the ring.
            Ok(None) => {
                let end = self.position(index);
                self.end_feed(index, end, false);
            }
            Err(LoadError::Contended) => self.queue(index),
            Err(_) => self.close(index, CloseReason::Unreadable),
        }
        self.connections.settle(index);
    }

    /// Notes whether a reader thread reads or loads for a subscriber or a long poll. False: the connection is neither.
    pub(super) fn set_reading(&mut self, index: u32, on: bool) -> bool {
        if on {
            self.connections.activate(index);
        }
        let Some(active) = self.connections.active_mut(index) else {
            return false;
        };
        match &mut active.task {
            Task::Subscribed(subscriber) => subscriber.reading = on,
            Task::AwaitingRecord { loading, .. } => *loading = on,
            _ => return false,
        }
        true
    }
}
