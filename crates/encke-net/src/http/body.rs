//! Receives the body of a request.

use super::Rejection;
use super::head::{FIELDS_MAX, Framing};

/// A body that is being received, and the head it belongs to.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// The head's bytes; parsed again when the body is there.
    pub(crate) head: Vec<u8>,
    body: Vec<u8>,
    left: Left,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
enum Left {
    /// That many bytes.
    Bytes(u64),
    ChunkedVec(Chunk),
}

/// Where in the chunked coding the next byte stands (RFC 9112, section 7.1).
#[derive(Clone, Copy, Debug)]
enum Chunk {
    Size { value: u64, digits: u8 },
    Extension { value: u64, bytes: u16 },
    SizeEnd { value: u64 },
    Data { left: u64 },
    DataEnd,
    DataEndLf,
    Trailer(Trailer),
}

/// Where in the trailer the next byte stands, and how much of it has come. Its fields are read and left out.
#[derive(Clone, Copy, Debug)]
struct Trailer {
    bytes: u16,
    fields: u16,
    place: Place,
}

/// Where in a trailer's line.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At its beginning: a field, or the end.
    Start,
    Name,
    Value,
    /// Behind the carriage return of a field.
    Lf,
    /// Behind the carriage return of the empty line.
    LastLf,
}

impl Trailer {
    const BEGIN: Self = Trailer {
        bytes: 0,
        fields: 0,
        place: Place::Start,
    };

    /// Takes a byte. `None`: it was the last.
    fn take(self, byte: u8) -> Result<Option<Self>, Rejection> {
        let Trailer { bytes, fields, .. } = self;
        let place = match (self.place, byte) {
            (Place::LastLf, b'\n') => return Ok(None),
            (Place::Start, b'\r') => Place::LastLf,
            (Place::Start | Place::Name, byte) if is_token(byte) => Place::Name,
            (Place::Name, b':') => Place::Value,
            (Place::Value, b'\r') => Place::Lf,
            (Place::Value, b'\t' | b' '..=b'~' | 0x80..) => Place::Value,
            (Place::Lf, b'\n') => Place::Start,
            _ => return Err(bad_chunk()),
        };
        let fields = fields + u16::from(matches!((self.place, place), (Place::Start, Place::Name)));
        if bytes >= TRAILER_BYTES_MAX || usize::from(fields) > FIELDS_MAX {
            return Err(bad_chunk());
        }
        Ok(Some(Trailer {
            bytes: bytes + 1,
            fields,
            place,
        }))
    }
}

/// Whether a field's name may have it (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl Incoming {
    /// A body of that framing, of at most `bytes_max` bytes.
    pub(crate) fn new(head: &[u8], framing: Framing, bytes_max: usize) -> Result<Self, Rejection> {
        let left = match framing {
            Framing::None => Left::Bytes(0),
            Framing::Length(length) if length > bytes_max as u64 => {
                return Err(too_large(bytes_max));
            }
            Framing::Length(length) => Left::Bytes(length),
            Framing::Chunked => Left::ChunkedVec(Chunk::Size {
                value: 0,
                digits: 0,
            }),
        };
        Ok(Incoming {
            head: head.to_vec(),
            body: Vec::new(),
            left,
            bytes_max,
        })
    }

    /// Takes what belongs to the body off the input. True when the body is complete.
    pub(crate) fn feed(&mut self, input: &mut &[u8]) -> Result<bool, Rejection> {
        match self.left {
            Left::Bytes(left) => {
                let count = left.min(input.len() as u64) as usize;
                let whole = self.body.len() + left as usize;
                append(&mut self.body, &input[..count], whole);
                *input = &input[count..];
                self.left = Left::Bytes(left - count as u64);
                Ok(left == count as u64)
            }
            Left::ChunkedVec(mut chunk) => {
                let done = self.chunks(&mut chunk, input)?;
                self.left = Left::ChunkedVec(chunk);
                Ok(done)
            }
        }
    }

    /// What it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.head.capacity() + self.body.capacity()
    }

    /// The head's bytes and the body.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<u8>) {
        (self.head, self.body)
    }

    fn chunks(&mut self, chunk: &mut Chunk, input: &mut &[u8]) -> Result<bool, Rejection> {
        while let Some(&byte) = input.first() {
            if let Chunk::Data { left } = chunk {
                let count = (*left).min(input.len() as u64) as usize;
                append(&mut self.body, &input[..count], self.bytes_max);
                *input = &input[count..];
                *left -= count as u64;
                if *left == 0 {
                    *chunk = Chunk::DataEnd;
                }
                continue;
            }
            *input = &input[1..];
            *chunk = match (*chunk, byte) {
                (Chunk::Size { digits: 0, .. }, b'\r' | b';') => return Err(bad_chunk()),
                (Chunk::Size { value, .. }, b'\r') => Chunk::SizeEnd { value },
                (Chunk::Size { value, .. }, b';') => Chunk::Extension { value, bytes: 0 },
                (Chunk::Size { value, digits }, byte) => {
                    let digit = char::from(byte).to_digit(16).ok_or_else(bad_chunk)?;
                    if digits >= SIZE_DIGITS_MAX {
                        return Err(bad_chunk());
                    }
                    Chunk::Size {
                        value: value << 4 | u64::from(digit),
                        digits: digits + 1,
                    }
                }
                (Chunk::Extension { value, .. }, b'\r') => Chunk::SizeEnd { value },
                (Chunk::Extension { bytes, .. }, byte)
                    if byte == b'\n' || bytes >= EXTENSION_BYTES_MAX =>
                {
                    return Err(bad_chunk());
                }
                (Chunk::Extension { value, bytes }, _) => Chunk::Extension {
                    value,
                    bytes: bytes + 1,
                },
                (Chunk::SizeEnd { value }, b'\n') => {
                    self.check(value)?;
                    match value {
                        0 => Chunk::Trailer(Trailer::BEGIN),
                        left => Chunk::Data { left },
                    }
                }
                (Chunk::DataEnd, b'\r') => Chunk::DataEndLf,
                (Chunk::DataEndLf, b'\n') => Chunk::Size {
                    value: 0,
                    digits: 0,
                },
                (Chunk::Trailer(trailer), byte) => match trailer.take(byte)? {
                    Some(trailer) => Chunk::Trailer(trailer),
                    None => return Ok(true),
                },
                _ => return Err(bad_chunk()),
            };
        }
        Ok(false)
    }

    fn check(&self, more: u64) -> Result<(), Rejection> {
        if self.body.len() as u64 + more > self.bytes_max as u64 {
            return Err(too_large(self.bytes_max));
        }
        Ok(())
    }
}

/// Appends to a body of at most that many bytes. It gets room in steps, as any vector does, but no more than it can need: what it holds
/// counts for its client.
pub(crate) fn append(body: &mut Vec<u8>, part: &[u8], most: usize) {
    let needed = body.len() + part.len();
    if needed > body.capacity() {
        let room = needed.max(most.min(2 * body.capacity()));
        body.reserve_exact(room - body.len());
    }
    body.extend_from_slice(part);
}

/// A body has more bytes than it may have.
pub(crate) fn too_large(bytes_max: usize) -> Rejection {
    let why = match bytes_max {
        UNREAD_BODY_BYTES_MAX => format!(
            "the body is too large: that of a request other than POST and PUT may have {bytes_max} bytes"
        ),
        _ => format!("the body is too large: the setting body-max allows {bytes_max} bytes"),
    };
    Rejection::new(413, "body_too_large", why)
}

/// A request did not arrive in time. `body`: it is the time of its body that is over.
pub(crate) fn too_late(body: bool) -> Rejection {
    match body {
        true => Rejection::new(408, "body_timeout", "the request's body took too long"),
        false => Rejection::new(408, "timeout", "the request took too long to arrive"),
    }
}

/// Bytes of a body that no one reads.
pub(crate) const UNREAD_BODY_BYTES_MAX: usize = 8 << 10;

fn bad_chunk() -> Rejection {
    Rejection::new(400, "bad_chunk", "the chunked body is malformed")
}

/// Enough for any body that fits in memory.
const SIZE_DIGITS_MAX: u8 = 15;
const EXTENSION_BYTES_MAX: u16 = 256;
const TRAILER_BYTES_MAX: u16 = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds the input in pieces of that size; the body, and what is left behind it.
    fn chunked(input: &[u8], piece: usize) -> Result<Option<(Vec<u8>, usize)>, u16> {
        let mut incoming = Incoming::new(b"", Framing::Chunked, 100).unwrap();
        let mut used = 0;
        for piece in input.chunks(piece) {
            let mut rest = piece;
            let done = incoming.feed(&mut rest).map_err(|refused| refused.status)?;
            used += piece.len() - rest.len();
            if done {
                return Ok(Some((incoming.into_parts().1, input.len() - used)));
            }
            assert!(rest.is_empty());
        }
        Ok(None)
    }

    #[test]
    fn a_body_takes_no_more_room_than_its_length() {
        for part in [1, 7, 60_000, 100_000] {
            let mut body = Incoming::new(b"", Framing::Length(250_001), 1 << 20).unwrap();
            for part in vec![b' '; 250_000].chunks(part) {
                assert_eq!(body.feed(&mut &*part), Ok(false));
                assert!(body.bytes() <= 250_001, "{}", body.bytes());
            }
            assert_eq!(body.feed(&mut &b"1"[..]), Ok(true));
        }
    }

    #[test]
    fn reads_chunks_whatever_pieces_they_come_in() {
        let input = b"3\r\nabc\r\n0A;x=y\r\n0123456789\r\n0\r\nA: b\r\n\r\nGET";
        for piece in 1..input.len() {
            assert_eq!(
                chunked(input, piece),
                Ok(Some((b"abc0123456789".to_vec(), 3))),
                "{piece}"
            );
        }
        assert_eq!(chunked(b"0\r\n\r", 9), Ok(None));
    }

    #[test]
    fn refuses_every_other_form() {
        for bad in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "1 \r\na",
            "1\nabc",
            "1\r\nab",
            "1\r\na\n",
            ";\r\n",
            "0x1\r\n",
            "0\r\nA\n",
            "0\r\nA\r\n",
            "0\r\n: b\r\n",
            "0\r\nA : b\r\n",
            "0\r\n A: b\r\n",
            "0\r\nA: b\r\n c\r\n",
            "0\r\nA: \0\r\n",
            "0\r\nA: b\rc\r\n",
            "1;a\nb",
            "1000000000000000\r\n",
        ] {
            assert_eq!(chunked(bad.as_bytes(), 100), Err(400), "{bad:?}");
        }
        assert_eq!(chunked(b"65\r\n", 9), Err(413));
        assert!(Incoming::new(b"", Framing::Length(101), 100).is_err());
    }

    proptest! {
        #[test]
        fn any_body_comes_through(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..20), 0..5),
            piece in 1usize..40,
        ) {
            let mut input = Vec::new();
            for part in &parts {
                input.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                input.extend_from_slice(part);
                input.extend_from_slice(b"\r\n");
            }
            input.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(chunked(&input, piece), Ok(Some((parts.concat(), 0))));
        }

        #[test]
        fn no_input_panics(input: Vec<u8>, piece in 1usize..40) {
            let _ = chunked(&input, piece);
        }
    }
}
