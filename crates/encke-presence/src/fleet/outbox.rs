//! What this node says of itself: changes since the last turn, and deltas that others may have missed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::digest;
use super::packet::{Content, HoldingChange, Packet, PacketSource, Section};
use crate::Member;
use crate::member::Shown;
use crate::roster::{KnownStream, MemberRoster};

/// Changes of what this node holds.
#[derive(Debug)]
pub(crate) struct PacketOutbox {
    incarnation: u64,
    said: Vec<Said>,
    /// Streams whose connections or rules have changed. A slot may have another stream since.
    dirty: Vec<u32>,
    /// The sequence of the last delta.
    pub(crate) sequence: u64,
    /// The digest of what is held: after all that is in `said`, without what `dirty` adds.
    pub(crate) digest: u64,
    sent: VecDeque<Sent>,
    sent_bytes: usize,
}

/// A delta that was sent.
#[derive(Debug)]
struct Sent {
    sequence: u64,
    packet: Vec<u8>,
}

/// A change that is to be said.
#[derive(Debug)]
struct Said {
    stream: Arc<str>,
    grace_ms: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    Connections(u32),
    Holds {
        key: Option<Box<str>>,
        member: Arc<Member>,
        stamp: u64,
    },
    Ends {
        key: Box<str>,
    },
}

impl PacketOutbox {
    pub(crate) fn new(incarnation: u64) -> PacketOutbox {
        PacketOutbox {
            incarnation,
            said: Vec::new(),
            dirty: Vec::new(),
            sequence: 0,
            digest: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
        }
    }

    /// Connections or rules of a stream have changed.
    pub(crate) fn mark(&mut self, stream: &mut KnownStream, slot: u32) {
        if !std::mem::replace(&mut stream.is_dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// This node holds a member, or shows it in another way than `before`.
    pub(crate) fn hold(
        &mut self,
        stream: &KnownStream,
        key: &str,
        before: Option<&Shown>,
        after: &Shown,
    ) {
        self.add(digest::of_member(
            self.incarnation,
            &stream.name,
            key,
            after,
        ));
        if let Some(before) = before {
            self.subtract(digest::of_member(
                self.incarnation,
                &stream.name,
                key,
                before,
            ));
        }
        let key = Some(key)
            .filter(|key| **key != *after.member.id)
            .map(Into::into);
        let what = What::Holds {
            key,
            member: Arc::clone(&after.member),
            stamp: after.stamp,
        };
        self.say(stream, what);
    }

    /// This node does not hold a member any more.
    pub(crate) fn end(&mut self, stream: &KnownStream, key: &str, before: &Shown) {
        self.subtract(digest::of_member(
            self.incarnation,
            &stream.name,
            key,
            before,
        ));
        self.say(stream, What::Ends { key: key.into() });
    }

    /// A stream has no entry any more.
    pub(crate) fn forget(&mut self, mut stream: KnownStream) {
        self.say_connections(&mut stream);
    }

    /// Writes all changes since the last turn into deltas.
    pub(crate) fn flush(
        &mut self,
        roster: &mut MemberRoster,
        from: PacketSource<'_>,
    ) -> Vec<Vec<u8>> {
        for slot in std::mem::take(&mut self.dirty) {
            if let Some(stream) = roster
                .streams
                .get_mut(slot)
                .filter(|stream| stream.is_dirty)
            {
                stream.is_dirty = false;
                self.say_connections(stream);
            }
        }
        let said = std::mem::take(&mut self.said);
        let mut packets = Vec::new();
        let mut gathered = Gathered::default();
        for one in &said {
            if !gathered.has_room(one) {
                packets.push(self.delta(&mut gathered, from));
            }
            gathered.push(one);
        }
        if !gathered.is_empty() {
            packets.push(self.delta(&mut gathered, from));
        }
        packets
    }

    /// All deltas after one, if they are still there.
    pub(crate) fn sent_after(&self, sequence: u64) -> Option<impl Iterator<Item = &[u8]>> {
        let first = self
            .sent
            .front()
            .map_or(self.sequence + 1, |sent| sent.sequence);
        let is_there = sequence < self.sequence && first <= sequence.saturating_add(1);
        let after = self
            .sent
            .iter()
            .filter(move |sent| sent.sequence > sequence);
        is_there.then(|| after.map(|sent| &*sent.packet))
    }

    fn delta(&mut self, gathered: &mut Gathered<'_>, from: PacketSource<'_>) -> Vec<u8> {
        self.sequence += 1;
        let content = Content::Delta {
            sequence: self.sequence,
            sections: gathered.take(),
        };
        let packet = Packet { from, content }.encode();
        self.sent_bytes += packet.len();
        self.sent.push_back(Sent {
            sequence: self.sequence,
            packet: packet.clone(),
        });
        while self.sent_bytes > SENT_BYTES_MAX || self.sent.len() > SENT_MAX {
            let Some(oldest) = self.sent.pop_front() else {
                break;
            };
            self.sent_bytes -= oldest.packet.len();
        }
        packet
    }

    fn say_connections(&mut self, stream: &mut KnownStream) {
        let before = std::mem::replace(&mut stream.announced, stream.local_connections);
        // The rules may have changed although the number is the same, unless nothing is held.
        if before == 0 && stream.announced == 0 {
            return;
        }
        self.subtract(digest::of_connections(
            self.incarnation,
            &stream.name,
            before,
        ));
        self.add(digest::of_connections(
            self.incarnation,
            &stream.name,
            stream.announced,
        ));
        self.say(stream, What::Connections(stream.announced));
    }

    fn say(&mut self, stream: &KnownStream, what: What) {
        let grace_ms = grace_ms(stream);
        self.said.push(Said {
            stream: Arc::clone(&stream.name),
            grace_ms,
            what,
        });
    }

    fn add(&mut self, hash: u64) {
        self.digest = self.digest.wrapping_add(hash);
    }

    fn subtract(&mut self, hash: u64) {
        self.digest = self.digest.wrapping_sub(hash);
    }
}

/// The sections of a packet that is being written.
#[derive(Debug, Default)]
pub(super) struct Gathered<'a> {
    sections: Vec<Section<'a>>,
    of: HashMap<&'a str, usize>,
    bytes: usize,
}

impl<'a> Gathered<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.sections.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes >= PART_BYTES
    }

    pub(super) fn take(&mut self) -> Vec<Section<'a>> {
        self.of.clear();
        self.bytes = 0;
        std::mem::take(&mut self.sections)
    }

    /// The section of a stream. The latest grace counts.
    pub(super) fn section(&mut self, stream: &'a str, grace_ms: u32) -> &mut Section<'a> {
        let place = *self.of.entry(stream).or_insert_with(|| {
            self.bytes += Section::bytes_of(stream);
            self.sections.push(Section {
                stream,
                grace_ms,
                connections: None,
                changes: Vec::new(),
            });
            self.sections.len() - 1
        });
        let section = &mut self.sections[place];
        section.grace_ms = grace_ms;
        section
    }

    pub(super) fn change(&mut self, stream: &'a str, grace_ms: u32, change: HoldingChange<'a>) {
        self.bytes += change.bytes();
        self.section(stream, grace_ms).changes.push(change);
    }

    fn has_room(&self, said: &Said) -> bool {
        let change = said.change().map_or(0, |change| change.bytes());
        self.is_empty() || self.bytes + Section::bytes_of(&said.stream) + change <= PART_BYTES
    }

    fn push(&mut self, said: &'a Said) {
        match said.change() {
            Some(change) => self.change(&said.stream, said.grace_ms, change),
            None => {
                if let What::Connections(connections) = said.what {
                    self.section(&said.stream, said.grace_ms).connections = Some(connections);
                }
            }
        }
    }
}

impl Said {
    fn change(&self) -> Option<HoldingChange<'_>> {
        match &self.what {
            What::Connections(_) => None,
            What::Holds { key, member, stamp } => Some(holds(key.as_deref(), member, *stamp)),
            What::Ends { key } => Some(HoldingChange::Ends { key }),
        }
    }
}

/// The change that says a node holds a member.
pub(super) fn holds<'a>(key: Option<&'a str>, member: &'a Member, stamp: u64) -> HoldingChange<'a> {
    HoldingChange::Holds {
        key,
        id: &member.id,
        data: member.data.as_deref(),
        stamp,
    }
}

/// The grace of a stream, as packets have it.
pub(super) fn grace_ms(stream: &KnownStream) -> u32 {
    u32::try_from(stream.grace.as_millis()).unwrap_or(u32::MAX)
}

/// Bytes of a delta or a part of a state. One more change fits into a packet.
pub(crate) const PART_BYTES: usize = 48 * 1024;

/// Bytes of deltas that are kept for nodes that have missed some.
const SENT_BYTES_MAX: usize = 1024 * 1024;

/// Deltas that are kept for nodes that have missed some.
const SENT_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: PacketSource<'_> = PacketSource {
        name: "a",
        incarnation: 1,
    };

    /// An outbox that has sent a delta with this number of bytes of names, `count` times.
    fn sent(count: u64, bytes: usize) -> PacketOutbox {
        let mut outbox = PacketOutbox::new(1);
        let mut roster = MemberRoster::default();
        let slot = roster.stream_or_add(&"s".repeat(bytes));
        for connections in 1..=count {
            let stream = &mut roster.streams[slot];
            stream.local_connections = connections as u32;
            outbox.mark(stream, slot);
            assert_eq!(outbox.flush(&mut roster, FROM).len(), 1);
        }
        outbox
    }

    fn sent_after(outbox: &PacketOutbox, sequence: u64) -> Option<usize> {
        outbox.sent_after(sequence).map(Iterator::count)
    }

    #[test]
    fn deltas_are_sent_again_only_if_all_are_there() {
        let outbox = sent(SENT_MAX as u64 + 10, 1);
        assert_eq!(outbox.sequence, SENT_MAX as u64 + 10);
        assert_eq!(sent_after(&outbox, 10), Some(SENT_MAX));
        assert_eq!(sent_after(&outbox, 9), None);
        assert_eq!(sent_after(&outbox, outbox.sequence - 1), Some(1));
        assert_eq!(sent_after(&outbox, outbox.sequence), None);
        assert_eq!(sent_after(&outbox, u64::MAX), None);
        assert_eq!(sent_after(&PacketOutbox::new(1), 0), None);
    }

    #[test]
    fn deltas_that_are_kept_are_bounded_in_bytes() {
        let outbox = sent(2_000, 1_000);
        assert!(outbox.sent_bytes <= SENT_BYTES_MAX);
        let bytes: usize = outbox.sent.iter().map(|sent| sent.packet.len()).sum();
        assert_eq!(outbox.sent_bytes, bytes);
        assert!(sent_after(&outbox, 0).is_none() && outbox.sent.len() > 900);
    }
}
