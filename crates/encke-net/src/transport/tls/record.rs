//! The frames of records: five bytes of header, then the payload.

use rustls::{ContentType, ProtocolVersion};

/// A record whose header and payload have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: ContentType,
    pub(super) version: ProtocolVersion,
    /// Bytes of its payload, which follow the header.
    pub(super) payload: usize,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotRecord {
    #[error("the payload has {0} bytes, more than {PAYLOAD_BYTES_MAX}")]
    Oversized(usize),
    #[error("{0} is no type of a record")]
    Kind(u8),
    #[error("{0:#06x} is no version of TLS")]
    Version(u16),
}

/// Finds the record at the beginning of `bytes`. `None`: more bytes are needed. Wrong headers are refused as soon as their
/// bytes are there.
pub(super) fn frame(bytes: &[u8]) -> Result<Option<Frame>, NotRecord> {
    let Some(&kind) = bytes.first() else {
        return Ok(None);
    };
    if !KINDS.contains(&kind) {
        return Err(NotRecord::Kind(kind));
    }
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let version = u16::from_be_bytes([header[1], header[2]]);
    if header[1] != VERSION_MAJOR {
        return Err(NotRecord::Version(version));
    }
    let payload = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if payload > PAYLOAD_BYTES_MAX {
        return Err(NotRecord::Oversized(payload));
    }
    let complete = bytes.len() >= HEADER_BYTES + payload;
    Ok(complete.then_some(Frame {
        kind: ContentType::from(kind),
        version: ProtocolVersion::from(version),
        payload,
    }))
}

pub(super) const HEADER_BYTES: usize = 5;

/// The most bytes of a payload: 2^14 of content, and 2048 that TLS 1.2 allows for encryption. The decrypter of TLS 1.3, which
/// allows 256, checks its own bound.
pub(super) const PAYLOAD_BYTES_MAX: usize = (16 << 10) + 2048;

/// The most bytes of content that are sent in one record.
pub(super) const CONTENT_BYTES_MAX: usize = 16 << 10;

/// Change of cipher spec, alert, handshake, application data.
const KINDS: std::ops::RangeInclusive<u8> = 20..=23;

/// Of all versions from SSL 3.0 to TLS 1.3.
const VERSION_MAJOR: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_when_it_is_complete() {
        let bytes = [23, 3, 3, 0, 2, 7, 7, 23];
        for end in 0..7 {
            assert_eq!(frame(&bytes[..end]), Ok(None), "{end}");
        }
        let found = frame(&bytes).unwrap().unwrap();
        assert_eq!(
            (found.kind, found.payload),
            (ContentType::ApplicationData, 2)
        );
    }

    #[test]
    fn what_is_no_record_is_refused_at_once() {
        assert_eq!(frame(b"G"), Err(NotRecord::Kind(b'G')));
        assert_eq!(frame(&[23, 9, 3, 0, 0]), Err(NotRecord::Version(0x0903)));
        let most = (PAYLOAD_BYTES_MAX as u16).to_be_bytes();
        assert_eq!(frame(&[23, 3, 3, most[0], most[1]]), Ok(None));
        let more = (PAYLOAD_BYTES_MAX as u16 + 1).to_be_bytes();
        assert_eq!(
            frame(&[23, 3, 3, more[0], more[1]]),
            Err(NotRecord::Oversized(PAYLOAD_BYTES_MAX + 1))
        );
    }
}
