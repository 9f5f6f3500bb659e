//! What this node knows of another process: what it holds, and how far its deltas were applied.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;
use foldhash::fast::RandomState;

use super::packet::PacketSource;
use crate::member::Shown;

/// A process of the fleet, by its name and incarnation.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: Arc<str>,
    pub(crate) incarnation: u64,
    pub(crate) phase: PeerPhase,
    /// When its last packet came, by the clock that stands while this node is paused.
    pub(crate) heard: SteadyTime,
    /// What it holds, by the slots of streams. A stream is here while the process has connections to it or holds a member.
    pub(crate) streams: HashMap<u32, PeerStream, RandomState>,
    /// The digest of what it holds, as far as it was applied here.
    pub(crate) digest: u64,
    pub(crate) sync: PeerProgress,
}

/// Whether a process is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerPhase {
    /// It is there.
    Present,
    /// It was silent for too long. It may be heard again.
    Silent(SteadyTime),
    /// It has said goodbye, or another process has its name: its packets are ignored.
    Ended(SteadyTime),
}

/// What a process holds of one stream.
#[derive(Debug, Default)]
pub(crate) struct PeerStream {
    pub(crate) connections: u32,
    pub(crate) grace: Duration,
    pub(crate) members: HashMap<u32, RemoteHolding, RandomState>,
    /// The state in which the connections were said last.
    pub(crate) round: u32,
    /// When what it holds ends, because it is not there any more.
    pub(crate) end: Option<SteadyTime>,
}

/// What a process holds of one member.
#[derive(Debug)]
pub(crate) struct RemoteHolding {
    pub(crate) shown: Shown,
    /// What it adds to the digest.
    pub(crate) digest: u64,
    /// The state in which it was said last.
    pub(crate) round: u32,
}

/// How far the deltas of a process were applied, and what is asked of it.
#[derive(Debug, Default)]
pub(crate) struct PeerProgress {
    /// The last delta that was applied. All before it were, or a state that includes them.
    pub(crate) applied: u64,
    pub(crate) lack: Lack,
    /// Grows with each state that begins.
    pub(crate) round: u32,
    /// The part of the state that is expected. None: no state has begun.
    pub(crate) next_part: Option<u32>,
    /// The requests since something is lacking: the first and the last one. Any of them may be answered.
    requests: Option<(u64, u64)>,
    /// The request that the state answers.
    answered: u64,
    /// When the last request was sent, or when the last part of its answer came.
    asked: Option<SteadyTime>,
    interval: Duration,
    /// States in a row whose digest was wrong.
    differed: u32,
}

/// What is lacking of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lack {
    /// Nothing.
    #[default]
    Nothing,
    /// Deltas after those that were applied.
    Deltas,
    /// Its whole state.
    State,
}

impl Peer {
    pub(crate) fn new(source: PacketSource<'_>, heard: SteadyTime) -> Peer {
        Peer {
            name: source.name.into(),
            incarnation: source.incarnation,
            phase: PeerPhase::Present,
            heard,
            streams: HashMap::default(),
            digest: 0,
            sync: PeerProgress::default(),
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.phase == PeerPhase::Present
    }

    pub(crate) fn is(&self, source: PacketSource<'_>) -> bool {
        self.incarnation == source.incarnation && *self.name == *source.name
    }

    pub(crate) fn holding(&self, stream: u32, slot: u32) -> Option<&RemoteHolding> {
        self.streams.get(&stream)?.members.get(&slot)
    }

    /// When it departed, if nothing is left of it.
    pub(crate) fn gone_since(&self) -> Option<SteadyTime> {
        match self.phase {
            PeerPhase::Silent(since) | PeerPhase::Ended(since) if self.streams.is_empty() => {
                Some(since)
            }
            _ => None,
        }
    }
}

impl PeerProgress {
    /// Something is lacking.
    pub(crate) fn need(&mut self, lack: Lack) {
        // A state that is interrupted is not resumed.
        let is_interrupted = self.next_part.take().is_some();
        self.lack = self
            .lack
            .max(if is_interrupted { Lack::State } else { lack });
    }

    /// Nothing is lacking any more, as far as is known.
    pub(crate) fn complete(&mut self) {
        self.lack = Lack::Nothing;
        self.next_part = None;
        self.requests = None;
        self.asked = None;
        self.interval = Duration::ZERO;
    }

    /// Whether the digest agrees. If it does not although the state was sent again, the next request waits.
    pub(crate) fn compared(&mut self, agrees: bool, now: SteadyTime) {
        if agrees {
            self.complete();
            self.differed = 0;
            return;
        }
        self.need(Lack::State);
        self.differed = self.differed.saturating_add(1);
        if self.differed > 1 {
            self.wait(now);
        }
    }

    /// What was sent cannot be applied. The next request waits.
    pub(crate) fn wait(&mut self, now: SteadyTime) {
        self.asked = Some(now);
        self.interval = ASK_AGAIN_INTERVAL;
    }

    /// What is to be asked now: the number of the request, and the delta after which deltas are enough.
    pub(crate) fn ask(&mut self, request: u64, now: SteadyTime) -> Option<Option<u64>> {
        let is_due = self
            .asked
            .is_none_or(|asked| now.since(asked) >= self.interval);
        if self.lack == Lack::Nothing || !is_due {
            return None;
        }
        self.next_part = None;
        self.requests = Some((self.requests.map_or(request, |(first, _)| first), request));
        self.asked = Some(now);
        // A slow node gets more time for its answer before the next request.
        self.interval = (self.interval * 2).clamp(ASK_INTERVAL, ASK_INTERVAL_MAX);
        Some((self.lack == Lack::Deltas).then_some(self.applied))
    }

    /// Whether a part of a state is the next one of what was asked. `sequence`: the last delta before it.
    pub(crate) fn expects(&self, request: u64, part: u32, sequence: u64) -> bool {
        let (first, last) = self.requests.unwrap_or((u64::MAX, 0));
        if self.lack == Lack::Nothing || request < first || request > last {
            return false;
        }
        match self.next_part {
            Some(next) if request == self.answered => part == next && sequence == self.applied,
            Some(_) if request < self.answered => false,
            _ => part == 0 && sequence >= self.applied,
        }
    }

    /// A part of a state is to be applied.
    pub(crate) fn begin_part(&mut self, request: u64, part: u32, sequence: u64, now: SteadyTime) {
        if part == 0 {
            self.lack = Lack::State;
            self.round = self.round.wrapping_add(1);
            self.applied = sequence;
            self.answered = request;
        }
        self.next_part = part.checked_add(1);
        self.asked = Some(now);
    }

    /// Whether a part that is not expected shows that one before it was lost.
    pub(crate) fn shows_loss(&self, request: u64, part: u32) -> bool {
        request == self.answered && self.next_part.is_some_and(|next| part >= next)
    }
}

/// Time between two requests to one node, at first.
const ASK_INTERVAL: Duration = Duration::from_millis(200);

/// Time between two requests to a node that has not answered several.
const ASK_INTERVAL_MAX: Duration = Duration::from_millis(500);

/// Time before the next request to a node whose answer was of no use.
const ASK_AGAIN_INTERVAL: Duration = Duration::from_secs(10);
