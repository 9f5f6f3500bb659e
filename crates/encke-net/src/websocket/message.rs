//! Complete messages (RFC 6455, section 5.6).

use super::frame::DataKind;
use super::violation::Violation;

/// A complete message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
}

impl Message {
    /// A message of that kind.
    ///
    /// # Errors
    /// [`Violation::InvalidUtf8`] if text is not UTF-8.
    pub(crate) fn new(kind: DataKind, bytes: Vec<u8>) -> Result<Message, Violation> {
        match kind {
            DataKind::Text => String::from_utf8(bytes)
                .map(Message::Text)
                .map_err(|_| Violation::InvalidUtf8),
            DataKind::Binary => Ok(Message::Binary(bytes)),
        }
    }
}
