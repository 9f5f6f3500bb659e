use std::collections::BTreeSet;

use proptest::prelude::*;

use super::differences::DIFFERENCES;
use super::*;
use crate::websocket::fuzzing::MESSAGE_BYTES_MAX;
use crate::websocket::tests::client::{close, frame};

/// Bytes, and the difference that they show.
fn cases() -> Vec<(&'static str, Vec<u8>)> {
    let mut flood = frame(1, b"");
    flood.extend(frame(0, b"").repeat(2_000));
    vec![
        (
            "length_not_minimal",
            b"\x81\xfe\x00\x05\0\0\0\0Hello".to_vec(),
        ),
        (
            "length_not_minimal",
            b"\x89\xfe\0\x05\0\0\0\0Hello".to_vec(),
        ),
        (
            "length_not_minimal",
            b"\x82\xff\0\0\0\0\0\0\0\x01\0\0\0\0a".to_vec(),
        ),
        (
            "length_not_minimal",
            b"\x82\xff\0\0\0\0\0\0\x0f\xff".to_vec(),
        ),
        ("bad_gateway", close(1014, b"no answer")),
        ("flood", flood),
        ("flood", frame(0x89, b"").repeat(6_000)),
        ("sooner", vec![0x83]),
        ("sooner", vec![0x91]),
        ("sooner", vec![0x81, 0x05]),
        ("sooner", vec![0x09, 0x85]),
        ("sooner", b"\x81\x85\0\0\0\0He\xff".to_vec()),
        (
            "sooner",
            [frame(1, b"a\xe2\x82"), b"\0\x85\0\0\0\0\x28".to_vec()].concat(),
        ),
        ("sooner", b"\x80\x85\0\0\0\0".to_vec()),
        (
            "sooner",
            [frame(1, b"a"), b"\x81\x85\0\0\0\0".to_vec()].concat(),
        ),
        ("sooner", b"\x89\xfe\0\xff".to_vec()),
        (
            "sooner",
            [frame(1, &[b'a'; 4000]), b"\x80\xe1\0\0\0\0".to_vec()].concat(),
        ),
    ]
}

#[test]
fn every_case_shows_its_difference() {
    let mut shown = BTreeSet::new();
    for (name, input) in cases() {
        for pieces in [&[usize::MAX][..], &[1], &[3, 5, 2]] {
            let seen = compare(&input, pieces).map(|difference| difference.map(|known| known.name));
            assert_eq!(seen, Ok(Some(name)), "{input:x?}");
        }
        shown.insert(name);
    }
    let listed = DIFFERENCES.iter().map(|difference| difference.name);
    assert_eq!(
        shown,
        listed.collect(),
        "every difference has a case that shows it"
    );
    for difference in DIFFERENCES {
        assert!(difference.section.contains("section"), "{difference:?}");
        assert!(difference.why.len() > 40, "{difference:?}");
    }
}

/// A frame that is sound by itself, most times.
fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        8 => ".{0,20}".prop_map(String::into_bytes),
        2 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (120..140_usize).prop_map(|length| vec![b'x'; length]),
        1 => (1300..MESSAGE_BYTES_MAX + 2).prop_map(|length| vec![b'y'; length]),
    ];
    let first = prop_oneof![
        20 => prop::sample::select(&[0x81, 0x82, 0x01, 0x02, 0x00, 0x80][..]),
        6 => prop::sample::select(&[0x89, 0x8a][..]),
        1 => any::<u8>(),
    ];
    let close_frame = (prop_oneof![990..1020_u16, any::<u16>()], ".{0,50}")
        .prop_map(|(code, reason)| close(code, reason.as_bytes()));
    prop_oneof![
        12 => (first, payload).prop_map(|(first, payload)| frame(first, &payload)),
        1 => close_frame,
    ]
}

/// A message in fragments, possibly with a ping between them.
fn any_fragments() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::collection::vec(".{0,8}", 2..5);
    (parts, any::<bool>(), 0..8_usize).prop_map(|(parts, binary, cut)| {
        let whole = parts.concat().into_bytes();
        let cut = cut.min(whole.len());
        let (first, rest) = whole.split_at(cut);
        let middle = frame(0, &rest[..rest.len() / 2]);
        let last = frame(0x80, &rest[rest.len() / 2..]);
        [
            frame(1 + u8::from(binary), first),
            middle,
            frame(0x89, b"p"),
            last,
        ]
        .concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Frames behind each other, with a few bytes changed, differ in no other way than those that are known.
    #[test]
    fn mutated_frames_are_read_alike(
        frames in prop::collection::vec(prop_oneof![3 => any_frame(), 2 => any_fragments()], 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 0..3),
        pieces in prop::collection::vec(1..60_usize, 1..4),
    ) {
        let mut input = frames.concat();
        for (index, change, byte) in changes {
            let at = index.index(input.len().max(1));
            match change {
                0 if at < input.len() => input[at] ^= 1 << (byte % 8),
                1 if at < input.len() => input[at] = byte,
                2 if at < input.len() => drop(input.remove(at)),
                3 => input.truncate(at),
                _ => input.insert(at.min(input.len()), byte),
            }
        }
        if let Err(how) = compare(&input, &pieces) {
            return Err(TestCaseError::fail(how));
        }
        crate::fuzzing::websocket(&[&[pieces[0] as u8][..], &input].concat());
    }

    #[test]
    fn any_bytes_are_read_alike(
        input in prop::collection::vec(any::<u8>(), 0..80),
        pieces in prop::collection::vec(1..20_usize, 1..4),
    ) {
        if let Err(how) = compare(&input, &pieces) {
            return Err(TestCaseError::fail(how));
        }
    }
}

const CASES: u32 = 1_000;
