//! Parses HTTP/1.1 responses: heads, and bodies in all three framings.

/// The longest response head that is accepted, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The most header fields of a response that are looked at.
const HEADERS_MAX: usize = 64;

/// What a server can do wrong on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The status line or a header field is not HTTP/1.x.
    #[error("the response head is not valid HTTP/1.x")]
    BadHead,
    /// The head did not end within `HEAD_BYTES_MAX`.
    #[error("the response head is longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    /// Two lengths that contradict each other, or a length that is not a number.
    #[error("the response's length headers contradict each other")]
    BadLength,
    /// A chunk size that is no number, or a chunk that does not end where it said.
    #[error("the chunked framing is broken")]
    BadChunk,
    /// A frame that WebSocket does not allow, or that this client has no use for.
    #[error("a frame is not what a server of WebSocket may send here")]
    BadWebSocketFrame,
    /// A frame that HTTP/2 does not allow, or that this client has no use for.
    #[error("a frame is not what a server of HTTP/2 may send here")]
    BadHttp2Frame,
    /// One server-sent event, or one message, is larger than the bound.
    #[error("an event is larger than {} bytes", EVENT_BYTES_MAX)]
    EventTooLong,
}

/// A parsed response head. What it borrows lives in the bytes it was parsed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    /// The status code.
    pub(crate) status: u16,
    /// How the body ends.
    pub(crate) framing: Framing,
    /// Whether the connection may be used again after the body.
    pub(crate) keep_alive: bool,
    /// `Stream-Next-Offset`.
    pub(crate) next_offset: Option<&'a str>,
    /// Whether `Stream-Up-To-Date: true` is there.
    pub(crate) up_to_date: bool,
}

/// Parses the response head at the beginning of `bytes`, interim (1xx) responses skipped.
///
/// Returns the head and the number of bytes it took, or `None` while it is incomplete.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<(Head<'_>, usize)>, WireError> {
    let mut skipped = 0;
    loop {
        let rest = &bytes[skipped..];
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let taken = match response.parse(rest) {
            Ok(httparse::Status::Complete(taken)) => taken,
            Ok(httparse::Status::Partial) if rest.len() >= HEAD_BYTES_MAX => {
                return Err(WireError::HeadTooLong);
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(WireError::BadHead),
        };
        let status = response.code.ok_or(WireError::BadHead)?;
        if (100..200).contains(&status) && status != 101 {
            skipped += taken;
            continue;
        }
        let head = interpret(status, response.version == Some(1), response.headers)?;
        return Ok(Some((head, skipped + taken)));
    }
}

fn interpret<'a>(
    status: u16,
    version_1_1: bool,
    headers: &[httparse::Header<'a>],
) -> Result<Head<'a>, WireError> {
    let mut head = Head {
        status,
        framing: Framing::UntilClose,
        keep_alive: version_1_1,
        next_offset: None,
        up_to_date: false,
    };
    let mut length: Option<u64> = None;
    let mut coding: Option<bool> = None;
    for header in headers {
        let value = std::str::from_utf8(header.value).unwrap_or("").trim();
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let number = parse_length(value)?;
            if length.is_some_and(|other| other != number) {
                return Err(WireError::BadLength);
            }
            length = Some(number);
        } else if is("transfer-encoding") {
            // Only the last coding decides the framing (RFC 9112, section 6.3).
            let last = value.rsplit(',').next().unwrap_or("").trim();
            coding = Some(last.eq_ignore_ascii_case("chunked"));
        } else if is("connection") {
            for option in value.split(',').map(str::trim) {
                if option.eq_ignore_ascii_case("close") {
                    head.keep_alive = false;
                } else if option.eq_ignore_ascii_case("keep-alive") && !version_1_1 {
                    head.keep_alive = true;
                }
            }
        } else if is("stream-next-offset") {
            head.next_offset = Some(value);
        } else if is("stream-up-to-date") {
            head.up_to_date = value == "true";
        }
    }
    head.framing = match (coding, length) {
        _ if status == 204 || status == 304 => Framing::Done,
        (Some(_), Some(_)) => return Err(WireError::BadLength),
        (Some(true), None) => Framing::Chunked(Chunk::Size {
            value: 0,
            digits: 0,
        }),
        (None, Some(0)) => Framing::Done,
        (None, Some(length)) => Framing::Length(length),
        (Some(false), None) | (None, None) => Framing::UntilClose,
    };
    if head.framing == Framing::UntilClose {
        head.keep_alive = false;
    }
    Ok(head)
}

fn parse_length(value: &str) -> Result<u64, WireError> {
    // `str::parse` would also take a plus sign.
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_digit()) {
        return Err(WireError::BadLength);
    }
    value.parse().map_err(|_| WireError::BadLength)
}

/// How a body is framed, and how far it has been read.
///
/// Invariant: once `Done`, no further byte belongs to this body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// The body has ended.
    Done,
    /// The number of bytes still to come.
    Length(u64),
    /// Everything until the connection closes.
    UntilClose,
    /// Chunked transfer coding.
    Chunked(Chunk),
}

/// Where in the chunked coding the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// In a chunk's size.
    Size {
        /// The size so far.
        value: u64,
        /// How many digits it has.
        digits: u8,
    },
    /// In what follows a size, to be ignored.
    Extension(u64),
    /// At the line feed after a size.
    SizeEnd(u64),
    /// In the data, with this number of bytes left.
    Data(u64),
    /// At the carriage return after the data.
    DataReturn,
    /// At the line feed after the data.
    DataEnd,
    /// At the beginning of a trailer line.
    TrailerStart,
    /// In a trailer line.
    Trailer,
    /// At the line feed that ends the trailers.
    TrailerEnd,
}

impl Framing {
    /// Whether the body has ended.
    pub(crate) fn is_done(self) -> bool {
        self == Self::Done
    }

    /// How many of the next bytes on the connection belong to the body, whatever they are: [`Framing::skip`] takes them unseen. 0
    /// where framing comes next.
    pub(crate) fn bytes_ahead(self) -> u64 {
        match self {
            Self::Length(left) | Self::Chunked(Chunk::Data(left)) => left,
            Self::UntilClose => u64::MAX,
            Self::Done | Self::Chunked(_) => 0,
        }
    }

    /// Takes bytes of the body that were read elsewhere, at most [`Framing::bytes_ahead`].
    pub(crate) fn skip(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.bytes_ahead());
        match self {
            Self::Length(left) if *left == bytes => *self = Self::Done,
            Self::Chunked(Chunk::Data(left)) if *left == bytes => {
                *self = Self::Chunked(Chunk::DataReturn);
            }
            Self::Length(left) | Self::Chunked(Chunk::Data(left)) => *left -= bytes,
            Self::UntilClose | Self::Done | Self::Chunked(_) => {}
        }
    }

    /// Takes the next piece of the body from the front of `input`.
    ///
    /// `None` means that `input` holds no more of it: either it is empty, or the body is done
    /// and the rest of `input` belongs to the next response.
    pub(crate) fn next_piece<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<&'a [u8]>, WireError> {
        while !input.is_empty() {
            match self {
                Self::Done => return Ok(None),
                Self::UntilClose => return Ok(Some(std::mem::take(input))),
                Self::Length(left) => {
                    let piece = take(input, *left);
                    *left -= piece.len() as u64;
                    if *left == 0 {
                        *self = Self::Done;
                    }
                    return Ok(Some(piece));
                }
                Self::Chunked(Chunk::Data(left)) => {
                    let piece = take(input, *left);
                    *left -= piece.len() as u64;
                    if *left == 0 {
                        *self = Self::Chunked(Chunk::DataReturn);
                    }
                    return Ok(Some(piece));
                }
                Self::Chunked(chunk) => {
                    let next = chunk.after(input[0])?;
                    *input = &input[1..];
                    *self = next;
                }
            }
        }
        Ok(None)
    }
}

impl Chunk {
    /// The longest chunk size: 15 hexadecimal digits can't overflow.
    const DIGITS_MAX: u8 = 15;

    fn after(self, byte: u8) -> Result<Framing, WireError> {
        let next = match (self, byte) {
            (Self::Size { value, digits }, b) if b.is_ascii_hexdigit() => {
                if digits == Self::DIGITS_MAX {
                    return Err(WireError::BadChunk);
                }
                let digit = match b {
                    b'0'..=b'9' => b - b'0',
                    b'a'..=b'f' => b - b'a' + 10,
                    _ => b - b'A' + 10,
                };
                Self::Size {
                    value: value * 16 + u64::from(digit),
                    digits: digits + 1,
                }
            }
            (Self::Size { digits: 0, .. }, _) => return Err(WireError::BadChunk),
            (Self::Size { value, .. } | Self::Extension(value), b'\r') => Self::SizeEnd(value),
            (Self::Size { value, .. }, b';' | b' ' | b'\t') => Self::Extension(value),
            (Self::Extension(value), b) if b != b'\n' => Self::Extension(value),
            (Self::SizeEnd(0), b'\n') => Self::TrailerStart,
            (Self::SizeEnd(value), b'\n') => Self::Data(value),
            (Self::DataReturn, b'\r') => Self::DataEnd,
            (Self::DataEnd, b'\n') => Self::Size {
                value: 0,
                digits: 0,
            },
            (Self::TrailerStart, b'\r') => Self::TrailerEnd,
            (Self::TrailerStart | Self::Trailer, b) if b != b'\n' => Self::Trailer,
            (Self::Trailer, _) => Self::TrailerStart,
            (Self::TrailerEnd, b'\n') => return Ok(Framing::Done),
            _ => return Err(WireError::BadChunk),
        };
        Ok(Framing::Chunked(next))
    }
}

fn take<'a>(input: &mut &'a [u8], most: u64) -> &'a [u8] {
    let length = usize::try_from(most).map_or(input.len(), |most| most.min(input.len()));
    let (piece, rest) = input.split_at(length);
    *input = rest;
    piece
}

/// The largest event that is accepted, in bytes.
pub(crate) const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
