//! Streamed answers against a simulated server that is correct or faulty.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the server is made for other tests too")]

mod server;

use clap::Parser;
use encke_bench::load::{AnswersArgs, AnswersReport, TokenFaults, answers};
use server::{Behaviour, Server};
use std::sync::atomic::AtomicBool;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: AnswersArgs,
}

const ANSWERS: u64 = 4;
const TOKENS: u64 = 60;

/// Four answers of 60 tokens, in half a second if the machine has time.
fn run(server: &Server, more: &str) -> AnswersReport {
    let line = format!(
        "answers --url {} -n 4 --rate 120 --duration 500ms {more}",
        server.url
    );
    let mut args = Line::parse_from(line.split_ascii_whitespace()).args;
    args.servers.rounds = if args.servers.beside.is_some() { 2 } else { 1 };
    answers(&args, &AtomicBool::new(false)).unwrap()
}

fn assert_clean(report: &AnswersReport) {
    assert_eq!(report.exit_code(), 0, "{report}");
    let turn = &report.rounds[0][0];
    assert_eq!(turn.appended.tokens, ANSWERS * TOKENS, "{report}");
    assert_eq!(turn.delivered, 3 * ANSWERS * TOKENS, "{report}");
    assert_eq!(turn.faults, TokenFaults::default(), "{report}");
    let live = turn.latency.unwrap().count;
    assert_eq!(live + turn.caught_up, turn.delivered);
    // A reader that joins late has missed what came before.
    assert!(turn.caught_up > 0, "{report}");
}

#[test]
fn each_reader_gets_each_token_once_whether_events_have_ids_or_not() {
    for ids in [true, false] {
        for (content_type, batch) in [
            ("application/json", 1),
            ("application/json", 7),
            ("text/plain", 1),
            ("text/plain", 7),
        ] {
            let server = Server::start(Behaviour {
                chunked: true,
                ids,
                ..Behaviour::default()
            });
            let more = format!("--content-type {content_type} --batch {batch} --connections 3");
            let report = run(&server, &more);
            assert_clean(&report);
            let turn = &report.rounds[0][0];
            assert_eq!(turn.appended.appends, ANSWERS * TOKENS.div_ceil(batch));
            assert_eq!(turn.cuts, ANSWERS, "{report}");
            assert_eq!(turn.subscriptions_lost, 0, "{report}");
            assert!(turn.own.appends_late.is_some() && turn.own.batches.is_some());
        }
    }
}

#[test]
fn two_servers_take_turns() {
    let servers = [(); 2].map(|()| Server::start(Behaviour::default()));
    let pid = std::process::id();
    let more = format!("--beside {} --beside-pid {pid}", servers[1].url);
    let report = run(&servers[0], &more);
    assert_eq!(
        (report.rounds.len(), report.exit_code()),
        (2, 0),
        "{report}"
    );
    for turns in &report.rounds {
        assert!(turns[0].server_cpu_us_per_token().is_none());
        assert!(turns[1].server_cpu_us_per_token().is_some());
        assert!(turns[1].memory.is_some());
    }
    assert!(report.to_string().contains("2 B"), "{report}");
}

#[test]
fn lost_answers_refusals_and_closed_subscriptions_cost_no_token() {
    let server = Server::start(Behaviour {
        refuse_every: Some(31),
        lose_answer_every: Some(40),
        close_after: Some(9),
        ids: true,
        ..Behaviour::default()
    });
    let report = run(&server, "");
    assert_clean(&report);
    let turn = &report.rounds[0][0];
    assert!(
        turn.appended.repeated > 0 && turn.appended.refused[&503] > 0,
        "{report}"
    );
    assert!(turn.appended.connections_lost > 0, "{report}");
    assert!(turn.subscriptions_lost > 0, "{report}");
}

#[test]
fn faults_are_found_and_counted() {
    let faults = |behaviour| {
        let server = Server::start(behaviour);
        let report = run(&server, "--drain 500ms");
        assert_eq!(report.exit_code(), 1, "{report}");
        assert!(report.to_string().contains("FAULT in 1 A"), "{report}");
        report.rounds[0][0].faults
    };
    let lost = Behaviour {
        lost: vec![("*", 30)],
        ..Behaviour::default()
    };
    let missing = 3 * ANSWERS;
    assert_eq!(
        faults(lost),
        TokenFaults {
            missing,
            ..TokenFaults::default()
        }
    );
    let doubled = Behaviour {
        doubled: vec![("*", 30)],
        ..Behaviour::default()
    };
    let repeated = 3 * ANSWERS;
    assert_eq!(
        faults(doubled),
        TokenFaults {
            repeated,
            ..TokenFaults::default()
        }
    );
}
