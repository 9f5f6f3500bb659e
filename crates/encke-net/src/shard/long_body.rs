//! Long bodies: a part at a time, each read when the socket has taken the one before it.

use encke_log::ReadError;
use encke_protocol::{NextPart, Response, Run};
use encke_stream::{Item, Piece};

use super::Shard;
use crate::connection::active::{PartCoding, StreamingStep, Task};
use crate::connection::close::CloseReason;
use crate::connection::slot::Flags;

impl Shard {
    /// Begins a long body: sends the head and the first part, then has the next one read.
    pub(super) fn stream(&mut self, index: u32, response: &Response, next: NextPart) {
        let step = StreamingStep::Next(Box::new(next));
        self.stream_parts(index, response, step, PartCoding::Identity);
    }

    /// Begins a long body of which the first step and the coding are known.
    pub(super) fn stream_parts(
        &mut self,
        index: u32,
        response: &Response,
        step: StreamingStep,
        coding: PartCoding,
    ) {
        let task = Task::Streaming {
            step,
            coding,
            behind: None,
        };
        self.connections.begin(index, task);
        self.open(index, response);
        self.stream_on(index);
    }

    /// Has the next part read, unless the socket has still to take the last one.
    pub(super) fn stream_on(&mut self, index: u32) {
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        let Task::Streaming { step, coding, .. } = &mut active.task else {
            return;
        };
        if active.pending.is_some() || matches!(coding, PartCoding::AtReader) {
            return;
        }
        if matches!(coding, PartCoding::Coded(compressor) if compressor.has_work()) {
            let at_reader = std::mem::replace(coding, PartCoding::AtReader);
            return self.compress_part(index, at_reader);
        }
        match step {
            StreamingStep::Over => self.stream_over(index),
            StreamingStep::Reading(_) => {}
            StreamingStep::Next(_) => {
                if !self.awaits_window(index) {
                    self.read_part(index);
                }
            }
        }
    }

    /// Has the next part read.
    fn read_part(&mut self, index: u32) {
        let token = self.connections.slots.token(index);
        let Some(step) = self.streaming_step(index) else {
            return;
        };
        let StreamingStep::Next(next) = std::mem::replace(step, StreamingStep::Over) else {
            return;
        };
        let mut fetch = next.fetch.clone();
        fetch.bytes_max = self.grant_read(index, fetch.bytes_max);
        let is_asked = self
            .context
            .readers
            .read(fetch, token, &self.context.sender);
        if let Some(step) = self.streaming_step(index) {
            *step = match is_asked {
                true => StreamingStep::Reading(next.then),
                // The readers are overloaded: the body keeps its place and tries again.
                false => StreamingStep::Next(next),
            };
        }
        if !is_asked {
            self.queue(index);
        }
    }

    fn streaming_step(&mut self, index: u32) -> Option<&mut StreamingStep> {
        match &mut self.connections.active_mut(index)?.task {
            Task::Streaming { step, .. } => Some(step),
            _ => None,
        }
    }

    /// The next part was read. What cannot be read ends the connection in the middle of the body, so that the client does not
    /// take the beginning for the whole.
    pub(super) fn part_read(&mut self, index: u32, piece: Result<Piece, ReadError>) {
        let Some(active) = self.connections.active_mut(index) else {
            return;
        };
        let Task::Streaming { step, coding, .. } = &mut active.task else {
            return;
        };
        let then = match std::mem::replace(step, StreamingStep::Over) {
            StreamingStep::Reading(then) => then,
            other => {
                *step = other;
                return self.cut(index, CloseReason::Unreadable);
            }
        };
        let piece = match piece {
            Ok(piece) => piece,
            Err(ReadError::BelowFloor { .. }) => return self.cut(index, CloseReason::NoLongerKept),
            Err(_) => return self.cut(index, CloseReason::Unreadable),
        };
        let items: Vec<Item<'_>> = piece.items().collect();
        let run = Run {
            items: &items,
            end: piece.end,
            at_tail: !piece.more,
            closed: false,
        };
        let Some(part) = then.part(&run) else {
            return self.cut(index, CloseReason::Internal);
        };
        let last = part.next.is_none();
        if let Some(next) = part.next {
            *step = StreamingStep::Next(Box::new(next));
        }
        match coding {
            PartCoding::Coded(compressor) => compressor.add(part.bytes, last),
            PartCoding::Identity | PartCoding::AtReader => {
                self.send_part(index, &part.bytes, last);
            }
        }
        self.stream_on(index);
    }

    /// Has the input of a compressor compressed.
    fn compress_part(&mut self, index: u32, coding: PartCoding) {
        let PartCoding::Coded(compressor) = coding else {
            return;
        };
        if let Err(compressor) = self.send_compression(index, compressor) {
            // The readers are overloaded: the body keeps its place and tries again.
            let active = self.connections.active_mut(index);
            if let Some(Task::Streaming { coding, .. }) = active.map(|active| &mut active.task) {
                *coding = PartCoding::Coded(compressor);
            }
            self.queue(index);
        }
    }

    /// Whether a connection's response is a long body.
    pub(super) fn is_streaming(&self, index: u32) -> bool {
        let active = self.connections.active(index);
        active.is_some_and(|active| matches!(active.task, Task::Streaming { .. }))
    }

    /// The time of the caller is over: the body may go on for as long as a body may take, and is cut off then.
    pub(super) fn finish_within_body_timeout(&mut self, index: u32) {
        let cut_off = self
            .clock
            .monotonic()
            .after(self.context.settings.body_timeout);
        self.connections.activate(index).cut_off = Some(cut_off);
        self.remind(index);
    }

    /// All parts are out.
    fn stream_over(&mut self, index: u32) {
        if let Some(active) = self.connections.active_mut(index) {
            active.cut_off = None;
        }
        self.complete_request(index);
        self.forget_lag(index);
        let flags = self.connections.slots[index].flags;
        self.connections.begin_reading(index);
        let keep = flags.has(Flags::KEEP_ALIVE) && !flags.has(Flags::HTTP_1_0);
        if !keep || self.stopping.is_some() {
            self.close(index, CloseReason::Done);
            return;
        }
        self.connections.settle(index);
        self.resume(index);
    }
}
