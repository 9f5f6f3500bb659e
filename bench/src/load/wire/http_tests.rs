//! Tests of response parsing: known responses, and bodies cut at every possible place.

use super::*;
use proptest::prelude::*;

fn decode(framing: &mut Framing, mut input: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut body = Vec::new();
    while let Some(piece) = framing.next_piece(&mut input)? {
        body.extend_from_slice(piece);
    }
    Ok(body)
}

fn chunked() -> Framing {
    Framing::Chunked(Chunk::Size {
        value: 0,
        digits: 0,
    })
}

#[test]
fn a_streaming_head_says_all_that_a_subscriber_needs() {
    let bytes = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nconnection: close\r\n\
        Stream-SSE-Data-Encoding: base64\r\nStream-Next-Offset: 12_34\r\nStream-Cursor: 7\r\n\
        stream-up-to-date: true\r\nTransfer-Encoding: chunked\r\n\r\nrest";
    let (head, taken) = parse_head(bytes).unwrap().unwrap();
    assert_eq!(&bytes[taken..], b"rest");
    assert_eq!((head.status, head.keep_alive), (200, false));
    assert_eq!(head.framing, chunked());
    assert_eq!(head.next_offset, Some("12_34"));
    assert!(head.up_to_date);
}

#[test]
fn a_head_is_incomplete_until_its_last_byte() {
    let bytes = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 1\r\n\r\n";
    for cut in 0..bytes.len() {
        assert_eq!(parse_head(&bytes[..cut]).unwrap(), None, "cut at {cut}");
    }
    let (head, taken) = parse_head(bytes).unwrap().unwrap();
    assert_eq!((head.framing, taken), (Framing::Done, bytes.len()));
    assert!(head.keep_alive);
}

#[test]
fn interim_responses_are_skipped() {
    let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
    let (head, taken) = parse_head(bytes).unwrap().unwrap();
    assert_eq!((head.status, head.framing), (200, Framing::Length(3)));
    assert_eq!(&bytes[taken..], b"abc");
}

#[test]
fn a_body_without_a_length_ends_with_the_connection() {
    let (head, _) = parse_head(b"HTTP/1.1 200 OK\r\n\r\n").unwrap().unwrap();
    assert_eq!(
        (head.framing, head.keep_alive),
        (Framing::UntilClose, false)
    );
    let (head, _) = parse_head(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n")
        .unwrap()
        .unwrap();
    assert_eq!((head.framing, head.keep_alive), (Framing::Length(2), false));
}

#[test]
fn contradictory_lengths_and_garbage_are_refused() {
    for (bytes, error) in [
        (
            &b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"[..],
            WireError::BadLength,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
            WireError::BadLength,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            WireError::BadLength,
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", WireError::BadHead),
    ] {
        assert_eq!(parse_head(bytes), Err(error));
    }
    let mut endless = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    endless.resize(HEAD_BYTES_MAX, b'a');
    assert_eq!(parse_head(&endless), Err(WireError::HeadTooLong));
}

#[test]
fn chunks_may_have_extensions_and_trailers_and_nothing_else() {
    let mut framing = chunked();
    let bytes = b"3;a=b\r\nabc\r\nA \r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nnext";
    let mut input = &bytes[..];
    let mut body = Vec::new();
    while let Some(piece) = framing.next_piece(&mut input).unwrap() {
        body.extend_from_slice(piece);
    }
    assert_eq!((&body[..], input), (&b"abc0123456789"[..], &b"next"[..]));
    assert!(framing.is_done());
    for bad in [
        &b"\r\n"[..],
        b"g\r\n",
        b"3\nabc",
        b"3\r\nabcd",
        b"3\r\nabc\n",
        b"1234567890123456\r\n",
        b"-1\r\n",
    ] {
        assert_eq!(
            decode(&mut chunked(), bad),
            Err(WireError::BadChunk),
            "{bad:?}"
        );
    }
}

proptest! {
    #[test]
    fn a_chunked_body_is_the_same_however_it_is_cut(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\n\r\n");
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(wire.len())).collect();
        at.sort_unstable();
        at.push(wire.len());
        let mut framing = chunked();
        let (mut body, mut from) = (Vec::new(), 0);
        for to in at {
            body.extend(decode(&mut framing, &wire[from..to]).unwrap());
            from = to;
        }
        prop_assert!(framing.is_done());
        prop_assert_eq!(body, chunks.concat());
    }

    #[test]
    fn bytes_of_a_body_can_be_skipped_unseen(
        chunks in prop::collection::vec(1usize..40, 0..8),
        steps in prop::collection::vec(1usize..50, 1..12),
        is_chunked in any::<bool>(),
    ) {
        let length: usize = chunks.iter().sum();
        let (mut framing, wire) = match is_chunked {
            true => {
                let framed = chunks.iter().map(|&n| format!("{n:x}\r\n{}\r\n", "x".repeat(n)));
                (chunked(), framed.collect::<String>() + "0\r\n\r\nnext")
            }
            false => (Framing::Length(length as u64), "x".repeat(length) + "next"),
        };
        let (mut rest, mut body) = (wire.as_bytes(), 0);
        let mut steps = steps.into_iter().cycle();
        // An empty body with a length is never begun.
        while !framing.is_done() && framing != Framing::Length(0) {
            let step = steps.next().unwrap();
            match usize::try_from(framing.bytes_ahead()).unwrap().min(step) {
                0 => {
                    let mut one = &rest[..1];
                    prop_assert_eq!(framing.next_piece(&mut one).unwrap(), None);
                    rest = &rest[1..];
                }
                ahead => {
                    framing.skip(ahead as u64);
                    rest = &rest[ahead..];
                    body += ahead;
                }
            }
        }
        prop_assert_eq!((body, rest), (length, &b"next"[..]));
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_head(&bytes);
        let _ = decode(&mut chunked(), &bytes);
        let _ = decode(&mut Framing::Length(17), &bytes);
    }
}
