//! All processes that this node knows of, and when what departed ones hold ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::SteadyTime;

use super::packet::{PacketRefused, PacketSource};
use super::peer::{Peer, PeerPhase};
use crate::Member;

/// The other processes of the fleet. Their places stay the same while they are known.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    all: Vec<Option<Peer>>,
    /// When what a departed process holds of a stream ends.
    ends: BTreeSet<(SteadyTime, usize, u32)>,
    /// Members that they hold.
    pub(crate) members: usize,
}

impl Peers {
    pub(crate) fn find(&self, source: PacketSource<'_>) -> Option<usize> {
        self.all
            .iter()
            .position(|peer| peer.as_ref().is_some_and(|peer| peer.is(source)))
    }

    /// Adds a process that is not known.
    pub(crate) fn add(&mut self, peer: Peer) -> Result<usize, PacketRefused> {
        let place = self.all.iter().position(Option::is_none);
        let place = match place {
            Some(place) => place,
            None if self.all.len() < NODES_MAX => {
                self.all.push(None);
                self.all.len() - 1
            }
            // The one that has been gone for the longest time gives way.
            None => {
                let gone = self
                    .iter()
                    .filter_map(|(place, peer)| Some((peer.gone_since()?, place)));
                gone.min().ok_or(PacketRefused::NodesMax(NODES_MAX))?.1
            }
        };
        self.all[place] = Some(peer);
        Ok(place)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.all
            .iter()
            .enumerate()
            .filter_map(|(place, peer)| Some((place, peer.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Peer)> {
        self.all
            .iter_mut()
            .enumerate()
            .filter_map(|(place, peer)| Some((place, peer.as_mut()?)))
    }

    /// The processes that are there.
    pub(crate) fn present(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.iter().filter(|(_, peer)| peer.is_present())
    }

    /// What they hold of a member: stamp, name and how they show it.
    pub(crate) fn holdings(
        &self,
        stream: u32,
        slot: u32,
    ) -> impl Iterator<Item = (u64, &str, &Arc<Member>)> {
        self.iter().filter_map(move |(_, peer)| {
            let shown = &peer.holding(stream, slot)?.shown;
            Some((shown.stamp, &*peer.name, &shown.member))
        })
    }

    /// A process is not there any more. What it holds of a stream ends after the time that `stays` says for the stream's grace.
    pub(crate) fn depart(
        &mut self,
        place: usize,
        phase: PeerPhase,
        now: SteadyTime,
        stays: impl Fn(Duration) -> Duration,
    ) {
        let (peer, ends) = (self.all[place].as_mut().expect(KNOWN), &mut self.ends);
        let was_present = peer.is_present();
        peer.phase = phase;
        peer.sync.complete();
        // What ends already because the process is silent ends as it would have.
        for (stream, of) in peer.streams.iter_mut().filter(|_| was_present) {
            let end = now.after(stays(of.grace));
            of.end = Some(end);
            ends.insert((end, place, *stream));
        }
    }

    /// A process that was silent is heard again. What it still holds does not end.
    pub(crate) fn revive(&mut self, place: usize) {
        let (peer, ends) = (self.all[place].as_mut().expect(KNOWN), &mut self.ends);
        peer.phase = PeerPhase::Present;
        for (stream, of) in &mut peer.streams {
            if let Some(end) = of.end.take() {
                ends.remove(&(end, place, *stream));
            }
        }
    }

    /// Removes a stream of a process if it holds nothing of it.
    pub(crate) fn release(&mut self, place: usize, stream: u32) {
        let peer = self.all[place].as_mut().expect(KNOWN);
        let Some(of) = peer.streams.get(&stream) else {
            return;
        };
        if of.connections == 0 && of.members.is_empty() {
            if let Some(end) = of.end {
                self.ends.remove(&(end, place, stream));
            }
            peer.streams.remove(&stream);
            if peer.streams.is_empty() {
                peer.streams.shrink_to_fit();
            }
        }
    }

    /// The next of what departed processes hold that is to end now: the place of the process, and the stream.
    pub(crate) fn next_end(&self, now: SteadyTime) -> Option<(usize, u32)> {
        let (end, place, stream) = self.ends.first().copied()?;
        (end <= now).then_some((place, stream))
    }

    /// The processes that were not heard for too long.
    pub(crate) fn silent(&self, now: SteadyTime) -> Vec<usize> {
        let silent = self
            .present()
            .filter(|(_, peer)| now.since(peer.heard) >= SILENCE);
        silent.map(|(place, _)| place).collect()
    }

    /// Forgets processes that have been gone for long.
    pub(crate) fn forget(&mut self, now: SteadyTime) {
        for peer in &mut self.all {
            let gone = peer.as_ref().and_then(Peer::gone_since);
            if gone.is_some_and(|since| now.since(since) >= REMEMBER) {
                *peer = None;
            }
        }
    }
}

impl std::ops::Index<usize> for Peers {
    type Output = Peer;

    fn index(&self, place: usize) -> &Peer {
        self.all[place].as_ref().expect(KNOWN)
    }
}

impl std::ops::IndexMut<usize> for Peers {
    fn index_mut(&mut self, place: usize) -> &mut Peer {
        self.all[place].as_mut().expect(KNOWN)
    }
}

const KNOWN: &str = "a place is used only while the process is known";

/// How long a process that has ended is known, so that late packets of it are ignored.
const REMEMBER: Duration = Duration::from_secs(60);

/// A node that was not heard for this time is gone.
pub const SILENCE: Duration = Duration::from_secs(3);

/// Processes that are known, those that are gone for a short time included.
pub const NODES_MAX: usize = 256;
