//! Questions to the pools, and what the dispatcher says: an answer, or jobs for as long as a worker is there.

use encke_jobs::{Client, JobError, Word};
use encke_protocol::{DispatchEvent, DispatchRequest, Dispatched, OnDispatch, WorkerOutput};

use super::Shard;
use super::busy::Continuation;
use crate::close::CloseReason;
use crate::slot::{Flags, State};

impl Shard {
    /// Asks the pools. The answer comes as a note.
    pub(super) fn ask(&mut self, index: u32, ask: DispatchRequest, then: Box<dyn OnDispatch>) {
        self.slots[index].state = State::Asking;
        // 0 is nobody's.
        self.question = self.question.wrapping_add(1).max(1);
        let question = self.question;
        let busy = self.busy(index);
        busy.then = Some(Continuation::Dispatch(then));
        busy.question = question;
        let word = Word::Ask(self.client(index, question), ask);
        let bytes = self.parts.dispatcher.weight_bytes(&word);
        self.words.push((word, bytes));
    }

    /// Hands the turn's words to the dispatcher. Questions that it has no room for are answered with that;
    /// that clients are gone is said later.
    pub(super) fn hand_words(&mut self) {
        if self.words.is_empty() {
            return;
        }
        let mut words = std::mem::take(&mut self.words);
        self.parts.dispatcher.put_many(&mut words);
        for (word, bytes) in words {
            match word {
                Word::Ask(client, _) => self.told(client, DispatchEvent::No(JobError::Overloaded)),
                word => self.words.push((word, bytes)),
            }
        }
    }

    /// The dispatcher has something to say to one of this shard's connections.
    pub(super) fn told(&mut self, client: Client, told: DispatchEvent) {
        let Some((index, then)) = self.asking(client) else {
            // What was meant for it is somebody else's.
            if matches!(told, DispatchEvent::Handed(_) | DispatchEvent::Hired { .. }) {
                self.say_gone(client);
            }
            return;
        };
        match then {
            Continuation::Dispatch(then) => match then.dispatched(told) {
                Dispatched::Respond(response) => {
                    self.busy(index).question = 0;
                    self.respond_later(index, &response);
                }
                Dispatched::Open(response, events) => {
                    self.busy(index).then = Some(Continuation::Worker(events));
                    self.slots[index].state = State::Working;
                    self.open(index, &response);
                }
            },
            Continuation::Worker(events) => {
                let output = events.event(told);
                self.busy(index).then = Some(Continuation::Worker(events));
                match output {
                    WorkerOutput::Send(bytes) => self.send_on(index, &bytes),
                    WorkerOutput::End(bytes) => {
                        self.send_on(index, &bytes);
                        if !self.is_open(index) {
                            return;
                        }
                        if self.slots[index].flags.has(Flags::BLOCKED) {
                            self.slots[index].flags.set(Flags::CLOSING, true);
                        } else {
                            self.close(index, CloseReason::Done);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether the connection waits for something that may never come, so that it is given up with it.
    pub(super) fn asks_for_long(&self, index: u32) -> bool {
        let then = self.busy.get(index).and_then(|busy| busy.then.as_ref());
        match then {
            Some(Continuation::Dispatch(then)) => then.waits_long(),
            _ => false,
        }
    }

    /// A connection goes: the dispatcher is told if it waits for that one.
    pub(super) fn unask(&mut self, index: u32) {
        if matches!(self.slots[index].state, State::Asking | State::Working)
            && let Some(busy) = self.busy.get(index)
        {
            self.say_gone(self.client(index, busy.question));
        }
    }

    fn say_gone(&mut self, client: Client) {
        let word = Word::Gone(client);
        let bytes = self.parts.dispatcher.weight_bytes(&word);
        self.words.push((word, bytes));
    }

    fn client(&self, index: u32, question: u32) -> Client {
        Client {
            shard: self.parts.number,
            token: self.slots.token(index),
            question,
        }
    }

    /// The connection that has asked, and what its face waits with.
    fn asking(&mut self, client: Client) -> Option<(u32, Continuation)> {
        let index = self.slots.find(client.token)?;
        if !matches!(self.slots[index].state, State::Asking | State::Working) {
            return None;
        }
        let busy = self.busy.get_mut(index)?;
        if busy.question != client.question {
            return None;
        }
        Some((index, busy.then.take()?))
    }

    /// Sends bytes that belong together, behind those that the socket did not take yet. How many they
    /// can become is bounded by what a worker may have at a time.
    fn send_on(&mut self, index: u32, bytes: &[u8]) {
        if !self.slots[index].flags.has(Flags::BLOCKED) {
            self.send_raw(index, bytes);
            return;
        }
        if !self.parts.buffers.have_room() {
            self.cut(index, CloseReason::BuffersMax);
            return;
        }
        self.busy(index).output.extend_from_slice(bytes);
        self.weigh(index);
    }
}
