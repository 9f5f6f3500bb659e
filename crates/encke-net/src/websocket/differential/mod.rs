//! Compares the receiver with tungstenite's server on the same bytes.
//!
//! Every difference is either a fault of one of them, or one of those in [`differences`], each with its reason.

mod differences;
mod judge;
#[cfg(test)]
mod tests;

use super::fuzzing::{self, Received};
use super::message::Message;
use super::receive::MessageEvent;
use differences::Difference;

/// What a server made of a connection's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Conversation {
    messages: Vec<Incoming>,
    end: InputEnd,
}

/// What a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Incoming {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
}

/// What followed the last message.
#[derive(Clone, Debug, PartialEq, Eq)]
enum InputEnd {
    /// More may come.
    Open,
    /// A close frame, and what it says.
    Closed(Option<(u16, String)>),
    /// What breaks the protocol, with the fault.
    Refused(String),
}

/// Gives `input` to both in pieces of these sizes, which repeat. The known difference that explains how they differ, if they do.
///
/// # Errors
/// No known difference explains it; the text says how they differ.
fn compare(input: &[u8], pieces: &[usize]) -> Result<Option<&'static Difference>, String> {
    let ours = conversation(input, pieces);
    let theirs = judge::conversation(input, pieces);
    if agree(&ours, &theirs) {
        return Ok(None);
    }
    let explained = differences::explain(&ours, &theirs).find(|difference| {
        // A server that waits for the end of the frame would have refused it as well.
        difference.name != differences::SOONER || judge::refuses_rest_of_frame(input)
    });
    explained.map(Some).ok_or_else(|| {
        format!("in pieces of {pieces:?}, of {input:x?}\nencke makes {ours:?}\ntungstenite makes {theirs:?}")
    })
}

/// Whether both see the same. The fault may differ, because there may be several.
fn agree(ours: &Conversation, theirs: &Conversation) -> bool {
    let same_end = match (&ours.end, &theirs.end) {
        (InputEnd::Refused(_), InputEnd::Refused(_)) => true,
        (ours, theirs) => ours == theirs,
    };
    same_end && ours.messages == theirs.messages
}

/// Takes the input as a connection does.
fn conversation(input: &[u8], pieces: &[usize]) -> Conversation {
    let mut pieces = pieces.iter().copied().cycle();
    let Received {
        events, violation, ..
    } = fuzzing::receive(input, false, || pieces.next().unwrap_or(usize::MAX));
    let mut end = InputEnd::Open;
    let mut messages = Vec::new();
    for event in events {
        messages.push(match event {
            MessageEvent::Message(Message::Text(text)) => Incoming::Text(text),
            MessageEvent::Message(Message::Binary(bytes)) => Incoming::Binary(bytes),
            MessageEvent::Ping(payload) => Incoming::Ping(payload.as_bytes().to_vec()),
            MessageEvent::Pong(payload) => Incoming::Pong(payload.as_bytes().to_vec()),
            MessageEvent::Close(close) => {
                end = InputEnd::Closed(close.map(|close| (close.code.number(), close.reason)));
                continue;
            }
            MessageEvent::Compressed(_) => unreachable!("compression is not negotiated"),
        });
    }
    if let Some(violation) = violation {
        end = InputEnd::Refused(format!("{violation:?}"));
    }
    Conversation { messages, end }
}
