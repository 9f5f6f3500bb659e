//! What a shard knows of its connections, and what they are given with an event.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_protocol::Router;
use rustix::net::getpeername;

use super::channels::RestingChannels;
use crate::access_log::OpenRequests;
use crate::audit::AuditSender;
use crate::buffers::Buffers;
use crate::by_slot::BySlot;
use crate::clients::Clients;
use crate::clients::holdings::Holdings;
use crate::clock::ShardClock;
use crate::compression::Compressors;
use crate::connection::Connection;
use crate::connection::close::CloseReason;
use crate::connection::context::Context;
use crate::connection::effect::{ConnectionEffect, Effects};
use crate::connection::exchange_id::{ExchangeId, ExchangeIds, ExchangePlace};
use crate::connection::websocket::RestingChannel;
use crate::feed::slot::{Flags, SlotState, Slots, Token};
use crate::listener_places::Doing;
use crate::metrics::{Metrics, ShardCounts};
use crate::moved::MoveOut;
use crate::poller::Poller;
use crate::settings::NetSettings;
use crate::transport::Transports;

/// The connections of a shard.
pub(crate) struct Connections {
    pub(crate) slots: Slots,
    pub(super) active: BySlot<Connection>,
    /// Channels of connections at rest.
    pub(super) channels: RestingChannels,
    pub(crate) transports: Transports,
    pub(crate) poller: Poller,
    /// A connection that was just accepted, and is not in epoll yet.
    pub(crate) newcomer: Option<u32>,
    pub(crate) clients: Clients,
    pub(crate) holdings: Holdings,
    pub(crate) requests: OpenRequests,
    pub(crate) clock: ShardClock,
    pub(crate) counts: ShardCounts,
    pub(crate) shared: SharedParts,
    /// Since when the shard is stopping.
    pub(crate) stopping: Option<Instant>,
    /// The shard moves to another process: nothing new begins.
    pub(crate) moving: Option<Box<MoveOut>>,
    pub(super) effects: Effects,
    /// What connections want done, by their slots.
    pub(super) wishes: VecDeque<(u32, ConnectionEffect)>,
    /// The content of records of TLS.
    pub(super) content: Vec<u8>,
    /// Closed in this turn.
    pub(super) closed: Vec<u32>,
    /// The value of Strict-Transport-Security in responses over TLS.
    pub(super) hsts: Option<Box<str>>,
}

/// What the connections of all shards share.
pub(crate) struct SharedParts {
    pub(crate) settings: Arc<NetSettings>,
    pub(crate) router: Router,
    pub(crate) metrics: Metrics,
    pub(crate) audit: AuditSender,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) compressors: Arc<Compressors>,
    pub(crate) makes_handshakes: bool,
}

impl Connections {
    /// No connections.
    pub(crate) fn new(
        shared: SharedParts,
        poller: Poller,
        clients: Clients,
        requests: OpenRequests,
    ) -> Self {
        let settings = &shared.settings;
        let hsts = settings.hsts_max_age;
        Connections {
            slots: Slots::default(),
            active: BySlot::default(),
            channels: RestingChannels::default(),
            transports: Transports::default(),
            poller,
            newcomer: None,
            clients,
            holdings: Holdings::new(settings.buffers_per_client_max),
            requests,
            clock: ShardClock::start(),
            counts: ShardCounts::default(),
            stopping: None,
            moving: None,
            effects: Effects::default(),
            wishes: VecDeque::new(),
            content: Vec::new(),
            closed: Vec::new(),
            hsts: hsts.map(|age| format!("max-age={}", age.as_secs()).into()),
            shared,
        }
    }

    /// Whether a connection or an exchange has not been closed in this turn.
    pub(crate) fn is_open(&self, index: u32) -> bool {
        !matches!(self.slots[index].state, SlotState::Closed | SlotState::Free)
    }

    /// A connection that does something.
    pub(crate) fn get(&self, index: u32) -> Option<&Connection> {
        match self.slots[index].state {
            SlotState::Active => self.active.get(index),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        match self.slots[index].state {
            SlotState::Active => self.active.get_mut(index),
            _ => None,
        }
    }

    /// The connection of an exchange, if it does something.
    pub(crate) fn of_exchange(&self, index: u32) -> Option<&Connection> {
        self.get(self.slots.connection_of(index))
    }

    /// Whether an exchange takes nothing now.
    pub(crate) fn is_blocked(&self, index: u32) -> bool {
        match self.slots[index].state {
            SlotState::Active | SlotState::Exchange => {
                let connection = self.of_exchange(index);
                connection.is_some_and(|one| one.is_blocked(self.slots.carrier_of(index)))
                    || self.is_in_message_of_another(index)
            }
            _ => false,
        }
    }

    /// Whether a feed belongs to a channel on which a message of another feed is sent in fragments.
    pub(crate) fn is_in_message_of_another(&self, index: u32) -> bool {
        if !self.slots[index].flags.has(Flags::MESSAGES) {
            return false;
        }
        let connection = self.of_exchange(index);
        let long = connection.and_then(|one| one.long_feed_of(self.slots.carrier_of(index)));
        long.is_some_and(|feed| feed.slot() != index)
    }

    /// The feeds of the channel that an exchange is or belongs to, its own last.
    pub(crate) fn feeds_of_channel(&self, index: u32) -> Vec<u32> {
        let connection = self.slots.connection_of(index);
        let feeds = match self.slots[connection].state {
            SlotState::Channel => {
                let channel = self.channels.get(self.slots[connection].channel_place());
                channel.map(RestingChannel::feeds)
            }
            _ => self
                .get(connection)
                .map(|active| active.feeds_of(self.slots.carrier_of(index))),
        };
        let feeds = feeds.unwrap_or_default();
        let mut feeds: Vec<u32> = feeds.into_iter().map(ExchangeId::slot).collect();
        if let Some(own) = feeds.iter().position(|feed| *feed == index) {
            feeds.rotate_left(own + 1);
        }
        feeds
    }

    /// The number by which messages name the channel that a feed belongs to.
    pub(crate) fn channel_number(&self, feed: u32) -> Option<u64> {
        let connection = self.slots.connection_of(feed);
        match self.slots[connection].state {
            SlotState::Channel => {
                let channel = self.channels.get(self.slots[connection].channel_place());
                channel.and_then(RestingChannel::number)
            }
            _ => {
                let active = self.get(connection)?;
                active.channel_number(self.slots.carrier_of(feed))
            }
        }
    }

    /// Whether a connection is that of a channel, and does something.
    pub(crate) fn is_channel(&self, index: u32) -> bool {
        self.get(index).is_some_and(Connection::is_channel)
    }

    /// Whether another process can take a connection over now.
    pub(crate) fn can_move(&self, index: u32) -> bool {
        self.get(index).is_none_or(Connection::can_move)
    }

    /// Names a message of a channel, whose feed was taken over from another process.
    pub(crate) fn begin_message(&mut self, channel: ExchangeId, deflate: bool) -> ExchangeId {
        let mut ids = SlotIds {
            now_s: self.clock.now_s(),
            slots: &mut self.slots,
        };
        ids.begin_message(channel, deflate)
    }

    /// The feeds of the channel that has a connection to itself, with their keys.
    pub(crate) fn channel_feeds(&self, index: u32) -> Vec<(ExchangeId, u32)> {
        match self.slots[index].state {
            SlotState::Channel => {
                let channel = self.channels.get(self.slots[index].channel_place());
                channel.map(RestingChannel::keyed_feeds)
            }
            _ => self.get(index).map(Connection::channel_feeds),
        }
        .unwrap_or_default()
    }

    /// Whether so much waits that nothing is read from the socket.
    pub(crate) fn has_enough(&self, index: u32) -> bool {
        let SharedParts {
            settings, buffers, ..
        } = &self.shared;
        let connection = self.get(index);
        connection.is_some_and(|connection| connection.has_enough(settings, buffers))
    }

    /// Has something done for a connection.
    pub(crate) fn wish(&mut self, index: u32, effect: ConnectionEffect) {
        self.wishes.push_back((index, effect));
    }

    /// The next thing that a connection wants done, and its slot.
    pub(crate) fn next_wish(&mut self) -> Option<(u32, ConnectionEffect)> {
        self.wishes.pop_front()
    }

    /// What a connection is doing.
    pub(crate) fn doing(&self, token: Token) -> Doing {
        let Some(index) = self.slots.find(token) else {
            return Doing::Nothing;
        };
        match self.slots[index].state {
            SlotState::Active => self.get(index).map_or(Doing::Nothing, Connection::doing),
            SlotState::Subscribed | SlotState::Channel => Doing::Working,
            _ => Doing::Nothing,
        }
    }

    /// A client, as logs show it.
    pub(crate) fn client_name(&mut self, index: u32) -> String {
        let place = ExchangePlace {
            exchange: ExchangeId::new(index),
            connection: ExchangeId::new(self.slots.connection_of(index)),
        };
        let mut name = String::new();
        self.with_context(place.connection.slot(), |cx| name = cx.client_name(place));
        name
    }

    /// Counts something that is refused.
    pub(crate) fn count_refused(&self, reason: &str) {
        let refused = &self.shared.metrics.refused;
        refused.with_label_values(&[reason]).inc();
    }

    /// Counts a connection that is closed.
    pub(crate) fn count_closed(&mut self, reason: CloseReason) {
        match reason.label() {
            Some(label) => {
                let closed = &self.shared.metrics.closed;
                closed.with_label_values(&[label]).inc();
            }
            None => self.counts.hangups += u64::from(reason == CloseReason::HangUp),
        }
    }

    /// Whether a stop is complete: nothing is pending, or it took too long.
    pub(crate) fn is_stopped(&self) -> bool {
        let Some(since) = self.stopping else {
            return false;
        };
        self.slots.used() == 0 || since.elapsed() > self.shared.settings.stop_timeout
    }

    /// Has a connection closed behind what its socket has not taken. False: there is nothing of that kind.
    pub(crate) fn close_behind(&mut self, index: u32, reason: CloseReason) -> bool {
        let connection = self.get_mut(index);
        connection.is_some_and(|connection| connection.close_behind(reason).is_some())
    }

    /// How long a connection may be kept without a request.
    pub(crate) fn idle_timeout(&self, index: u32) -> Duration {
        let timeout = self.shared.settings.idle_timeout;
        match self.slots[index].flags.has(Flags::OPERATOR) {
            true => timeout.min(crate::operators::OPERATOR_IDLE_TIMEOUT),
            false => timeout,
        }
    }

    pub(super) fn note_sent(&mut self, index: u32, sent: usize) {
        if sent > 0 {
            self.counts.bytes_out += sent as u64;
            self.slots[index].active_s = self.clock.now_s();
            self.requests.sent(ExchangeId::new(index), sent);
        }
    }

    pub(super) fn with_context(&mut self, index: u32, give: impl FnOnce(&mut Context<'_>)) {
        let id = ExchangeId::new(index);
        let certificate = match self.slots[index].flags.has(Flags::ENCRYPTED) {
            true => self.transports.certificate(id),
            false => None,
        };
        // The peer is asked for while new exchanges may take slots.
        let socket = self.slots[index].take_socket();
        let peer = || {
            let peer = getpeername(socket.as_ref()?.as_fd()).ok()??;
            SocketAddr::try_from(peer).ok().map(|peer| peer.ip())
        };
        let shared = &self.shared;
        let mut ids = SlotIds {
            slots: &mut self.slots,
            now_s: self.clock.now_s(),
        };
        let mut cx = Context {
            settings: &shared.settings,
            router: &shared.router,
            clock: &self.clock,
            metrics: &shared.metrics,
            counts: &mut self.counts,
            clients: &mut self.clients,
            requests: &mut self.requests,
            audit: &shared.audit,
            buffers: &shared.buffers,
            compressors: &shared.compressors,
            ids: &mut ids,
            effects: &mut self.effects,
            hsts: self.hsts.as_deref(),
            makes_handshakes: shared.makes_handshakes,
            stopping: self.stopping.is_some(),
            certificate,
            peer: &peer,
        };
        give(&mut cx);
        if let Some(socket) = socket {
            self.slots[index].set_socket(socket);
        }
    }

    pub(super) fn collect(&mut self, index: u32) {
        let mut effects = self.effects.take();
        self.wishes
            .extend(effects.drain(..).map(|effect| (index, effect)));
        self.effects.give_back(effects);
    }
}

/// Names exchanges by slots.
struct SlotIds<'a> {
    slots: &'a mut Slots,
    now_s: u32,
}

impl ExchangeIds for SlotIds<'_> {
    fn begin(&mut self, connection: ExchangeId) -> ExchangeId {
        ExchangeId::new(self.slots.add_exchange(connection.slot(), self.now_s))
    }

    fn begin_message(&mut self, channel: ExchangeId, deflate: bool) -> ExchangeId {
        let id = self.begin(channel);
        let flags = &mut self.slots[id.slot()].flags;
        flags.set(Flags::MESSAGES, true);
        flags.set(Flags::DEFLATE, deflate);
        id
    }

    fn channel_of(&self, exchange: ExchangeId) -> Option<ExchangeId> {
        let carrier = self.slots.carrier_of(exchange.slot());
        (carrier != exchange).then_some(carrier)
    }

    fn note_active(&mut self, exchange: ExchangeId) {
        self.slots[exchange.slot()].active_s = self.now_s;
    }
}
