//! Long answers: a part at a time, each read when the socket has taken the one before it.

use encke_log::ReadError;
use encke_protocol::{NextPart, Response, Run};
use encke_stream::{Item, Piece};

use super::Shard;
use super::busy::Continuation;
use crate::close::CloseReason;
use crate::http::response::{LAST_CHUNK, chunk};
use crate::slot::{Flags, State};

impl Shard {
    /// Begins a long answer: sends its head and first part, then has the next one read.
    pub(super) fn stream(&mut self, index: u32, response: &Response, next: NextPart) {
        self.slots[index].state = State::Streaming;
        self.busy(index).next = Some(Box::new(next));
        self.open(index, response);
        if self.is_open(index) {
            self.stream_on(index);
        }
    }

    /// Has the next part read, unless the socket has still to take the last one.
    pub(super) fn stream_on(&mut self, index: u32) {
        if self.slots[index].flags.has(Flags::BLOCKED) {
            return;
        }
        let Some(next) = self.busy(index).next.take() else {
            self.stream_over(index);
            return;
        };
        let NextPart { fetch, then } = *next;
        let token = self.slots.token(index);
        if self
            .parts
            .readers
            .ask(fetch.clone(), token, &self.parts.sender)
        {
            self.busy(index).then = Some(Continuation::Part(then));
        } else {
            // The readers are overrun: the answer keeps its place and is tried again.
            self.busy(index).next = Some(Box::new(NextPart { fetch, then }));
            self.lag(index);
        }
    }

    /// The next part was read. What can't be read ends the connection in the middle of the body,
    /// so that the client does not take the beginning for the whole.
    pub(super) fn stream_part(&mut self, index: u32, piece: Result<Piece, ReadError>) {
        let then = self.take_then(index);
        let (then, piece) = match (then, piece) {
            (Some(Continuation::Part(then)), Ok(piece)) => (then, piece),
            (_, Err(ReadError::BelowFloor { .. })) => {
                return self.cut(index, CloseReason::NoLongerKept);
            }
            _ => return self.cut(index, CloseReason::Unreadable),
        };
        let items: Vec<Item<'_>> = piece.items().collect();
        let run = Run {
            items: &items,
            end: piece.end,
            at_tail: !piece.more,
            closed: false,
        };
        let Some(part) = then.part(&run) else {
            self.cut(index, CloseReason::Internal);
            return;
        };
        let last = part.next.is_none();
        self.busy(index).next = part.next.map(Box::new);
        let plain = self.slots[index].flags.has(Flags::PLAIN);
        let mut out = std::mem::take(&mut self.out);
        out.clear();
        if plain {
            out.extend_from_slice(&part.bytes);
        } else {
            chunk(&part.bytes, &mut out);
            if last {
                out.extend_from_slice(LAST_CHUNK);
            }
        }
        self.send_raw(index, &out);
        self.give_back(out);
        if self.is_open(index) {
            self.stream_on(index);
        }
    }

    /// The answer is out.
    fn stream_over(&mut self, index: u32) {
        let flags = self.slots[index].flags;
        self.slots[index].state = State::Reading;
        if !flags.has(Flags::KEEP) || flags.has(Flags::PLAIN) || self.stopping.is_some() {
            self.close(index, CloseReason::Done);
            return;
        }
        self.settle(index);
        self.resume(index);
    }
}
