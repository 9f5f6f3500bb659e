//! A disk of history that hangs: the background stands still within a change of its tables, for which the storage engine holds its
//! locks. What reads gauges, and whatever else a shard serves, does not wait for it.

use crate::rig::{
    Connection, Encke, Incompressible, JSON, Slowed, eventually, path, request, strace_works,
};

/// Calls with which the storage engine puts another list of tables in place.
const RENAMES: &str = "rename,renameat,renameat2";

/// Longer than the test.
const TEN_MINUTES_US: &str = "600000000";

/// Requests that need nothing of history.
const QUICK: [&str; 7] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/admin",
    "/v1/admin/overview",
    "/v1/admin/connections",
    "/v1/admin/history",
];

/// Requests that may wait for history, but not on a shard.
const SLOW: [&str; 9] = [
    "/v1/admin/streams",
    "/v1/admin/groups?by=address",
    "/v1/admin/refusals",
    "/v1/admin/configuration",
    "/v1/admin/doctor",
    "/v1/admin/fleet",
    "/v1/admin/usage",
    "/v1/stream",
    "/v1/stream/s?offset=-1",
];

#[test]
fn no_gauge_waits_for_the_disk_of_history() {
    if !strace_works() {
        return;
    }
    let flags = ["--shards", "1", "--segment", "1MiB", "--body-max", "256KiB"];
    let every = ["--tuning", "health-every=1s"];
    let encke = Encke::start(&[&flags[..], &every].concat());
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "now");
    let slowed = Slowed::new(
        &encke,
        "encke-seal",
        &format!("{RENAMES}:delay_enter={TEN_MINUTES_US}"),
    );
    let mut incompressible = Incompressible::default();
    let mut number = 0;
    let mut append = |encke: &Encke, bytes: usize| {
        number += 1;
        let body = format!(
            "{{\"n\":{number},\"pad\":\"{}\"}}",
            incompressible.text(bytes)
        );
        let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
        number
    };
    // Until a segment is sealed, and the background stands in the middle of adding it to history.
    eventually("history stands still", || {
        let number = append(&encke, 64 << 10);
        assert_eq!(subscriber.message().expect("it is live")["n"], number);
        slowed.is_within(&RENAME_NUMBERS)
    });
    let mut waiting: Vec<Connection> = Vec::new();
    for target in SLOW {
        let mut connection = encke.connect();
        connection.send(&request("GET", target, &[], b""));
        waiting.push(connection);
    }
    for _ in 0..3 {
        for target in QUICK {
            let answer = encke.ask("GET", target, &[], b"");
            assert!(answer.status < 400, "{target}: {answer:?}");
        }
        assert!(encke.metric("encke_log_segments_waiting", "") >= 1.0);
        let number = append(&encke, 10);
        assert_eq!(subscriber.message().expect("it is live")["n"], number);
    }
    assert!(slowed.is_within(&RENAME_NUMBERS));
    drop(slowed);
    for mut connection in waiting {
        assert!(connection.answer().status > 0);
    }
    eventually("history continues", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
            && encke.metric("encke_log_history_bytes", "") > 0.0
    });
    assert_eq!(encke.terminate().code, Some(0));
}

/// The numbers of these calls.
const RENAME_NUMBERS: [&str; 3] = if cfg!(target_arch = "x86_64") {
    ["82", "264", "316"]
} else {
    ["38", "38", "276"]
};
