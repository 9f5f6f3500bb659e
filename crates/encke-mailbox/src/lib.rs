//! A bounded queue with lanes, many senders and one receiver that takes everything that waits in one go.
//!
//! Every stage of Encke is such a queue. When a stage slows down, its batches grow; its queue does not: what does not
//! fit is refused, waits at the sender, or is shed, as the lane's [`Overload`] says. Nobody else decides, and nothing
//! grows without a bound that has a name.
//!
//! # The invariant
//!
//! **A lane never holds more than twice its [`Bounds`]: one bound's worth gathers while another is in the receiver's
//! hands.** What was drained but not yet handled still counts in the depth, so a full batch in work never looks like an
//! empty mailbox; it takes room from senders only when the receiver drains again without having handled it.
//!
//! # How it works
//!
//! A lane is a queue behind a mutex that the receiver swaps for an empty one, so a drain costs the same for one item
//! and for a million. Critical sections are a few dozen instructions; nothing is allocated, dropped or woken inside
//! them except when a lane is full. The receiver is woken only when it sleeps, and while senders are in full flow it rests
//! for a few microseconds before it takes more, or it would have the lock and its cache lines for each handful. All figures that [`Gauge`] shows are
//! plain atomics beside the queue.
//!
//! ```
//! use encke_mailbox::{Bounds, Lane, Options, mailbox};
//!
//! let options = Options::new(Bounds { items_max: 1_000, bytes_max: 1 << 20 });
//! let (sender, mut receiver) = mailbox("example", options);
//! sender.try_send(Lane::Data, "slow work", 9).unwrap();
//! sender.try_send(Lane::Control, "stop", 4).unwrap();
//! drop(sender);
//!
//! let mut batch = Vec::new();
//! while receiver.recv_batch(&mut batch).is_ok() {
//!     // Control comes first, whatever waits in the data lane.
//!     assert_eq!(batch, ["stop", "slow work"]);
//!     batch.clear();
//! }
//! ```
//!
//! # Where to start reading
//!
//! `options.rs` says what a mailbox can be told, `sender.rs` and `receiver.rs` are the two ends, `lane.rs` and `stock.rs` are the queue
//! itself without any lock, and `shared.rs` is what lies between. `reply.rs` is the way back.

// Set by hand, for the models of tests/model.rs alone; that file says how.
#![allow(unexpected_cfgs)]

mod blocked;
mod clock;
mod error;
mod gauge;
mod lane;
mod options;
mod receiver;
mod reply;
mod sender;
mod shared;
mod stock;
mod sync;
mod watch;

pub use error::{Closed, SendError, SendErrorKind};
pub use gauge::{Gauge, LaneGauge};
pub use options::{Bounds, Lane, Options};
pub use receiver::Receiver;
pub use reply::{NoReply, PendingReply, ReplyTo, reply};
pub use sender::Sender;
pub use watch::GaugeReader;

use shared::SharedMailbox;

/// Makes a mailbox whose receiver sleeps in [`Receiver::recv_batch`] or [`Receiver::recv`].
///
/// `name` is what the gauges and errors call it.
pub fn mailbox<T: Send>(name: &'static str, options: Options) -> (Sender<T>, Receiver<T>) {
    let (sender, shared) = Sender::first(SharedMailbox::new(name, options, None));
    (sender, Receiver::new(shared))
}

/// Makes a mailbox whose receiver sleeps elsewhere, for example in epoll with an eventfd.
///
/// `wake` is called, outside every lock, by the sender that puts the first item into a mailbox that the receiver left
/// empty, and when the last sender is gone. It is not called again before the next drain, so a burst costs one call.
/// It may be called by [`Receiver::drain`] itself when senders were waiting for room and the drain let them in.
pub fn mailbox_with_waker<T: Send>(
    name: &'static str,
    options: Options,
    wake: impl Fn() + Send + Sync + 'static,
) -> (Sender<T>, Receiver<T>) {
    let (sender, shared) = Sender::first(SharedMailbox::new(name, options, Some(Box::new(wake))));
    (sender, Receiver::new(shared))
}
