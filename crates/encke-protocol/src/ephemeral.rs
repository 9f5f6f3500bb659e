//! Ephemeral messages as all protocols over streams take them: for those who are subscribed now, and never stored.

use encke_clock::WallTime;
use encke_stream::{Data, EphemeralMessage, MediaKind, Stream};

use crate::append::{bytes, messages};
use crate::problem::{error, refused};
use crate::response::Response;
use crate::streams::StreamAccess;

/// Refuses a body that no ephemeral message has, before its stream is looked for.
pub(crate) fn check_body(streams: &StreamAccess, body: &[u8]) -> Result<(), Response> {
    let bytes_max = streams.ephemeral_bytes_max;
    if body.is_empty() {
        return Err(error(
            400,
            "empty_body",
            "an ephemeral message needs a body, because that is all there is of it",
        ));
    }
    if body.len() > bytes_max {
        let why = format!(
            "an ephemeral message has {} bytes, at most {bytes_max} are allowed (tuning.ephemeral-bytes)",
            body.len()
        );
        return Err(error(413, "too_large", why));
    }
    Ok(())
}

/// A message of these bytes to a stream. `content_type`: the type that the client names for them; the stream's own if `None`.
///
/// # Errors
/// The stream takes no messages, or not these.
pub(crate) fn ephemeral_message(
    stream: &Stream,
    content_type: Option<&str>,
    body: Vec<u8>,
    now: WallTime,
) -> Result<EphemeralMessage, Response> {
    let differs = content_type.is_some_and(|asked| !stream.media.matches(asked));
    let data = match !differs && stream.media.kind == MediaKind::Json {
        true => match messages(body)? {
            Data { units: 0, .. } => {
                return Err(error(
                    400,
                    "empty_array",
                    "the array has no messages, and an ephemeral message needs at least one",
                ));
            }
            data => data,
        },
        false => bytes(body)?,
    };
    EphemeralMessage::new(stream, content_type, data, now).map_err(|why| refused(&why))
}
