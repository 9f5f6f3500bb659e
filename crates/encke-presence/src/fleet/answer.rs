//! Answers to nodes that lack something: deltas that they have missed, or the whole state in parts.
//!
//! A state is written over several turns. Each part is true after the last delta that was sent before it, and the deltas that are sent
//! between two parts say what changed in what earlier parts have said. So a receiver that has missed none of them has the state at the
//! end, although it was never written at one moment.

use super::outbox::{Gathered, PacketOutbox, grace_ms, holds};
use super::packet::{Content, Packet, PacketSource};
use crate::roster::MemberRoster;

/// Nodes that wait for a part of an answer.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: Vec<Answer>,
}

/// An answer to a node.
#[derive(Debug)]
pub(crate) struct Answer {
    name: Box<str>,
    incarnation: u64,
    request: u64,
    /// None: the whole state.
    after: Option<u64>,
    part: u32,
    /// The next slot of a stream whose connections are to be said.
    stream: u32,
    /// The next slot of a member.
    member: u32,
}

/// Packets for one node.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) to: Box<str>,
    pub(crate) packets: Vec<Vec<u8>>,
    /// The first part of a state is among them.
    pub(crate) is_state: bool,
}

impl Answers {
    /// A node has asked. Its former request counts no more.
    pub(crate) fn ask(&mut self, by: PacketSource<'_>, request: u64, after: Option<u64>) {
        let is_known = |one: &Answer| one.incarnation == by.incarnation && one.request >= request;
        if self
            .waiting
            .iter()
            .any(|one| *one.name == *by.name && is_known(one))
        {
            return;
        }
        self.waiting.retain(|one| *one.name != *by.name);
        self.waiting.push(Answer {
            name: by.name.into(),
            incarnation: by.incarnation,
            request,
            after,
            part: 0,
            stream: 0,
            member: 0,
        });
    }

    /// The packets of this turn, after those of the outbox.
    pub(crate) fn turn(
        &mut self,
        outbox: &PacketOutbox,
        roster: &MemberRoster,
        from: PacketSource<'_>,
    ) -> Vec<Answered> {
        let mut all = Vec::new();
        self.waiting.retain_mut(|answer| {
            let is_new = answer.part == 0;
            let deltas = answer
                .after
                .and_then(|sequence| outbox.sent_after(sequence));
            let (packets, is_state, is_done) = match deltas {
                Some(deltas) => (deltas.map(<[u8]>::to_vec).collect(), false, true),
                None => {
                    // What is added while it is written comes in deltas.
                    let (parts, is_done) = answer.parts(outbox.sequence, roster, from);
                    (parts, is_new, is_done)
                }
            };
            all.push(Answered {
                to: answer.name.clone(),
                packets,
                is_state,
            });
            answer.after = None;
            !is_done
        });
        all
    }
}

impl Answer {
    /// The parts of one turn, and whether the last one is among them.
    fn parts(
        &mut self,
        sequence: u64,
        roster: &MemberRoster,
        from: PacketSource<'_>,
    ) -> (Vec<Vec<u8>>, bool) {
        let mut parts = Vec::new();
        let mut is_done = false;
        while !is_done && parts.len() < PARTS_PER_TURN {
            let mut gathered = Gathered::default();
            is_done = self.gather(roster, &mut gathered);
            let content = Content::State {
                to: PacketSource {
                    name: &self.name,
                    incarnation: self.incarnation,
                },
                request: self.request,
                sequence,
                part: self.part,
                is_last: is_done,
                sections: gathered.take(),
            };
            parts.push(Packet { from, content }.encode());
            self.part += 1;
        }
        (parts, is_done)
    }

    /// Gathers what is next, until a part is full or a number of slots were looked at. Returns whether that was all.
    fn gather<'a>(&mut self, roster: &'a MemberRoster, gathered: &mut Gathered<'a>) -> bool {
        let mut looked = 0;
        while self.stream < roster.streams.end() {
            if gathered.is_full() || looked == SLOTS_PER_PART {
                return false;
            }
            if let Some(stream) = roster
                .streams
                .get(self.stream)
                .filter(|stream| stream.announced > 0)
            {
                gathered.section(&stream.name, grace_ms(stream)).connections =
                    Some(stream.announced);
            }
            self.stream += 1;
            looked += 1;
        }
        while self.member < roster.members.end() {
            if gathered.is_full() || looked == SLOTS_PER_PART {
                return false;
            }
            let entry = roster.members.get(self.member);
            if let Some((entry, shown)) =
                entry.and_then(|entry| Some((entry, entry.local.shown.as_ref()?)))
            {
                let stream = &roster.streams[entry.stream];
                let key = Some(entry.key()).filter(|key| **key != *shown.member.id);
                gathered.change(
                    &stream.name,
                    grace_ms(stream),
                    holds(key, &shown.member, shown.stamp),
                );
            }
            self.member += 1;
            looked += 1;
        }
        true
    }
}

/// Parts of a state that one node gets in a turn.
const PARTS_PER_TURN: usize = 8;

/// EntrySlots that are looked at for one part.
const SLOTS_PER_PART: usize = 16 * 1024;
