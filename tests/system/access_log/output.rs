//! The output: one that blocks or fails does not stop the server, what is dropped is counted, and files are rotated.

use std::io::BufRead;

use rustix::process::Signal;
use serde_json::Value;

use super::{Logged, entry, lines};
use crate::rig::{Encke, data_dir, eventually, request, serve};

#[test]
fn a_full_queue_drops_and_counts() {
    // Standard output is not read, so the pipe is full after some lines, and then the queue.
    let mut encke = Encke::start(&["--access-log", "json", "--tuning", "access-log-queue=4KiB"]);
    let mut connection = encke.connect();
    let target = format!("/{}", "x".repeat(2000));
    eventually("the pipe and the queue are full", || {
        for _ in 0..10 {
            assert_eq!(connection.ask("GET", &target, &[], b"").status, 404);
        }
        encke.metric("encke_access_log_dropped_total", "queue_full") > 0.0
            && encke.metric("encke_mailbox_depth", "access-log") > 0.0
    });
    // The server serves.
    encke.create("s");
    connection.append("s", 1);
    assert_eq!(encke.numbers("s"), [1]);
    // When the output is read again, entries that were not dropped come out, whole.
    let stdout = encke.take_stdout();
    let reader = std::thread::spawn(move || {
        let lines = stdout.lines().map(|line| line.expect("text"));
        lines.inspect(|line| drop(entry(line))).count()
    });
    // The queue is empty again, so later requests are logged.
    eventually("the queue has room", || {
        encke.metric("encke_mailbox_bytes", "access-log") < 1.0
    });
    let dropped = encke.metric("encke_access_log_dropped_total", "");
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    eventually("the queue has room", || {
        encke.metric("encke_mailbox_bytes", "access-log") < 1.0
    });
    assert_eq!(encke.metric("encke_access_log_dropped_total", ""), dropped);
    assert_eq!(encke.terminate().code, Some(0));
    assert!(reader.join().expect("every line is an entry") > 10);
}

#[test]
fn a_stop_writes_what_was_accepted() {
    const REQUESTS: usize = 5000;
    let mut encke = Encke::start(&["--access-log", "json"]);
    let stdout = encke.take_stdout();
    let mut connection = encke.connect();
    let one = request("GET", "/healthz", &[], b"");
    connection.send(&one.repeat(REQUESTS));
    for _ in 0..REQUESTS {
        assert_eq!(connection.answer().status, 200);
    }
    // Read only now: much still waits in the queue.
    encke.signal(Signal::TERM);
    let lines = stdout.lines().map(|line| line.expect("text"));
    let paths: Vec<Value> = lines.map(|line| entry(&line)["path"].clone()).collect();
    assert_eq!(paths, vec![Value::from("/healthz"); REQUESTS]);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn an_output_that_blocks_or_fails_does_not_stop_the_server() {
    // A pipe that is full when the server stops, a pipe without a reader, and a full disk.
    let serves = |encke: &Encke, stream: &str| {
        encke.create(stream);
        encke.connect().append(stream, 1);
        assert_eq!(encke.numbers(stream), [1]);
    };
    let full_pipe = Encke::start(&["--access-log", "json"]);
    let target = format!("/{}", "x".repeat(2000));
    let mut connection = full_pipe.connect();
    for _ in 0..200 {
        assert_eq!(connection.ask("GET", &target, &[], b"").status, 404);
    }
    serves(&full_pipe, "s");
    let stopped = full_pipe.terminate();
    assert_eq!(stopped.code, Some(0));
    assert!(
        stopped.log.contains("the access log's output is blocked"),
        "{}",
        stopped.log
    );

    let mut no_reader = Encke::start(&["--access-log", "json"]);
    drop(no_reader.take_stdout());
    serves(&no_reader, "s");
    eventually("the lines are counted", || {
        no_reader.metric("encke_access_log_dropped_total", "unwritable") >= 3.0
    });
    let stopped = no_reader.terminate();
    assert_eq!(stopped.code, Some(0));
    assert_eq!(
        stopped
            .log
            .matches("the access log can't be written")
            .count(),
        1
    );

    let full = [
        "--access-log",
        "combined",
        "--tuning",
        "access-log-file=/dev/full",
    ];
    let full_disk = Encke::start(&full);
    serves(&full_disk, "s");
    eventually("the lines are counted", || {
        full_disk.metric("encke_access_log_dropped_total", "unwritable") >= 3.0
    });
    assert_eq!(full_disk.metric("encke_access_log_lines_total", ""), 0.0);
    assert_eq!(full_disk.terminate().code, Some(0));
}

#[test]
fn a_hang_up_opens_the_file_again() {
    let logged = Logged::start("json", &[]);
    assert_eq!(logged.encke.ask("GET", "/healthz", &[], b"").status, 200);
    logged.entries(1);
    let rotated = logged.file.with_extension("1");
    std::fs::rename(&logged.file, &rotated).expect("it is ours");
    logged.encke.signal(Signal::HUP);
    eventually("a new file has lines", || {
        assert_eq!(logged.encke.ask("GET", "/readyz", &[], b"").status, 200);
        !lines(&logged.file).is_empty()
    });
    let old = lines(&rotated);
    assert_eq!(entry(&old[0])["path"], "/healthz");
    assert!(
        old[1..]
            .iter()
            .chain(&lines(&logged.file))
            .all(|line| entry(line)["path"] == "/readyz")
    );
    let nowhere = [
        "--access-log",
        "json",
        "--tuning",
        "access-log-file=/nowhere/log",
    ];
    let ended = Encke::try_start_by(&mut serve(data_dir().path(), &nowhere));
    let ended = ended.err().expect("it does not start");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("/nowhere/log"), "{ended:?}");
}
