//! The kinds of clients that a flood can have.

use clap::ValueEnum;

/// How a subscriber gets its messages. Each has a connection of its own.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubscriberKind {
    /// An event stream over HTTP/1.1
    #[default]
    Http1,
    /// An event stream over HTTP/2
    Http2,
    /// A channel over WebSocket
    Websocket,
}

impl SubscriberKind {
    /// How many kinds there are.
    pub(crate) const COUNT: usize = 3;

    /// Its name in reports, which is that of the option.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Websocket => "websocket",
        }
    }
}

/// What hostile clients speak.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostileKind {
    /// Silence, heads and bodies a byte a second, unread events and responses
    Http1,
    /// No pongs, half frames, floods of pings, fragments of one byte, unread records
    Websocket,
}
