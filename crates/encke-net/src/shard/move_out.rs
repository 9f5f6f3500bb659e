//! Gives the connections of a shard to another process.
//!
//! First nothing new begins: no connection is accepted, and nothing is read from sockets, where it stays. What can't move is ended in the way
//! of its protocol, and requests in work are finished. When only connections are left that wait, or the time is up, they are given
//! away; the others are cut off. What is being stored then is awaited for longer: its client could not know the outcome.

use std::time::{Duration, Instant};

use super::state::Shard;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::moved::MovingParts;
use crate::connection::rest::Resting;
use crate::connection::{Connection, Event};
use crate::feed::slot::{Flags, SlotState};
use crate::moved::{
    MoveCensus, MoveOut, MovedConnection, MovedFeed, MovedMember, MovedOutput, MovedTask, Moving,
    ShardMoved,
};

/// A shard that moves out.
pub(super) struct Departure<'a>(pub(super) &'a mut Shard);

impl Departure<'_> {
    /// Begins to move out.
    pub(super) fn begin(&mut self, order: MoveOut) {
        if self.0.connections.stopping.is_some() || self.0.connections.moving.is_some() {
            return;
        }
        if let Err(error) = self.0.acceptor.listen(&self.0.connections.poller, false) {
            tracing::warn!(%error, "the listener could not be removed from epoll");
        }
        let connections = self.connections();
        self.0.connections.moving = Some(Box::new(MoveOut {
            connections,
            ..order
        }));
        for index in 0..self.0.connections.slots.len() as u32 {
            if self.0.connections.slots[index].state == SlotState::Active {
                self.0
                    .act(index, |connection, cx| connection.prepare_move(cx));
            }
        }
    }

    /// Gives the connections away, if it is time to. Whether it has.
    pub(super) fn finish(&mut self) -> bool {
        let Some(order) = &self.0.connections.moving else {
            return false;
        };
        let (now, until) = (Instant::now(), order.until);
        let is_ready = self.0.feeds.fan_out.is_quiet() && self.all_can_move();
        let is_time_up = now >= until
            && (is_ready || now >= until + OUTCOME_PATIENCE || !self.any_awaits_outcome());
        let number = self.0.context.number;
        let Some(order) = &mut self.0.connections.moving else {
            return false;
        };
        match order.readiness.note(number, is_ready) {
            true => {
                let since = order.ready_since.get_or_insert(now);
                if now.duration_since(*since) < READY_FOR {
                    return false;
                }
            }
            false if !is_time_up => {
                order.ready_since = None;
                return false;
            }
            false => {}
        }
        let Some(order) = self.0.connections.moving.take() else {
            return false;
        };
        let mut connections = Vec::new();
        for index in 0..self.0.connections.slots.len() as u32 {
            if self.0.connections.slots[index].flags.has(Flags::PROBE) {
                // Its other end is in this process.
                self.0.close(index, CloseReason::Moved);
                continue;
            }
            match self.0.connections.slots[index].state {
                SlotState::Idle
                | SlotState::Subscribed
                | SlotState::Channel
                | SlotState::Active => match self.move_out(index, &order) {
                    Some(moving) => connections.push(moving),
                    None => {
                        // A channel is told, as far as its socket takes it.
                        match self.0.connections.is_channel(index) {
                            true => self.0.on(index, Event::Stopping),
                            false => self.0.connections.reset(index),
                        }
                        self.0.close(index, CloseReason::Moved);
                    }
                },
                SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => {}
            }
        }
        self.0.flush_dirty();
        self.0.connections.free_closed();
        let metrics = &self.0.context.metrics;
        self.0.connections.requests.hand_over(metrics);
        self.0.connections.counts.add_up(metrics);
        // It fails if the server is gone, and the process with it.
        let _ = order.to.send(ShardMoved {
            number: self.0.context.number,
            listener: self.0.acceptor.take_listener(),
            operators: self
                .0
                .operators
                .take()
                .map(|operators| operators.into_listener()),
            closed: order.connections.saturating_sub(connections.len()),
            connections,
            poller: self.0.connections.poller.instance(),
        });
        true
    }

    /// Which connections could move now.
    pub(super) fn count_movable(&mut self) -> MoveCensus {
        let mut census = MoveCensus::default();
        for index in 0..self.0.connections.slots.len() as u32 {
            let slot = &self.0.connections.slots[index];
            if slot.flags.has(Flags::PROBE) {
                continue;
            }
            let is_encrypted = slot.flags.has(Flags::ENCRYPTED);
            let obstacle = match slot.state {
                SlotState::Active => self.0.connections.get(index).and_then(Connection::obstacle),
                SlotState::Idle | SlotState::Subscribed | SlotState::Channel => None,
                SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => {
                    continue;
                }
            };
            let session = self
                .0
                .connections
                .transports
                .session(ExchangeId::new(index));
            let can_move = session.is_none_or(|session| session.can_move());
            match obstacle {
                Some(obstacle) => *census.immovable.entry(obstacle).or_default() += 1,
                None if is_encrypted && !can_move => {
                    *census
                        .immovable
                        .entry("TLS with a key of AES-128")
                        .or_default() += 1;
                }
                None => census.movable += 1,
            }
        }
        census
    }

    /// How many connections there are, without those of the server itself.
    fn connections(&self) -> usize {
        let slots = &self.0.connections.slots;
        let all = (0..slots.len() as u32).map(|index| &slots[index]);
        all.filter(|slot| slot.fd().is_some() && !slot.flags.has(Flags::PROBE))
            .count()
    }

    fn all_can_move(&self) -> bool {
        let slots = &self.0.connections.slots;
        (0..slots.len() as u32).all(|index| {
            // A client that takes nothing is not waited for.
            let is_inside = self.0.feeds.is_inside_record(index);
            let waits = !is_inside || self.0.connections.is_blocked(index);
            waits && self.0.connections.can_move(index)
        })
    }

    /// Whether the outcome of a command is awaited for a client.
    fn any_awaits_outcome(&self) -> bool {
        let slots = &self.0.connections.slots;
        (0..slots.len() as u32).any(|index| {
            let connection = self.0.connections.get(index);
            connection.is_some_and(Connection::awaits_outcome)
        })
    }

    /// Takes a connection out of the shard. `None`: it can't move, and is still there.
    fn move_out(&mut self, index: u32, order: &MoveOut) -> Option<Moving> {
        if self.0.feeds.is_inside_record(index) {
            return None;
        }
        let id = ExchangeId::new(index);
        let slot = &self.0.connections.slots[index];
        let flags = slot.flags;
        // Not what has passed at least: with a part lost at each of many upgrades, a quiet client would be left alone.
        let quiet_s = self
            .0
            .connections
            .clock
            .now_s()
            .saturating_sub(slot.active_s);
        let session = match flags.has(Flags::ENCRYPTED) {
            true => Some(self.0.connections.transports.session(id)?.moved()?),
            false => None,
        };
        let certificate = self.0.connections.transports.certificate(id);
        let feeds = self.moved_feeds(index)?;
        let of_channel = self.0.connections.channel_feeds(index);
        let mut feeds_of_channel = of_channel.iter().map(|(feed, _)| feed.slot());
        if feeds_of_channel.any(|feed| self.0.feeds.is_inside_record(feed)) {
            return None;
        }
        let parts = self.0.connections.take_moving(index)?;
        for (feed, _) in of_channel {
            self.0.release(feed.slot(), CloseReason::Moved);
        }
        let MovingParts {
            facts,
            requests,
            doing,
            channel,
            awaits_proxy,
            input,
            unsent,
        } = parts;
        let doing = match (doing, channel) {
            (Resting::Channel, Some(channel)) => MovedTask::Channel {
                channel: channel.moved(&mut order.callers.lock()),
                deflate: channel.deflates(),
                awaits_pong: channel.awaits_pong(),
                feeds,
            },
            (
                Resting::Subscribed {
                    http_1_0,
                    keep_alive,
                },
                _,
            ) => {
                let (_, feed) = feeds.into_iter().next()?;
                let member = self.0.feeds.seats.member(index);
                MovedTask::Subscribed {
                    feed,
                    http_1_0,
                    keep_alive,
                    member: member.map(|member| MovedMember {
                        key: member.key.clone(),
                        id: member.id.clone(),
                        data: member.data.clone(),
                    }),
                }
            }
            (Resting::Idle | Resting::Channel, _) => MovedTask::Idle,
        };
        let (client, trusted) = self.0.connections.clients.moved(id);
        let caller = self.0.connections.clients.callers.tag(id);
        let connection = MovedConnection {
            tls: facts.tls,
            operator: facts.operator,
            requests,
            quiet_s,
            client,
            trusted,
            caller: caller.map(|tag| order.callers.lock().tag(tag)),
            needs: self.0.connections.clients.callers.needs(id).cloned(),
            certificate: certificate.map(|one| (one.names.clone(), one.ends_at.as_ms())),
            session,
            awaits_proxy,
            input,
            unsent: unsent.map(|(bytes, reached)| MovedOutput { bytes, reached }),
            doing,
        };
        let socket = self.0.connections.slots[index].take_socket()?;
        self.0.connections.counts.connections -= 1;
        self.0.release(index, CloseReason::Moved);
        Some(Moving {
            socket,
            connection: Box::new(connection),
        })
    }

    /// The feeds of a connection, with their keys on its channel; 0 without one.
    fn moved_feeds(&self, index: u32) -> Option<Vec<(u32, MovedFeed)>> {
        let slots = &self.0.connections.slots;
        let keys = self.0.connections.channel_feeds(index);
        let feeds = keys.into_iter();
        let of_channel = feeds.map(|(id, key)| Some((key, self.0.feeds.moved(id.slot(), slots)?)));
        let own = self.0.feeds.moved(index, slots).map(|feed| Some((0, feed)));
        of_channel.chain(own).collect()
    }
}

/// How much longer than other requests those may take whose command is being stored. The log is handed over behind it anyway.
const OUTCOME_PATIENCE: Duration = Duration::from_secs(5);

/// How long all shards must have been ready: a commit reaches them one after the other.
const READY_FOR: Duration = Duration::from_millis(2);
