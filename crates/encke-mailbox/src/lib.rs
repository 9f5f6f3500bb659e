//! A bounded queue with two lanes, many senders and one receiver that takes all waiting items at once.
//!
//! Every stage of Encke is such a queue. When a stage slows down, its batches grow; its queue does not: an item that does not
//! fit is refused by [`Sender::try_send`] and blocks [`Sender::send`].
//!
//! # The invariant
//!
//! **A lane never holds more than twice its [`Bounds`]: one bound's worth gathers while another is in the receiver's
//! hands.** Items that were drained but not handled still count in the depth, so a full batch in work never looks like an
//! empty mailbox. They take room from senders only when the receiver drains again before it has handled them.
//!
//! # How it works
//!
//! A lane is a queue behind a mutex. The receiver swaps it for an empty one, so a drain costs the same for one item and for
//! a million. Critical sections are a few dozen instructions; nothing is allocated, dropped or woken inside them except
//! when a lane is full. A sender wakes the receiver only when it sleeps. While senders are in full flow the receiver rests for
//! a few microseconds before it takes more, because otherwise it would take the lock and its cache lines for each handful of
//! items. All values of a [`Gauge`] are plain atomics beside the queue.
//!
//! ```
//! use encke_mailbox::{Bounds, Lane, mailbox};
//!
//! let bounds = Bounds { items_max: 1_000, bytes_max: 1 << 20 };
//! let (sender, mut receiver) = mailbox("example", bounds);
//! sender.try_send(Lane::Data, "slow work", 9).unwrap();
//! sender.try_send(Lane::Control, "stop", 4).unwrap();
//! drop(sender);
//!
//! let mut batch = Vec::new();
//! while receiver.recv_batch(&mut batch).is_ok() {
//!     // Control comes first.
//!     assert_eq!(batch, ["stop", "slow work"]);
//!     batch.clear();
//! }
//! ```
//!
//! # Where to start reading
//!
//! `bounds.rs` has the bounds, `sender.rs` and `receiver.rs` are the two ends, `lane.rs` and `stock.rs` are the queue without any
//! lock, and `shared.rs` is what both ends share. `reply.rs` is the way back for answers.

// Set by hand for the models of tests/model.rs; that file says how.
#![allow(unexpected_cfgs)]

mod blocked;
mod bounds;
mod clock;
mod error;
mod gauge;
mod lane;
mod receiver;
mod reply;
mod sender;
mod shared;
mod stock;
mod sync;
mod watch;

pub use bounds::{Bounds, Lane};
pub use error::{Closed, SendError, SendErrorKind};
pub use gauge::{Gauge, LaneGauge};
pub use receiver::Receiver;
pub use reply::{NoReply, PendingReply, ReplyTo, reply};
pub use sender::Sender;
pub use watch::GaugeReader;

use shared::SharedMailbox;

/// Creates a mailbox whose receiver sleeps in [`Receiver::recv_batch`] or [`Receiver::recv`]. Gauges and errors use `name`. The
/// data lane has these bounds; the control lane holds 1,024 items and 1 MiB.
pub fn mailbox<T: Send>(name: &'static str, bounds: Bounds) -> (Sender<T>, Receiver<T>) {
    let (sender, shared) = Sender::first(SharedMailbox::new(name, bounds, None));
    (sender, Receiver::new(shared))
}

/// Creates a mailbox whose receiver sleeps elsewhere, for example in epoll with an eventfd.
///
/// The sender that puts the first item into a mailbox that the receiver left empty calls `wake`, outside of every lock; so does
/// the last sender when it is dropped. There is no further call before the next drain, so a burst costs one call.
/// [`Receiver::drain`] itself calls it when it admits items of blocked senders.
pub fn mailbox_with_waker<T: Send>(
    name: &'static str,
    bounds: Bounds,
    wake: impl Fn() + Send + Sync + 'static,
) -> (Sender<T>, Receiver<T>) {
    let (sender, shared) = Sender::first(SharedMailbox::new(name, bounds, Some(Box::new(wake))));
    (sender, Receiver::new(shared))
}
