//! Many hostile clients beside good ones: each hostile client is closed at its timeout, the good ones get every record, and the
//! server's memory for all of them is bounded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use encke_bench::load::{FloodArgs, flood};

use crate::rig::{Encke, SetWhenDropped, eventually, raise_descriptors};

/// Private resident memory, in bytes.
fn memory(encke: &Encke) -> u64 {
    let path = format!("/proc/{}/status", encke.pid());
    let status = std::fs::read_to_string(path).expect("it runs");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB"))
        .expect("the kernel tells");
    kib.trim().parse::<u64>().expect("a number") << 10
}

#[test]
fn hostile_clients_of_every_kind() {
    raise_descriptors();
    let encke = Encke::start(&[
        "--tuning",
        "request-timeout=1s",
        "--tuning",
        "body-timeout=2s",
        "--tuning",
        "idle-timeout=1s",
        "--tuning",
        "stall-timeout=1s",
        "--buffers-max",
        "16MiB",
        "--ring",
        "4MiB",
        // So short that most deferred work is put off repeatedly, behind deliveries.
        "--tuning",
        "deferred-time=1us",
    ]);
    let url = format!("http://{}/v1/stream", encke.address);
    let args = FloodArgs {
        url,
        subscribers: 150,
        publish: Some(150.0),
        // Mostly less: until every kind has been closed often enough.
        duration: Some(Duration::from_secs(60)),
        hostile: 160,
        ..FloodArgs::default()
    };
    let closed = |name, reason: &str| encke.metric(name, &format!("reason=\"{reason}\""));
    let is_done = || {
        closed("encke_connections_closed_total", "idle") >= 50.0
            && closed("encke_connections_closed_total", "stalled") >= 50.0
            && encke.refused("timeout") >= 50
            && encke.refused("body_timeout") >= 50
            && encke.metric("encke_records_total", "") > 1_500.0
    };
    let (over, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (report, held_max) = std::thread::scope(|scope| {
        let held = scope.spawn(|| {
            let mut held_max = 0.0_f64;
            while !over.load(Ordering::Relaxed) {
                held_max = held_max.max(encke.metric("encke_buffered_bytes", ""));
                if is_done() {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            held_max
        });
        let is_over = SetWhenDropped(&over);
        let report = flood(&args, &stop);
        drop(is_over);
        let report = report.expect("the flood runs");
        assert_eq!(report.exit_code(), 0, "{report}");
        let report = serde_json::to_value(&report).expect("JSON");
        (report, held.join().expect("the server answered all along"))
    });
    // Nothing was lost, doubled or out of order, and no good client was closed.
    assert_eq!(report["connections"]["closed"], 0, "{report}");
    assert_eq!(report["connections"]["given_up"], 0, "{report}");
    assert!(report["publishing"]["acknowledged"].as_u64() > Some(1_000));
    // Each kind was closed, and by the limit that is meant for it.
    let deeds = &report["hostile"]["deeds"];
    let closed = deeds["closed"].as_object().expect("each kind");
    assert_eq!(closed.len(), 5, "{deeds}");
    for (kind, number) in closed {
        assert!(number.as_u64() >= Some(10), "{kind}: {deeds}");
    }
    let reason = |name, reason: &str| encke.metric(name, &format!("reason=\"{reason}\""));
    assert!(reason("encke_connections_closed_total", "idle") >= 10.0);
    assert!(reason("encke_connections_closed_total", "stalled") >= 10.0);
    assert!(encke.refused("timeout") >= 10);
    assert!(encke.refused("body_timeout") >= 10);
    assert!(held_max > 0.0, "the measure is no dead one");
    assert!(held_max < 16e6, "{held_max} bytes were held");
    assert!(encke.metric("encke_deferred_put_off_total", "") > 0.0);
    let used = memory(&encke);
    assert!(used < 200 << 20, "{used} bytes are used");
    eventually("nothing is left of them", || {
        encke.metric("encke_buffered_bytes", "") == 0.0
            && encke.metric("encke_connections", "") <= 1.0
            && encke.metric("encke_clients_behind", "") == 0.0
    });
}
