//! Sessions against clients of rustls.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::net::sockopt;
use rustls::{AlertDescription, ProtocolVersion, SupportedCipherSuite};

use super::fault::TlsFault;
use super::session::ReadOutcome;
use super::testing::{Pair, suites};
use crate::buffers::Buffers;

fn tls13() -> SupportedCipherSuite {
    rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384
}

fn tls12() -> SupportedCipherSuite {
    rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
}

#[test]
fn every_suite_carries_content_both_ways_and_survives_rests() {
    assert_eq!(suites().len(), 9);
    for suite in suites() {
        let mut pair = Pair::of(suite);
        // Rests, so that ciphers are built at sequences at which the provider's check of sequences would fail.
        for round in 0..40_u8 {
            let content = vec![round; 1 + usize::from(round) * 11];
            assert_eq!(pair.session_sends(&content), content, "{suite:?}, {round}");
            pair.client_sends(&content);
            assert_eq!(pair.read().0, content, "{suite:?}, {round}");
            if round % 3 != 0 {
                pair.session.rest();
            }
        }
    }
}

#[test]
fn large_content_is_cut_into_records_and_arrives_whole() {
    for suite in [tls13(), tls12()] {
        let mut pair = Pair::of(suite);
        let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        assert!(pair.session_sends(&content) == content);
    }
}

#[test]
fn a_record_that_is_out_in_part_holds_back_the_last_byte() {
    let mut pair = Pair::of(tls13());
    let filler = vec![b'f'; 16 << 10];
    let (mut sent, mut taken) = (Vec::new(), 0);
    // Until the socket is full. The filler is a record, so each call ends with a whole one or with a part.
    while taken == 0 || taken == filler.len() {
        taken = pair.write(&filler).unwrap();
        sent.extend_from_slice(&filler[..taken]);
    }
    assert_eq!(taken, filler.len() - 1);
    assert!(pair.session.has_unsent());
    assert_eq!(pair.write(&filler[taken..]).unwrap(), 0, "still full");
    let mut got = pair.client_reads();
    // The byte that was held back comes first, and then more in a record of its own.
    let rest = [&filler[taken..], b"more"].concat();
    assert_eq!(pair.write(&rest).unwrap(), rest.len());
    assert!(!pair.session.has_unsent());
    sent.extend_from_slice(&rest);
    got.extend(pair.client_reads());
    assert!(got == sent);
}

#[test]
fn input_may_arrive_byte_by_byte() {
    for suite in [tls13(), tls12()] {
        let mut pair = Pair::of(suite);
        let records = pair.client_records(b"one record");
        let (last, first) = records.split_last().unwrap();
        for byte in first {
            pair.wire.write_all(&[*byte]).unwrap();
            assert_eq!(
                pair.read(),
                (vec![], Ok(ReadOutcome::Read { drained: true }))
            );
        }
        assert_eq!(pair.session.partial_input(), first.len());
        pair.wire.write_all(&[*last]).unwrap();
        assert_eq!(pair.read().0, b"one record");
        assert_eq!(pair.session.partial_input(), 0);
    }
}

#[test]
fn what_is_held_is_counted_in_the_memory_of_all() {
    let buffers = Arc::new(Buffers::new(1 << 20, []));
    let mut pair = Pair::of(tls13());
    let records = pair.client_records(&[7; 5_000]);
    pair.wire.write_all(&records[..4_000]).unwrap();
    pair.read().1.unwrap();
    pair.session.weigh(&buffers);
    assert!(
        (4_000..10_000).contains(&buffers.bytes()),
        "{}",
        buffers.bytes()
    );
    pair.wire.write_all(&records[4_000..]).unwrap();
    assert_eq!(pair.read().0.len(), 5_000);
    pair.session.weigh(&buffers);
    assert_eq!(buffers.bytes(), 0);
}

#[test]
fn the_client_may_change_keys_and_ask_for_a_change() {
    let mut pair = Pair::of(tls13());
    for round in 0..10_u8 {
        pair.client.refresh_traffic_keys().unwrap();
        pair.client_sends(&[round]);
        assert_eq!(pair.read().0, [round]);
        let content = [round, round];
        assert_eq!(pair.session_sends(&content), content);
    }
}

#[test]
fn a_key_is_changed_before_it_is_used_up() {
    let mut pair = Pair::of(tls13());
    pair.session.set_records_max(8);
    for round in 0..50_u8 {
        assert_eq!(pair.session_sends(&[round]), [round]);
    }
    let mut pair = Pair::of(tls12());
    pair.session.set_records_max(8);
    let mut sent = 0;
    let fault = loop {
        match pair.write(b"x") {
            Ok(taken) => sent += taken,
            Err(fault) => break fault,
        }
    };
    assert_eq!(fault, TlsFault::Exhausted);
    assert!((5..8).contains(&sent), "{sent}");
}

#[test]
fn changes_of_keys_without_data_are_bounded() {
    let mut pair = Pair::of(tls13());
    for _ in 0..33 {
        pair.client.refresh_traffic_keys().unwrap();
        pair.client_flushes();
    }
    assert_eq!(pair.read().1, Err(TlsFault::Futile("changes of keys")));
}

#[test]
fn the_end_of_a_session_is_told_from_a_cut() {
    for suite in [tls13(), tls12()] {
        let mut pair = Pair::of(suite);
        pair.client.writer().write_all(b"last").unwrap();
        pair.client.send_close_notify();
        pair.client_flushes();
        assert_eq!(pair.read(), (b"last".to_vec(), Ok(ReadOutcome::Ended)));
        pair.wire.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pair.read(), (vec![], Ok(ReadOutcome::Ended)));

        let mut pair = Pair::of(suite);
        pair.client_sends(b"last");
        pair.wire.shutdown(Shutdown::Write).unwrap();
        assert_eq!(pair.read().0, b"last");
        assert_eq!(pair.read(), (vec![], Ok(ReadOutcome::Truncated)));
    }
}

#[test]
fn the_session_ends_properly_for_the_client() {
    for suite in [tls13(), tls12()] {
        let mut pair = Pair::of(suite);
        pair.session.close(pair.socket.as_fd());
        pair.client.read_tls(&mut pair.wire).unwrap();
        let state = pair.client.process_new_packets().unwrap();
        assert!(state.peer_has_closed());
    }
}

#[test]
fn an_alert_of_the_client_ends_the_session() {
    // A client that can't decrypt sends an alert.
    let mut pair = Pair::of(tls13());
    let junk = [&[23, 3, 3, 0, 32][..], &[9; 32]].concat();
    (&pair.socket).write_all(&junk).unwrap();
    pair.client.read_tls(&mut pair.wire).unwrap();
    assert!(pair.client.process_new_packets().is_err());
    pair.client_flushes();
    let alert = TlsFault::Alert(AlertDescription::BadRecordMac);
    assert_eq!(pair.read().1, Err(alert));
}

#[test]
fn what_is_wrong_gets_an_alert() {
    let oversized = [23, 3, 3, 0xff, 0xff];
    let cases: [(&[u8], AlertDescription); 5] = [
        (
            b"GET / HTTP/1.1\r\n\r\n",
            AlertDescription::UnexpectedMessage,
        ),
        (&oversized, AlertDescription::RecordOverflow),
        (&[23, 3, 3, 0, 2, 0, 0], AlertDescription::BadRecordMac),
        // A handshake, and a change of ciphers, without encryption.
        (&[22, 3, 3, 0, 1, 0], AlertDescription::UnexpectedMessage),
        (&[20, 3, 3, 0, 1, 1], AlertDescription::UnexpectedMessage),
    ];
    for (bytes, alert) in cases {
        let mut pair = Pair::of(tls13());
        pair.wire.write_all(bytes).unwrap();
        let (content, outcome) = pair.read();
        let fault = outcome.unwrap_err();
        assert!(content.is_empty());
        pair.session.end_with(pair.socket.as_fd(), &fault);
        pair.client.read_tls(&mut pair.wire).unwrap();
        let error = pair.client.process_new_packets().unwrap_err();
        assert_eq!(error, rustls::Error::AlertReceived(alert), "{bytes:?}");
    }
}

#[test]
fn a_changed_record_is_refused() {
    for suite in suites() {
        let mut pair = Pair::of(suite);
        let mut records = pair.client_records(b"pay 100");
        let middle = records.len() / 2;
        records[middle] ^= 1;
        pair.wire.write_all(&records).unwrap();
        let (content, outcome) = pair.read();
        assert!(content.is_empty(), "{suite:?}");
        assert!(matches!(outcome, Err(TlsFault::Undecryptable(_))));
    }
}

#[test]
fn a_repeated_record_is_refused() {
    for suite in suites() {
        let mut pair = Pair::of(suite);
        let records = pair.client_records(b"pay 100");
        pair.wire.write_all(&records).unwrap();
        assert_eq!(pair.read().0, b"pay 100");
        pair.wire.write_all(&records).unwrap();
        let (content, outcome) = pair.read();
        assert!(content.is_empty(), "{suite:?}");
        assert!(matches!(outcome, Err(TlsFault::Undecryptable(_))));
    }
}

/// Something that one of the ends does.
#[derive(Clone, Copy, Debug)]
enum Step {
    ClientSends { bytes: usize, changes_keys: bool },
    ClientReads,
    SessionSends { bytes: usize },
    SessionReads,
    SessionRests,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..6_000_usize, any::<bool>()).prop_map(|(bytes, changes_keys)| Step::ClientSends {
            bytes,
            changes_keys
        }),
        Just(Step::ClientReads),
        (1..40_000_usize).prop_map(|bytes| Step::SessionSends { bytes }),
        Just(Step::SessionReads),
        Just(Step::SessionRests),
    ]
}

/// What one end sends to the other.
#[derive(Default)]
struct Direction {
    sent: Vec<u8>,
    got: Vec<u8>,
}

impl Direction {
    /// Content that differs from what came before.
    fn next(&mut self, bytes: usize) -> Vec<u8> {
        let begin = self.sent.len();
        let content: Vec<u8> = (begin..begin + bytes).map(|at| (at % 251) as u8).collect();
        self.sent.extend_from_slice(&content);
        content
    }

    fn is_over(&self) -> bool {
        self.got.len() >= self.sent.len()
    }
}

/// Lets the session write what it has not written yet.
fn session_writes(pair: &mut Pair, to_client: &Direction, written: &mut usize) {
    *written += pair.write(&to_client.sent[*written..]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the ends do in turn, over a socket that takes parts of records, with rests and changes of keys on both sides:
    /// each gets what the other has sent, in order and once.
    #[test]
    fn both_directions_agree_with_a_client_of_rustls(
        steps in prop::collection::vec(step(), 1..60),
        records_max in 3..40_u64,
        suite in 0..9_usize,
    ) {
        let mut pair = Pair::of(suites()[suite]);
        sockopt::set_socket_send_buffer_size(&pair.socket, 4_608).unwrap();
        pair.client.set_buffer_limit(None);
        let has_key_updates = pair.client.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if has_key_updates {
            // The handshake has used up some of the first key.
            pair.session.set_records_max(8 + records_max);
        }
        let (mut to_client, mut to_session) = (Direction::default(), Direction::default());
        let mut written = 0;
        for step in steps {
            match step {
                Step::ClientSends { bytes, changes_keys } => {
                    if changes_keys && has_key_updates {
                        pair.client.refresh_traffic_keys().unwrap();
                    }
                    let content = to_session.next(bytes);
                    pair.client.writer().write_all(&content).unwrap();
                    pair.client_sends_what_fits();
                }
                Step::ClientReads => to_client.got.extend(pair.client_reads()),
                Step::SessionSends { bytes } => {
                    to_client.next(bytes);
                    session_writes(&mut pair, &to_client, &mut written);
                }
                Step::SessionReads => {
                    let (content, outcome) = pair.read();
                    prop_assert!(outcome.is_ok(), "{outcome:?}");
                    to_session.got.extend(content);
                }
                Step::SessionRests => pair.session.rest(),
            }
            prop_assert!(to_client.sent.starts_with(&to_client.got));
            prop_assert!(to_session.sent.starts_with(&to_session.got));
        }
        // Parts of records may move without a byte of content.
        let mut rounds = 0;
        while !to_client.is_over() || !to_session.is_over() || pair.session.has_unsent() {
            rounds += 1;
            prop_assert!(rounds < ROUNDS_MAX, "nothing moves any more");
            pair.client_sends_what_fits();
            session_writes(&mut pair, &to_client, &mut written);
            to_client.got.extend(pair.client_reads());
            let (content, outcome) = pair.read();
            prop_assert!(outcome.is_ok(), "{outcome:?}");
            to_session.got.extend(content);
        }
        prop_assert!(to_client.got == to_client.sent);
        prop_assert!(to_session.got == to_session.sent);
    }

    /// However content and records are cut, what arrives is what was sent, in both directions.
    #[test]
    fn content_arrives_however_it_is_cut(
        pieces in prop::collection::vec((0..3_000_usize, any::<bool>()), 1..12),
        cuts in prop::collection::vec(1..2_000_usize, 1..20),
        suite in 0..9_usize,
    ) {
        let mut pair = Pair::of(suites()[suite]);
        let (mut sent, mut records) = (Vec::new(), Vec::new());
        for (number, (length, updates)) in pieces.into_iter().enumerate() {
            let content = vec![number as u8; length];
            if updates && pair.client.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
                pair.client.refresh_traffic_keys().unwrap();
            }
            records.extend(pair.client_records(&content));
            sent.extend(content);
        }
        let (mut got, mut cuts) = (Vec::new(), cuts.into_iter().cycle());
        let mut rest = &records[..];
        while !rest.is_empty() {
            let cut = cuts.next().unwrap().min(rest.len());
            pair.wire.write_all(&rest[..cut]).unwrap();
            rest = &rest[cut..];
            let (content, outcome) = pair.read();
            prop_assert!(outcome.is_ok(), "{outcome:?}");
            got.extend(content);
        }
        prop_assert_eq!(&got, &sent);
        prop_assert_eq!(pair.session_sends(&sent), sent);
    }

    /// No bytes make a session panic, or give out content that the client has not sent.
    #[test]
    fn junk_gives_no_content(bytes in prop::collection::vec(any::<u8>(), 0..2_000), kind in 20..24_u8) {
        let mut junk = vec![kind, 3, 3, (bytes.len() >> 8) as u8, bytes.len() as u8];
        junk.extend(bytes);
        let mut pair = Pair::of(tls13());
        pair.wire.write_all(&junk).unwrap();
        let (content, outcome) = pair.read();
        prop_assert!(content.is_empty() && outcome.is_err());
    }
}

/// Rounds in which both ends send and read: far more than 2 MiB through a small socket need.
const ROUNDS_MAX: usize = 100_000;
