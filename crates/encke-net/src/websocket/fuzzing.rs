//! The body of the fuzz target `websocket`.

use std::time::Duration;

use super::frame_meter::LightFrameMeter;
use super::message::Message;
use super::receive::{MessageEvent, MessageReceiver, ReceiveOptions, STATE_BYTES_MAX};
use super::violation::Violation;

/// Reads `data` as what a client sends behind the handshake, and panics when it is read in two ways.
///
/// The first byte chooses the pieces in which the rest arrives, and whether permessage-deflate is negotiated. In any pieces,
/// the events and the violation must be the same, and the memory must stay within its bound.
pub fn websocket(data: &[u8]) {
    let Some((&seed, input)) = data.split_first() else {
        return;
    };
    let deflate = seed & 1 != 0;
    let mut random = u32::from(seed) + 1;
    let mut random_piece = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as usize % 40 + 1
    };
    let whole = receive(input, deflate, || usize::MAX);
    assert_eq!(
        whole,
        receive(input, deflate, &mut random_piece),
        "in random pieces"
    );
    assert_eq!(whole, receive(input, deflate, || 1), "byte by byte");
    for event in &whole.events {
        check(event);
    }
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) events: Vec<MessageEvent>,
    pub(super) violation: Option<Violation>,
    /// Nothing is half received behind it.
    pub(super) is_idle: bool,
}

/// Receives the input in pieces of these sizes.
pub(super) fn receive(
    input: &[u8],
    deflate: bool,
    mut piece_bytes: impl FnMut() -> usize,
) -> Received {
    let options = ReceiveOptions {
        message_bytes_max: MESSAGE_BYTES_MAX,
        deflate,
    };
    let mut receiver = MessageReceiver::new();
    let mut meter = LightFrameMeter::new();
    let mut events = Vec::new();
    let mut violation = None;
    let mut rest = input;
    while !rest.is_empty() {
        let (mut piece, behind) = rest.split_at(piece_bytes().clamp(1, rest.len()));
        rest = behind;
        loop {
            // A receiver that is idle is as good as new.
            if receiver.is_idle() {
                assert_eq!(receiver.bytes(), 0);
                receiver = MessageReceiver::new();
            }
            let result = receiver.receive(&mut piece, options, &mut meter, Duration::ZERO);
            assert!(receiver.bytes() <= MESSAGE_BYTES_MAX + STATE_BYTES_MAX);
            match result {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(broken) => {
                    assert_eq!(violation, None, "nothing is reported behind a violation");
                    assert!(!broken.to_string().is_empty());
                    assert!(matches!(broken.close_code().number(), 1002 | 1007..=1009));
                    violation = Some(broken);
                }
            }
        }
        assert!(piece.is_empty(), "all bytes are taken");
    }
    Received {
        events,
        violation,
        is_idle: receiver.is_idle(),
    }
}

fn check(event: &MessageEvent) {
    match event {
        MessageEvent::Message(Message::Text(text)) => assert!(text.len() <= MESSAGE_BYTES_MAX),
        MessageEvent::Message(Message::Binary(bytes)) => assert!(bytes.len() <= MESSAGE_BYTES_MAX),
        MessageEvent::Compressed(message) => {
            assert!(message.bytes() <= MESSAGE_BYTES_MAX);
            let inflated = message.inflate(INFLATED_BYTES_MAX);
            // A decompressor that broke off, or ended, is as good as new.
            assert_eq!(inflated, message.inflate(INFLATED_BYTES_MAX));
            match inflated {
                Ok(Message::Text(text)) => assert!(text.capacity() <= INFLATED_BYTES_MAX),
                Ok(Message::Binary(bytes)) => assert!(bytes.capacity() <= INFLATED_BYTES_MAX),
                Err(broken) => assert!(matches!(broken.close_code().number(), 1007 | 1009)),
            }
        }
        MessageEvent::Ping(payload) | MessageEvent::Pong(payload) => {
            assert!(payload.as_bytes().len() <= 125);
        }
        MessageEvent::Close(close) => {
            assert!(close.as_ref().is_none_or(|close| close.reason.len() <= 123));
        }
    }
}

/// Small, so that inputs reach them.
pub(super) const MESSAGE_BYTES_MAX: usize = 1 << 12;
const INFLATED_BYTES_MAX: usize = 1 << 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/websocket");
        let mut count = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus is part of the repository") {
            let path = entry.expect("it can be read").path();
            eprintln!("{}", path.display());
            websocket(&std::fs::read(&path).expect("it can be read"));
            count += 1;
        }
        assert!(count >= 100, "only {count} inputs");
    }

    #[test]
    fn events_are_those_that_were_sent() {
        let input = b"\x01\x83\0\0\0\0abc\x89\x80\0\0\0\0\x80\x81\0\0\0\0d\x81";
        let received = receive(input, false, || 5);
        assert_eq!(received.events.len(), 2);
        assert_eq!(
            received.events[1],
            MessageEvent::Message(Message::Text("abcd".to_owned()))
        );
        assert!(received.violation.is_none() && !received.is_idle);
        let wrong = receive(b"\x81\x00", false, || 1);
        assert_eq!(wrong.violation, Some(Violation::Unmasked));
    }
}
