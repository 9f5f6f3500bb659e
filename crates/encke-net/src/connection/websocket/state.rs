//! The state of a channel, and questions about it.

use encke_protocol::{Channel, ChannelOpening};

use super::work::{RestUntil, Work};
use crate::clock::Monotonic;
use crate::connection::context::Context;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange_id::{ExchangeId, ExchangePlace};
use crate::connection::timer::Timer;
use crate::websocket::frame_meter::LightFrameMeter;
use crate::websocket::receive::MessageReceiver;

/// A channel.
#[derive(Debug)]
pub(crate) struct WebSocket {
    /// Its exchange, which is its connection over HTTP/1.1 and one of several over HTTP/2.
    pub(super) place: ExchangePlace,
    pub(super) channel: Box<dyn Channel>,
    pub(super) receiver: MessageReceiver,
    pub(super) meter: LightFrameMeter,
    /// Messages may be compressed, in both directions.
    pub(super) deflate: bool,
    /// Feeds, with the keys by which the channel knows them.
    pub(super) feeds: Vec<ChannelFeed>,
    /// What is under way; `None` while the channel only delivers.
    pub(super) work: Option<Box<Work>>,
    /// A ping was sent, and nothing has arrived since.
    pub(super) awaits_pong: bool,
    /// A piece of a compressed message was inflated for the present event.
    pub(super) has_inflated: bool,
    /// It ends: what still arrives means nothing. A close frame was sent, or is sent behind the last acknowledgement.
    pub(super) is_closing: bool,
}

/// A channel that a request has opened.
#[derive(Debug)]
pub(crate) struct OpenedChannel {
    pub(crate) opening: ChannelOpening,
    /// Compression of messages was agreed on.
    pub(crate) deflate: bool,
    /// What was received behind the request.
    pub(crate) input: Vec<u8>,
}

/// A feed of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelFeed {
    pub(super) id: ExchangeId,
    pub(super) key: u32,
}

impl WebSocket {
    /// Whether so much waits that nothing is read from the socket.
    pub(crate) fn has_enough(&self, is_blocked: bool, input_bytes_max: usize) -> bool {
        let work = self.work.as_ref();
        let waits =
            is_blocked || self.long_feed().is_some() || work.is_some_and(|work| work.is_full());
        waits && work.is_some_and(|work| work.input.rest().len() >= input_bytes_max)
    }

    /// The feed of which a message is sent in fragments.
    pub(crate) fn long_feed(&self) -> Option<ExchangeId> {
        let long = self.work.as_ref()?.long.as_ref()?;
        Some(long.feed)
    }

    /// How many bytes of its input are not looked at yet.
    pub(crate) fn input_bytes(&self) -> usize {
        let work = self.work.as_ref();
        work.map_or(0, |work| work.input.rest().len())
    }

    /// Whether something waits that can go on.
    pub(crate) fn has_work(&self) -> bool {
        let work = self.work.as_ref();
        work.is_some_and(|work| !work.is_full() && work.has_input() && work.long.is_none())
    }

    /// The first of its deadlines.
    pub(crate) fn deadline(&self) -> Option<Monotonic> {
        let work = self.work.as_ref()?;
        let rest = work.rest.map(RestUntil::first);
        let ending = work.ending.map(|ending| ending.until);
        let deadlines = [work.caller_until, rest, ending];
        deadlines.into_iter().flatten().min()
    }

    /// Sets the deadline of the channel in the timer that is for it. Its client takes what it is sent.
    pub(crate) fn set_deadline(&self, timer: &mut Timer, cx: &mut Context<'_>) {
        let deadline = self.deadline();
        if deadline != timer.deadline && deadline.is_some() {
            cx.push(ConnectionEffect::Remind(self.place.exchange));
        }
        timer.deadline = deadline;
    }

    /// Whether what one of its messages changes is being stored.
    pub(crate) fn awaits_outcome(&self) -> bool {
        let work = self.work.as_ref();
        let pending = work.map_or(&[][..], |work| &work.exchanges);
        pending
            .iter()
            .any(|pending| pending.exchange.task.awaits_outcome())
    }

    /// Whether it only delivers, and nothing is half received.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_none() && self.receiver.is_idle() && !self.is_closing
    }

    /// What it holds in memory, beside its own size, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let work = self.work.as_ref().map_or(0, |work| work.bytes());
        work + self.receiver.bytes()
    }

    /// The number by which messages name it, see [`Channel::number`].
    pub(crate) fn number(&self) -> Option<u64> {
        self.channel.number()
    }

    /// Its feeds.
    pub(crate) fn feeds(&self) -> Vec<ExchangeId> {
        self.feeds.iter().map(|feed| feed.id).collect()
    }

    /// Its feeds, with their keys.
    pub(crate) fn keyed_feeds(&self) -> Vec<(ExchangeId, u32)> {
        self.feeds.iter().map(|feed| (feed.id, feed.key)).collect()
    }

    pub(super) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    pub(super) fn waits(&self, id: ExchangeId) -> bool {
        let work = self.work.as_ref();
        let waiting = work.and_then(|work| work.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.id == id)
    }

    pub(super) fn exchange(&self, id: ExchangeId) -> Option<usize> {
        let mut exchanges = self.work.as_ref()?.exchanges.iter();
        exchanges.position(|pending| pending.id() == id)
    }
}
