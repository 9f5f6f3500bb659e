//! Sealed segments that wait for history: their bound, and the writes that wait for them.

use crate::rig::{Encke, JSON, eventually, path};

#[test]
fn no_more_segments_wait_than_may() {
    let encke = Encke::start(&[
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
        "--tuning",
        "waiting-segments-max=1",
        "--tuning",
        "background-jobs-max=3",
    ]);
    encke.create("s");
    let waiting = || encke.metric("encke_log_segments_waiting", "");
    let jobs = || encke.metric("encke_mailbox_depth", "mailbox=\"seal\"");
    let pad = "x".repeat(128 << 10);
    let (mut segments_most, mut jobs_most) = (0.0_f64, 0.0_f64);
    // Some twenty segments, faster than they go into history.
    for number in 0..160 {
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
        segments_most = segments_most.max(waiting());
        jobs_most = jobs_most.max(jobs());
    }
    assert_eq!(segments_most, 1.0);
    assert!((1.0..=3.0).contains(&jobs_most), "{jobs_most}");
    eventually("everything is in history", || {
        waiting() == 0.0 && jobs() == 0.0
    });
    let stored = encke.messages("s");
    let numbers = stored.iter().map(|message| message["n"].as_u64());
    assert!(numbers.eq((0..160).map(Some)), "{} stored", stored.len());
}
