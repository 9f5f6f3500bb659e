//! What is under way on a channel.

use encke_stream::Lookup;

use crate::byte_queue::ByteQueue;
use crate::clock::Monotonic;
use crate::connection::close::CloseReason;
use crate::connection::exchange::Exchange;
use crate::connection::exchange_id::ExchangeId;
use crate::websocket::close_code::CloseCode;
use crate::websocket::deflate::Inflation;

/// What is under way on a channel.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Received bytes that are not looked at yet.
    pub(super) input: ByteQueue,
    /// Messages that are handled as if the client had sent them before these bytes.
    pub(super) first: Vec<Vec<u8>>,
    /// The compressed message whose turn it is.
    pub(super) inflation: Option<Inflation>,
    /// Messages whose responses are still to come.
    pub(super) exchanges: Vec<PendingMessage>,
    /// The message that is asked about again.
    pub(super) waiting: Option<WaitingMessage>,
    /// Until when the client has to say who it is, if it has to.
    pub(super) caller_until: Option<Monotonic>,
    /// Until when the rest of a message has to come, if a part of it is there.
    pub(super) rest: Option<RestUntil>,
    /// The client sends nothing more.
    pub(super) is_half_closed: bool,
    /// A message of a feed that is sent in fragments, if one is.
    pub(super) long: Option<LongMessage>,
    /// How the channel ends, as soon as what is under way is answered.
    pub(super) ending: Option<Ending>,
}

/// A message that is sent in fragments. Only control frames may stand between them (RFC 6455, section 5.4).
#[derive(Debug)]
pub(super) struct LongMessage {
    pub(super) feed: ExchangeId,
    /// Messages that are written meanwhile, and follow behind its last fragment.
    pub(super) held: Vec<u8>,
}

/// Until when the rest of a message has to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestUntil {
    /// The next part of it.
    pub(super) part: Monotonic,
    /// All of it.
    pub(super) whole: Monotonic,
}

/// How a channel ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// The code of the close frame; `None` in the answer to one without a code.
    pub(super) code: Option<CloseCode>,
    pub(super) reason: CloseReason,
    /// The reason in the close frame, if it is not that of `reason`.
    pub(super) why: Option<&'static str>,
    /// How long what is under way may take.
    pub(super) until: Monotonic,
}

/// A message whose response is still to come.
#[derive(Debug)]
pub(super) struct PendingMessage {
    pub(super) exchange: Exchange,
    /// How long it was: its command holds about as much.
    pub(super) bytes: usize,
    /// The key of the feed that it begins; 0 if it begins none.
    pub(super) key: u32,
}

/// A message that must wait before the channel is asked again.
#[derive(Debug)]
pub(super) struct WaitingMessage {
    pub(super) id: ExchangeId,
    pub(super) text: String,
    /// How often it has waited for the order of a fleet.
    pub(super) barriers: usize,
    /// What was found so far stays in memory until the message is answered.
    pub(super) held: Vec<Lookup>,
}

impl RestUntil {
    /// The first of both.
    pub(super) fn first(self) -> Monotonic {
        self.part.min(self.whole)
    }
}

impl Work {
    /// What it holds in memory, beside its own size, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let first: usize = self.first.iter().map(Vec::capacity).sum();
        let exchanges = self.exchanges.capacity() * size_of::<PendingMessage>();
        let waiting = self.waiting.as_ref().map_or(0, WaitingMessage::bytes);
        let held = self.long.as_ref().map_or(0, |long| long.held.capacity());
        let inflation = self.inflation.as_ref().map_or(0, Inflation::bytes);
        let input = self.input.capacity() + first;
        input + exchanges + self.pending_bytes() + waiting + held + inflation
    }

    /// What the commands hold that are on their way, in bytes.
    pub(super) fn pending_bytes(&self) -> usize {
        self.exchanges.iter().map(|pending| pending.bytes).sum()
    }

    /// Whether no further message may be looked at now. While a subscription waits for its beginning none may: it could end it.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.is_some()
            || self.inflation.is_some()
            || self.exchanges.iter().any(|pending| pending.key != 0)
            || self.exchanges.len() >= PENDING_MESSAGES_MAX
            || self.pending_bytes() >= PENDING_BYTES_MAX
    }

    /// Whether something that has arrived is not looked at yet.
    pub(super) fn has_input(&self) -> bool {
        !self.input.is_empty() || !self.first.is_empty()
    }

    /// Whether something is to be looked at, or to be answered.
    pub(super) fn is_busy(&self) -> bool {
        self.has_input()
            || self.inflation.is_some()
            || !self.exchanges.is_empty()
            || self.waiting.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        !self.is_busy()
            && self.caller_until.is_none()
            && self.rest.is_none()
            && self.long.is_none()
            && self.ending.is_none()
    }
}

impl PendingMessage {
    pub(super) fn id(&self) -> ExchangeId {
        self.exchange.place.exchange
    }
}

impl WaitingMessage {
    /// What it holds in memory, beside its own size, in bytes. What it has found is in memory for all.
    pub(super) fn bytes(&self) -> usize {
        self.text.capacity() + self.held.capacity() * size_of::<Lookup>()
    }
}

/// Messages of a client whose commands are on their way, at most: a client that sends more waits.
const PENDING_MESSAGES_MAX: usize = 256;

/// Bytes of messages whose commands are on their way: a client that has sent so many waits, too.
const PENDING_BYTES_MAX: usize = 256 << 10;
