//! Compressed messages of clients: inflated within the bound, in the turns of their channel, and not before they are counted.

use serde_json::Value;

use super::create;
use crate::connection::testing::websocket_client::{ReceivedFrame, frame, open_with, take_frames};
use crate::connection::testing::{ID, Rig};
use crate::connection::websocket::INFLATED_BYTES_AT_ONCE;
use crate::settings::NetSettings;
use crate::websocket::deflate::deflate;

const OFFER: &str = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";

/// A rig with a channel of a client that offers compression.
fn compressing(inflated_max: usize) -> (Rig, String) {
    let mut rig = Rig::with(NetSettings {
        websocket_inflated_bytes_max: inflated_max,
        ..NetSettings::default()
    });
    create(&mut rig, "x");
    open_with(rig.reconnect(), "/v1/events", OFFER)
}

fn compressed(message: &[u8]) -> Vec<u8> {
    frame(0xc1, &deflate(message).expect("it becomes shorter"))
}

#[test]
fn messages_are_compressed_only_where_both_want_it() {
    let message =
        br#"{"type":"append","id":1,"stream":"a","text":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}"#;
    let (mut rig, head) = compressing(100);
    assert!(
        head.contains(
            "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover"
        ),
        "{head}"
    );
    let appended = messages(&mut rig, &compressed(message));
    assert_eq!(appended[0]["type"], "appended");
    let (mut rig, head) = compressing(0);
    assert!(!head.contains("Extensions"), "{head}");
    rig.receive(&compressed(message));
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(1002));
}

#[test]
fn a_message_inflates_to_no_more_than_the_bound() {
    let (mut rig, _) = compressing(1000);
    let message = [b' '; 1000];
    let refused = messages(&mut rig, &compressed(&message));
    assert_eq!(refused[0]["code"], "bad_json");
    assert_eq!(rig.closed, None);
    rig.receive(&compressed(&[b' '; 1001]));
    assert_eq!(take_frames(&mut rig)[0].close_code(), Some(1009));
    assert!(rig.lingers);
}

/// What the client receives for some bytes.
fn messages(rig: &mut Rig, bytes: &[u8]) -> Vec<Value> {
    rig.receive(bytes);
    let frames = take_frames(rig);
    frames.iter().map(ReceivedFrame::json).collect()
}

fn append(id: u64, bytes: usize) -> Vec<u8> {
    let data = "y".repeat(bytes);
    let message = format!(r#"{{"type":"append","id":{id},"stream":"a","text":"{data}"}}"#);
    compressed(message.as_bytes())
}

#[test]
fn a_message_that_exceeds_the_rate_is_refused_before_it_is_inflated() {
    let mut rig = Rig::with(NetSettings {
        websocket_inflated_bytes_max: 1000,
        // For the connection and its handshake.
        request_burst: 2,
        request_rate: 1,
        ..NetSettings::default()
    });
    rig.server.peer = [192, 0, 2, 1].into();
    let (peer, now) = (rig.server.peer, rig.server.clock.now());
    let owner = rig.server.clients.admit(Some(peer), now).unwrap();
    rig.server.clients.set_owner(ID, owner);
    let (mut rig, _) = open_with(rig, "/v1/events", OFFER);
    // Inflated, it would close the channel.
    for _ in 0..3 {
        let refused = messages(&mut rig, &compressed(&[b' '; 2000]));
        assert_eq!(refused[0]["status"], 429);
        assert_eq!(rig.closed, None);
    }
}

#[test]
fn a_message_is_inflated_in_pieces_each_of_which_is_a_turn() {
    let (mut rig, _) = compressing(1 << 20);
    let turns = rig.turns;
    let appended = messages(&mut rig, &append(1, 1000));
    assert_eq!(appended[0]["id"], 1);
    assert_eq!(rig.turns, turns, "the first piece is the whole");
    let pieces = (1 << 20) / INFLATED_BYTES_AT_ONCE;
    let large = append(2, (1 << 20) - 100);
    assert!(large.len() < 10_000);
    let appended = messages(&mut rig, &large);
    assert_eq!(appended[0]["id"], 2);
    assert!(rig.turns - turns >= pieces - 1, "{}", rig.turns);
    // Those that follow at once wait for it, and for each other.
    let turns = rig.turns;
    let both = [append(3, 60_000), append(4, 60_000), append(5, 60_000)].concat();
    let appended = messages(&mut rig, &both);
    let ids: Vec<_> = appended.iter().map(|one| one["id"].as_u64()).collect();
    assert_eq!(ids, [Some(3), Some(4), Some(5)]);
    assert!(rig.turns - turns >= 2, "{}", rig.turns);
    assert_eq!(rig.held_bytes(), 0);
}
