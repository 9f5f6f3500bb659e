//! HTTP/2 (RFC 9113) for a client that makes one request on a connection, and reads its response for as long as that lasts.
//!
//! It says with the request that it takes all that comes, so the server need never wait for it. Of the response's head it reads
//! the status only, which HPACK (RFC 7541) has first.

use super::http::WireError;

/// The response on a connection, as far as it has been read.
#[derive(Debug, Default)]
pub(crate) struct Http2Response {
    frame: FrameState,
    /// The status has been read.
    is_answered: bool,
    /// Bytes of content for which the server has not got its window back.
    taken_bytes: u32,
}

/// A part of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Http2Part<'a> {
    /// The status.
    Status(u16),
    /// The next bytes of the content.
    Content(&'a [u8]),
    /// The end of the content, whole or not.
    End,
}

/// How far the current frame has been read.
#[derive(Debug)]
enum FrameState {
    /// The first bytes of its header.
    Header([u8; HEADER_BYTES], usize),
    /// It is content, and this number of bytes is still to come. `ends`: nothing follows.
    Content { left: u32, ends: bool },
    /// Any other frame, of which these bytes have arrived.
    Other(FrameHeader, Vec<u8>),
}

impl Default for FrameState {
    fn default() -> Self {
        Self::Header([0; HEADER_BYTES], 0)
    }
}

#[derive(Debug, Clone, Copy)]
struct FrameHeader {
    length: u32,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Http2Response {
    /// Whether the status has been read.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// Takes the next part off the front of `input`; `None` when `input` holds no more. What the server must be sent is
    /// appended to `out`.
    pub(crate) fn next_part<'a>(
        &mut self,
        input: &mut &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Http2Part<'a>>, WireError> {
        loop {
            match &mut self.frame {
                FrameState::Header(bytes, have) => {
                    let now = input.len().min(HEADER_BYTES - *have);
                    bytes[*have..*have + now].copy_from_slice(&input[..now]);
                    *have += now;
                    *input = &input[now..];
                    if *have < HEADER_BYTES {
                        return Ok(None);
                    }
                    self.frame = FrameHeader::parse(*bytes).begin()?;
                }
                FrameState::Content { left: 0, ends } => {
                    let ends = *ends;
                    self.frame = FrameState::default();
                    if ends {
                        return Ok(Some(Http2Part::End));
                    }
                }
                FrameState::Content { left, .. } => {
                    let now = input.len().min(*left as usize);
                    if now == 0 {
                        return Ok(None);
                    }
                    *left -= now as u32;
                    let (content, rest) = input.split_at(now);
                    *input = rest;
                    self.take_content(now as u32, out);
                    return Ok(Some(Http2Part::Content(content)));
                }
                FrameState::Other(header, payload) => {
                    let now = input.len().min(header.length as usize - payload.len());
                    payload.extend_from_slice(&input[..now]);
                    *input = &input[now..];
                    if payload.len() < header.length as usize {
                        return Ok(None);
                    }
                    let (header, payload) = (*header, std::mem::take(payload));
                    self.frame = FrameState::default();
                    if let Some(part) = self.take_frame(header, &payload, out)? {
                        return Ok(Some(part));
                    }
                }
            }
        }
    }

    /// Gives the windows back before they are used up.
    fn take_content(&mut self, bytes: u32, out: &mut Vec<u8>) {
        self.taken_bytes += bytes;
        if self.taken_bytes >= WINDOW_BYTES / 2 {
            for stream in [0, STREAM] {
                write_frame(
                    WINDOW_UPDATE,
                    0,
                    stream,
                    &self.taken_bytes.to_be_bytes(),
                    out,
                );
            }
            self.taken_bytes = 0;
        }
    }

    /// Takes a frame that is no content.
    fn take_frame(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Http2Part<'static>>, WireError> {
        match header.kind {
            SETTINGS if header.flags & ACK == 0 => write_frame(SETTINGS, ACK, 0, &[], out),
            PING if header.flags & ACK == 0 => write_frame(PING, ACK, 0, payload, out),
            RST_STREAM => return Ok(Some(Http2Part::End)),
            // What comes behind the head and the content are fields that end them.
            HEADERS if self.is_answered => return Ok(Some(Http2Part::End)),
            HEADERS if header.flags & (PADDED | PRIORITY) == 0 => {
                self.is_answered = true;
                let status = status(payload).ok_or(WireError::BadHttp2Frame)?;
                return Ok(Some(Http2Part::Status(status)));
            }
            HEADERS => return Err(WireError::BadHttp2Frame),
            // A head that fills more than a frame: its status is in the first one. GOAWAY comes before the end of the connection.
            _ => {}
        }
        Ok(None)
    }
}

impl FrameHeader {
    fn parse(bytes: [u8; HEADER_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & !(1 << 31),
        }
    }

    /// The state behind this header.
    fn begin(self) -> Result<FrameState, WireError> {
        let is_allowed = match self.kind {
            DATA => self.stream == STREAM && self.flags & PADDED == 0,
            HEADERS | RST_STREAM => self.stream == STREAM,
            _ => true,
        };
        if !is_allowed || self.length > FRAME_BYTES_MAX {
            return Err(WireError::BadHttp2Frame);
        }
        Ok(match self.kind {
            DATA => FrameState::Content {
                left: self.length,
                ends: self.flags & END_STREAM != 0,
            },
            _ => FrameState::Other(self, Vec::new()),
        })
    }
}

/// The status at the beginning of a header block.
fn status(mut block: &[u8]) -> Option<u16> {
    // Changes of the size of the dynamic table.
    while let [0x20..=0x3f, rest @ ..] = block {
        block = rest;
    }
    match block {
        // A field of the static table.
        [indexed @ 0x88..=0x8e, ..] => {
            Some([200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)])
        }
        // The name of the static table, and a value of its own.
        [0x08 | 0x18 | 0x48, length, value @ ..] => {
            let is_huffman = length & 0x80 != 0;
            let value = value.get(..usize::from(length & 0x7f))?;
            match is_huffman {
                true => huffman_digits(value),
                false => std::str::from_utf8(value).ok()?.parse().ok(),
            }
        }
        _ => None,
    }
}

/// Three digits in the Huffman code of HPACK: 0 to 2 have five bits, 3 to 9 six.
fn huffman_digits(bytes: &[u8]) -> Option<u16> {
    let &[a, b, ..] = bytes else { return None };
    let bits = u32::from_be_bytes([a, b, bytes.get(2).copied().unwrap_or(0xff), 0xff]);
    let mut at = 0;
    let mut value = 0;
    for _ in 0..3 {
        let six = (bits << at) >> 26;
        let (digit, length) = match six {
            0..=5 => (six >> 1, 5),
            0x19..=0x1f => (six - 0x19 + 3, 6),
            _ => return None,
        };
        value = 10 * value + digit as u16;
        at += length;
    }
    Some(value)
}

/// Appends what a client sends on a new connection: its preface, and a request for an event stream.
pub(crate) fn write_request(host: &str, target: &[u8], is_https: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let mut settings = Vec::new();
    for (setting, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW_BYTES)] {
        settings.extend_from_slice(&setting.to_be_bytes());
        settings.extend_from_slice(&value.to_be_bytes());
    }
    write_frame(SETTINGS, 0, 0, &settings, out);
    let more = WINDOW_BYTES - FIRST_WINDOW_BYTES;
    write_frame(WINDOW_UPDATE, 0, 0, &more.to_be_bytes(), out);
    let scheme: &[u8] = if is_https { b"https" } else { b"http" };
    let mut block = Vec::new();
    for (name, value) in [
        (&b":method"[..], &b"GET"[..]),
        (b":scheme", scheme),
        (b":authority", host.as_bytes()),
        (b":path", target),
    ] {
        // A literal that is not to be remembered, without Huffman codes.
        block.push(0);
        write_string(name, &mut block);
        write_string(value, &mut block);
    }
    write_frame(HEADERS, END_STREAM | END_HEADERS, STREAM, &block, out);
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    const SHORT_MAX: usize = 0x7f;
    let mut more = text.len();
    if more < SHORT_MAX {
        out.push(more as u8);
    } else {
        out.push(SHORT_MAX as u8);
        more -= SHORT_MAX;
        while more >= 0x80 {
            out.push(0x80 | more as u8);
            more >>= 7;
        }
        out.push(more as u8);
    }
    out.extend_from_slice(text);
}

fn write_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

const HEADER_BYTES: usize = 9;

/// The only stream of a connection.
const STREAM: u32 = 1;

/// The largest frame that a server may send to a client that has allowed no larger ones.
const FRAME_BYTES_MAX: u32 = 16_384;

/// The window of the connection before it is enlarged, and the one that this client gives.
const FIRST_WINDOW_BYTES: u32 = 65_535;
const WINDOW_BYTES: u32 = (1 << 31) - 1;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_frame(kind, flags, stream, payload, &mut out);
        out
    }

    /// A status, content, whether it has ended, and what was sent.
    type Exchanged = (Option<u16>, Vec<u8>, bool, Vec<u8>);

    fn read(pieces: &[&[u8]]) -> Result<Exchanged, WireError> {
        let mut response = Http2Response::default();
        let (mut found, mut content, mut ended, mut out) = (None, Vec::new(), false, Vec::new());
        for mut piece in pieces.iter().copied() {
            while let Some(part) = response.next_part(&mut piece, &mut out)? {
                match part {
                    Http2Part::Status(status) => found = Some(status),
                    Http2Part::Content(bytes) => content.extend_from_slice(bytes),
                    Http2Part::End => ended = true,
                }
            }
        }
        Ok((found, content, ended, out))
    }

    #[test]
    fn a_response_in_any_pieces() {
        let wire = [
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            frame(SETTINGS, ACK, 0, &[]),
            frame(HEADERS, END_HEADERS, 1, b"\x3f\x88abc"),
            frame(DATA, 0, 1, b"one "),
            frame(DATA, 0, 1, b""),
            frame(PING, 0, 0, b"12345678"),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
            frame(DATA, END_STREAM, 1, b"two"),
        ]
        .concat();
        let sent = [
            frame(SETTINGS, ACK, 0, &[]),
            frame(PING, ACK, 0, b"12345678"),
        ]
        .concat();
        for step in [1, 2, 5, 13, wire.len()] {
            let pieces: Vec<&[u8]> = wire.chunks(step).collect();
            let read = read(&pieces);
            let expected = (Some(200), b"one two".to_vec(), true, sent.clone());
            assert_eq!(read, Ok(expected), "in pieces of {step}");
        }
    }

    #[test]
    fn a_response_ends_with_fields_or_a_reset() {
        let head = frame(HEADERS, END_HEADERS, 1, b"\x88");
        for end in [
            frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01a\x01b"),
            frame(RST_STREAM, 0, 1, &[0; 4]),
        ] {
            let (_, _, ended, _) = read(&[&head, &end]).unwrap();
            assert!(ended);
        }
    }

    #[test]
    fn statuses_in_all_codes() {
        for (block, expected) in [
            (&b"\x88"[..], Some(200)),
            (b"\x8d", Some(404)),
            (b"\x08\x03503", Some(503)),
            // 01101 1 00000 011001: 503 in the Huffman code; and 401: 011010 00000 00001.
            (b"\x48\x83\x6c\x0c\xff", Some(503)),
            (b"\x48\x82\x68\x01", Some(401)),
            (b"\x48\x82\xff\xff", None),
            (b"\x00\x01a\x01b", None),
            (b"", None),
        ] {
            assert_eq!(status(block), expected, "{block:x?}");
        }
    }

    #[test]
    fn frames_that_are_not_expected_are_refused() {
        for bad in [
            frame(DATA, 0, 3, b"x"),
            frame(DATA, PADDED, 1, b"\x00x"),
            frame(HEADERS, END_HEADERS | PADDED, 1, b"\x00\x88"),
            frame(HEADERS, END_HEADERS, 1, b"\x00"),
            frame(SETTINGS, 0, 0, &[0; 16_385]),
        ] {
            assert_eq!(read(&[&bad]), Err(WireError::BadHttp2Frame), "{bad:x?}");
        }
    }

    #[test]
    fn windows_are_given_back() {
        let mut response = Http2Response::default();
        let mut out = Vec::new();
        response.take_content(WINDOW_BYTES / 2 - 1, &mut out);
        assert!(out.is_empty());
        response.take_content(1, &mut out);
        let bytes = (WINDOW_BYTES / 2).to_be_bytes();
        let expected = [0, 1].map(|stream| frame(WINDOW_UPDATE, 0, stream, &bytes));
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn a_request_with_a_long_target() {
        let target = [b'a'; 300];
        let mut out = Vec::new();
        write_request("h", &target, false, &mut out);
        assert!(out.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        let path = [b"\x00\x05:path\x7f\xad\x01", &target[..]].concat();
        assert!(out.ends_with(&path));
        let before = b"\x00\x07:method\x03GET\x00\x07:scheme\x04http\x00\x0a:authority\x01h";
        let at = out.len() - path.len() - before.len();
        assert_eq!(&out[at..out.len() - path.len()], before);
        let header = FrameHeader::parse(out[at - 9..at].try_into().unwrap());
        assert_eq!(header.length as usize, out.len() - at);
    }
}
