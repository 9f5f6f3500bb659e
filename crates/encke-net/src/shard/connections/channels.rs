//! The channels of connections at rest.

use crate::chunked_vec::ChunkedVec;
use crate::connection::websocket::RestingChannel;

/// Channels by the places that their slots name. Places are used again.
#[derive(Debug, Default)]
pub(super) struct RestingChannels {
    places: ChunkedVec<Option<RestingChannel>>,
    free: Vec<u32>,
}

impl RestingChannels {
    /// Keeps a channel, and returns its place.
    pub(super) fn insert(&mut self, channel: RestingChannel) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(channel);
                place
            }
            None => self.places.push(Some(channel)),
        }
    }

    pub(super) fn get(&self, place: u32) -> Option<&RestingChannel> {
        self.places.get(place)?.as_ref()
    }

    /// Takes a channel off its place.
    pub(super) fn remove(&mut self, place: u32) -> Option<RestingChannel> {
        let channel = self.places[place].take();
        if channel.is_some() {
            self.free.push(place);
        }
        channel
    }
}
