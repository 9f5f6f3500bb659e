//! A record in pieces has the bytes that its encoder writes at once.

use encke_clock::WallTime;
use encke_stream::{Item, MediaKind, Offset};
use proptest::prelude::*;

use super::{LongRecord, LongStep, PIECE_BYTES, encoded_bytes_max};
use crate::channel::ChannelRecords;
use crate::durable_streams::{EventEncoder, LineEncoder};
use crate::encoded_run::EncodedRun;
use crate::encoder::{Encoder, RecordHead, Variant};
use crate::run::Run;
use crate::text::CutCharacter;

const TIME: WallTime = WallTime::from_ms(1_234_567_890_123);

/// Encoders for which each record is an event, a message or a line by itself, and a name for each.
fn encoders() -> Vec<(&'static str, Box<dyn Encoder>)> {
    vec![
        ("events", Box::new(EventEncoder)),
        ("lines", Box::new(LineEncoder { has_times: false })),
        ("timed lines", Box::new(LineEncoder { has_times: true })),
        ("messages", Box::new(ChannelRecords { has_times: false })),
        (
            "timed messages",
            Box::new(ChannelRecords { has_times: true }),
        ),
    ]
}

fn variant(kind: MediaKind) -> Variant<'static> {
    Variant {
        name: "a/b",
        kind,
        option: 0,
    }
}

/// The record with the sequence 9.
fn item(data: &[u8], skip: u32, take: u32) -> Item<'_> {
    Item {
        data,
        skip,
        take,
        end: Offset::behind(9),
        time: TIME,
    }
}

fn at_once(encoder: &dyn Encoder, kind: MediaKind, items: &[Item<'_>]) -> Vec<u8> {
    let run = Run::position(Offset::behind(9)).with(items);
    let mut out = EncodedRun::default();
    encoder.encode(variant(kind), &run, TIME, &mut out);
    out.bytes
}

/// The pieces of a record of which the data comes in parts of at most these sizes, in turn.
fn pieces(
    encoder: &dyn Encoder,
    kind: MediaKind,
    item: &Item<'_>,
    before: CutCharacter,
    parts: &[usize],
) -> Vec<Vec<u8>> {
    let mut record = LongRecord::new(kind, item, before, true);
    let mut parts = parts.iter().copied().cycle();
    let mut pieces = Vec::new();
    loop {
        if let Some(facts) = record.facts() {
            let withheld = facts.withheld.as_bytes().len();
            if withheld == before.as_bytes().len() + item.part().len() {
                return pieces;
            }
            let beginning = &item.data[..item.data.len().min(64)];
            let head = RecordHead { facts, beginning };
            record.begin(encoder.form(variant(kind), &head, TIME));
        }
        let rest = &item.data[record.next_byte() as usize..];
        let part = &rest[..rest.len().min(parts.next().unwrap_or(usize::MAX))];
        let mut run = EncodedRun::default();
        let is_end = part.len() == rest.len();
        let step = record.step(part, is_end, &mut |_, _, _| {}, &mut run);
        let is_used = is_end && record.next_byte() as usize == item.data.len();
        assert!(
            !is_used || step != LongStep::More,
            "no data follows that could end it"
        );
        pieces.push(run.bytes);
        if step == LongStep::Written {
            return pieces;
        }
    }
}

#[test]
fn a_piece_is_small_whatever_the_record_is() {
    let ones = ["1"; 100_000].join(",");
    let objects = format!(
        "{{\"a\":\"{}\"}}",
        "\\n\n".replace('\n', " ").repeat(150_000)
    );
    let spaced = format!("[1,\r\n 2]{}\"x\"", ",\n".to_owned() + &" ".repeat(300_000));
    for (name, encoder) in encoders() {
        for (kind, data, units) in [
            (MediaKind::Json, ones.as_bytes(), 100_000),
            (MediaKind::Json, objects.as_bytes(), 1),
            (MediaKind::Json, spaced.as_bytes(), 2),
            (MediaKind::Json, "\n".repeat(300_000).as_bytes(), 0),
            (MediaKind::Text, "\n".repeat(300_000).as_bytes(), 300_000),
            (
                MediaKind::Text,
                "\r \r\n".repeat(70_000).as_bytes(),
                280_000,
            ),
            (
                MediaKind::Text,
                "\u{1}€\"".repeat(70_000).as_bytes(),
                350_000,
            ),
            (MediaKind::Text, &[0xff; 200_000][..], 200_000),
            (MediaKind::Binary, &[7; 200_000][..], 200_000),
        ] {
            if units == 0 {
                continue;
            }
            let item = item(data, 0, units);
            let pieces = pieces(
                &*encoder,
                kind,
                &item,
                CutCharacter::default(),
                &[usize::MAX],
            );
            let expected = at_once(&*encoder, kind, &[item]);
            let most = pieces.iter().map(Vec::len).max().unwrap_or_default();
            assert!(most <= PIECE_BYTES + 512, "{name}: {most}");
            assert!(pieces.concat() == expected, "{name} {kind:?}");
            let overhead = encoder.overhead(variant(kind), &item);
            let max = encoded_bytes_max(kind, &item, overhead + 512);
            assert!(expected.len() <= max, "{name}: {} of {max}", expected.len());
        }
    }
}

#[test]
fn a_number_ends_the_record_also_where_a_piece_ends() {
    for bytes in PIECE_BYTES - 1_200..PIECE_BYTES + 100 {
        let data = format!("0,\"{}\",1", "x".repeat(bytes));
        let mut item = item(data.as_bytes(), 1, 3);
        for encoder in [
            &EventEncoder as &dyn Encoder,
            &LineEncoder { has_times: false },
        ] {
            let no_cut = CutCharacter::default();
            let pieces = pieces(encoder, MediaKind::Json, &item, no_cut, &[usize::MAX]);
            assert!(
                pieces.concat() == at_once(encoder, MediaKind::Json, &[item]),
                "{bytes}"
            );
            item.skip = 0;
        }
    }
}

#[test]
fn messages_before_the_reader_are_passed_without_a_piece_for_each() {
    let numbers: Vec<String> = (0..60_000).map(|number: u32| number.to_string()).collect();
    let data = numbers.join(",");
    for skip in [10_000, 30_000, 59_999] {
        let item = item(data.as_bytes(), skip, 60_000);
        let no_cut = CutCharacter::default();
        let pieces = pieces(&EventEncoder, MediaKind::Json, &item, no_cut, &[64 << 10]);
        assert!(pieces.concat() == at_once(&EventEncoder, MediaKind::Json, &[item]));
    }
}

#[test]
fn only_the_messages_of_the_reader_are_written() {
    let data = br#" [1, 2] ,"a,\"b" , {"c":[{}]},4 "#;
    for (name, encoder) in encoders() {
        for (skip, take) in [(0, 4), (1, 4), (0, 3), (1, 2), (3, 4)] {
            for size in [1, 2, 7, 100] {
                let mut item = item(data, skip, take);
                if take < 4 {
                    item.end = Offset {
                        sequence: 8,
                        units: take,
                    };
                }
                let no_cut = CutCharacter::default();
                let pieces = pieces(&*encoder, MediaKind::Json, &item, no_cut, &[size]);
                let run = Run::position(item.end).with(std::slice::from_ref(&item));
                let mut out = EncodedRun::default();
                encoder.encode(variant(MediaKind::Json), &run, TIME, &mut out);
                let (pieces, expected) = (pieces.concat(), out.bytes);
                assert_eq!(
                    String::from_utf8_lossy(&pieces),
                    String::from_utf8_lossy(&expected),
                    "{name} {skip}..{take} in {size}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn text_in_pieces_is_the_text_at_once(
        text in "[a\u{1}\r\n \"\\\\é€😀]{0,12}",
        noise in prop::option::of(prop::collection::vec(any::<u8>(), 1..4)),
        cut in 0_usize..3,
        skip in 0_u32..4,
        parts in prop::collection::vec(1_usize..6, 1..4),
        before in 0_usize..4,
    ) {
        let mut data = text.into_bytes();
        data.extend(noise.unwrap_or_default());
        data.truncate(data.len().saturating_sub(cut));
        prop_assume!(data.len() > skip as usize);
        // The end of the record before.
        let earlier = &"€".as_bytes()[..before.min(2)];
        let before = if skip > 0 { &[][..] } else { earlier };
        let record = item(&data, skip, data.len() as u32);
        let earlier = Item {
            data: before,
            skip: 0,
            take: before.len() as u32,
            end: Offset::behind(8),
            time: TIME,
        };
        for (name, encoder) in encoders() {
            let pieces = pieces(
                &*encoder,
                MediaKind::Text,
                &record,
                CutCharacter::at_end_of(before),
                &parts,
            );
            let items = [earlier, record];
            let items = &items[usize::from(before.is_empty())..];
            let expected = at_once(&*encoder, MediaKind::Text, items);
            let pieces = pieces.concat();
            let (pieces, expected) = (
                String::from_utf8_lossy(&pieces),
                String::from_utf8_lossy(&expected),
            );
            prop_assert_eq!(pieces, expected, "{}", name);
        }
    }

    #[test]
    fn messages_in_pieces_are_the_messages_at_once(
        messages in prop::collection::vec(
            prop_oneof!["[1-9]{1,4}", "\"[a,\\[\\]{} é]{0,5}\"", "\\[\\[1\\], *\\{\\}\\]", "true"],
            1..6,
        ),
        between in prop::collection::vec(" {0,2},[ \n]{0,2}", 6),
        skip in 0_u32..3,
        parts in prop::collection::vec(1_usize..6, 1..4),
    ) {
        let units = messages.len() as u32;
        prop_assume!(skip < units);
        let mut data = String::new();
        for (message, comma) in messages.iter().zip(&between) {
            if !data.is_empty() {
                data.push_str(comma);
            }
            data.push_str(message);
        }
        let item = item(data.as_bytes(), skip, units);
        for (name, encoder) in encoders() {
            let no_cut = CutCharacter::default();
            let pieces = pieces(&*encoder, MediaKind::Json, &item, no_cut, &parts);
            let expected = at_once(&*encoder, MediaKind::Json, &[item]);
            let pieces = pieces.concat();
            let (pieces, expected) = (
                String::from_utf8_lossy(&pieces),
                String::from_utf8_lossy(&expected),
            );
            prop_assert_eq!(pieces, expected, "{}", name);
        }
    }
}
