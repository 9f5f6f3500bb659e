//! Gives the connections of a shard to another process.
//!
//! First nothing new begins: no connection is accepted, and nothing is read from sockets, where it stays. What can't move is ended in the way
//! of its protocol, and requests in work are finished. When only connections are left that wait, or the time is up, they are given
//! away; the others are cut off.

use std::time::{Duration, Instant};

use super::state::Shard;
use crate::connection::Connection;
use crate::connection::close::CloseReason;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::moved::MovingParts;
use crate::connection::rest::Resting;
use crate::feed::slot::{Flags, SlotState};
use crate::moved::{
    MoveCensus, MoveOut, MovedConnection, MovedFeed, MovedOutput, MovedTask, Moving, ShardMoved,
};

impl Shard {
    /// Begins to move out.
    pub(super) fn begin_move(&mut self, order: MoveOut) {
        if self.connections.stopping.is_some() || self.connections.moving.is_some() {
            return;
        }
        if let Err(error) = self.acceptor.listen(&self.connections.poller, false) {
            tracing::warn!(%error, "the listener could not be removed from epoll");
        }
        self.connections.moving = Some(Box::new(order));
        for index in 0..self.connections.slots.len() as u32 {
            if self.connections.slots[index].state == SlotState::Active {
                self.act(index, |connection, cx| connection.prepare_move(cx));
            }
        }
    }

    /// Gives the connections away, if it is time to. Whether it has.
    pub(super) fn finish_move(&mut self) -> bool {
        let is_ready = self.connections.moving.is_some()
            && self.feeds.fan_out.is_quiet()
            && self.all_can_move();
        let number = self.context.number;
        let Some(order) = &mut self.connections.moving else {
            return false;
        };
        let now = Instant::now();
        match order.readiness.note(number, is_ready) {
            true => {
                let since = order.ready_since.get_or_insert(now);
                if now.duration_since(*since) < READY_FOR {
                    return false;
                }
            }
            false if now < order.until => {
                order.ready_since = None;
                return false;
            }
            false => {}
        }
        let Some(order) = self.connections.moving.take() else {
            return false;
        };
        let mut connections = Vec::new();
        let mut closed = 0;
        for index in 0..self.connections.slots.len() as u32 {
            match self.connections.slots[index].state {
                SlotState::Idle
                | SlotState::Subscribed
                | SlotState::Channel
                | SlotState::Active => match self.move_out(index, &order) {
                    Some(moving) => connections.push(moving),
                    None => {
                        closed += 1;
                        self.connections.reset(index);
                        self.close(index, CloseReason::Moved);
                    }
                },
                SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => {}
            }
        }
        self.flush_dirty();
        self.connections.free_closed();
        let metrics = &self.context.metrics;
        self.connections.requests.hand_over(metrics);
        self.connections.counts.add_up(metrics);
        // It fails if the server is gone, and the process with it.
        let _ = order.to.send(ShardMoved {
            number: self.context.number,
            listener: self.acceptor.take_listener(),
            operators: self
                .operators
                .take()
                .map(|operators| operators.into_listener()),
            connections,
            closed,
        });
        true
    }

    /// Which connections could move now.
    pub(super) fn count_movable(&mut self) -> MoveCensus {
        let mut census = MoveCensus::default();
        for index in 0..self.connections.slots.len() as u32 {
            let slot = &self.connections.slots[index];
            let is_encrypted = slot.flags.has(Flags::ENCRYPTED);
            let obstacle = match slot.state {
                SlotState::Active => self.connections.get(index).and_then(Connection::obstacle),
                SlotState::Idle | SlotState::Subscribed | SlotState::Channel => None,
                SlotState::Free | SlotState::Exchange | SlotState::Member | SlotState::Closed => {
                    continue;
                }
            };
            let session = self.connections.transports.session(ExchangeId::new(index));
            let can_move = session.is_none_or(|session| session.moved().is_some());
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

    fn all_can_move(&self) -> bool {
        let slots = &self.connections.slots;
        (0..slots.len() as u32).all(|index| self.connections.can_move(index))
    }

    /// Takes a connection out of the shard. `None`: it can't move, and is still there.
    fn move_out(&mut self, index: u32, order: &MoveOut) -> Option<Moving> {
        let id = ExchangeId::new(index);
        let slot = &self.connections.slots[index];
        let flags = slot.flags;
        let quiet_s = self.connections.clock.now_s().saturating_sub(slot.active_s);
        let session = match flags.has(Flags::ENCRYPTED) {
            true => Some(self.connections.transports.session(id)?.moved()?),
            false => None,
        };
        let certificate = self.connections.transports.certificate(id);
        let feeds = self.moved_feeds(index)?;
        let of_channel = self.connections.channel_feeds(index);
        let parts = self.connections.take_moving(index)?;
        for (feed, _) in of_channel {
            self.release(feed.slot(), CloseReason::Moved);
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
                MovedTask::Subscribed {
                    feed,
                    http_1_0,
                    keep_alive,
                }
            }
            (Resting::Idle | Resting::Channel, _) => MovedTask::Idle,
        };
        let (client, trusted) = self.connections.clients.moved(id);
        let caller = self.connections.clients.callers.tag(id);
        let connection = MovedConnection {
            tls: facts.tls,
            operator: facts.operator,
            requests,
            quiet_s,
            client,
            trusted,
            caller: caller.map(|tag| order.callers.lock().tag(tag)),
            certificate: certificate.map(|one| (one.names.clone(), one.ends_at.as_ms())),
            session,
            awaits_proxy,
            input,
            unsent: unsent.map(|(bytes, reached)| MovedOutput { bytes, reached }),
            doing,
        };
        let socket = self.connections.slots[index].take_socket()?;
        self.connections.counts.connections -= 1;
        self.release(index, CloseReason::Moved);
        Some(Moving { socket, connection })
    }

    /// The feeds of a connection, with their keys on its channel; 0 without one.
    fn moved_feeds(&self, index: u32) -> Option<Vec<(u32, MovedFeed)>> {
        let slots = &self.connections.slots;
        let keys = self.connections.channel_feeds(index);
        let feeds = keys.into_iter();
        let of_channel = feeds.map(|(id, key)| Some((key, self.feeds.moved(id.slot(), slots)?)));
        let own = self.feeds.moved(index, slots).map(|feed| Some((0, feed)));
        of_channel.chain(own).collect()
    }
}

/// How long all shards must have been ready: a commit reaches them one after the other.
const READY_FOR: Duration = Duration::from_millis(2);
