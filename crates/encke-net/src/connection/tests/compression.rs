//! Compressed responses, and compressors that there are none of.

use std::io::Read;

use super::{append, create, received};
use crate::connection::effect::ConnectionEffect;
use crate::connection::testing::{Rig, responses};
use crate::settings::NetSettings;

fn rig(text: &str, compressions_max: usize) -> Rig {
    let settings = NetSettings {
        compressions_max,
        ..NetSettings::default()
    };
    let mut rig = Rig::with(settings);
    create(&mut rig, "");
    for part in text.as_bytes().chunks(100_000) {
        rig.receive(append(std::str::from_utf8(part).unwrap()).as_bytes());
    }
    rig.reconnect()
}

fn request(accepts: &str) -> String {
    format!("GET /v1/stream/a?offset=-1 HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {accepts}\r\n\r\n")
}

fn text(bytes: usize) -> String {
    "some text ".chars().cycle().take(bytes).collect()
}

fn unzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_string(&mut text)
        .unwrap();
    text
}

#[test]
fn short_whole_and_long_bodies_are_the_same_when_they_are_unpacked() {
    for bytes in [10, 5_000, 300_000, 3_000_000] {
        let text = text(bytes);
        let mut rig = rig(&text, 32);
        rig.receive(request("gzip").as_bytes());
        let all = responses(&rig.taken, |_| false);
        let is_coded = all[0].field("Content-Encoding") == Some("gzip");
        assert_eq!(is_coded, bytes > 1_000, "{bytes}");
        let got = match is_coded {
            true => unzip(&all[0].body),
            false => all[0].text(),
        };
        assert!(got == text, "{bytes}");
        assert!(all[0].is_complete);
        assert_eq!(rig.server.compressors.used(), 0);
        assert_eq!(rig.held_bytes(), 0);
    }
}

#[test]
fn without_a_compressor_a_response_is_sent_as_it_is() {
    for bytes in [5_000, 3_000_000] {
        let text = text(bytes);
        let mut rig = rig(&text, 0);
        let all = received(&rig.request(&request("gzip")));
        assert_eq!(all[0].field("Content-Encoding"), None);
        assert!(all[0].text() == text);
    }
}

#[test]
fn a_client_that_takes_nothing_else_is_asked_to_come_back() {
    for bytes in [5_000, 3_000_000] {
        let mut rig = rig(&text(bytes), 0);
        let all = received(&rig.request(&request("gzip, identity;q=0")));
        assert_eq!(all[0].status, 503, "{bytes}");
    }
}

/// Sends the request, and refuses the first work of a compressor so often.
fn refuse_compressor(rig: &mut Rig, times: usize) {
    rig.held = true;
    rig.receive(request("gzip").as_bytes());
    for _ in 0..times {
        while !matches!(rig.waiting.front(), Some(ConnectionEffect::Compress(..))) {
            assert!(rig.step());
        }
        rig.refuse_waiting();
    }
    rig.release();
}

#[test]
fn without_room_at_the_readers_a_whole_body_is_sent_as_it_is() {
    let text = text(5_000);
    let mut rig = rig(&text, 32);
    refuse_compressor(&mut rig, 1);
    let all = responses(&rig.taken, |_| false);
    assert_eq!(all[0].field("Content-Encoding"), None);
    assert!(all[0].is_complete && all[0].text() == text);
    assert_eq!(rig.server.compressors.used(), 0);
}

#[test]
fn without_room_at_the_readers_a_long_body_tries_again() {
    let text = text(300_000);
    let mut rig = rig(&text, 32);
    refuse_compressor(&mut rig, 3);
    let all = responses(&rig.taken, |_| false);
    assert!(all[0].is_complete && unzip(&all[0].body) == text);
}
