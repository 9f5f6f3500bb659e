//! The kind of a record's data, on which its form depends.

use encke_stream::MediaKind;

/// The kind of a record's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenData {
    /// Messages of JSON.
    Messages,
    /// Text.
    Text,
    /// Bytes of another type, or of a stream of text that are not text.
    Bytes,
}

impl WrittenData {
    /// The kind of some data in a stream of that kind. Text can end inside a character, or be invalid: nothing is replaced.
    pub(crate) fn of(kind: MediaKind, data: &[u8]) -> Self {
        match kind {
            MediaKind::Json => WrittenData::Messages,
            MediaKind::Text if std::str::from_utf8(data).is_ok() => WrittenData::Text,
            MediaKind::Text | MediaKind::Binary => WrittenData::Bytes,
        }
    }
}
