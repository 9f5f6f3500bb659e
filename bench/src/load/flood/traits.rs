//! The flags of a subscriber.

use crate::load::kinds::SubscriberKind;

/// Flags of a subscriber.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traits {
    /// How it gets its messages.
    pub(crate) kind: SubscriberKind,
    /// It has received an offset: from there on it may miss nothing.
    pub(crate) ready: bool,
    /// It was there before the run's producers began.
    pub(crate) from_start: bool,
    /// It is connected and listening.
    pub(crate) active: bool,
    /// It has been active before.
    pub(crate) known: bool,
    /// It stops reading for a while.
    pub(crate) slow: bool,
    /// It hangs up as soon as it has read an event's offset.
    pub(crate) hang_up: bool,
    /// Bytes may wait in its socket that it has not looked at while pausing.
    pub(crate) unread: bool,
    /// It has read messages whose following offset it has not read.
    pub(crate) unsettled: bool,
}
