//! Requests for streams that are not in memory: a reader thread looks the name up, then the face is
//! asked again.

use std::sync::Arc;

use encke_protocol::{Action, CallerInfo, Failure, Headers, Request, problem};
use encke_stream::{Known, LoadError, Stream};

use super::Shard;
use crate::close::CloseReason;
use crate::http::head::Head;
use crate::slot::{Flags, State, Token};

/// A whole request, kept until what it names is known.
#[derive(Debug)]
pub(crate) struct Parked {
    method: Box<str>,
    path: Box<str>,
    query: Option<Box<str>>,
    fields: Vec<(Box<str>, Box<[u8]>)>,
    body: Vec<u8>,
    tls: bool,
    host: Option<Box<str>>,
    identity: Option<Box<str>>,
    /// What was found so far stays in memory until the request is answered.
    held: Vec<Known>,
}

impl Parked {
    pub(super) fn new(
        head: &Head<'_>,
        fields: &[(&str, &[u8])],
        caller: CallerInfo<'_>,
        body: Vec<u8>,
    ) -> Self {
        let fields = fields.iter();
        Parked {
            method: head.method.into(),
            path: head.path.into(),
            query: head.query.map(Box::from),
            fields: fields
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            body,
            tls: caller.tls,
            host: caller.host.map(Box::from),
            identity: caller.identity.map(Box::from),
            held: Vec::new(),
        }
    }
}

impl Shard {
    /// Has a name looked up for a request.
    pub(super) fn look(&mut self, index: u32, name: Box<str>, parked: Parked) {
        let token = self.slots.token(index);
        if self.parts.readers.look(name, token, &self.parts.sender) {
            self.slots[index].state = State::Fetching;
            self.busy(index).parked = Some(Box::new(parked));
        } else {
            let response = problem::failed(Failure::Overloaded);
            self.respond(index, &response);
        }
    }

    /// A name was looked up: its request is answered, and the connection's next one.
    pub(super) fn looked(&mut self, token: Token, known: Result<Known, LoadError>) {
        // Otherwise the client is gone.
        let Some(index) = self.slots.find(token) else {
            return;
        };
        let Some(parked) = self.busy.get_mut(index).and_then(|busy| busy.parked.take()) else {
            return;
        };
        self.slots[index].state = State::Reading;
        match known {
            Ok(known) => self.ask_again(index, *parked, known),
            Err(error) => {
                let failure = match error {
                    LoadError::Restless => Failure::Overloaded,
                    _ => Failure::Unreadable,
                };
                let response = problem::failed(failure);
                self.respond(index, &response);
            }
        }
        if self.is_open(index) {
            self.resume(index);
        }
    }

    /// Has the stream of a subscriber loaded that was let go of while nothing happened.
    pub(super) fn load(&mut self, index: u32) {
        let token = self.slots.token(index);
        let no = self.topics.no(self.slots[index].topic);
        if self.parts.readers.load(no, token, &self.parts.sender) {
            self.slots[index].flags.set(Flags::CATCHING, true);
        } else {
            // The readers are overrun: the subscriber keeps its place and its turn.
            self.lag(index);
        }
    }

    /// A subscriber's stream was loaded.
    pub(super) fn loaded(&mut self, token: Token, stream: Result<Option<Arc<Stream>>, LoadError>) {
        let Some(index) = self.slots.find(token) else {
            return;
        };
        if !matches!(self.slots[index].state, State::Following | State::Polling) {
            return;
        }
        self.slots[index].flags.set(Flags::CATCHING, false);
        match stream {
            Ok(Some(stream)) => {
                let topic = self.slots[index].topic;
                self.topics.bring(topic, &stream);
                self.flush(index);
            }
            // It has ended, and the record that says so is no longer at hand.
            Ok(None) => {
                let end = self.position(index);
                self.end_behind(index, end, false);
            }
            Err(LoadError::Restless) => self.lag(index),
            Err(_) => self.close(index, CloseReason::Unreadable),
        }
    }

    fn ask_again(&mut self, index: u32, mut parked: Parked, known: Known) {
        parked.held.push(known);
        let fields: Vec<(&str, &[u8])> = parked
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let answer = self.parts.router.request(Request {
            method: &parked.method,
            path: &parked.path,
            query: parked.query.as_deref(),
            headers: Headers(&fields),
            body: std::mem::take(&mut parked.body),
            caller: CallerInfo {
                tls: parked.tls,
                host: parked.host.as_deref(),
                identity: parked.identity.as_deref(),
            },
            now_ms: self.clock.now_ms(),
        });
        match answer {
            Action::Load(load) => {
                parked.body = load.body;
                self.look(index, load.name, parked);
            }
            answer => self.answer(index, answer),
        }
    }
}
