//! The names of exchanges.

/// Names an exchange within its shard, or a connection by the first of its exchanges: the place of its slot. What is kept of it
/// elsewhere is found by this name, as long as the exchange lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ExchangeId(u32);

impl ExchangeId {
    /// The exchange of the slot in that place.
    pub(crate) const fn new(slot: u32) -> Self {
        ExchangeId(slot)
    }

    /// The place of its slot.
    pub(crate) const fn slot(self) -> u32 {
        self.0
    }
}

/// Names of an exchange and its connection: the same for a connection that has one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExchangePlace {
    pub(crate) exchange: ExchangeId,
    pub(crate) connection: ExchangeId,
}

/// Where the exchanges of connections that have several are known by their names.
pub(crate) trait ExchangeIds {
    /// The name of a new exchange of a connection.
    fn begin(&mut self, connection: ExchangeId) -> ExchangeId;
    /// The name of a new exchange of a channel, whose feeds deliver messages.
    fn begin_message(&mut self, channel: ExchangeId, deflate: bool) -> ExchangeId;
    /// The channel of such an exchange. `None`: it is no message.
    fn channel_of(&self, exchange: ExchangeId) -> Option<ExchangeId>;
    /// Something was sent or received for an exchange: it is not quiet.
    fn note_active(&mut self, exchange: ExchangeId);
}
