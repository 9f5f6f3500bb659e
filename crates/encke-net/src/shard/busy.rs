//! What a connection needs only while it is busy or blocked.

use encke_protocol::{NextPart, OnCommit, OnDispatch, OnPart, OnRead, OnRecord, OnWorkerEvent};
use encke_stream::Offset;

use super::look::Parked;
use super::several::Several;
use super::slow::Behind;
use crate::buffers::BufferShare;
use crate::close::CloseReason;
use crate::http::body::Incoming;

/// The busy connections of a shard, by the numbers of their slots: a small table for each stretch of slots. One large table
/// would move all that it holds when it grows, and stop the shard for that long when a crowd becomes busy at once.
#[derive(Debug, Default)]
pub(crate) struct BusyOnes {
    parts: Vec<Part>,
}

type Part = hashbrown::HashMap<u32, Box<Busy>, foldhash::fast::FixedState>;

// What a connection costs while it is busy, beside what it holds.
const _: () = assert!(size_of::<Busy>() <= 384);

impl BusyOnes {
    pub(crate) fn get(&self, index: u32) -> Option<&Busy> {
        let busy = self.parts.get(part(index))?.get(&index)?;
        Some(busy)
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Busy> {
        let busy = self.parts.get_mut(part(index))?.get_mut(&index)?;
        Some(busy)
    }

    /// What a connection is busy with, from now on if not before.
    pub(crate) fn enter(&mut self, index: u32) -> &mut Busy {
        let part = part(index);
        if self.parts.len() <= part {
            self.parts.resize_with(part + 1, Part::default);
        }
        self.parts[part].entry(index).or_default()
    }

    /// A connection is busy no more. What a crowd took is given back.
    pub(crate) fn remove(&mut self, index: u32) {
        let Some(part) = self.parts.get_mut(part(index)) else {
            return;
        };
        part.remove(&index);
        if part.capacity() > ROOM_KEPT && part.len() < part.capacity() / 16 {
            part.shrink_to(ROOM_KEPT);
        }
    }
}

fn part(index: u32) -> usize {
    index as usize / PART_SLOTS
}

/// What a request waits for.
#[derive(Debug)]
pub(crate) enum Continuation {
    Commit(Box<dyn OnCommit>),
    Read(Box<dyn OnRead>),
    Part(Box<dyn OnPart>),
    Record(Box<dyn OnRecord>),
    Dispatch(Box<dyn OnDispatch>),
    Worker(Box<dyn OnWorkerEvent>),
}

/// Kept beside the slot, and only as long as something in it matters.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    /// Bytes that came and are not used yet.
    pub(crate) input: Vec<u8>,
    /// The body that is being received.
    pub(crate) body: Option<Incoming>,
    /// Bytes that the socket did not take yet.
    pub(crate) output: Vec<u8>,
    /// How much of `output` it took.
    pub(crate) sent: usize,
    /// A subscriber's position once `output` is out.
    pub(crate) reached: Option<Offset>,
    /// The subscriber is told nothing more once `output` is out.
    pub(crate) ended: bool,
    /// What follows of a long answer, once `output` is out.
    pub(crate) next: Option<Box<NextPart>>,
    /// A request that waits for what it names to be looked up.
    pub(crate) parked: Option<Box<Parked>>,
    /// The continuation of its request.
    pub(crate) then: Option<Continuation>,
    /// Which question the pools are asked; 0 for none.
    pub(crate) question: u32,
    /// A long poll's or a catching-up subscriber's position, where it is not just a sequence.
    pub(crate) from: Option<Offset>,
    /// The streams of a subscriber of several.
    pub(crate) several: Option<Box<Several>>,
    /// The option of a subscriber's encoder.
    pub(crate) option: u64,
    /// Since when it is behind, if it is.
    pub(crate) behind: Option<Behind>,
    /// Why it is closed once `output` is out, if not because that was all.
    pub(crate) reason: Option<CloseReason>,
    /// When the body must be complete; 0 while there is none.
    pub(crate) body_until_ms: u64,
    /// What it is counted for in memory.
    pub(crate) held: BufferShare,
    /// When the wheel reminds of the deadline; 0 if it won't.
    pub(crate) reminder_ms: u64,
    /// When the client will have taken too long, or the poll is over; 0 for never.
    pub(crate) deadline_ms: u64,
}

impl Busy {
    /// Whether nothing in it matters any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.input.is_empty()
            && self.body.is_none()
            && self.output.is_empty()
            && self.next.is_none()
            && self.parked.is_none()
            && self.then.is_none()
            && self.from.is_none()
            && self.option == 0
            && self.several.is_none()
            && self.behind.is_none()
    }

    /// What it holds in memory, unless that is next to nothing.
    pub(crate) fn bytes(&self) -> usize {
        let body = self.body.as_ref().map_or(0, Incoming::bytes);
        let read = self.several.as_ref().map_or(0, |several| several.bytes());
        match self.input.capacity() + self.output.capacity() + body + read {
            0 => 0,
            bytes => bytes + size_of::<Busy>(),
        }
    }
}

/// Slots whose busy ones share a table: what is moved at most when it grows.
const PART_SLOTS: usize = 4096;

/// A table's room that is kept ready when few are busy.
const ROOM_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_busy_ones_comes_and_goes() {
        let mut busy = BusyOnes::default();
        let crowd = 3 * PART_SLOTS as u32;
        for index in (0..crowd).rev() {
            busy.enter(index).question = index;
            busy.enter(index).sent = 1;
        }
        assert!((0..crowd).all(|index| busy.get(index).is_some_and(|b| b.question == index)));
        assert!(busy.parts.iter().all(|part| part.len() == PART_SLOTS));
        for index in 0..crowd {
            busy.remove(index);
            assert!(busy.get(index).is_none() && busy.get_mut(index).is_none());
        }
        assert!(
            busy.parts
                .iter()
                .all(|part| part.capacity() <= 2 * ROOM_KEPT)
        );
        busy.remove(crowd);
        assert_eq!(busy.enter(1).sent, 0);
    }
}
