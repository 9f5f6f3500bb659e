//! A copy of the directory of a running server is refused, or it holds everything that was acknowledged before the copy began.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::base::flags;
use super::damage::Random;
use super::number;
use crate::rig::{Encke, Ended, JSON, copy_tree, data_dir, eventually, path, serve};

#[test]
fn a_copy_of_a_live_directory_is_whole_or_refused() {
    let data = data_dir();
    let flags = flags(1);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Encke::start_in(data.path(), &flags);
    server.create("live");
    let first = number("ENCKE_CRASH_SEED").unwrap_or(1);
    let copies = number("ENCKE_CRASH_ROUNDS").map_or(COPIES, |rounds| rounds.min(COPIES_MAX));
    let (allowed, acknowledged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let refused = Mutex::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut connection = server.connect();
            for number in 0..copies as usize * RECORDS {
                eventually("the next copy begins", || {
                    number < allowed.load(Ordering::Acquire)
                });
                let body = body(number);
                let answer = connection.ask("POST", &path("live"), &[JSON], body.as_bytes());
                assert_eq!(answer.status, 204, "{answer:?}");
                acknowledged.store(number + 1, Ordering::Release);
            }
        });
        for seed in first..first + copies {
            let begun = allowed.fetch_add(RECORDS, Ordering::AcqRel);
            // The copy begins at different moments, and the rest is appended beside it.
            let due = begun + Random::new(seed).below(RECORDS / 2);
            eventually("records are acknowledged", || {
                acknowledged.load(Ordering::Acquire) >= due || writer.is_finished()
            });
            let due = acknowledged.load(Ordering::Acquire);
            let copy = data_dir();
            copy_live(data.path(), copy.path(), &mut Random::new(seed));
            match Encke::try_start_by(&mut serve(copy.path(), &flags)) {
                Ok(copied) => is_whole(&copied, due),
                Err(ended) => {
                    is_refused_by_name(&ended, copy.path());
                    *refused.lock().expect("no thread panics with it") += 1;
                }
            }
        }
    });
    eprintln!("{refused:?} of {copies} copies were refused");
    assert_eq!(server.terminate().code, Some(0));
    let copy = data_dir();
    copy_tree(data.path(), copy.path());
    is_whole(
        &Encke::start_in(copy.path(), &flags),
        copies as usize * RECORDS,
    );
}

/// The first `due` records are there, and no record is missing before the last one.
fn is_whole(server: &Encke, due: usize) {
    let messages = server.messages("live");
    assert!(messages.len() >= due, "{} of {due}", messages.len());
    for (number, message) in messages.iter().enumerate() {
        assert_eq!(message["n"], number);
    }
}

fn is_refused_by_name(ended: &Ended, copy: &Path) {
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let is_named = ended.stderr.contains(&copy.display().to_string());
    assert!(is_named && !ended.stderr.contains("panicked"), "{ended:?}");
}

fn body(number: usize) -> String {
    let pad = format!("<{number}>").repeat((8 << 10) + number * 7_919 % (2 << 10));
    format!("{{\"n\":{number},\"pad\":\"{pad}\"}}")
}

/// Copies what a directory holds while it changes: its names are listed first, then the files are copied in any order.
fn copy_live(from: &Path, to: &Path, random: &mut Random) {
    let (mut files, mut open) = (Vec::new(), vec![from.to_owned()]);
    while let Some(directory) = open.pop() {
        let below = directory.strip_prefix(from).expect("it is below");
        std::fs::create_dir_all(to.join(below)).expect("it can be made");
        // A directory or a file can vanish at any time.
        for entry in std::fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                open.push(path);
            } else if path.is_file() {
                files.push(path);
            }
        }
    }
    random.shuffle(&mut files);
    for file in files {
        let below = file.strip_prefix(from).expect("it is below");
        match std::fs::copy(&file, to.join(below)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
    }
}

/// Copies, unless `ENCKE_CRASH_ROUNDS` says how many; then at most [`COPIES_MAX`].
const COPIES: u64 = 12;
const COPIES_MAX: u64 = 100;
/// Records for each copy: some three segments.
const RECORDS: usize = 60;
