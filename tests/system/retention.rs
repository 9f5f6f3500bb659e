//! Retention: what is past its time or its size goes by itself, and nobody misses it without being told.

use crate::rig::{Encke, JSON, data_dir, eventually, path};

const SMALL: [&str; 4] = ["--segment", "1MiB", "--body-max", "256KiB"];

fn append(encke: &Encke, number: u64, pad: usize) -> String {
    let body = format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(pad));
    let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
    assert_eq!(answer.status, 204, "{answer:?}");
    let offset = answer.field("Stream-Next-Offset");
    offset.expect("an append tells where it ended").to_owned()
}

fn numbers(encke: &Encke) -> Vec<u64> {
    let messages = encke.messages("s");
    let number = |message: &serde_json::Value| message["n"].as_u64().expect("a number");
    messages.iter().map(number).collect()
}

#[test]
fn records_past_their_age_go_and_readers_are_told() {
    let data = data_dir();
    let flags = [
        &SMALL[..],
        &["--retention-age", "1500ms", "--order-age", "1s"],
    ]
    .concat();
    let encke = Encke::start_in(data.path(), &flags);
    encke.create("s");
    let mut offset = String::new();
    for number in 0..40 {
        let after = append(&encke, number, 100 << 10);
        if number == 0 {
            offset = after;
        }
    }
    let from = |offset: &str, live: &str| {
        let target = format!("{}?offset={offset}{live}", path("s"));
        encke.ask("GET", &target, &[], b"")
    };
    // Nothing happens but time. (Who reads them right then is told by a hang-up, so this looks at the metric.)
    eventually("the oldest are gone", || {
        encke.metric("encke_log_kept_behind", "") >= 2.0
    });
    for live in ["", "&live=long-poll", "&live=sse"] {
        let gone = from(&offset, live);
        assert_eq!((gone.status, &*gone.error_code()), (410, "no_longer_kept"));
    }
    // One record made the stream, and 40 follow.
    eventually("all are gone", || {
        encke.metric("encke_log_kept_behind", "") >= 41.0
    });
    assert_eq!(numbers(&encke), [0_u64; 0]);
    // The stream goes on, and who is at its end misses nothing.
    let mut subscriber = encke.subscribe("s", "now");
    let tail = append(&encke, 1000, 10);
    assert_eq!(subscriber.message().expect("it was sent")["n"], 1000);
    assert_eq!(from(&tail, "").status, 200);
    drop(subscriber);
    encke.kill();
    let encke = Encke::start_in(data.path(), &flags);
    assert!(numbers(&encke).iter().all(|number| *number == 1000));
    assert!(append(&encke, 1001, 10) > tail);
}

#[test]
fn records_past_the_size_go_oldest_first() {
    let flags = [
        &SMALL[..],
        &["--retention-size", "2MiB", "--order-size", "1MiB"],
    ]
    .concat();
    let encke = Encke::start(&flags);
    encke.create("s");
    let mut random = 1_u64;
    let count = 120;
    for number in 0..count {
        // What compresses badly, so that bytes are bytes.
        let mut word = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            format!("{:016x}", random ^ random >> 29)
        };
        let pad: String = (0..8 << 10).map(|_| word()).collect();
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }
    // A reader in the middle of it would be told by a hang-up, so this waits until no more goes.
    eventually("what is too much is gone", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
            && encke.metric("encke_log_history_bytes", "") < f64::from(3 << 20)
            && encke.metric("encke_log_kept_behind", "") > 60.0
    });
    let left = numbers(&encke);
    let last = count - left.len() as u64..count;
    assert!(left.len() > 10 && left.iter().copied().eq(last), "{left:?}");
    assert!(encke.metric("encke_log_history_bytes", "") < f64::from(5 << 20));
    assert!(encke.metric("encke_log_segment_bytes", "") < f64::from(6 << 20));
}
