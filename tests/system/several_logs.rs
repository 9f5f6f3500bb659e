//! Several logs: streams are spread over them, and the failure of one does not affect the others.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::multi_stream::MultiStream;
use crate::rig::{Encke, Ended, JSON, data_dir, eventually, path, serve};

const LOGS: [&str; 2] = ["--logs", "3"];

const STREAMS: u64 = 40;

fn name(number: u64) -> String {
    format!("stream-{number}")
}

fn fork_name(number: u64) -> String {
    format!("fork-{number}")
}

fn fork(encke: &Encke, name: &str, source: &str) -> u16 {
    let source = format!("Stream-Forked-From: {}", path(source));
    encke.ask("PUT", &path(name), &[JSON, &source], b"").status
}

/// The beginnings of a log's segments: what is written first.
fn beginning(log: &Path) -> Vec<u8> {
    let files = std::fs::read_dir(log).expect("a log's directory");
    let mut beginnings = Vec::new();
    for file in files {
        let path = file.expect("a file").path();
        if path.is_file() {
            let file = File::open(path).expect("it can be read");
            let read = file.take(64 << 10).read_to_end(&mut beginnings);
            read.expect("it can be read");
        }
    }
    beginnings
}

/// Whether a log's beginning has a record that makes the stream of that name.
fn makes(beginning: &[u8], name: &str) -> bool {
    // The name with its length before, and behind it the length of its type.
    let needle = [&[name.len() as u8], name.as_bytes(), b"\x10"].concat();
    beginning
        .windows(needle.len())
        .any(|window| window == needle)
}

#[test]
fn what_was_acknowledged_is_in_all_logs_after_a_kill() {
    for level in ["synced", "written"] {
        let data = data_dir();
        let flags = [&LOGS[..], &["--ack", level]].concat();
        let encke = Encke::start_in(data.path(), &flags);
        for stream in 0..STREAMS {
            encke.create(&name(stream));
        }
        let mut connection = encke.connect();
        for number in 0..3 * STREAMS {
            connection.append(&name(number % STREAMS), number);
        }
        let mut used = BTreeSet::new();
        // A fork is in its source's log, wherever its name is at home.
        for stream in 0..STREAMS {
            assert_eq!(fork(&encke, &fork_name(stream), &name(stream)), 201);
            connection.append(&fork_name(stream), 1_000 + stream);
        }
        let logs: Vec<Vec<u8>> = (0..3)
            .map(|log| beginning(&data.path().join(format!("log-{log}"))))
            .collect();
        for stream in 0..STREAMS {
            let having: Vec<_> = (0..3)
                .filter(|log| makes(&logs[*log], &name(stream)))
                .collect();
            let [log] = having[..] else {
                panic!("{} is in {having:?}", name(stream))
            };
            assert!(makes(&logs[log], &fork_name(stream)));
            used.insert(log);
        }
        assert_eq!(used.len(), 3);
        encke.kill();
        let encke = Encke::start_in(data.path(), &flags);
        for stream in 0..STREAMS {
            let own: Vec<u64> = (0..3).map(|round| round * STREAMS + stream).collect();
            assert_eq!(encke.numbers(&name(stream)), own);
            assert_eq!(
                encke.numbers(&fork_name(stream)),
                [&own[..], &[1_000 + stream]].concat()
            );
            // The names are taken, wherever the streams are.
            assert_eq!(
                encke
                    .ask("PUT", &path(&fork_name(stream)), &[JSON], b"")
                    .status,
                409
            );
        }
        // A name is free when its stream is deleted, and then its next stream is at home.
        for stream in 0..STREAMS {
            let deleted = encke.ask("DELETE", &path(&fork_name(stream)), &[], b"");
            assert_eq!(deleted.status, 204);
            encke.create(&fork_name(stream));
        }
        let mut connection = encke.connect();
        for stream in 0..STREAMS {
            connection.append(&fork_name(stream), stream);
        }
        encke.kill();
        let encke = Encke::start_in(data.path(), &flags);
        for stream in 0..STREAMS {
            assert_eq!(encke.numbers(&fork_name(stream)), [stream]);
        }
        assert_eq!(encke.metric("encke_streams", ""), 2.0 * STREAMS as f64);
    }
}

#[test]
fn metrics_tell_logs_and_levels_apart() {
    let encke = Encke::start(&LOGS);
    for stream in 0..STREAMS {
        encke.create(&name(stream));
    }
    let of_log =
        |metric: &str| [0, 1, 2].map(|log| encke.metric(metric, &format!("log=\"{log}\"")) as u64);
    // Counters follow the acknowledgements.
    eventually("all creations are counted", || {
        of_log("encke_log_records_total").iter().sum::<u64>() == STREAMS
    });
    let made = of_log("encke_log_records_total");
    let mut connection = encke.connect();
    for stream in 0..STREAMS {
        for (count, level) in [(1, "synced"), (2, "written"), (4, "accepted")] {
            let ack = format!("Encke-Ack: {level}");
            for _ in 0..count {
                let answer = connection.ask("POST", &path(&name(stream)), &[JSON, &ack], b"1");
                assert_eq!(answer.status, 204);
            }
        }
        // What is refused, and what is there already, is no change.
        let refused = connection.ask("POST", &path("nobody"), &[JSON], b"1");
        assert_eq!(refused.status, 404);
        let again = connection.ask("PUT", &path(&name(stream)), &[JSON], b"");
        assert_eq!(again.status, 200);
    }
    let acknowledged = |level: &str, log: &str| {
        let labels = format!("level=\"{level}\",log=\"{log}");
        encke.metric("encke_acknowledged_total", &labels) as u64
    };
    // Each stream's creation is synced, too.
    let levels = [("synced", 2), ("written", 2), ("accepted", 4)];
    eventually("all acknowledgements are counted", || {
        let counted = |(level, count)| acknowledged(level, "") == count * STREAMS;
        levels.into_iter().all(counted)
    });
    for (level, count) in levels {
        for (log, made) in made.into_iter().enumerate() {
            assert_eq!(acknowledged(level, &log.to_string()), count * made);
        }
    }
    eventually("everything is committed", || {
        of_log("encke_log_records_total") == made.map(|made| 8 * made)
    });
    eventually("everything is in the streams", || {
        encke.metric("encke_records_total", "") as u64 == 8 * STREAMS
    });
    for metric in ["encke_log_bytes_total", "encke_log_syncs_total"] {
        let of_log = of_log(metric);
        assert!(of_log.iter().all(|value| *value > 5), "{metric} {of_log:?}");
    }
    assert_eq!(of_log("encke_log_segment_bytes"), [64 << 20; 3]);
    assert_eq!(of_log("encke_log_poisoned"), [0; 3]);
    for log in 0..3 {
        let longest = encke.metric("encke_log_longest_stall_seconds", &format!("\"{log}\""));
        assert!(longest > 0.0, "every write takes some time");
    }
}

#[test]
fn the_number_of_logs_is_never_another() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &LOGS);
    encke.create("a");
    encke.kill();
    for wrong in ["1", "2", "4"] {
        let refused = Ended::of(&mut serve(data.path(), &["--logs", wrong]));
        assert_ne!(refused.code, Some(0));
        assert!(
            refused.stderr.contains("holds 3 logs, not"),
            "{}",
            refused.stderr
        );
    }
    let checked = Ended::of(&mut serve(data.path(), &["--check"]));
    assert_eq!(checked.code, Some(3));
    let message = "The server would not start: the number of logs";
    assert!(checked.stdout.contains(message), "{}", checked.stdout);
    // A disk that is not mounted is no empty log.
    std::fs::rename(data.path().join("log-1"), data.path().join("away")).unwrap();
    std::fs::create_dir(data.path().join("log-1")).unwrap();
    let refused = Ended::of(&mut serve(data.path(), &LOGS));
    assert!(
        refused
            .stderr
            .contains("does not say that this is log 1 of"),
        "{}",
        refused.stderr
    );
    std::fs::remove_dir(data.path().join("log-1")).unwrap();
    std::fs::rename(data.path().join("away"), data.path().join("log-1")).unwrap();
    let encke = Encke::start_in(data.path(), &LOGS);
    assert_eq!(encke.numbers("a"), [0_u64; 0]);

    let one = data_dir();
    Encke::start_in(one.path(), &[]).kill();
    let refused = Ended::of(&mut serve(one.path(), &LOGS));
    assert!(
        refused.stderr.contains("holds one log, not 3 logs"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_subscriber_goes_on_when_the_only_stream_of_a_log_ends() {
    let encke = Encke::start(&["--logs", "3", "--shards", "1"]);
    let names: Vec<String> = (0..9).map(|number| format!("n{number}")).collect();
    names.iter().for_each(|name| encke.create(name));
    // Of these, some are alone in their log.
    for end in ["DELETE", "POST"] {
        for first in 0..3 {
            let three = [first, first + 3, first + 6].map(|at| names[at].as_str());
            let query = three.map(|name| format!("stream={name}")).join("&");
            let mut several = MultiStream::open(&encke, &query, None);
            let closes = ["Stream-Closed: true", JSON];
            let ended = encke.ask(
                end,
                &path(three[0]),
                &closes[..2 * usize::from(end == "POST")],
                b"",
            );
            assert_eq!(ended.status, 204, "{ended:?}");
            let event = several.event().expect("an end");
            assert_eq!(
                (&*event.name, &event.data["stream"]),
                ("end", &three[0].into())
            );
            for name in &three[1..] {
                let body = b"[1]";
                assert_eq!(encke.ask("POST", &path(name), &[JSON], body).status, 204);
                let event = several.event().expect("a record");
                assert_eq!(event.data["stream"], **name);
            }
            if end == "DELETE" {
                encke.create(three[0]);
            }
        }
    }
}
