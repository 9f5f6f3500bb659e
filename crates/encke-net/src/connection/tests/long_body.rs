//! Bodies that are read a part at a time.

use std::time::Duration;

use encke_log::ReadError;

use super::{append, create, get, received};
use crate::connection::close::CloseReason;
use crate::connection::effect::ConnectionEffect;
use crate::connection::exchange::ExchangeEvent;
use crate::connection::testing::{ID, Rig};
use crate::settings::NetSettings;

/// A rig whose server has a stream that no response has whole.
fn rig(text: &str) -> Rig {
    let settings = NetSettings {
        stall_timeout: Duration::from_secs(30),
        ..NetSettings::default()
    };
    let mut rig = Rig::with(settings);
    create(&mut rig, "");
    for part in text.as_bytes().chunks(100_000) {
        rig.receive(append(std::str::from_utf8(part).unwrap()).as_bytes());
    }
    rig.reconnect()
}

fn text(bytes: usize) -> String {
    (0..)
        .flat_map(|number: u32| format!("{number},").into_bytes())
        .take(bytes)
        .map(char::from)
        .collect()
}

#[test]
fn its_parts_are_the_whole_and_the_next_request_follows() {
    let text = text(3 << 20);
    let mut rig = rig(&text);
    let target = "/v1/stream/a?offset=-1";
    rig.receive(format!("{}{}", get(target), append("end")).as_bytes());
    let all = received(&rig.text());
    assert_eq!(all.len(), 2);
    assert!(all[0].is_complete && all[0].text() == text);
    assert_eq!(all[0].field("Transfer-Encoding"), Some("chunked"));
    assert_eq!(all[1].status, 204);
    assert_eq!(rig.server.counts.behind, 0);
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn the_next_part_is_read_when_the_last_one_is_taken() {
    let text = text(3 << 20);
    let mut rig = rig(&text);
    rig.held = true;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    let mut reads = 0;
    while received(&rig.text())
        .first()
        .is_none_or(|one| !one.is_complete)
    {
        assert!(
            matches!(rig.waiting.make_contiguous(), [ConnectionEffect::Read(..)]),
            "one at a time"
        );
        rig.room = 1000;
        rig.release();
        rig.held = true;
        reads += 1;
        assert!(rig.waiting.is_empty(), "the client has not taken it");
        let held = rig.held_bytes();
        assert!(held > 0 && held < text.len(), "{held}");
        assert_eq!(rig.server.counts.behind, 1);
        while rig.connection.as_ref().unwrap().outbound().is_some() {
            rig.drain(100_000);
        }
        assert!(reads < 100);
    }
    assert!(reads > 2, "{reads}");
    assert!(received(&rig.text())[0].text() == text);
}

#[test]
fn a_client_that_stops_to_take_it_is_cut_off() {
    let mut rig = rig(&text(3 << 20));
    rig.room = 100_000;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    rig.pass(Duration::from_secs(29));
    rig.drain(1);
    rig.pass(Duration::from_secs(29));
    assert_eq!(rig.closed, None);
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.closed, Some(CloseReason::Stalled));
    assert!(rig.is_cut);
    assert_eq!(rig.server.counts.behind, 0);
    assert_eq!(rig.held_bytes(), 0);
}

#[test]
fn what_cannot_be_read_cuts_it_off() {
    let failed = || ReadError::Io {
        file: "a".into(),
        position: 0,
        source: std::io::ErrorKind::Other.into(),
    };
    let mut rig = rig(&text(3 << 20));
    rig.held = true;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    // The page before the first part.
    rig.release();
    rig.taken.clear();
    let mut rig = rig.reconnect();
    rig.room = 1 << 20;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    rig.held = true;
    rig.drain(4 << 20);
    rig.waiting.clear();
    rig.on_exchange(ID, ExchangeEvent::PieceRead(Err(failed())));
    assert_eq!(rig.closed, Some(CloseReason::Unreadable));
    assert!(rig.is_cut);
}

#[test]
fn without_room_at_the_readers_it_tries_again() {
    let text = text(3 << 20);
    let mut rig = rig(&text);
    rig.room = 1 << 20;
    rig.receive(get("/v1/stream/a?offset=-1").as_bytes());
    rig.held = true;
    rig.drain(2 << 20);
    for _ in 0..3 {
        assert_eq!(rig.waiting.len(), 1);
        rig.refuse_waiting();
    }
    rig.room = usize::MAX;
    rig.release();
    assert!(received(&rig.text())[0].text() == text);
}
