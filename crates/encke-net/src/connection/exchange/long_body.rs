//! Long bodies: a part at a time, each read when the one before it was taken.

use std::time::Instant;

use encke_log::ReadError;
use encke_protocol::{BodyPart, Response, Run};
use encke_stream::{Item, LargeRecords, Piece};

use super::state::Exchange;
use super::task::{PartCoding, StreamingStep, Task};
use super::writer::ResponseWriter;
use crate::clock::Monotonic;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;

impl Exchange {
    /// Begins a long body: sends the head and the first part, then has the next one read.
    pub(super) fn stream(
        &mut self,
        response: &Response,
        step: StreamingStep,
        coding: PartCoding,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        self.task = Task::Streaming { step, coding };
        self.open(response, out, cx);
        self.stream_on(out, cx);
    }

    /// Goes on with a long body, unless the last part was not taken.
    pub(super) fn stream_on(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        if !self.is_streaming() || out.is_blocked(cx) {
            return;
        }
        self.end_wait_for_client(cx);
        let Task::Streaming { step, coding } = &mut self.task else {
            return;
        };
        match coding {
            PartCoding::AtReader => return,
            PartCoding::Coded(compressor) if compressor.has_work() => {
                if let PartCoding::Coded(compressor) =
                    std::mem::replace(coding, PartCoding::AtReader)
                {
                    cx.push(ConnectionEffect::Compress(self.place.exchange, compressor));
                }
                return;
            }
            PartCoding::Coded(_) | PartCoding::Identity => {}
        }
        match step {
            StreamingStep::Reading(_) | StreamingStep::Sending(_) => {}
            StreamingStep::Over => {
                self.timer.cut_off = None;
                self.facts.keep_alive &= !self.facts.http_1_0 && !cx.stopping;
                self.task = Task::Responded;
            }
            StreamingStep::Next(_) => {
                if !out.awaits_window(cx) {
                    self.read_part(out, cx);
                }
            }
        }
    }

    /// Has the next part read.
    fn read_part(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        let Task::Streaming { step, coding } = &mut self.task else {
            return;
        };
        match std::mem::replace(step, StreamingStep::Over) {
            StreamingStep::Next(next) => {
                let mut fetch = next.fetch.clone();
                if let (PartCoding::Identity, LargeRecords::Parts(parts)) =
                    (coding, &mut fetch.large)
                {
                    let is_sent_by_kernel = !parts.is_bounded && out.takes_files();
                    parts.in_file = is_sent_by_kernel.then(Instant::now);
                }
                fetch.bytes_max = out.grant_read(fetch.bytes_max);
                *step = StreamingStep::Reading(next);
                cx.push(ConnectionEffect::Read(self.place.exchange, fetch));
            }
            other => *step = other,
        }
    }

    /// The file of the last part is out.
    pub(super) fn file_sent(&mut self, out: &mut dyn ResponseWriter, cx: &mut Context<'_>) {
        if let Task::Streaming { step, .. } = &mut self.task {
            *step = match std::mem::replace(step, StreamingStep::Over) {
                StreamingStep::Sending(Some(next)) => StreamingStep::Next(next),
                StreamingStep::Sending(None) => StreamingStep::Over,
                other => other,
            };
        }
        self.stream_on(out, cx);
    }

    /// The readers had no room: the body keeps its place.
    pub(super) fn part_not_read(&mut self) {
        if let Task::Streaming { step, .. } = &mut self.task {
            *step = match std::mem::replace(step, StreamingStep::Over) {
                StreamingStep::Reading(next) => StreamingStep::Next(next),
                other => other,
            };
        }
    }

    /// The next part was read. What cannot be read ends the connection in the middle of the body, so that the client does not
    /// take the beginning for the whole.
    pub(super) fn part_read(
        &mut self,
        piece: Result<Piece, ReadError>,
        out: &mut dyn ResponseWriter,
        cx: &mut Context<'_>,
    ) {
        let Task::Streaming { step, coding } = &mut self.task else {
            return;
        };
        let then = match std::mem::replace(step, StreamingStep::Over) {
            StreamingStep::Reading(next) => next.then,
            other => {
                *step = other;
                return self.fail(CloseReason::Unreadable, cx);
            }
        };
        let piece = match piece {
            Ok(piece) => piece,
            Err(ReadError::BelowFloor { .. }) => return self.fail(CloseReason::NoLongerKept, cx),
            Err(_) => return self.fail(CloseReason::Unreadable, cx),
        };
        let joined = piece.joined();
        let items: Vec<Item<'_>> = match joined {
            Some(_) if then.takes_joined() => Vec::new(),
            _ => piece.items().collect(),
        };
        let run = Run {
            items: &items,
            joined,
            at_tail: !piece.more,
            large: &piece.large,
            cut: piece.cut,
            ..Run::position(piece.end)
        };
        let Some(BodyPart {
            mut bytes,
            files,
            behind,
            next,
        }) = then.part(&run)
        else {
            return self.fail(CloseReason::Internal, cx);
        };
        let is_last = next.is_none();
        let next = next.map(Box::new);
        if !files.is_empty() {
            debug_assert!(
                bytes.is_empty(),
                "what follows a file is in a part of its own"
            );
            *step = StreamingStep::Sending(next);
            return out.file_part(files, behind, is_last, cx);
        }
        bytes.extend_from_slice(behind);
        match coding {
            PartCoding::Coded(compressor) => compressor.add(bytes, is_last),
            PartCoding::Identity | PartCoding::AtReader => out.part(&bytes, is_last, cx),
        }
        if let Some(next) = next {
            *step = StreamingStep::Next(next);
        }
        self.stream_on(out, cx);
    }

    /// The client has not taken all of a long body: from now on it has to.
    pub(crate) fn wait_for_client(&mut self, cx: &mut Context<'_>) {
        if self.is_streaming() && self.blocked_since.is_none() {
            self.blocked_since = Some(cx.clock.monotonic());
            cx.counts.behind += 1;
        }
    }

    /// The client has taken what there was of a long body, or the exchange is over.
    pub(crate) fn end_wait_for_client(&mut self, cx: &mut Context<'_>) {
        if self.blocked_since.take().is_some() {
            cx.counts.behind -= 1;
        }
    }

    /// Since when a long body has waited for its client, if it does.
    pub(crate) fn blocked_since(&self) -> Option<Monotonic> {
        self.blocked_since
    }
}
