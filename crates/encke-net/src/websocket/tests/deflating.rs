//! permessage-deflate: single messages, there and back, within the bound.

use flate2::{Compress, Compression, FlushCompress};
use proptest::prelude::*;

use super::client::{AMPLE, Server, frame};
use crate::websocket::deflate::{CompressedMessage, Deflater, Inflation, WINDOW_BITS};
use crate::websocket::frame::DataKind;
use crate::websocket::message::Message;
use crate::websocket::receive::MessageEvent;
use crate::websocket::violation::Violation;

/// What a client's compressed frames inflate to.
fn inflated(frames: &[u8], bytes_max: usize) -> Result<Message, Violation> {
    let mut server = Server::new(AMPLE);
    server.options.deflate = true;
    match server.events(frames).pop() {
        Some(Ok(MessageEvent::Compressed(message))) => message.inflate(bytes_max),
        other => panic!("{other:?}"),
    }
}

fn text(text: &str) -> Result<Message, Violation> {
    Ok(Message::Text(text.to_owned()))
}

/// The examples of RFC 7692, section 7.2.3.
#[test]
fn the_examples_of_the_standard_inflate() {
    let hello = b"\xf2\x48\xcd\xc9\xc9\x07\x00";
    let block_without_compression = b"\x00\x05\x00\xfa\xffHello\x00";
    let final_block = b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00";
    let two_blocks = b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00";
    for payload in [
        &hello[..],
        block_without_compression,
        final_block,
        two_blocks,
    ] {
        assert_eq!(
            inflated(&frame(0xc1, payload), 5),
            text("Hello"),
            "{payload:x?}"
        );
        for cut in 0..payload.len() {
            let fragments = [frame(0x41, &payload[..cut]), frame(0x80, &payload[cut..])].concat();
            assert_eq!(inflated(&fragments, 5), text("Hello"));
        }
        let too_big = Violation::MessageTooBig { bytes_max: 4 };
        assert_eq!(inflated(&frame(0xc1, payload), 4), Err(too_big));
    }
    assert_eq!(inflated(&frame(0xc1, b"\0"), 0), text(""));
}

#[test]
fn what_is_broken_or_incomplete_is_refused() {
    let mut deflater = Deflater::new();
    let message = "some text, some text, some text of which some is repeated".repeat(3);
    let payload = deflater.deflate(message.as_bytes()).unwrap();
    for cut in 0..payload.len() {
        let result = inflated(&frame(0xc1, &payload[..cut]), 1 << 20);
        assert_eq!(result, Err(Violation::InvalidDeflate), "{cut}");
    }
    for broken in [
        &b"\xff\xff"[..],
        b"\x07",
        b"\x00\x05\x00\x00\x00Hello\x00",
        b"\x00\x64\x00\x9b\xffHello",
    ] {
        let result = inflated(&frame(0xc2, broken), 100);
        assert_eq!(result, Err(Violation::InvalidDeflate));
    }
    // A stored block with a byte that is not UTF-8.
    let wrong = inflated(&frame(0xc1, b"\x00\x01\x00\xfe\xff\xff\x00"), 100);
    assert_eq!(wrong, Err(Violation::InvalidUtf8));
}

#[test]
fn a_bomb_is_refused_within_the_bound() {
    let payload = Deflater::new().deflate(&vec![0; 64 << 20]).unwrap();
    assert!(payload.len() < 400 << 10, "{}", payload.len());
    let bytes_max = 1 << 20;
    let bomb = inflated(&frame(0xc2, &payload), bytes_max);
    assert_eq!(bomb, Err(Violation::MessageTooBig { bytes_max }));
    let whole = inflated(&frame(0xc2, &payload), 64 << 20);
    let Ok(Message::Binary(bytes)) = whole else {
        panic!("{whole:?}");
    };
    assert_eq!((bytes.len(), bytes.capacity()), (64 << 20, 64 << 20));
}

#[test]
fn messages_that_would_not_become_shorter_are_left_as_they_are() {
    let mut deflater = Deflater::new();
    for short in [&b""[..], b"a", b"abcdefgh"] {
        assert_eq!(deflater.deflate(short), None);
    }
    for length in 0..100 {
        let payload = deflater.deflate(&vec![b'a'; length]);
        assert!(payload.is_none_or(|payload| payload.len() < length));
    }
    assert!(deflater.deflate(&[b'a'; 100]).is_some());
}

/// Only the first frame of a data message may be marked (RFC 7692, section 6).
#[test]
fn the_mark_stands_only_on_the_first_frame_of_a_message() {
    for frames in [
        [frame(0x41, b"a"), frame(0xc0, b"b")].concat(),
        [frame(0x01, b"a"), frame(0xc0, b"b")].concat(),
        frame(0xc9, b""),
        frame(0xc8, b""),
    ] {
        let mut server = Server::new(AMPLE);
        server.options.deflate = true;
        assert_eq!(server.events(&frames), [Err(Violation::ReservedBit)]);
    }
}

/// A payload with two final blocks, of which the second begins a stream of its own.
#[test]
fn final_blocks_may_follow_each_other() {
    let stream = |bytes: &[u8]| {
        let mut out = Vec::with_capacity(100);
        Compress::new(Compression::new(6), false)
            .compress_vec(bytes, &mut out, FlushCompress::Finish)
            .unwrap();
        out
    };
    let payload = [stream(b"abcabcabc"), stream(b"defdefdef"), vec![0]].concat();
    assert_eq!(
        inflated(&frame(0xc1, &payload), 100),
        text("abcabcabcdefdefdef")
    );
}

#[test]
fn a_step_reads_and_writes_a_bounded_number_of_bytes() {
    const STEP: usize = 10_000;
    let message = vec![b'a'; 500_000];
    let payload = Deflater::new().deflate(&message).unwrap();
    // Blocks without content produce nothing, and are read in steps too.
    let empty = [0, 0, 0, 0xff, 0xff].repeat(20_000);
    for (payload, least) in [
        (payload, 500_000 / STEP / 2),
        ([empty, vec![0]].concat(), 5),
    ] {
        let compressed = CompressedMessage::new(DataKind::Binary, payload);
        let mut inflation = Inflation::new(compressed, 500_000);
        let mut steps = 1;
        while inflation.step(STEP).unwrap().is_none() {
            steps += 1;
        }
        assert!(steps > least, "{steps}");
    }
}

proptest! {
    #[test]
    fn messages_come_back(
        parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..20), 1..300_usize), 0..6),
        times in 1..4,
    ) {
        let message: Vec<u8> = parts.iter().flat_map(|(part, times)| part.repeat(*times)).collect();
        let mut deflater = Deflater::new();
        for _ in 0..times {
            let Some(payload) = deflater.deflate(&message) else {
                prop_assert!(message.len() < 200);
                continue;
            };
            prop_assert!(payload.len() < message.len());
            // Messages before leave nothing behind.
            let alone = Deflater::new().deflate(&message);
            prop_assert_eq!(Some(&payload), alone.as_ref());
            // The client's window is as small as agreed.
            let mut small = flate2::Decompress::new_with_window_bits(false, WINDOW_BITS);
            let mut out = Vec::with_capacity(message.len() + 1);
            small.decompress_vec(&payload, &mut out, flate2::FlushDecompress::Sync).unwrap();
            prop_assert_eq!(&out, &message);
            let back = inflated(&frame(0xc2, &payload), message.len());
            prop_assert_eq!(back, Ok(Message::Binary(message.clone())));
            if let Some(less) = message.len().checked_sub(1) {
                let too_big = Err(Violation::MessageTooBig { bytes_max: less });
                prop_assert_eq!(inflated(&frame(0xc2, &payload), less), too_big);
            }
        }
    }

    #[test]
    fn any_payload_is_inflated_alike_by_any_inflater(
        data in prop::collection::vec(any::<u8>(), 0..200),
        seed in any::<u8>(),
    ) {
        crate::fuzzing::websocket(&[&[seed | 1][..], &frame(0xc2, &data)].concat());
    }
}
