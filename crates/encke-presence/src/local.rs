//! Connections of this node: how they enter and leave, and how long a member without connections stays.

use std::sync::Arc;

use encke_clock::SteadyTime;

use crate::holding::{HeldConnection, LocalPhase};
use crate::member::Shown;
use crate::rules::GRACE_MAX;
use crate::state::RegistryState;
use crate::{Member, NewMember, PresenceField, PresencePlace, PresenceRefusal, PresenceRules};

impl RegistryState {
    pub(crate) fn enter(
        &mut self,
        place: &PresencePlace<'_>,
        member: NewMember,
        now: SteadyTime,
    ) -> Result<HeldConnection, PresenceRefusal> {
        PresenceField::Stream.check(place.stream)?;
        member.check()?;
        let found = self.roster.stream(place.stream);
        let slot = found.and_then(|stream| self.roster.find(stream, &member.key));
        self.admit(&place.rules, found, slot, &member)?;
        let stream = self.connect(place)?;
        let shown = Arc::new(Member {
            id: member.id,
            data: member.data,
        });
        let slot = slot.unwrap_or_else(|| self.roster.join(stream, member.key, Arc::clone(&shown)));
        let local = &mut self.roster.members[slot].local;
        local.connections += 1;
        if let LocalPhase::Grace(end) = std::mem::take(&mut local.phase) {
            self.graces.ends.remove(&(end, slot));
        }
        self.show_locally(slot, shown, now);
        Ok(HeldConnection::Member(slot))
    }

    pub(crate) fn enter_anonymous(
        &mut self,
        place: &PresencePlace<'_>,
    ) -> Result<HeldConnection, PresenceRefusal> {
        PresenceField::Stream.check(place.stream)?;
        Ok(HeldConnection::Anonymous(self.connect(place)?))
    }

    /// The slot of the stream that a connection has entered.
    pub(crate) fn stream_of(&self, connection: HeldConnection) -> u32 {
        match connection {
            HeldConnection::Member(slot) => self.roster.members[slot].stream,
            HeldConnection::Anonymous(stream) => stream,
        }
    }

    /// A connection is gone.
    pub(crate) fn disconnect(&mut self, connection: HeldConnection) {
        let stream = self.stream_of(connection);
        let connections = self.roster.streams[stream].local_connections;
        self.set_local_connections(stream, connections - 1);
        if let HeldConnection::Member(slot) = connection {
            let local = &mut self.roster.members[slot].local;
            local.connections -= 1;
            if local.connections == 0 && self.roster.streams[stream].grace.is_zero() {
                self.end_local(slot);
            } else if local.connections == 0 {
                local.phase = LocalPhase::Released;
                if !std::mem::replace(&mut local.is_listed, true) {
                    self.graces.released.push(slot);
                }
            }
        }
        self.release(stream);
    }

    /// The graces of members whose last connection is gone begin.
    pub(crate) fn begin_graces(&mut self, now: SteadyTime) {
        for slot in std::mem::take(&mut self.graces.released) {
            let Some(entry) = self.roster.members.get_mut(slot) else {
                continue;
            };
            entry.local.is_listed = false;
            if entry.local.phase == LocalPhase::Released {
                let end = now.after(self.roster.streams[entry.stream].grace);
                entry.local.phase = LocalPhase::Grace(end);
                self.graces.ends.insert((end, slot));
            }
        }
    }

    /// Members whose grace is over leave, at most `max` of them. Returns whether there may be more.
    pub(crate) fn end_graces(&mut self, now: SteadyTime, max: usize) -> bool {
        for _ in 0..max {
            let Some((end, slot)) = self
                .graces
                .ends
                .first()
                .copied()
                .filter(|(end, _)| *end <= now)
            else {
                return false;
            };
            self.graces.ends.remove(&(end, slot));
            let stream = self.roster.members[slot].stream;
            self.end_local(slot);
            self.release(stream);
        }
        true
    }

    /// Refuses what exceeds a bound.
    fn admit(
        &self,
        rules: &PresenceRules,
        stream: Option<u32>,
        slot: Option<u32>,
        member: &NewMember,
    ) -> Result<(), PresenceRefusal> {
        let (roster, limits) = (&self.roster, &self.limits);
        let stream = stream.map(|stream| &roster.streams[stream]);
        let mut bytes_before = 0;
        if let Some(slot) = slot {
            let entry = &roster.members[slot];
            if entry.local.connections == u32::MAX {
                return Err(PresenceRefusal::ConnectionsMax(u32::MAX));
            }
            bytes_before = entry.shown.bytes();
        } else {
            if stream.is_some_and(|of| of.counts().members >= rules.members_max)
                || rules.members_max == 0
            {
                return Err(PresenceRefusal::MembersMax(rules.members_max));
            }
            if roster.members.len() >= limits.members_max {
                return Err(PresenceRefusal::ServerMembersMax(limits.members_max));
            }
        }
        let bytes = member.id.len() + member.data.as_deref().map_or(0, str::len);
        let stream_bytes = stream.map_or(0, |of| of.bytes);
        // Members of other nodes may have used up a bound. A member that does not grow may still enter.
        if bytes > bytes_before && stream_bytes - bytes_before + bytes > rules.bytes_max {
            return Err(PresenceRefusal::BytesMax(rules.bytes_max));
        }
        if bytes > bytes_before && roster.bytes - bytes_before + bytes > limits.bytes_max {
            return Err(PresenceRefusal::ServerBytesMax(limits.bytes_max));
        }
        Ok(())
    }

    /// Counts a connection of this node, and sets the rules of the stream.
    fn connect(&mut self, place: &PresencePlace<'_>) -> Result<u32, PresenceRefusal> {
        let found = self.roster.stream(place.stream);
        let connections = found.map_or(0, |stream| self.roster.streams[stream].local_connections);
        let after = connections
            .checked_add(1)
            .ok_or(PresenceRefusal::ConnectionsMax(u32::MAX))?;
        let stream = self.roster.stream_or_add(place.stream);
        self.roster.streams[stream].grace = place.rules.grace.min(GRACE_MAX);
        self.set_local_connections(stream, after);
        Ok(stream)
    }

    fn set_local_connections(&mut self, stream: u32, after: u32) {
        let before = std::mem::replace(&mut self.roster.streams[stream].local_connections, after);
        self.roster.set_connections(stream, before, after);
        if let Some(fleet) = &mut self.fleet {
            fleet.outbox.mark(&mut self.roster.streams[stream], stream);
        }
    }

    /// Shows a member as the latest connection does.
    fn show_locally(&mut self, slot: u32, shown: Arc<Member>, now: SteadyTime) {
        let entry = &self.roster.members[slot];
        let before = entry.local.shown.as_ref();
        // Equal members are stored once.
        let member = if entry.shown == shown {
            Arc::clone(&entry.shown)
        } else {
            shown
        };
        if entry.shown == member && before.is_some_and(|own| own.member == member) {
            return;
        }
        let newest = self.holdings(slot).map(|(stamp, ..)| stamp).max();
        let stamp = newest
            .map_or(0, |stamp| stamp.saturating_add(1))
            .max(now.as_ms());
        let after = Shown { member, stamp };
        if let Some(fleet) = &mut self.fleet {
            let stream = &self.roster.streams[entry.stream];
            fleet.outbox.hold(stream, entry.key(), before, &after);
        }
        self.roster.members[slot].local.shown = Some(after);
        self.show_newest(slot);
    }

    /// This node does not hold a member any more.
    fn end_local(&mut self, slot: u32) {
        let entry = &mut self.roster.members[slot];
        let before = entry.local.shown.take();
        entry.local.phase = LocalPhase::Connected;
        if let (Some(fleet), Some(before)) = (&mut self.fleet, before) {
            fleet
                .outbox
                .end(&self.roster.streams[entry.stream], entry.key(), &before);
        }
        self.show_newest(slot);
    }
}
