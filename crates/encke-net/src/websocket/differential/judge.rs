//! What tungstenite reads in the same bytes.

use std::io::{self, Read, Write};

use tungstenite::error::Error;
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

use super::{Conversation, Incoming, InputEnd};
use crate::websocket::fuzzing::MESSAGE_BYTES_MAX;

/// The bytes of a connection in pieces. Behind them the stream has nothing for now.
struct Stream<'a> {
    rest: &'a [u8],
    pieces: std::iter::Cycle<std::slice::Iter<'a, usize>>,
}

/// Gives the input to a server of tungstenite.
pub(super) fn conversation(input: &[u8], pieces: &[usize]) -> Conversation {
    let mut server = server(input, pieces);
    let mut messages = Vec::new();
    let end = loop {
        match step(&mut server) {
            Ok(message) => messages.push(message),
            Err(end) => break end,
        }
    };
    Conversation { messages, end }
}

/// Whether the input ends inside a frame that is refused once it is complete.
///
/// What follows the input begins with a ping, which is received if the input ends between two frames.
pub(super) fn refuses_rest_of_frame(input: &[u8]) -> bool {
    let mut server = server(input, &[usize::MAX]);
    while step(&mut server).is_ok() {}
    let ping = [0x89, 0x80, 0, 0, 0, 0];
    let zeros = [0; MESSAGE_BYTES_MAX + 14];
    for byte in ping.iter().chain(&zeros) {
        server.get_mut().rest = std::slice::from_ref(byte);
        match step(&mut server) {
            Err(InputEnd::Open) => {}
            end => return matches!(end, Err(InputEnd::Refused(_))),
        }
    }
    false
}

fn server<'a>(input: &'a [u8], pieces: &'a [usize]) -> WebSocket<Stream<'a>> {
    let config = WebSocketConfig::default()
        .read_buffer_size(1 << 10)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let stream = Stream {
        rest: input,
        pieces: pieces.iter().cycle(),
    };
    WebSocket::from_raw_socket(stream, Role::Server, Some(config))
}

/// The next message; `Err`: there is none.
fn step(server: &mut WebSocket<Stream<'_>>) -> Result<Incoming, InputEnd> {
    match server.read() {
        Ok(Message::Text(text)) => Ok(Incoming::Text(text.as_str().to_owned())),
        Ok(Message::Binary(bytes)) => Ok(Incoming::Binary(bytes.to_vec())),
        Ok(Message::Ping(payload)) => Ok(Incoming::Ping(payload.to_vec())),
        Ok(Message::Pong(payload)) => Ok(Incoming::Pong(payload.to_vec())),
        // This is how it reports a code that must not be sent.
        Ok(Message::Close(Some(close)))
            if u16::from(close.code) == 1002 && close.reason.as_str() == "Protocol violation" =>
        {
            Err(InputEnd::Refused(CLOSE_CODE.to_owned()))
        }
        Ok(Message::Close(close)) => {
            Err(InputEnd::Closed(close.map(|close| {
                (close.code.into(), close.reason.as_str().to_owned())
            })))
        }
        Ok(Message::Frame(frame)) => unreachable!("never read: {frame}"),
        Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Err(InputEnd::Open),
        Err(error) => Err(InputEnd::Refused(format!("{error:?}"))),
    }
}

impl Read for Stream<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let piece = self.pieces.next().copied().unwrap_or(usize::MAX).max(1);
        let count = piece.min(out.len()).min(self.rest.len());
        out[..count].copy_from_slice(&self.rest[..count]);
        self.rest = &self.rest[count..];
        Ok(count)
    }
}

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The fault of a close frame with a code that it does not allow.
pub(super) const CLOSE_CODE: &str = "CloseCode";
