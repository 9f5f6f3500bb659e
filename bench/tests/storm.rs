//! Storms against a simulated server, and without a server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the server is made for other tests too")]

mod server;

use encke_bench::load::{StormArgs, StormReport, TrustArgs, storm};
use server::{Behaviour, Server};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn args(url: &str) -> StormArgs {
    StormArgs {
        url: url.to_owned(),
        trust: TrustArgs::default(),
        websocket: false,
        subscribers: 12,
        storms: 2,
        away: Duration::from_millis(20),
        serve_timeout: Duration::from_secs(10),
        prefix: "s".into(),
        no_create: false,
        server_pid: Some(std::process::id()),
        json: false,
    }
}

fn run(args: &StormArgs) -> StormReport {
    storm(args, &AtomicBool::new(false)).unwrap()
}

#[test]
fn all_subscribers_come_back_each_time() {
    let server = Server::start(Behaviour::default());
    let report = run(&args(&server.url));
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(report.storms.len(), 2);
    for storm in &report.storms {
        assert_eq!(storm.served, 12, "{report}");
        assert_eq!(storm.latency.as_ref().unwrap().count, 12);
        assert!(storm.unserved.is_empty(), "{report}");
        assert!(storm.server_cpu_us.is_some());
    }
    assert!(report.to_string().contains("12 of 12 served"), "{report}");
}

#[test]
fn unserved_subscribers_are_counted_by_reason() {
    let server = Server::start(Behaviour::default());
    let report = run(&StormArgs {
        no_create: true,
        ..args(&server.url)
    });
    assert_eq!(report.exit_code(), 1);
    let storm = &report.storms[0];
    assert_eq!((storm.served, storm.unserved["status 404"]), (0, 12));
    assert_eq!(storm.refused(), 12);
    assert!(report.to_string().contains("12 refused"), "{report}");
    // Without a server.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let report = run(&StormArgs {
        no_create: true,
        ..args(&format!("http://{address}/v1/stream"))
    });
    let storm = &report.storms[0];
    assert_eq!(storm.unserved.values().sum::<u64>(), 12, "{report}");
    assert_eq!(report.exit_code(), 1);
}
