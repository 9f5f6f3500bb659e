//! What the clients of event streams are for.

use crate::load::wire::sse::EventData;

/// What clients ask for, and what they receive.
pub(crate) trait Audience {
    /// Appends the path and the query that `client` requests. `offset` is where it continues, if the server gives no ids.
    fn target(&self, client: u32, offset: Option<&[u8]>, out: &mut Vec<u8>);

    /// The first event is there for `client`: what is appended from now on is for it. It took `took_ns` from the attempt to
    /// connect. What it has missed follows.
    fn subscribed(&mut self, _client: u32, _took_ns: u64, _now_ns: u64) {}

    /// A record, or several of a single stream, for `client`.
    fn record(&mut self, client: u32, data: EventData<'_>, now_ns: u64);

    /// Whether `client` closes its connection behind the event that it has just got, to return after `away_ns` of the plan. It is
    /// asked where no record will come twice.
    fn hangs_up(&mut self, _client: u32) -> bool {
        false
    }
}
