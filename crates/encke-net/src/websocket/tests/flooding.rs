//! Bounds: messages, memory, and frames with little content.

use std::time::Duration;

use super::client::{Seen, Server, frame, text};
use crate::websocket::frame_meter::{
    FRAGMENT_BYTES_MIN, FrameFlood, LIGHT_FRAMES_BURST, LIGHT_FRAMES_PER_S, SMALL_FRAGMENTS_MAX,
};
use crate::websocket::receive::{MessageReceiver, STATE_BYTES_MAX};
use crate::websocket::violation::Violation;

/// How many of these frames a new connection may send at once, and the violation behind them.
fn allowed(frame: &[u8]) -> (u64, Violation) {
    let mut server = Server::new(1 << 20);
    for count in 0..2 * LIGHT_FRAMES_BURST {
        if let [Seen::Violation(violation)] = server.take(frame)[..] {
            return (count, violation);
        }
    }
    panic!("the frames have no bound")
}

#[test]
fn frames_without_content_are_bounded() {
    let flood = Violation::Flood(FrameFlood::Frames);
    for light in [
        frame(0x89, b""),
        frame(0x8a, &[0; 125]),
        frame(0x81, b""),
        frame(0x82, b""),
    ] {
        assert_eq!(allowed(&light), (LIGHT_FRAMES_BURST, flood));
    }
    // A message of two small fragments counts twice.
    let fragments = [frame(1, b"a"), frame(0x80, b"b")].concat();
    assert_eq!(allowed(&fragments), (LIGHT_FRAMES_BURST / 2, flood));
}

#[test]
fn time_allows_more_frames() {
    let mut server = Server::new(100);
    let ping = frame(0x89, b"");
    for _ in 0..LIGHT_FRAMES_BURST {
        assert_eq!(server.take(&ping), [Seen::Ping(Vec::new())]);
    }
    server.now += Duration::from_secs(1);
    for _ in 0..LIGHT_FRAMES_PER_S {
        assert_eq!(server.take(&ping), [Seen::Ping(Vec::new())]);
    }
    let flood = Seen::Violation(Violation::Flood(FrameFlood::Frames));
    assert_eq!(server.take(&ping), [flood]);
    assert_eq!(server.take(&ping), [], "nothing counts behind a violation");
}

#[test]
fn small_fragments_of_a_message_are_bounded() {
    let mut server = Server::new(1 << 20);
    let small = frame(0, &[b'x'; FRAGMENT_BYTES_MIN - 1]);
    assert_eq!(server.take(&frame(1, b"x")), []);
    for _ in 1..SMALL_FRAGMENTS_MAX {
        assert_eq!(server.take(&small), []);
    }
    let large = frame(0, &[b'x'; FRAGMENT_BYTES_MIN]);
    for _ in 0..2 * LIGHT_FRAMES_BURST {
        assert_eq!(server.take(&large), []);
    }
    let flood = Violation::Flood(FrameFlood::Fragments);
    assert_eq!(flood.close_code().number(), 1008);
    assert_eq!(server.take(&small), [Seen::Violation(flood)]);
}

#[test]
fn a_message_is_refused_at_the_length_that_exceeds_the_bound() {
    let too_big = Seen::Violation(Violation::MessageTooBig { bytes_max: 300 });
    let exact = "x".repeat(300);
    let mut server = Server::new(300);
    assert_eq!(server.take(&frame(0x81, exact.as_bytes())), [text(&exact)]);
    // Only the header arrives.
    assert_eq!(
        server.take(&frame(0x81, &[b'x'; 301])[..8]),
        std::slice::from_ref(&too_big)
    );
    let mut server = Server::new(300);
    assert_eq!(server.take(&frame(1, &[b'x'; 200])), []);
    assert_eq!(server.take(&frame(0, &[b'x'; 100])), []);
    assert_eq!(server.take(&frame(0x80, b"")), [text(&exact)]);
    assert_eq!(server.take(&frame(1, &[b'x'; 200])), []);
    assert_eq!(server.take(&frame(0x80, &[b'x'; 101])[..8]), [too_big]);
}

#[test]
fn an_idle_receiver_holds_nothing() {
    let mut server = Server::new(1 << 20);
    let frames = [
        frame(0x81, b"abc"),
        frame(0x89, b"d"),
        frame(2, b"e"),
        frame(0x80, b"f"),
    ];
    let bytes = frames.concat();
    let mut borders = vec![0];
    borders.extend(frames.iter().scan(0, |sum, frame| {
        *sum += frame.len();
        Some(*sum)
    }));
    // Behind the first fragment the message is half received.
    borders.remove(3);
    for cut in 0..=bytes.len() {
        let mut server = Server::new(1 << 20);
        server.take(&bytes[..cut]);
        assert_eq!(server.receiver.is_idle(), borders.contains(&cut), "{cut}");
        assert_eq!(server.receiver.bytes() == 0, server.receiver.is_idle());
    }
    server.take(&bytes);
    assert!(server.receiver.is_idle());
    server.take(&frame(0x88, b""));
    assert!(!server.receiver.is_idle());
    assert_eq!(server.receiver.bytes(), 0);
    assert_eq!(size_of::<MessageReceiver>(), 16);
    const { assert!(STATE_BYTES_MAX < 256) };
}

#[test]
fn memory_follows_what_arrives() {
    let large = frame(0x82, &[7; 1 << 20]);
    let mut server = Server::new(1 << 20);
    server.take(&large[..14]);
    assert!(server.receiver.bytes() <= STATE_BYTES_MAX);
    let mut arrived = 0;
    for piece in large[14..].chunks(1000) {
        server.take(piece);
        arrived += piece.len();
        assert!(server.receiver.bytes() <= STATE_BYTES_MAX + 2 * arrived);
        assert!(server.receiver.bytes() <= STATE_BYTES_MAX + (1 << 20));
    }
    assert!(server.receiver.is_idle());
}
