//! The cases of the Autobahn test suite that concern frames, by their numbers: what the bytes of a case lead to.

use super::client::{AMPLE, Seen, Server, close, frame, seen, text};
use crate::websocket::violation::Violation::{self, *};

/// A case: its number, what the client sends, and what must be seen of it.
struct Case {
    number: String,
    input: Vec<u8>,
    expected: Vec<Seen>,
}

fn case(number: &str, frames: &[Vec<u8>], expected: &[Seen]) -> Case {
    Case {
        number: number.to_owned(),
        input: frames.concat(),
        expected: expected.to_vec(),
    }
}

fn broken(violation: Violation) -> Seen {
    Seen::Violation(violation)
}

fn normal() -> Seen {
    Seen::Close(Some((1000, String::new())))
}

/// 1: messages of every form of length. 9: the same for large ones.
fn messages() -> Vec<Case> {
    let mut cases = Vec::new();
    for (index, length) in [0, 125, 126, 127, 128, 65535, 65536, 65536]
        .into_iter()
        .enumerate()
    {
        let stars = "*".repeat(length);
        let (number, input) = (format!("1.1.{}", index + 1), frame(0x81, stars.as_bytes()));
        cases.push(case(&number, &[input], &[Seen::Text(stars)]));
        let bytes = vec![0xfe; length];
        let (number, input) = (format!("1.2.{}", index + 1), frame(0x82, &bytes));
        cases.push(case(&number, &[input], &[Seen::Binary(bytes)]));
    }
    for (index, kibi) in [64, 256, 1024, 4096, 8192, 16384].into_iter().enumerate() {
        let stars = "*".repeat(kibi << 10);
        let (number, input) = (format!("9.1.{}", index + 1), frame(0x81, stars.as_bytes()));
        cases.push(case(&number, &[input], &[Seen::Text(stars)]));
        let bytes = vec![0xfe; kibi << 10];
        let (number, input) = (format!("9.2.{}", index + 1), frame(0x82, &bytes));
        cases.push(case(&number, &[input], &[Seen::Binary(bytes)]));
    }
    // 4 MiB in fragments of 64 bytes and more.
    for (index, length) in [
        64,
        256,
        1 << 10,
        4 << 10,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
    ]
    .into_iter()
    .enumerate()
    {
        let whole = vec![b'*'; 4 << 20];
        let mut fragments: Vec<Vec<u8>> = whole.chunks(length).map(|part| frame(0, part)).collect();
        fragments[0][0] = 2;
        fragments.last_mut().expect("a fragment")[0] |= 0x80;
        let number = format!("9.4.{}", index + 1);
        cases.push(case(&number, &fragments, &[Seen::Binary(whole.clone())]));
        fragments[0][0] = fragments[0][0] & 0x80 | 1;
        let whole = String::from_utf8(whole).expect("stars");
        let number = format!("9.3.{}", index + 1);
        cases.push(case(&number, &fragments, &[Seen::Text(whole)]));
    }
    cases
}

/// 2: pings and pongs.
fn pings() -> Vec<Case> {
    let ping = |payload: &[u8]| (frame(0x89, payload), Seen::Ping(payload.to_vec()));
    let pong = |payload: &[u8]| (frame(0x8a, payload), Seen::Pong(payload.to_vec()));
    let stranger = b"unsolicited pong payload";
    let mut cases = Vec::new();
    for (number, frames) in [
        ("2.1", vec![ping(b"")]),
        ("2.2", vec![ping(b"Hello, world!")]),
        ("2.3", vec![ping(b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff")]),
        ("2.4 2.6", vec![ping(&[0xfe; 125])]),
        ("2.7", vec![pong(b""), (close(1000, b""), normal())]),
        ("2.8", vec![pong(stranger), (close(1000, b""), normal())]),
        ("2.9", vec![pong(stranger), ping(b"ping payload")]),
        (
            "2.10 2.11",
            (0..10)
                .map(|index| ping(format!("payload-{index}").as_bytes()))
                .collect(),
        ),
    ] {
        let (frames, expected): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
        cases.push(case(number, &frames, &expected));
    }
    cases.push(case(
        "2.5",
        &[frame(0x89, &[0xfe; 126])],
        &[broken(LongControl)],
    ));
    cases
}

/// 3: reserved bits. 4: reserved opcodes.
fn reserved() -> Vec<Case> {
    let hello = || frame(0x81, b"Hello, world!");
    let seen = || text("Hello, world!");
    let ping = || frame(0x89, b"");
    let mut cases = Vec::new();
    for (number, before, wrong) in [
        ("3.1", false, frame(0x91, b"Hello, world!")),
        ("3.2", true, frame(0xa1, b"Hello, world!")),
        ("3.3", true, frame(0xb1, b"Hello, world!")),
        ("3.4", true, frame(0xc1, b"Hello, world!")),
        (
            "3.5",
            false,
            frame(0xd2, b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"),
        ),
        ("3.6", false, frame(0xe2, b"Hello, world!")),
        ("3.7", false, frame(0xf8, b"")),
    ] {
        let (frames, expected) = match before {
            true => (
                vec![hello(), wrong, ping()],
                vec![seen(), broken(ReservedBit)],
            ),
            false => (vec![wrong], vec![broken(ReservedBit)]),
        };
        cases.push(case(number, &frames, &expected));
    }
    for (number, before, opcode, payload) in [
        ("4.1.1", false, 3, &b""[..]),
        ("4.1.2", false, 4, b"reserved opcode payload"),
        ("4.1.3", true, 5, b""),
        ("4.1.4", true, 6, b"Hello, world!"),
        ("4.1.5", true, 7, b"Hello, world!"),
        ("4.2.1", false, 11, b""),
        ("4.2.2", false, 12, b"reserved opcode payload"),
        ("4.2.3", true, 13, b""),
        ("4.2.4", true, 14, b"Hello, world!"),
        ("4.2.5", true, 15, b"Hello, world!"),
    ] {
        let wrong = frame(0x80 | opcode, payload);
        let violation = broken(ReservedOpcode(opcode));
        let (frames, expected) = match before {
            true => (vec![hello(), wrong, ping()], vec![seen(), violation]),
            false => (vec![wrong], vec![violation]),
        };
        cases.push(case(number, &frames, &expected));
    }
    cases
}

/// 5: fragmentation.
fn fragments() -> Vec<Case> {
    let (first, last) = (frame(1, b"fragment1"), frame(0x80, b"fragment2"));
    let both = || text("fragment1fragment2");
    let hello = frame(0x81, b"Hello, world!");
    let ping = |payload: &[u8]| frame(0x89, payload);
    let alone = |first: u8| frame(first, b"non-continuation payload");
    let unexpected = || broken(UnexpectedContinuation);
    let middle = |index: u8| frame(0, format!("fragment{index}").as_bytes());
    let five = [
        first.clone(),
        middle(2),
        ping(b"pongme 1!"),
        middle(3),
        middle(4),
        ping(b"pongme 2!"),
        frame(0x80, b"fragment5"),
    ];
    let pinged = |payload: &[u8]| Seen::Ping(payload.to_vec());
    let (ping_payload, third) = (b"ping payload", frame(0x80, b"fragment3"));
    vec![
        case(
            "5.1",
            &[frame(9, b"fragment1"), last.clone()],
            &[broken(FragmentedControl)],
        ),
        case(
            "5.2",
            &[frame(10, b"fragment1"), last.clone()],
            &[broken(FragmentedControl)],
        ),
        case("5.3 5.4 5.5", &[first.clone(), last.clone()], &[both()]),
        case(
            "5.6 5.7 5.8",
            &[first.clone(), ping(ping_payload), last.clone()],
            &[pinged(ping_payload), both()],
        ),
        case(
            "5.9 5.10 5.11",
            &[alone(0x80), hello.clone()],
            &[unexpected()],
        ),
        case(
            "5.12 5.13 5.14",
            &[alone(0), hello.clone()],
            &[unexpected()],
        ),
        case(
            "5.15",
            &[
                first.clone(),
                last.clone(),
                middle(3),
                frame(0x81, b"fragment4"),
            ],
            &[both(), unexpected()],
        ),
        case(
            "5.16",
            &[middle(1), frame(1, b"fragment2"), third.clone()],
            &[unexpected()],
        ),
        case(
            "5.17",
            &[frame(0x80, b"fragment1"), frame(1, b"fragment2"), third],
            &[unexpected()],
        ),
        case(
            "5.18",
            &[first, frame(0x81, b"fragment2")],
            &[broken(ExpectedContinuation)],
        ),
        case(
            "5.19 5.20",
            &five,
            &[
                pinged(b"pongme 1!"),
                pinged(b"pongme 2!"),
                text("fragment1fragment2fragment3fragment4fragment5"),
            ],
        ),
    ]
}

/// 7: close.
fn closes() -> Vec<Case> {
    let hello = || frame(0x81, b"Hello World!");
    let end = || close(1000, b"");
    let closed = |code: u16, reason: &str| Seen::Close(Some((code, reason.to_owned())));
    let large = "BAsd7&jh23".repeat(26_214);
    let mut cases = vec![
        case(
            "7.1.1",
            &[hello(), end(), hello()],
            &[text("Hello World!"), normal()],
        ),
        case("7.1.2", &[end(), frame(0x88, b"")], &[normal()]),
        case("7.1.3", &[end(), frame(0x89, b"")], &[normal()]),
        case("7.1.4", &[end(), hello()], &[normal()]),
        case(
            "7.1.5",
            &[frame(1, b"fragment1"), end(), frame(0x80, b"fragment2")],
            &[normal()],
        ),
        case(
            "7.1.6",
            &[
                frame(0x81, large.as_bytes()),
                hello(),
                end(),
                frame(0x89, b""),
            ],
            &[text(&large), text("Hello World!"), normal()],
        ),
        case("7.3.1", &[frame(0x88, b"")], &[Seen::Close(None)]),
        case("7.3.2", &[frame(0x88, b"a")], &[broken(ShortClose)]),
        case("7.3.3", &[end()], &[normal()]),
        case(
            "7.3.4",
            &[close(1000, b"Hello World!")],
            &[closed(1000, "Hello World!")],
        ),
        case(
            "7.3.5",
            &[close(1000, &[b'*'; 123])],
            &[closed(1000, &"*".repeat(123))],
        ),
        case(
            "7.3.6",
            &[close(1000, &[b'*'; 124])],
            &[broken(LongControl)],
        ),
        case(
            "7.5.1",
            &[close(
                1000,
                b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
            )],
            &[broken(CloseReason)],
        ),
    ];
    let valid = [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ];
    for (index, code) in valid.into_iter().enumerate() {
        let number = format!("7.7.{}", index + 1);
        cases.push(case(&number, &[close(code, b"")], &[closed(code, "")]));
    }
    let invalid = [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999];
    let names = (1..).map(|index| format!("7.9.{index}"));
    let names = names
        .take(invalid.len())
        .chain(["7.13.1".to_owned(), "7.13.2".to_owned()]);
    for (code, number) in invalid.into_iter().chain([5000, 65535]).zip(names) {
        cases.push(case(
            &number,
            &[close(code, b"")],
            &[broken(CloseCode(code))],
        ));
    }
    cases
}

#[test]
fn every_case_has_its_events_in_any_pieces() {
    let mut count = 0;
    for group in [messages(), pings(), reserved(), fragments(), closes()] {
        for Case {
            number,
            input,
            expected,
        } in group
        {
            // The large ones take the sizes of 9.5 and 9.6.
            let pieces: &[usize] = match input.len() {
                0..200_000 => &[1, 2, 3, 7, 14, 64, 997, usize::MAX],
                _ => &[64, 997, 2048, usize::MAX],
            };
            for &piece_bytes in pieces {
                let seen = seen(&input, piece_bytes);
                // Not with assert_eq, which would print megabytes.
                assert!(seen == expected, "case {number} in pieces of {piece_bytes}");
            }
            count += 1;
        }
    }
    assert_eq!(count, 16 + 12 + 18 + 9 + 17 + 11 + 13 + 13 + 11);
}

/// 9.7 and 9.8: 1000 messages behind each other.
#[test]
fn many_messages_are_no_flood() {
    let mut server = Server::new(AMPLE);
    for length in [0, 16, 64, 256, 1024, 4096] {
        let payload = vec![b'*'; length];
        for _ in 0..1_000 {
            let expected = String::from_utf8(payload.clone()).expect("stars");
            assert_eq!(server.take(&frame(0x81, &payload)), [Seen::Text(expected)]);
            assert_eq!(
                server.take(&frame(0x82, &payload)),
                [Seen::Binary(payload.clone())]
            );
        }
    }
}
