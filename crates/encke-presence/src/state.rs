//! All that is behind the lock: the sum, and who holds what.

use std::sync::Arc;

use crate::figures::PacketFigures;
use crate::fleet::node::PresenceFleet;
use crate::holding::Graces;
use crate::roster::MemberRoster;
use crate::{Member, PresenceFigures, PresenceLimits};

/// The state of a registry.
#[derive(Debug)]
pub(crate) struct RegistryState {
    pub(crate) limits: PresenceLimits,
    pub(crate) roster: MemberRoster,
    pub(crate) graces: Graces,
    /// None: the node is alone.
    pub(crate) fleet: Option<PresenceFleet>,
    pub(crate) refused: u64,
}

impl RegistryState {
    pub(crate) fn new(limits: PresenceLimits, fleet: Option<PresenceFleet>) -> RegistryState {
        RegistryState {
            limits,
            roster: MemberRoster::default(),
            graces: Graces::default(),
            fleet,
            refused: 0,
        }
    }

    /// What nodes hold of a member: the stamp and name of each, and how it shows it.
    pub(crate) fn holdings(&self, slot: u32) -> impl Iterator<Item = (u64, &str, &Arc<Member>)> {
        let entry = &self.roster.members[slot];
        let name = self.fleet.as_ref().map_or("", |fleet| &fleet.name);
        let local = entry
            .local
            .shown
            .iter()
            .map(move |own| (own.stamp, name, &own.member));
        let fleet = self.fleet.as_ref().filter(|_| entry.remote_holders > 0);
        let remote = fleet
            .into_iter()
            .flat_map(move |fleet| fleet.peers.holdings(entry.stream, slot));
        local.chain(remote)
    }

    /// Shows a member as the latest change says, whichever node made it. Without a holder it leaves.
    pub(crate) fn show_newest(&mut self, slot: u32) {
        // The text breaks ties within one name: of a process and the one that replaced it.
        let newest = self
            .holdings(slot)
            .max_by_key(|(stamp, name, member)| (*stamp, *name, &member.id, &member.data));
        match newest.map(|(_, _, member)| Arc::clone(member)) {
            Some(member) => self.roster.show(slot, &member),
            None => self.roster.leave(slot),
        }
    }

    /// Removes the entry of a stream if nothing needs it.
    pub(crate) fn release(&mut self, stream: u32) {
        let removed = self.roster.release(stream);
        if let (Some(fleet), Some(removed)) = (&mut self.fleet, removed) {
            fleet.outbox.forget(removed);
        }
    }

    pub(crate) fn figures(&self) -> PresenceFigures {
        let peers = self.fleet.as_ref().map(|fleet| &fleet.peers);
        PresenceFigures {
            members: self.roster.members.len(),
            connections: self.roster.connections,
            streams: self.roster.streams.len(),
            bytes: self.roster.bytes,
            remote_members: peers.map_or(0, |peers| peers.members),
            nodes: peers.map_or(0, |peers| peers.present().count()),
            joins: self.roster.joins,
            leaves: self.roster.leaves,
            refused: self.refused,
            packets: self
                .fleet
                .as_ref()
                .map_or_else(PacketFigures::default, |fleet| fleet.figures),
        }
    }
}
