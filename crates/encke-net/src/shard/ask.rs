//! Questions to the pools, and what the foreman says: an answer, or jobs for as long as a worker is there.

use encke_face::{Saying, Then};
use encke_jobs::{DispatcherMessage, JobError, PoolClient, PoolRequest, PoolResponse};

use super::Shard;
use crate::slot::{Flags, State};

impl Shard {
    /// Asks the pools. The answer comes as a note.
    pub(super) fn ask(&mut self, index: u32, ask: PoolRequest, then: Then) {
        self.slots[index].state = State::Asking;
        // 0 is nobody's.
        self.question = self.question.wrapping_add(1).max(1);
        let question = self.question;
        let busy = self.busy(index);
        busy.then = Some(then);
        busy.question = question;
        let word = DispatcherMessage::Request(self.client(index, question), ask);
        let bytes = self.parts.foreman.weight_bytes(&word);
        self.words.push((word, bytes));
    }

    /// Hands the turn's words to the foreman. Questions that it has no room for are answered with that;
    /// that clients are gone is said later.
    pub(super) fn hand_words(&mut self) {
        if self.words.is_empty() {
            return;
        }
        let mut words = std::mem::take(&mut self.words);
        self.parts.foreman.put_many(&mut words);
        for (word, bytes) in words {
            match word {
                DispatcherMessage::Request(client, _) => {
                    self.told(client, PoolResponse::Refused(JobError::Overloaded));
                }
                word => self.words.push((word, bytes)),
            }
        }
    }

    /// The foreman has something to say to one of this shard's connections.
    pub(super) fn told(&mut self, client: PoolClient, told: PoolResponse) {
        let Some((index, then)) = self.asking(client) else {
            // What was meant for it is somebody else's.
            if matches!(
                told,
                PoolResponse::Dispatched(_) | PoolResponse::Registered { .. }
            ) {
                self.say_gone(client);
            }
            return;
        };
        let token = client.token;
        match self.parts.faces.told(&then, told) {
            Saying::Respond(response) => {
                self.busy(index).question = 0;
                self.respond_later(index, &response);
            }
            Saying::Open(response) => {
                self.busy(index).then = Some(then);
                self.slots[index].state = State::Working;
                self.open(index, &response);
            }
            Saying::Send(bytes) => {
                self.busy(index).then = Some(then);
                self.send_on(index, &bytes);
            }
            Saying::End(bytes) => {
                self.busy(index).then = Some(then);
                self.send_on(index, &bytes);
                if self.slots.find(token).is_none() {
                    return;
                }
                if self.slots[index].flags.has(Flags::BLOCKED) {
                    self.slots[index].flags.set(Flags::CLOSING, true);
                } else {
                    self.close(index, "done");
                }
            }
        }
    }

    /// Whether the connection waits for something that may never come, so that it is given up with it.
    pub(super) fn asks_for_long(&self, index: u32) -> bool {
        let then = self.busy.get(index).and_then(|busy| busy.then.as_ref());
        then.is_some_and(Then::waits_long)
    }

    /// A connection goes: the foreman is told if it waits for that one.
    pub(super) fn unask(&mut self, index: u32) {
        if matches!(self.slots[index].state, State::Asking | State::Working)
            && let Some(busy) = self.busy.get(index)
        {
            self.say_gone(self.client(index, busy.question));
        }
    }

    fn say_gone(&mut self, client: PoolClient) {
        let word = DispatcherMessage::Disconnected(client);
        let bytes = self.parts.foreman.weight_bytes(&word);
        self.words.push((word, bytes));
    }

    fn client(&self, index: u32, question: u32) -> PoolClient {
        PoolClient {
            shard: self.parts.number,
            token: self.slots.token(index),
            request: question,
        }
    }

    /// The connection that has asked, and what its face waits with.
    fn asking(&mut self, client: PoolClient) -> Option<(u32, Then)> {
        let index = self.slots.find(client.token)?;
        if !matches!(self.slots[index].state, State::Asking | State::Working) {
            return None;
        }
        let busy = self.busy.get_mut(index)?;
        if busy.question != client.request {
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
            self.cut(index, "buffers_max");
            return;
        }
        self.busy(index).output.extend_from_slice(bytes);
        self.weigh(index);
    }
}
