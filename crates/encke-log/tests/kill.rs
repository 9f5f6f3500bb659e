//! `kill -9` at random moments: a child process writes as fast as it can and prints what is acknowledged. It is killed,
//! and every printed record must be there.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod counting;

use counting::{RAISE, Record, User};
use encke_log::simulated::Random;
use encke_log::{Files, Options};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        done_bytes_max: 256 << 10,
        ..Options::default()
    }
}

/// Appends the record of the next sequence. Every child writes the same records, so the parent knows their content.
fn append(user: &mut User<Files>) -> Record {
    let sequence = user.log.next_sequence();
    let mut random = Random::new(sequence);
    let stream = 1 + random.below(20);
    match random.below(100) {
        0 => user.append(RAISE, vec![stream], (sequence / 2).to_le_bytes().to_vec()),
        1 => user.append(1, vec![stream, stream + 1], vec![1; 300]),
        _ => {
            let payload = (0..random.below(300))
                .map(|_| random.next() as u8)
                .collect();
            user.append(2, vec![stream], payload)
        }
    }
}

/// The child: runs only when the parent names a directory.
#[test]
fn child() {
    let Ok(directory) = std::env::var("ENCKE_KILL_DIRECTORY") else {
        return;
    };
    let mut user = User::open(Files::lock(Path::new(&directory)).unwrap(), options()).unwrap();
    let mut out = std::io::stdout().lock();
    let mut random = Random::new(std::process::id().into());
    loop {
        for _ in 0..1 + random.below(50) {
            append(&mut user);
        }
        user.write().unwrap();
        user.log.sync().unwrap();
        user.publish();
        writeln!(out, "acknowledged {}", user.log.next_sequence() - 1).unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let rounds = std::env::var("ENCKE_CRASH_ROUNDS").map_or(8, |rounds| rounds.parse().unwrap());
    let mut directory = tempfile::tempdir().unwrap();
    let mut random = Random::new(u64::from(std::process::id()));
    let mut records: Vec<Record> = Vec::new();
    for round in 0..rounds {
        if records.len() > 200_000 {
            // Each round checks all records, so the log must stay small.
            directory = tempfile::tempdir().unwrap();
            records.clear();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env("ENCKE_KILL_DIRECTORY", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let watcher = std::thread::spawn(move || {
            // Lines of the test harness are ignored, and a line that the kill has cut off is no acknowledgement.
            let acknowledged =
                |line: String| line.strip_prefix("acknowledged ")?.parse::<usize>().ok();
            lines
                .map_while(Result::ok)
                .filter_map(acknowledged)
                .last()
                .unwrap_or(0)
        });
        std::thread::sleep(Duration::from_millis(50 + random.below(400)));
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = watcher.join().unwrap();

        let user = User::open(Files::lock(directory.path()).unwrap(), options()).unwrap();
        let found = user.log.next_sequence() as usize - 1;
        let context = format!("round {round}: {acknowledged} acknowledged, {found} found");
        assert!(found >= acknowledged.max(records.len()), "{context}");
        records = expected(found, records);
        user.check(&records, 10_000, &context);
        drop(user);
    }
    assert!(!records.is_empty(), "the child never wrote anything");
}

/// The first `found` records; `known` are the first of them.
fn expected(found: usize, mut known: Vec<Record>) -> Vec<Record> {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        history: false,
        ..options()
    };
    // The same code makes the records of the child, in a temporary log.
    let mut user = User::open(Files::lock(directory.path()).unwrap(), options).unwrap();
    known.clear();
    while known.len() < found {
        known.push(append(&mut user));
    }
    known
}
