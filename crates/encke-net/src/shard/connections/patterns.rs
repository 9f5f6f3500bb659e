//! Counts the memory of the patterns of subscriptions for the clients of their connections, also while the connections rest.

use super::Connections;
use crate::connection::exchange_id::ExchangeId;
use crate::feed::Feeds;

impl Connections {
    /// A feed has begun: counts the memory of its patterns.
    pub(crate) fn hold_patterns(&mut self, index: u32, feeds: &Feeds) {
        if feeds.pattern_bytes(index, &self.slots) > 0 {
            self.weigh_patterns(index, feeds);
        }
    }

    /// A feed has ended: the memory of its patterns is given back.
    pub(crate) fn release_patterns(&mut self, index: u32, feeds: &Feeds) {
        if self.holdings.lasting(self.slots.carrier_of(index)) > 0 {
            self.weigh_patterns(index, feeds);
        }
    }

    /// Counts the memory of the patterns of an exchange, for a channel of all its feeds.
    fn weigh_patterns(&mut self, index: u32, feeds: &Feeds) {
        let id = self.slots.carrier_of(index);
        let of_channel = self.feeds_of_channel(id.slot()).into_iter();
        let of_channel = of_channel.filter(|feed| *feed != id.slot());
        let all = of_channel.chain([id.slot()]);
        let bytes: usize = all.map(|feed| feeds.pattern_bytes(feed, &self.slots)).sum();
        let counted = bytes.saturating_sub(FREE_BYTES);
        let connection = ExchangeId::new(self.slots.connection_of(id.slot()));
        let holder = self.clients.holder(id, connection);
        let buffers = &self.shared.buffers;
        self.holdings.set_lasting(id, holder, counted, buffers);
    }
}

/// Bytes of patterns that are not counted for each connection: the limits on connections bound those.
const FREE_BYTES: usize = 4 << 10;
