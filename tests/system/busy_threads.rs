//! No thread is busy in a failed state: what cannot be done is tried again after a pause.

use std::path::Path;

use crate::rig::{
    Connection, Encke, Fault, JSON, Response, data_dir, eventually, path, request, strace_works,
};

const FLAGS: [&str; 12] = [
    "--segment",
    "1MiB",
    "--body-max",
    "256KiB",
    "--tuning",
    "heartbeat=1s",
    "--tuning",
    // Changed streams go to history and leave memory at once.
    "streams-idle=1s",
    "--tuning",
    "waiting-segments-max=2",
    "--tuning",
    "poll-wait=1s",
];

/// A server with streams that all kinds of periodic work are for, and a subscriber.
struct Tired {
    encke: Encke,
    subscriber: Connection,
    publisher: Connection,
}

impl Tired {
    fn new(encke: Encke) -> Tired {
        encke.create("s");
        for name in ["short", "shorter"] {
            let lifetime = [JSON, "Stream-TTL: 1"];
            let made = encke.ask("PUT", &path(name), &lifetime, b"[1]");
            assert_eq!(made.status, 201, "{made:?}");
        }
        let aged = [JSON, "Encke-Retention: age=1"];
        let made = encke.ask("PUT", &path("aged"), &aged, b"[1,2,3]");
        assert_eq!(made.status, 201, "{made:?}");
        let mut subscriber = encke.connect();
        let target = format!("{}?offset=now&live=sse", path("s"));
        subscriber.send(&request("GET", &target, &[], b""));
        assert_eq!(subscriber.head().status, 200);
        Tired {
            publisher: encke.connect(),
            encke,
            subscriber,
        }
    }

    fn append(&mut self) -> Response {
        let body = format!("\"{}\"", "x".repeat(100 << 10));
        self.publisher
            .ask("POST", &path("s"), &[JSON], body.as_bytes())
    }

    /// Appends until that is refused.
    fn fill(&mut self) {
        let refused = (0..APPENDS_MAX).any(|_| self.append().status != 204);
        assert!(refused, "the log takes everything");
    }

    /// No thread uses more than a part of the time in which the subscriber gets a number of heartbeats. A busy machine makes this
    /// time longer, and gives the threads less of it.
    fn rests(&mut self, state: &str) {
        self.heartbeats(3);
        let before = self.encke.cpu_seconds_of_threads();
        self.heartbeats(BEATS);
        let after = self.encke.cpu_seconds_of_threads();
        for (thread, seconds) in after {
            let used = seconds - before.get(&thread).unwrap_or(&0.0);
            let allowed = BEATS as f64 / 5.0;
            assert!(used < allowed, "{state}: {thread:?} used {used} s");
        }
    }

    fn heartbeats(&mut self, count: usize) {
        let mut seen = 0;
        while seen < count {
            assert!(self.subscriber.fill(), "the server hung up");
            let input = std::mem::take(self.subscriber.input());
            seen += input.windows(3).filter(|at| at == b":\n\n").count();
        }
    }
}

#[test]
#[ignore = "long: make test-all"]
fn of_a_log_whose_directory_is_gone() {
    let dir = data_dir();
    let data = dir.path().join("data");
    let mut tired = Tired::new(Encke::start_in(&data, &FLAGS));
    assert_eq!(tired.append().status, 204);
    remove(&data);
    tired.rests("its directory is gone");
    tired.fill();
    tired.rests("it refuses writes");
}

#[test]
#[ignore = "long: make test-all"]
fn of_a_log_whose_history_is_gone() {
    let dir = data_dir();
    let data = dir.path().join("data");
    let mut tired = Tired::new(Encke::start_in(&data, &FLAGS));
    assert_eq!(tired.append().status, 204);
    remove(&data.join("history"));
    tired.fill();
    tired.rests("history takes nothing");
}

#[test]
#[ignore = "long: make test-all"]
fn of_a_log_that_cannot_be_written_to() {
    if !strace_works() {
        return;
    }
    for inject in [
        "fdatasync:error=EIO",
        "pwrite64:error=EIO",
        "pwrite64:error=ENOSPC",
    ] {
        for level in ["synced", "accepted"] {
            let dir = data_dir();
            let data = dir.path().join("data");
            std::fs::create_dir(&data).expect("the directory is ours");
            let fault = Fault::new(&data, dir.path(), inject);
            let fault = fault.on(&[&first_segment(), "superblock-0", "superblock-1"]);
            let flags = [&FLAGS[..], &["--ack", level]].concat();
            let mut tired = Tired::new(Encke::start_by(&mut fault.serve(&data, &flags)));
            assert_eq!(tired.append().status, 204);
            fault.arm();
            tired.fill();
            tired.rests(&format!("{inject}, {level}"));
        }
    }
}

/// Removes a directory in which threads may still make files.
fn remove(directory: &Path) {
    eventually("the directory is gone", || {
        let _ = std::fs::remove_dir_all(directory);
        !directory.exists()
    });
}

fn first_segment() -> String {
    let segment = crate::rig::first_segment(Path::new(""));
    segment.to_string_lossy().into_owned()
}

/// More than the segments hold that may wait for history.
const APPENDS_MAX: usize = 200;

/// Heartbeats in which threads are watched.
const BEATS: usize = 4;
