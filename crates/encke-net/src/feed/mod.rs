//! Feeds: what subscribers get, from a commit on.
//!
//! A feed knows no socket. It says what is due to a subscriber next ([`Feeds::next`] in `serve`): encoded records, a part that must
//! be read from files, an end. The shard does that, and says how much of it a socket has taken ([`Feeds::sent`]).
//!
//! An idle feed is a slot (`slot`) on the list of its topic (`topics`); what else a feed needs is kept beside it while it matters
//! (`state`). `queue` takes commits and serves topics in rounds, `encoding` is what subscribers at one position share. `single`
//! has the feeds of one stream, `merged` and `merged_older` those of several, `long`, `long_delivery` and `merged_long` records that are delivered in pieces,
//! `lag` how far a subscriber is behind, `seats` the quotas and members that a feed counts for, `ephemeral_queue` and `ephemeral` the messages that
//! are not stored, `awaited` subscribers of streams that do not exist yet, `moved` the form in which another process takes over a feed.

mod awaited;
pub(crate) mod backpressure;
pub(crate) mod congested_streams;
pub(crate) mod encoding;
mod ephemeral;
mod ephemeral_queue;
mod feeds;
pub(crate) mod lag;
mod long;
mod long_delivery;
mod merged;
pub(crate) mod merged_feed;
mod merged_long;
mod merged_older;
mod moved;
pub(crate) mod queue;
mod rounds;
pub(crate) mod seats;
mod serve;
mod single;
pub(crate) mod slot;
pub(crate) mod state;
mod subscribe;
pub(crate) mod topics;
mod traced;
pub(crate) mod weight;
pub(crate) mod withheld;

pub(crate) use feeds::{DueDelivery, FeedContext, Feeds, Purpose, Sent, framing};
