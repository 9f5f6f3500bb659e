//! How records are stored in history.
//!
//! A record's key is its stream and its sequence, both big-endian. Its value is its kind (1 byte), its number of
//! streams (2), its time (8), its streams (8 each, unless there is only the one in the key) and its payload. All numbers but those in keys are little-endian.

use encke_clock::WallTime;

use crate::ids::{Sequence, StreamNo};
use crate::segments::frame::{FrameView, Parsed, Streams, u64_at};

/// The key of a record.
pub(crate) fn record_key(stream: StreamNo, sequence: Sequence) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&stream.to_be_bytes());
    key[8..].copy_from_slice(&sequence.to_be_bytes());
    key
}

/// The stream and the sequence of a record's key.
pub(crate) fn of_record_key(key: &[u8]) -> Option<(StreamNo, Sequence)> {
    let (stream, sequence) = key.split_first_chunk::<8>()?;
    Some((
        u64::from_be_bytes(*stream),
        u64::from_be_bytes(sequence.try_into().ok()?),
    ))
}

/// Appends the value of a record to `value`. It is the same in each of its streams.
pub(crate) fn record_value(frame: &Parsed<'_>, value: &mut Vec<u8>) {
    value.push(frame.kind);
    value.extend_from_slice(&(frame.streams.len() as u16).to_le_bytes());
    value.extend_from_slice(&frame.time.as_ms().to_le_bytes());
    if frame.streams.len() != 1 {
        for (stream, _) in frame.streams.iter() {
            value.extend_from_slice(&stream.to_le_bytes());
        }
    }
    value.extend_from_slice(frame.payload);
}

/// Decodes a record from its key and value in a stream; `None` when they are malformed.
pub(crate) fn view<'v>(stream: StreamNo, key: &[u8], value: &'v [u8]) -> Option<FrameView<'v>> {
    let (_, sequence) = of_record_key(key)?;
    let (head, rest) = value.split_first_chunk::<VALUE_HEAD_BYTES>()?;
    let (streams, payload) = match u16::from_le_bytes([head[1], head[2]]) {
        1 => (Streams::one(stream), rest),
        n => {
            let (streams, payload) = rest.split_at_checked(usize::from(n) * 8)?;
            (Streams::bare(streams), payload)
        }
    };
    Some(FrameView {
        sequence,
        time: WallTime::from_ms(u64_at(head, 3)),
        kind: head[0],
        stream,
        streams,
        payload,
    })
}

const VALUE_HEAD_BYTES: usize = 11;
