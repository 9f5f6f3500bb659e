//! A session of two nodes: whole messages, in order, over packets that may be lost. A session with a loss is over.

use std::time::Instant;

use serde::Serialize;

use super::wire::{Part, encode};

/// One node's end of a session.
#[derive(Debug)]
pub(super) struct Session {
    /// Its number; a node begins each with another one.
    pub(super) number: u64,
    /// When the other end was last heard of.
    pub(super) heard_at: Instant,
    sent: u32,
    received: u32,
    /// The first parts of a message.
    begun: Vec<u8>,
}

/// A part is missing, or a message is too long: the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl Session {
    pub(super) fn new(number: u64, now: Instant) -> Session {
        Session {
            number,
            heard_at: now,
            sent: 0,
            received: 0,
            begun: Vec::new(),
        }
    }

    /// Hands a message to `send` in parts.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, mut send: impl FnMut(Part<'_>)) {
        let bytes = encode(message);
        let mut chunks = bytes.chunks(PART_BYTES).peekable();
        while let Some(bytes) = chunks.next() {
            let part = Part {
                number: self.sent,
                more: chunks.peek().is_some(),
                bytes,
            };
            self.sent = self.sent.wrapping_add(1);
            send(part);
        }
    }

    /// Takes a part. Returns the message that is complete with it.
    pub(super) fn take(&mut self, now: Instant, part: Part<'_>) -> Result<Option<Vec<u8>>, Broken> {
        let is_next = part.number == self.received;
        if !is_next || self.begun.len() + part.bytes.len() > MESSAGE_BYTES_MAX {
            return Err(Broken);
        }
        self.received = self.received.wrapping_add(1);
        self.heard_at = now;
        self.begun.extend_from_slice(part.bytes);
        Ok((!part.more).then(|| std::mem::take(&mut self.begun)))
    }
}

/// Content of a packet: brokers take messages of 1 MiB unless they are told otherwise, and of 64 KiB at least in practice.
pub(super) const PART_BYTES: usize = 48 << 10;

/// The longest message. A job has less: what a request may have is bounded by `--pool-job-max`.
pub(super) const MESSAGE_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 1 << 30 };
