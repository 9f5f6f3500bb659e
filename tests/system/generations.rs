//! Parts of history that retention removes, over many starts.

use crate::rig::{Encke, Ended, Incompressible, JSON, command, data_dir, eventually, path};

/// The engine gives the number of a removed keyspace to a later one. A start must not take the later one for what was stated of
/// the earlier one.
#[test]
fn parts_of_history_come_and_go_over_many_starts() {
    let data = data_dir();
    let flags = [
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
        "--retention-size",
        "1MiB",
        "--order-size",
        "1MiB",
    ];
    let mut incompressible = Incompressible::default();
    let mut appended = 0_u64;
    let (mut before_last, mut last) = (String::new(), String::new());
    for round in 0..ROUNDS {
        let encke = Encke::start_in(data.path(), &flags);
        if round == 0 {
            encke.create("s");
        }
        let kept_behind = encke.metric("encke_log_kept_behind", "");
        for _ in 0..RECORDS {
            let body = format!(
                "{{\"n\":{appended},\"pad\":\"{}\"}}",
                incompressible.text(64 << 10)
            );
            let answer = encke.ask("POST", &path("s"), &[JSON], body.as_bytes());
            assert_eq!(answer.status, 204, "{answer:?}");
            appended += 1;
            let end = answer
                .field("Stream-Next-Offset")
                .expect("an append has an end");
            before_last = std::mem::replace(&mut last, end.to_owned());
        }
        eventually("older records are removed", || {
            encke.metric("encke_log_kept_behind", "") > kept_behind
                && encke.metric("encke_log_segments_waiting", "") == 0.0
        });
        // Only the newest one is read: an older one can be removed meanwhile.
        let target = format!("{}?offset={before_last}", path("s"));
        let newest = encke.ask("GET", &target, &[], b"");
        let messages: Vec<serde_json::Value> =
            serde_json::from_slice(&newest.body).expect("messages are JSON");
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0]["n"], appended - 1);
        if round % 2 == 0 {
            encke.kill();
        } else {
            assert_eq!(encke.terminate().code, Some(0));
        }
        let check = Ended::of(command(&["log", "check", "--quiet"]).arg(data.path()));
        assert_eq!(check.code, Some(0), "round {round}: {check:?}");
    }
}

/// Starts of the server.
const ROUNDS: u64 = 6;
/// Records of each round: some 4 MiB, of which 1 MiB is kept.
const RECORDS: u64 = 60;
