//! Catch-up reads against a simulated server that answers in pages, and is correct or faulty.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the server is made for other tests too")]

mod server;

use clap::Parser;
use encke_bench::BenchError;
use encke_bench::load::{ReadArgs, ReadReport, RecordFaults, read};
use server::{Behaviour, Server};
use std::sync::atomic::AtomicBool;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReadArgs,
}

/// A stream of 1,001 records, which three readers read twice each.
fn run(server: &Server, more: &str) -> Result<ReadReport, BenchError> {
    let pid = std::process::id();
    let line = format!(
        "read {} --server-pid {pid} --size 999 --megabytes 1 -n 3 --times 2 --rounds 2 {more}",
        if more.contains("--url") {
            String::new()
        } else {
            format!("--url {}", server.url)
        }
    );
    let args = Line::parse_from(line.split_ascii_whitespace()).args;
    read(&args, &AtomicBool::new(false))
}

#[test]
fn two_servers_take_turns_and_every_byte_is_counted() {
    let servers = [(); 2].map(|()| Server::start(Behaviour::default()));
    let report = run(&servers[0], &format!("--beside {}", servers[1].url)).unwrap();
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(report.first_reads, [RecordFaults::default(); 2]);
    assert_eq!((report.records, report.stream_bytes), (1_002, 1_000_998));
    assert_eq!(report.rounds.len(), 2);
    for turns in &report.rounds {
        assert_eq!(turns.len(), 2);
        for turn in turns {
            assert_eq!((turn.bytes, turn.wrong), (6 * 1_000_998, 0), "{report}");
            // The server answers in pages of seven messages.
            assert_eq!(turn.responses, 6 * 1_002_u64.div_ceil(7));
            assert_eq!(turn.read.unwrap().count, 6);
        }
        assert!(turns[0].cost.server.as_ref().unwrap().rss_bytes_max > 0);
        assert!(turns[1].cost.server.is_none());
    }
    assert!(
        report
            .middle_ratio(|turn| Some(turn.bytes_per_second))
            .unwrap()
            > 0.0
    );
    assert!(
        report.to_string().contains("in the middle round"),
        "{report}"
    );
    assert_eq!(servers.each_ref().map(Server::stored), [1_002; 2]);
}

#[test]
fn a_server_that_refuses_now_and_then_gets_all_records_all_the_same() {
    let server = Server::start(Behaviour {
        refuse_every: Some(50),
        ..Behaviour::default()
    });
    let report = run(&server, "").unwrap();
    assert_eq!(report.exit_code(), 0, "{report}");
    assert_eq!(server.stored(), 1_002);
}

#[test]
fn faults_are_in_the_report() {
    for (lost, doubled, faults) in [
        (
            vec![("*", 5)],
            vec![],
            RecordFaults {
                missing: 1,
                ..RecordFaults::default()
            },
        ),
        (
            vec![],
            vec![("*", 5)],
            RecordFaults {
                repeated: 1,
                ..RecordFaults::default()
            },
        ),
    ] {
        let server = Server::start(Behaviour {
            lost,
            doubled,
            ..Behaviour::default()
        });
        let report = run(&server, "").unwrap();
        assert_eq!(report.first_reads, [faults], "{report}");
        assert!(report.rounds.iter().flatten().all(|turn| turn.wrong == 6));
        assert_eq!(report.exit_code(), 1);
        assert!(report.to_string().contains("FAULT of A"), "{report}");
    }
}

#[test]
fn old_records_have_others_behind_them_and_are_read_when_no_segment_waits() {
    for (segments_waiting, scrapes) in [(None, 1), (Some(2), 3)] {
        let server = Server::start(Behaviour {
            segments_waiting,
            ..Behaviour::default()
        });
        let report = run(&server, "--old 2").unwrap();
        assert_eq!((report.is_old, report.exit_code()), (true, 0), "{report}");
        assert_eq!(server.stored(), 1_002 + 2);
        assert_eq!(server.scrapes(), scrapes);
    }
}

#[test]
fn a_server_that_loses_an_answer_to_an_append_ends_the_run() {
    let server = Server::start(Behaviour {
        lose_answer_every: Some(100),
        ..Behaviour::default()
    });
    let error = run(&server, "").unwrap_err();
    assert!(error.to_string().ends_with("connection lost"), "{error}");
    assert!(matches!(
        run(&server, "--url https://127.0.0.1"),
        Err(BenchError::BadUrl { .. })
    ));
}
