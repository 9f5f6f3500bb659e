//! What a connection wants done.

use std::net::IpAddr;
use std::sync::Arc;

use encke_presence::NewMember;
use encke_protocol::{DispatchRequest, Feed, Inquiry};
use encke_stream::{Command, EphemeralMessage, Fetch, ListFetch, Offset, StorageHold, Stream};

use super::close::CloseReason;
use super::exchange_id::ExchangeId;
use super::outbound::FileOutput;
use crate::compression::Compressor;
use crate::feed::seats::FeedSeat;

/// Something that a connection wants done. The bytes for its socket come before it.
#[derive(Debug)]
pub(crate) enum ConnectionEffect {
    /// Send a command to the sequencer, with the storage that is held for it; its outcome is an event of the exchange.
    Submit(ExchangeId, Command, Vec<StorageHold>),
    /// Hand a message to those who are subscribed to its stream now; that is an event of the exchange. `echoes`: the channel of the
    /// exchange gets it, too.
    Broadcast {
        id: ExchangeId,
        message: Box<EphemeralMessage>,
        echoes: bool,
    },
    /// Load what is known of a name.
    LoadName(ExchangeId, Box<str>),
    /// Report when another thread has what requests are parked for.
    Park(ExchangeId),
    /// Read a part of a stream.
    Read(ExchangeId, Fetch),
    /// Read a page of the list of streams.
    List(ExchangeId, ListFetch),
    /// Have an operator's question answered.
    Inspect(ExchangeId, Box<Inquiry>),
    /// Have a compressor with input compress it.
    Compress(ExchangeId, Box<Compressor>),
    /// Send the request with that number to the dispatcher.
    Dispatch(ExchangeId, u32, DispatchRequest),
    /// The caller's time is over: the dispatcher answers the request with that number now.
    EndDispatch(ExchangeId, u32),
    /// Give the dispatcher up for the request with that number.
    AbandonDispatch(ExchangeId, u32),
    /// Deliver a feed, which counts for the seat until it ends.
    Subscribe(ExchangeId, Feed, FeedSeat),
    /// A channel has another caller, which is this member of streams: the feeds count for the new caller, or end.
    Reseat(ExchangeId, Option<Box<NewMember>>),
    /// Report the next record of a stream behind a position.
    Poll(ExchangeId, Arc<Stream>, Offset),
    /// End the feed.
    Unsubscribe(ExchangeId),
    /// The exchange takes records again, and its subscriber has everything up to this position, if that has changed.
    Deliver(ExchangeId, Option<Offset>),
    /// Send a subscriber a farewell, and close it behind that.
    Dismiss(ExchangeId, CloseReason),
    /// Send parts of files through the socket. The exchange of the connection gets an event when they are out.
    SendFiles(Box<FileOutput>),
    /// Look at the deadlines of the exchange when they pass.
    Remind(ExchangeId),
    /// Count anew what the exchange holds in memory.
    Weigh(ExchangeId),
    /// The same; if there is no memory for it, that is an event of the exchange.
    Grow(ExchangeId),
    /// Come back to the exchange in the next turn.
    Queue(ExchangeId),
    /// Come back to the connection behind the deliveries of this turn.
    Flush,
    /// Read the socket again.
    Receive,
    /// Hand the socket over for its handshake of TLS, with what was received, and the client that the PROXY protocol names.
    Handshake(Vec<u8>, Option<IpAddr>),
    /// Close the connection if the request that is to be refused does not come soon.
    AwaitRefusal,
    /// A request came to the address for operators.
    NoteOperator,
    /// The close frame of a channel is written, behind which nothing follows: end the channel.
    CloseChannel(ExchangeId, CloseReason),
    /// End an exchange of several in the middle of something.
    Fail(ExchangeId, CloseReason),
    /// An exchange of several has ended.
    Ended(ExchangeId, CloseReason),
    /// Send nothing more, and discard what still arrives for a while, so that what was sent last is not lost in a reset.
    Linger,
    /// Close the connection.
    Close(CloseReason),
    /// Close the connection behind what its socket has still to take.
    CloseBehind(CloseReason),
    /// The same, but if that is nothing let the client read what was sent last.
    CloseGently(CloseReason),
    /// Close the connection with a reset: the client must not take what it has for the whole.
    Cut(CloseReason),
}

impl ConnectionEffect {
    /// Whether it is still to be done when its connection is closed.
    pub(crate) fn outlives_its_connection(&self) -> bool {
        matches!(
            self,
            ConnectionEffect::AbandonDispatch(..)
                | ConnectionEffect::Ended(..)
                | ConnectionEffect::Unsubscribe(_)
        )
    }
}

/// What a connection wants done, in order. The shard keeps it from one event to the next, so that it costs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Bytes for the socket.
    pub(crate) output: Vec<u8>,
    effects: Vec<ConnectionEffect>,
    requests: u32,
}

impl Effects {
    pub(crate) fn push(&mut self, effect: ConnectionEffect) {
        self.effects.push(effect);
    }

    /// Takes all effects in order; an empty list for the next ones comes back with [`Self::give_back`].
    pub(crate) fn take(&mut self) -> Vec<ConnectionEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes the bytes for the socket.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Keeps the memory of an emptied list.
    pub(crate) fn give_back(&mut self, mut effects: Vec<ConnectionEffect>) {
        if self.effects.is_empty() {
            effects.clear();
            self.effects = effects;
        }
    }

    /// Keeps the memory of bytes that were sent.
    pub(crate) fn give_back_output(&mut self, mut output: Vec<u8>) {
        if self.output.is_empty() {
            output.clear();
            output.shrink_to(OUTPUT_BYTES_KEPT);
            self.output = output;
        }
    }

    /// The number of the next request to the dispatcher; never 0.
    pub(crate) fn next_request(&mut self) -> u32 {
        self.requests = self.requests.wrapping_add(1).max(1);
        self.requests
    }
}

/// The largest buffer that is kept for the next output.
const OUTPUT_BYTES_KEPT: usize = 1 << 20;
