//! Takes connections over that another process has given away.
//!
//! They get their slots, feeds and callers before anything is done with their sockets: until the [`StartGate`](crate::moved::StartGate) opens the other process can
//! take them back.

use std::net::SocketAddr;
use std::sync::Arc;

use encke_access::{CallerTag, CallersIn, ClientCertificate};
use encke_clock::WallTime;
use encke_log::StreamNo;
use encke_presence::NewMember;
use encke_protocol::Feed;
use encke_stream::Stream;
use foldhash::HashMap;
use rustix::net::getpeername;

use super::state::Shard;
use crate::connection::Event;
use crate::connection::close::CloseReason;
use crate::connection::exchange::ConnectionFacts;
use crate::connection::exchange_id::ExchangeId;
use crate::connection::moved::MovingParts;
use crate::connection::rest::Resting;
use crate::connection::websocket::RestingChannel;
use crate::feed::seats::FeedSeat;
use crate::feed::slot::{Flags, Token};
use crate::moved::{MovedFeed, MovedTask, Moving};

/// What all connections that move in have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovedTogether<'a> {
    pub(crate) callers: &'a CallersIn,
    pub(crate) streams: &'a HashMap<StreamNo, Arc<Stream>>,
}

/// A shard that connections move to.
pub(super) struct Arrival<'a>(pub(super) &'a mut Shard);

impl Arrival<'_> {
    /// Takes connections over, and leaves their sockets alone. Returns how many were lost: what this version does not know, or what is
    /// gone, ends with a reset, so that no client takes its beginning for the whole.
    pub(super) fn take(&mut self, moved: Vec<Moving>, together: MovedTogether<'_>) -> usize {
        let mut lost = 0;
        for moving in moved {
            if let Err(why) = self.take_one(moving, together) {
                tracing::warn!(why, "a connection could not be taken over");
                lost += 1;
            }
        }
        self.0.connections.counts.add_up(&self.0.context.metrics);
        lost
    }

    /// Serves the connections that were taken over.
    pub(super) fn begin(&mut self) {
        for index in 0..self.0.connections.slots.len() as u32 {
            if self.0.connections.slots[index].fd().is_none() || !self.0.connections.is_open(index)
            {
                continue;
            }
            self.0.connections.newcomer = Some(index);
            if self.0.connections.is_blocked(index) {
                self.0.connections.watch_output(index);
            } else {
                // What was received and not handled.
                self.0.on(index, Event::Drained);
            }
            // What has arrived is read, and the connection enters epoll.
            if self.0.connections.is_open(index) {
                self.0.read_newcomer(index);
            }
            // The next sweep may come too late, where upgrades follow each other.
            if self.0.connections.is_open(index) {
                self.0.visit(index);
            }
        }
        self.0.flush_dirty();
    }

    fn take_one(&mut self, moving: Moving, together: MovedTogether<'_>) -> Result<(), String> {
        let (socket, connection) = (moving.socket, *moving.connection);
        let MovedTogether { callers, streams } = together;
        let session = match &connection.session {
            None => None,
            Some(session) => {
                let session = session.arrive();
                Some(
                    session
                        .ok_or("its session of TLS is of a kind that this version does not know")?,
                )
            }
        };
        let caller = match &connection.caller {
            None => None,
            Some(tag) => Some(callers.tag(tag).map_err(|error| error.to_string())?),
        };
        let index = self.0.connections.add(socket);
        let id = ExchangeId::new(index);
        let now_s = self.0.connections.clock.now_s();
        let slot = &mut self.0.connections.slots[index];
        slot.active_s = now_s.saturating_sub(connection.quiet_s);
        slot.flags.set(Flags::TLS, connection.tls);
        slot.flags.set(Flags::OPERATOR, connection.operator);
        slot.flags.set(Flags::ENCRYPTED, session.is_some());
        let certificate = connection
            .certificate
            .map(|(names, ends_at_ms)| ClientCertificate {
                names,
                ends_at: WallTime::from_ms(ends_at_ms),
            });
        let until = certificate.as_ref().map(|certificate| certificate.ends_at);
        if let Some(session) = session {
            self.0
                .connections
                .transports
                .enter(id, session, certificate);
        }
        self.0.connections.counts.connections += 1;
        match connection.operator {
            true => self.operator_arrives(index),
            false => self.0.admission.arrive(),
        }
        let clients = &mut self.0.connections.clients;
        clients.arrive(id, (connection.client, connection.trusted));
        clients
            .callers
            .set(id, caller.clone(), connection.needs, until);
        let mut parts = MovingParts {
            facts: ConnectionFacts {
                tls: connection.tls,
                operator: connection.operator,
                turned_away: None,
                probe: false,
            },
            requests: connection.requests,
            doing: Resting::Idle,
            channel: None,
            awaits_proxy: connection.awaits_proxy,
            input: connection.input,
            unsent: connection
                .unsent
                .map(|output| (output.bytes, output.reached)),
        };
        let mut feeds = Vec::new();
        let mut member = None;
        match connection.doing {
            MovedTask::Idle => {}
            MovedTask::Subscribed {
                feed,
                http_1_0,
                keep_alive,
                member: moved,
            } => {
                parts.doing = Resting::Subscribed {
                    http_1_0,
                    keep_alive,
                };
                member = moved.map(|moved| NewMember {
                    key: moved.key,
                    id: moved.id,
                    data: moved.data,
                });
                feeds.push((id, feed));
            }
            MovedTask::Channel {
                channel,
                feeds: of_channel,
                deflate,
                awaits_pong,
            } => {
                parts.doing = Resting::Channel;
                let channel = self.0.context.router.move_in(&channel, callers);
                let channel = channel.map_err(|why| self.lose(index, why))?;
                member = channel.member();
                let mut keys = Vec::new();
                for (key, feed) in of_channel {
                    let message = self.0.connections.begin_message(id, deflate);
                    keys.push((message, key));
                    feeds.push((message, feed));
                }
                let channel = RestingChannel::arrive(channel, &keys, deflate, awaits_pong);
                parts.channel = Some(channel);
            }
        }
        let feeds = feeds.into_iter();
        let feeds =
            feeds.map(|(id, feed)| Ok((id, self.arriving_feed(feed, streams, &mut parts)?)));
        let feeds = feeds.collect::<Result<Vec<_>, String>>();
        let feeds = feeds.map_err(|why| self.lose(index, why))?;
        self.0.connections.arrive(index, parts);
        for (id, feed) in feeds {
            let seat = self.arriving_seat(&feed, caller.as_ref(), member.clone());
            let (feeds, mut cx) = self.0.feeds();
            feeds.subscribe(id.slot(), feed, seat, &mut cx);
            let Shard {
                connections, feeds, ..
            } = &mut *self.0;
            connections.hold_patterns(id.slot(), feeds);
            if self.0.connections.is_blocked(id.slot()) {
                let (feeds, mut cx) = self.0.feeds();
                feeds.falls_behind(id.slot(), &mut cx);
            }
            let token: Token = self.0.connections.slots.token_of(id);
            self.0.due.push(token);
        }
        Ok(())
    }

    /// The seat of a feed that moves in. A feed that exceeds a quota continues and is not counted; a subscriber for which a stream has no
    /// room continues and is no member.
    fn arriving_seat(
        &self,
        feed: &Feed,
        caller: Option<&CallerTag>,
        member: Option<NewMember>,
    ) -> FeedSeat {
        let Shard {
            connections,
            context,
            ..
        } = &*self.0;
        let now = connections.clock.time().steady;
        let counted = context.router.access().zip(caller);
        let hold = counted.and_then(|(access, caller)| access.count_subscriber(caller, now).ok());
        let presence = context.router.presence().enter(feed, member, now);
        FeedSeat {
            hold: hold.flatten(),
            presence: presence.ok().flatten().map(Box::new),
        }
    }

    fn arriving_feed(
        &self,
        feed: MovedFeed,
        streams: &HashMap<StreamNo, Arc<Stream>>,
        parts: &mut MovingParts,
    ) -> Result<Feed, String> {
        let turn = match &feed {
            MovedFeed::Single { .. } | MovedFeed::Awaited { .. } | MovedFeed::Members { .. } => {
                None
            }
            MovedFeed::Merged { log, .. } => Some(*log),
        };
        let presence = self.0.context.router.presence();
        let feed = self.0.feeds.arrive(feed, streams, presence);
        let feed = feed.map_err(|error| error.to_string())?;
        if let (Feed::Merged { sources, .. }, Some(turn)) = (&feed, turn)
            && sources.first().is_none_or(|first| first.kind.log() != turn)
            && let Some((_, reached)) = &mut parts.unsent
        {
            // It is a position in a log that has nothing more for this subscriber.
            *reached = None;
        }
        Ok(feed)
    }

    /// Gives a connection of an operator its place.
    fn operator_arrives(&mut self, index: u32) {
        let token = self.0.connections.slots.token(index);
        let peer = self.0.connections.slots[index].fd().map(getpeername);
        if let Some(operators) = &mut self.0.operators
            && let Some(Ok(Some(peer))) = peer
            && let Ok(peer) = SocketAddr::try_from(peer)
        {
            // Without a place it goes on all the same: there are no more of them than before.
            let _ = operators.enter(token, peer.ip(), |other| self.0.connections.doing(other));
        }
    }

    /// Ends a connection that can't be taken over.
    fn lose(&mut self, index: u32, why: String) -> String {
        self.0.connections.reset(index);
        self.0.close(index, CloseReason::Moved);
        self.0.connections.free_closed();
        why
    }
}
