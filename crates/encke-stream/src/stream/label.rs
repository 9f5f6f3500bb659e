//! What encoders need of a stream.

use crate::Stream;
use crate::stream::media::MediaKind;

/// What an encoder needs of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLabel {
    /// Its name.
    pub name: Box<str>,
    /// The kind of its data.
    pub kind: MediaKind,
    /// The name of the caller to whom it belongs.
    pub owner: Option<Box<str>>,
}

impl StreamLabel {
    /// The label of a stream.
    pub fn of(stream: &Stream) -> StreamLabel {
        StreamLabel {
            name: stream.name.clone(),
            kind: stream.media.kind,
            owner: stream.owner().map(Into::into),
        }
    }
}
