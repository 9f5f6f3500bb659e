//! UTF-8 in text messages: the cases 6 of the Autobahn test suite, and any split of any bytes.

use proptest::prelude::*;

use super::client::{AMPLE, Seen, Server, frame, seen, text};
use crate::websocket::violation::Violation;

/// Cases 6.1 and 6.2: empty messages, and characters across fragments.
#[test]
fn fragments_may_cut_characters() {
    let empty = [frame(1, b""), frame(0, b""), frame(0x80, b"")].concat();
    assert_eq!(seen(&frame(0x81, b""), 1), [text("")], "6.1.1");
    assert_eq!(seen(&empty, 1), [text("")], "6.1.2");
    let middle = [
        frame(1, b""),
        frame(0, b"middle frame payload"),
        frame(0x80, b""),
    ]
    .concat();
    assert_eq!(seen(&middle, 1), [text("middle frame payload")], "6.1.3");

    let whole = "Hello-µ@ßöäüàá-UTF-8!!";
    for payload in [whole, "κόσμε"] {
        let bytes = payload.as_bytes();
        assert_eq!(seen(&frame(0x81, bytes), 1), [text(payload)], "6.2.1");
        for cut in 0..bytes.len() {
            let two = [frame(1, &bytes[..cut]), frame(0x80, &bytes[cut..])].concat();
            assert_eq!(seen(&two, usize::MAX), [text(payload)], "6.2.2");
        }
        let mut each: Vec<u8> = bytes.iter().flat_map(|byte| frame(0, &[*byte])).collect();
        each[0] |= 1;
        each.extend(frame(0x80, b""));
        assert_eq!(seen(&each, usize::MAX), [text(payload)], "6.2.3 6.2.4");
    }
}

/// Cases 6.3 and 6.4: the first wrong byte ends the connection, before the rest of the frame and of the message.
#[test]
fn the_first_wrong_byte_is_a_violation() {
    let wrong = [Seen::Violation(Violation::InvalidUtf8)];
    for (payload, fault) in [
        (
            &b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited"[..],
            12,
        ),
        (
            b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited",
            12,
        ),
        (b"\xff", 0),
        (b"a\xc0", 1),
        (b"abc\xe2\x82a", 5),
        (b"abc\xf0\x8f\xbf\xbf", 4),
    ] {
        // In one frame, of which the rest does not arrive: 6.3.1, 6.4.3, 6.4.4.
        let whole = frame(0x81, payload);
        let header_bytes = whole.len() - payload.len();
        let mut server = Server::new(AMPLE);
        assert_eq!(server.take(&whole[..header_bytes + fault]), []);
        assert_eq!(
            server.take(&whole[header_bytes + fault..=header_bytes + fault]),
            wrong
        );
        assert_eq!(server.take(&whole[header_bytes + fault + 1..]), []);
        // In frames of one byte, and in three frames: 6.3.2, 6.4.1, 6.4.2.
        for cut in [fault, fault + 1] {
            let mut server = Server::new(AMPLE);
            let mut parts = vec![frame(1, b"")];
            parts.extend(payload[..fault].iter().map(|byte| frame(0, &[*byte])));
            assert_eq!(server.take(&parts.concat()), []);
            assert_eq!(
                server.take(&frame(0, &payload[fault..payload.len().max(cut)])),
                wrong
            );
        }
    }
}

/// Cases 6.5 to 6.23: sequences that are valid, and sequences that are not.
#[test]
fn only_utf8_is_text() {
    let non_characters =
        (0..=0x10_u32).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    let non_characters = non_characters.map(|code| char::from_u32(code).expect("a character"));
    let specials = ('\u{fff9}'..='\u{ffff}').chain(non_characters);
    let mut valid: Vec<Vec<u8>> = specials.map(|c| c.to_string().into_bytes()).collect();
    for text in [
        "hello$world",
        "hello¢world",
        "hello€world",
        "hello𤭢world",
        "κόσμε",
        "\0",
        "\u{80}",
        "\u{800}",
        "\u{10000}",
        "\u{7f}",
        "\u{7ff}",
        "\u{ffff}",
        "\u{10ffff}",
        "\u{d7ff}",
        "\u{e000}",
    ] {
        valid.push(text.as_bytes().to_vec());
    }
    for payload in &valid {
        let expected = String::from_utf8(payload.clone()).expect("valid");
        assert_eq!(seen(&frame(0x81, payload), 1), [text(&expected)]);
    }
    let mut invalid: Vec<Vec<u8>> = Vec::new();
    let lonely = |range: std::ops::Range<u8>| range.flat_map(|byte| [byte, b' ']).collect();
    for range in [0xc0..0xdf, 0xe0..0xef, 0xf0..0xf7, 0xf8..0xfb, 0xfc..0xfd] {
        invalid.push(lonely(range));
    }
    let cut: [&[u8]; 10] = [
        b"\xc0",
        b"\xe0\x80",
        b"\xf0\x80\x80",
        b"\xf8\x80\x80\x80",
        b"\xfc\x80\x80\x80\x80",
        b"\xdf",
        b"\xef\xbf",
        b"\xf7\xbf\xbf",
        b"\xfb\xbf\xbf\xbf",
        b"\xfd\xbf\xbf\xbf\xbf",
    ];
    invalid.push(cut.concat());
    invalid.extend(cut.map(<[u8]>::to_vec));
    let (high, low) = ([0xa0, 0xad, 0xae, 0xaf], [0xb0, 0xbe, 0xbf]);
    for second in high.into_iter().chain(low) {
        invalid.push(vec![0xed, second, 0x80]);
        invalid.push(vec![0xed, second, 0xbf]);
        invalid.push(vec![0xed, second, 0x80, 0xed, 0xb0, 0x80]);
    }
    for bytes in [
        &b"\xf8\x88\x80\x80\x80"[..],
        b"\xfc\x84\x80\x80\x80\x80",
        b"\xf7\xbf\xbf\xbf",
        b"\xfb\xbf\xbf\xbf\xbf",
        b"\xfd\xbf\xbf\xbf\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\x80",
        b"\xbf",
        b"\x80\xbf",
        b"\x80\xbf\x80",
        b"\xfe",
        b"\xff",
        b"\xfe\xfe\xff\xff",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xf0\x80\x80\xaf",
        b"\xf8\x80\x80\x80\xaf",
        b"\xfc\x80\x80\x80\x80\xaf",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xf0\x8f\xbf\xbf",
        b"\xf8\x87\xbf\xbf\xbf",
        b"\xfc\x83\xbf\xbf\xbf\xbf",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xf0\x80\x80\x80",
        b"\xf8\x80\x80\x80\x80",
        b"\xfc\x80\x80\x80\x80\x80",
        b"\xce\xba\xe1\xbd",
    ] {
        invalid.push(bytes.to_vec());
    }
    for payload in &invalid {
        for piece_bytes in [1, 2, usize::MAX] {
            let wrong = Seen::Violation(Violation::InvalidUtf8);
            assert_eq!(
                seen(&frame(0x81, payload), piece_bytes),
                [wrong],
                "{payload:x?}"
            );
        }
    }
}

fn bytes_near_utf8() -> impl Strategy<Value = Vec<u8>> {
    let character = any::<char>().prop_map(|c| c.to_string().into_bytes());
    let mostly_valid = prop_oneof![
        8 => character,
        1 => prop::collection::vec(prop_oneof![any::<u8>(), 0x80..=0xc2_u8, 0xe0..=0xf5_u8], 1..4),
    ];
    prop::collection::vec(mostly_valid, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    /// The standard library is the judge of the whole and of every prefix, whatever the fragments and pieces.
    #[test]
    fn text_is_judged_as_by_the_standard_library(
        payload in bytes_near_utf8(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(payload.len() + 1)).collect();
        cuts.extend([0, payload.len()]);
        cuts.sort_unstable();
        let mut server = Server::new(AMPLE);
        let mut arrived = Vec::new();
        prop_assert_eq!(server.take(&frame(1, b"")), []);
        for cut in cuts.windows(2) {
            let part = &payload[cut[0]..cut[1]];
            let fragment = frame(0, part);
            let header_bytes = fragment.len() - part.len();
            prop_assert_eq!(server.take(&fragment[..header_bytes]), []);
            for (index, byte) in fragment[header_bytes..].iter().enumerate() {
                arrived.push(part[index]);
                let hopeless = std::str::from_utf8(&arrived).is_err_and(|error| error.error_len().is_some());
                let seen = server.take(&[*byte]);
                if hopeless {
                    prop_assert_eq!(seen, [Seen::Violation(Violation::InvalidUtf8)]);
                    return Ok(());
                }
                prop_assert_eq!(seen, []);
            }
        }
        let expected = match String::from_utf8(arrived) {
            Ok(text) => Seen::Text(text),
            Err(_) => Seen::Violation(Violation::InvalidUtf8),
        };
        prop_assert_eq!(server.take(&frame(0x80, b"")), [expected]);
    }
}
