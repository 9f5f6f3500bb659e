//! Encoded records decode to the same change, and other bytes are refused.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_stream::{
    AccountId, AckLevel, BadRecord, Change, EndReason, Extras, Fork, Lifetime, MediaKind,
    MessageCount, Offset, Producer, Retention,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

fn lifetime() -> impl Strategy<Value = Lifetime> {
    prop_oneof![
        Just(Lifetime::Unbounded),
        any::<u64>().prop_map(|ttl_s| Lifetime::Sliding { ttl_s }),
        any::<u64>().prop_map(|at_ms| Lifetime::Until {
            at: WallTime::from_ms(at_ms)
        }),
    ]
}

proptest! {
    #[test]
    fn a_creation_reads_back(
        ack in prop_oneof![Just(AckLevel::Accepted), Just(AckLevel::Written), Just(AckLevel::Synced)],
        name in "\\PC{0,40}",
        content_type in "\\PC{0,20}",
        lifetime in lifetime(),
        fork in of((any::<u64>(), any::<u64>(), any::<u32>())),
        closed: bool,
        limits in (of(any::<u64>()), of(any::<u64>()), of(any::<u64>())),
        floor: u64,
        units: u32,
        data in vec(any::<u8>(), 0..100),
        extras in (of("\\PC{0,9}"), of(any::<u32>()), of("\\PC{0,9}")),
        inherited: u32,
        account in of(any::<[u64; 2]>()),
    ) {
        let fork = fork.map(|(source, sequence, units)| Fork {
            source,
            at: Offset { sequence, units },
        });
        let change = Change::Create {
            name: &name,
            content_type: &content_type,
            lifetime,
            ack,
            retention: Retention { age_s: limits.0, bytes: limits.1, records: limits.2 },
            fork,
            floor,
            closed,
            units,
            extras: Extras {
                owner: extras.0.as_deref(),
                producer_timeout_s: extras.1,
                metadata: extras.2.as_deref(),
                end: None,
                asks_stop: false,
                inherited: MessageCount::default().with(inherited, MediaKind::Json),
            },
            account: account.map(AccountId),
        };
        let payload = [change.encode(), data.clone()].concat();
        prop_assert_eq!(Change::decode(&payload), Ok((change.clone(), &data[..])));
        prop_assert_eq!((change.units(), change.closes()), (units, closed));
    }

    #[test]
    fn an_append_reads_back(
        producer in of(("\\PC{0,20}", any::<u64>(), any::<u64>())),
        writer_seq in of("\\PC{0,20}"),
        closes: bool,
        counted: bool,
        units: u32,
        data in vec(any::<u8>(), 0..100),
        extras in (of("\\PC{0,9}"), of(0..4_usize), any::<bool>()),
    ) {
        let producer = producer.as_ref().map(|(id, epoch, seq)| Producer {
            id,
            epoch: *epoch,
            seq: *seq,
        });
        let change = Change::Append {
            producer,
            writer_seq: writer_seq.as_deref(),
            closes,
            counted,
            units,
            extras: Extras {
                metadata: extras.0.as_deref(),
                end: extras.1.map(|which| EndReason::ALL[which]),
                asks_stop: extras.2,
                ..Extras::default()
            },
        };
        let payload = [change.encode(), data.clone()].concat();
        prop_assert_eq!(Change::decode(&payload), Ok((change.clone(), &data[..])));
        prop_assert_eq!((change.units(), change.closes()), (units, closes));
    }

    #[test]
    fn no_payload_makes_decoding_panic(payload in vec(any::<u8>(), 0..200)) {
        // What decodes is a valid record: encoding it again gives the same bytes.
        if let Ok((change, data)) = Change::decode(&payload) {
            let again = [change.encode(), data.to_vec()].concat();
            prop_assert_eq!(Change::decode(&again), Ok((change, data)));
        }
    }

    /// Mutated records, which are near the valid ones.
    #[test]
    fn no_damage_makes_decoding_panic(
        name in "\\PC{0,10}",
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut payload = Change::Create {
            name: &name,
            content_type: "text/plain",
            lifetime: Lifetime::Sliding { ttl_s: 1 << 40 },
            ack: AckLevel::Written,
            retention: Retention { age_s: Some(1 << 40), ..Retention::default() },
            fork: Some(Fork { source: 1 << 50, at: Offset::behind(1 << 60) }),
            floor: 1 << 20,
            closed: false,
            units: 7,
            extras: Extras { owner: Some("o"), ..Extras::default() },
            account: at.index(2).eq(&0).then_some(AccountId([1 << 40, 7])),
        }
        .encode();
        let at = at.index(payload.len());
        payload[at] = byte;
        let _ = Change::decode(&payload);
        payload.truncate(cut.index(payload.len() + 1));
        let _ = Change::decode(&payload);
    }
}

#[test]
fn deletions_and_truncations_read_back_and_nothing_is_no_change() {
    let payload = Change::Delete.encode();
    assert_eq!(Change::decode(&payload), Ok((Change::Delete, &[][..])));
    assert_eq!((Change::Delete.units(), Change::Delete.closes()), (0, true));
    let truncation = Change::Truncate { floor: 1 << 40 };
    assert_eq!((truncation.units(), truncation.closes()), (0, false));
    let payload = truncation.encode();
    assert_eq!(Change::decode(&payload), Ok((truncation, &[][..])));
    assert_eq!(Change::decode(&[]), Err(BadRecord));
}

/// Data directories of earlier versions must stay readable: these bytes are in them.
#[test]
fn the_form_on_disk_stays_as_it_is() {
    let create = Change::Create {
        name: "a",
        content_type: "b",
        lifetime: Lifetime::Sliding { ttl_s: 300 },
        ack: AckLevel::Synced,
        retention: Retention {
            age_s: Some(6),
            bytes: None,
            records: Some(7),
        },
        fork: Some(Fork {
            source: 1,
            at: Offset {
                sequence: 2,
                units: 3,
            },
        }),
        floor: 8,
        closed: true,
        units: 4,
        extras: Extras::default(),
        account: None,
    };
    let bytes = [
        0, 1, b'a', 1, b'b', 1, 0xac, 2, 2, 1, 6, 0, 1, 7, 1, 1, 2, 3, 8, 1, 4,
    ];
    assert_eq!(create.encode(), bytes);
    let append = Change::Append {
        producer: Some(Producer {
            id: "p",
            epoch: 1,
            seq: 200,
        }),
        writer_seq: Some("w"),
        closes: false,
        counted: true,
        units: 5,
        extras: Extras::default(),
    };
    let bytes = [1, 1, 1, b'p', 1, 0xc8, 1, 1, 1, b'w', 0, 1, 5];
    assert_eq!(append.encode(), bytes);
    let stop = Change::Append {
        producer: None,
        writer_seq: None,
        closes: true,
        counted: false,
        units: 0,
        extras: Extras {
            owner: None,
            producer_timeout_s: None,
            metadata: Some("{}"),
            end: Some(EndReason::Stopped),
            asks_stop: true,
            inherited: MessageCount::default(),
        },
    };
    let bytes = [
        0x7f, 0, 0, 1, 2, b'{', b'}', 1, 1, 1, 0, // the extras
        1, 0, 0, 1, 0, 0,
    ];
    assert_eq!(stop.encode(), bytes);
    // Only changes that have some may follow extras.
    assert_eq!(Change::decode(&[0x7f, 0, 0, 0, 0, 0, 0, 2]), Err(BadRecord));
    assert_eq!(Change::Delete.encode(), [2]);
    assert_eq!(Change::Truncate { floor: 300 }.encode(), [3, 0xac, 2]);
    let until = Change::Create {
        name: "",
        content_type: "",
        lifetime: Lifetime::Until {
            at: WallTime::from_ms(1),
        },
        ack: AckLevel::Accepted,
        retention: Retention::default(),
        fork: None,
        floor: 0,
        closed: false,
        units: 0,
        extras: Extras::default(),
        account: None,
    };
    assert_eq!(until.encode(), [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
}
