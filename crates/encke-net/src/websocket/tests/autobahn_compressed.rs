//! The cases 12 and 13 of the Autobahn test suite: messages of its sizes and fragments, compressed.
//!
//! Case 13 repeats case 12 with other offers. `client_no_context_takeover` is always agreed on here, and the window of the client
//! may have any size.

use flate2::{Compress, Compression, FlushCompress};

use super::client::{AMPLE, Server, frame};
use crate::websocket::message::Message;
use crate::websocket::receive::MessageEvent;

#[test]
fn compressed_messages_of_every_size_are_received() {
    let json = r#"{"type":"Feature","properties":{"name":"Straße 12","lanes":2},"geometry":null},"#;
    for window_bits in [9, 15] {
        for (size, fragment_bytes) in SIZES {
            let message: String = json.chars().cycle().take(size).collect();
            let mut compress =
                Compress::new_with_window_bits(Compression::new(6), false, window_bits);
            let mut payload = Vec::with_capacity(2 * message.len() + 100);
            compress
                .compress_vec(message.as_bytes(), &mut payload, FlushCompress::Sync)
                .unwrap();
            payload.truncate(payload.len() - 4);
            let fragment_bytes = if fragment_bytes == 0 {
                payload.len()
            } else {
                fragment_bytes
            };
            let parts = payload.chunks(fragment_bytes);
            let mut frames: Vec<Vec<u8>> = parts.map(|part| frame(0, part)).collect();
            frames[0][0] = 0x41;
            frames.last_mut().unwrap()[0] |= 0x80;
            let mut server = Server::new(AMPLE);
            server.options.deflate = true;
            let events = server.events(&frames.concat());
            let [Ok(MessageEvent::Compressed(compressed))] = &events[..] else {
                panic!("{size}: {events:?}");
            };
            let inflated = compressed.inflate(message.len());
            assert!(inflated == Ok(Message::Text(message)), "{size}");
        }
    }
}

/// Sizes of messages and of their fragments; 0: in one frame.
const SIZES: [(usize, usize); 18] = [
    (16, 0),
    (64, 0),
    (256, 0),
    (1 << 10, 0),
    (4 << 10, 0),
    (8 << 10, 0),
    (16 << 10, 0),
    (32 << 10, 0),
    (64 << 10, 0),
    (128 << 10, 0),
    (8 << 10, 256),
    (16 << 10, 256),
    (32 << 10, 256),
    (64 << 10, 256),
    (128 << 10, 256),
    (128 << 10, 1 << 10),
    (128 << 10, 4 << 10),
    (128 << 10, 32 << 10),
];
