//! Disks that fail, and disks that are full: writes are refused with a clear error, reads continue, nothing acknowledged is
//! lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::rig::{
    Connection, Encke, Fault, JSON, Response, can_use, data_dir, eventually, made_in, path, serve,
    strace_works,
};

fn new_dir(parent: &Path, name: &str) -> PathBuf {
    let dir = parent.join(name);
    std::fs::create_dir(&dir).expect("the parent is a directory of ours");
    dir
}

fn append(connection: &mut Connection, number: u64) -> u16 {
    let body = number.to_string();
    let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
    if answer.status != 204 {
        // A refusal names the reason.
        assert!(!answer.error_code().is_empty());
    }
    answer.status
}

/// Everything that a server whose log has failed still does, and what it does no more.
fn lives_on_without_its_log(encke: &Encke, acknowledged: &[u64]) {
    let mut connection = encke.connect();
    for number in 0..5 {
        assert_eq!(append(&mut connection, 1_000 + number), 503);
    }
    for (method, target) in [("PUT", "/v1/stream/new"), ("DELETE", "/v1/stream/s")] {
        let answer = connection.ask(method, target, &[], b"");
        assert_eq!(answer.status, 503, "{method}: {answer:?}");
    }
    let ready = connection.ask("GET", "/readyz", &[], b"");
    assert_eq!(ready.status, 503);
    let why = String::from_utf8(ready.body).expect("it is text");
    assert!(why.contains("Input/output error"), "{why}");
    assert_eq!(connection.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(
        connection.ask("GET", "/v1/stream/new", &[], b"").status,
        404
    );
    assert_eq!(encke.metric("encke_log_failed", ""), 1.0);
    assert_eq!(encke.numbers("s"), acknowledged);
    // Old and new subscribers are served with what there is, and stay.
    let mut late = encke.subscribe("s", "-1");
    assert_eq!(late.numbers(acknowledged.len()), acknowledged);
    late.catch_up();
    assert!(!late.closed);
    let poll = format!("{}?offset=now&live=long-poll", path("s"));
    assert_eq!(connection.ask("GET", &poll, &[], b"").status, 204);
}

#[test]
fn a_sync_that_fails_is_the_last() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = new_dir(dir.path(), "data");
    let flags = ["--tuning", "poll-wait=200ms"];
    // Only the first sync of a thread fails: a retry would succeed.
    let fault = Fault::new(&data, dir.path(), "fdatasync:error=EIO:when=1");
    let encke = Encke::start_by(&mut fault.serve(&data, &flags));
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "-1");
    let mut connection = encke.connect();
    let acknowledged: Vec<u64> = (0..10).collect();
    for number in &acknowledged {
        assert_eq!(append(&mut connection, *number), 204);
    }
    fault.arm();
    assert_eq!(append(&mut connection, 10), 503);
    lives_on_without_its_log(&encke, &acknowledged);
    // No client has seen a record that was not acknowledged.
    assert_eq!(subscriber.numbers(acknowledged.len()), acknowledged);
    encke.wait_for_log("the log has failed");
    let stopped = encke.terminate();
    assert_eq!(
        stopped.code,
        Some(1),
        "a stop that leaves a failed log is no success"
    );
    drop(subscriber);
    // What is there after a restart is what was acknowledged, and at most the append that was not.
    let encke = Encke::start_in(&data, &[]);
    let stored = encke.numbers("s");
    assert!(stored.starts_with(&acknowledged));
    assert!(stored.len() <= acknowledged.len() + 1, "{stored:?}");
    let mut connection = encke.connect();
    assert_eq!(append(&mut connection, 7), 204);
    assert_eq!(connection.ask("GET", "/readyz", &[], b"").status, 200);
}

#[test]
fn a_write_that_fails_is_the_last() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = new_dir(dir.path(), "data");
    let flags = ["--tuning", "poll-wait=200ms"];
    let fault = Fault::new(&data, dir.path(), "pwrite64:error=EIO");
    let encke = Encke::start_by(&mut fault.serve(&data, &flags));
    encke.create("s");
    let mut connection = encke.connect();
    let acknowledged: Vec<u64> = (0..10).collect();
    for number in &acknowledged {
        assert_eq!(append(&mut connection, *number), 204);
    }
    fault.arm();
    assert_eq!(append(&mut connection, 10), 503);
    lives_on_without_its_log(&encke, &acknowledged);
    encke.kill();
    let encke = Encke::start_in(&data, &[]);
    assert_eq!(encke.numbers("s"), acknowledged);
}

/// A log that cannot state a new segment does not acknowledge records in it.
#[test]
fn a_superblock_that_cannot_be_written_loses_nothing() {
    if !strace_works() {
        return;
    }
    for error in ["ENOSPC", "EIO"] {
        let dir = data_dir();
        let data = new_dir(dir.path(), "data");
        let flags = ["--segment", "1MiB", "--body-max", "256KiB"];
        let fault = Fault::new(&data, dir.path(), &format!("pwrite64:error={error}"));
        let fault = fault.on(&["superblock-0", "superblock-1"]);
        let encke = Encke::start_by(&mut fault.serve(&data, &flags));
        encke.create("s");
        let mut connection = encke.connect();
        let body =
            |number: u64| format!("{{\"n\":{number},\"pad\":\"{}\"}}", "x".repeat(100 << 10));
        let mut append = |number: u64| {
            let body = body(number);
            connection.ask("POST", &path("s"), &[JSON], body.as_bytes())
        };
        assert_eq!(append(0).status, 204);
        fault.arm();
        let refused = (1..=RECORDS).find(|number| append(*number).status != 204);
        let refused = refused.expect("a later segment is not begun");
        let answer = append(refused);
        assert!(matches!(answer.status, 503 | 507), "{error}: {answer:?}");
        encke.kill();
        let encke = Encke::start_in(&data, &flags);
        let messages = encke.messages("s");
        let numbers: Vec<u64> = messages
            .iter()
            .filter_map(|one| one["n"].as_u64())
            .collect();
        let acknowledged: Vec<u64> = (0..refused).collect();
        assert!(
            numbers.starts_with(&acknowledged),
            "{error}: {numbers:?}, {refused} acknowledged"
        );
    }
    /// More than two segments hold.
    const RECORDS: u64 = 40;
}

/// A full disk that has no room for the statement of a new segment fails no log, and appends are taken again when there is room.
#[test]
fn a_superblock_without_room_poisons_nothing() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = new_dir(dir.path(), "data");
    let flags = ["--segment", "1MiB", "--body-max", "256KiB"];
    // The first calls of each thread fail.
    let fault = Fault::new(&data, dir.path(), "pwrite64:error=ENOSPC:when=1..6");
    let fault = fault.on(&["superblock-0", "superblock-1"]);
    let mut traced = fault.serve(&data, &flags);
    let encke = Encke::start_by(traced.env("ENCKE_LOG", "warn"));
    encke.create("s");
    let mut connection = encke.connect();
    let pad = "x".repeat(100 << 10);
    let mut acknowledged = Vec::new();
    let mut append = |number: u64| {
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        if answer.status == 204 {
            acknowledged.push(number);
        } else {
            is_full(&answer);
        }
        answer.status == 204
    };
    assert!(append(0));
    fault.arm();
    // More than eight segments hold, each of which is stated.
    for number in 1..100 {
        append(number);
    }
    eventually("appends are taken again", || append(100));
    eventually("history has taken what waited", || {
        encke.metric("encke_log_history_failed", "") == 0.0
            && encke.metric("encke_log_segments_waiting", "") == 0.0
    });
    assert_eq!(encke.metric("encke_log_poisoned", ""), 0.0);
    assert_eq!(encke.metric("encke_log_failed", ""), 0.0);
    encke.wait_for_log("no room to state a segment");
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
    encke.kill();
    let encke = Encke::start_in(&data, &flags);
    let messages = encke.messages("s");
    let numbers = messages.iter().filter_map(|one| one["n"].as_u64());
    assert!(numbers.eq(acknowledged));
}

/// A file system of a few megabytes that only processes in its own mount namespace see.
pub(crate) struct SmallDisk {
    holder: Child,
    pub(crate) at: tempfile::TempDir,
}

impl SmallDisk {
    pub(crate) fn of(size: &str) -> Option<SmallDisk> {
        let at = data_dir();
        let unshare = |script: &str| {
            let mut command = Command::new("unshare");
            if rustix::process::geteuid().is_root() {
                command.arg("-m");
            } else {
                command.arg("-Urm");
            }
            command.args(["sh", "-c", script, size]).arg(at.path());
            command.stdin(Stdio::null());
            command
        };
        let mount = "mount -t tmpfs -o size=\"$0\" tmpfs \"$1\"";
        let works = || unshare(mount).status().is_ok_and(|status| status.success());
        if !can_use("a mount namespace", works) {
            return None;
        }
        let holder = unshare(&format!("{mount} && touch \"$1/there\" && exec sleep 600"))
            .spawn()
            .expect("it worked before");
        let disk = SmallDisk { holder, at };
        eventually("the disk is there", || disk.path("there").exists());
        Some(disk)
    }

    /// A command that runs where the disk is seen.
    pub(crate) fn enter(&self, serve: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("-t")
            .arg(self.holder.id().to_string())
            // Its root and its working directory, too: in a changed root, the namespace alone leads to those of the machine.
            .args(["-m", "-r", "-w"]);
        if !rustix::process::geteuid().is_root() {
            command.args(["-U", "--preserve-credentials"]);
        }
        command
            .arg(serve.get_program())
            .args(serve.get_args())
            .env("ENCKE_LOG", "warn");
        command
    }

    /// A file on the disk, as it is seen from outside.
    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        let root = format!("/proc/{}/root", self.holder.id());
        let at = self.at.path().strip_prefix("/").expect("it is absolute");
        Path::new(&root).join(at).join(name)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The disk goes with the last process that sees it.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The answer of a full disk, whether it is the log or history that finds no room.
fn is_full(answer: &Response) {
    let code = answer.error_code();
    assert_eq!((answer.status, &*code), (507, "disk_full"), "{answer:?}");
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    const PAD: usize = 100 << 10;
    let Some(disk) = SmallDisk::of("48m") else {
        return;
    };
    // What will be deleted when there has to be room again.
    let filler = disk.path("filler");
    std::fs::write(&filler, vec![1; 24 << 20]).expect("there is room for it");
    let flags = ["--segment", "1MiB", "--body-max", "256KiB"];
    let data = disk.at.path().join("data");
    let command = serve(&data, &flags);
    let encke = Encke::start_by(&mut disk.enter(&command));
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "-1");
    let mut connection = encke.connect();
    let pad = "x".repeat(PAD);
    let mut append = |number: u64| {
        let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
        connection.ask("POST", &path("s"), &[JSON], body.as_bytes())
    };
    let mut acknowledged = Vec::new();
    let refused = loop {
        let number = acknowledged.len() as u64;
        let answer = append(number);
        match answer.status {
            204 => acknowledged.push(number),
            _ => break answer,
        }
        assert!(number < 1_000, "the disk is never full");
    };
    is_full(&refused);
    assert!(acknowledged.len() > 50, "only {}", acknowledged.len());
    // It says so, and everything that was taken is there. What goes into history makes a little room now and then.
    while encke.refused("507") < 4 {
        let number = acknowledged.len() as u64;
        let answer = append(number);
        if answer.status == 204 {
            acknowledged.push(number);
        } else {
            is_full(&answer);
        }
        assert!(number < 1_000, "the disk is no longer full");
    }
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    let numbers = |encke: &Encke| -> Vec<u64> {
        encke
            .messages("s")
            .iter()
            .map(|message| message["n"].as_u64().expect("a message of ours"))
            .collect()
    };
    assert_eq!(numbers(&encke), acknowledged);
    for number in &acknowledged {
        assert_eq!(subscriber.message().expect("it was sent")["n"], *number);
    }
    // There is room again; the server notices it by itself.
    std::fs::remove_file(&filler).expect("it is there");
    eventually("appends are taken again", || {
        let number = acknowledged.len() as u64;
        let answer = append(number);
        if answer.status == 204 {
            acknowledged.push(number);
            return true;
        }
        is_full(&answer);
        std::thread::sleep(Duration::from_millis(20));
        false
    });
    // What history could not take before it tries again, at most a second later.
    eventually("history has taken what waited", || {
        encke.metric("encke_log_history_failed", "") == 0.0
            && encke.metric("encke_log_segments_waiting", "") == 0.0
    });
    let live_from = acknowledged.len() - 1;
    for _ in 0..20 {
        let number = acknowledged.len() as u64;
        assert_eq!(append(number).status, 204);
        acknowledged.push(number);
    }
    for number in &acknowledged[live_from..] {
        assert_eq!(subscriber.message().expect("it was sent")["n"], *number);
    }
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
    // And none of it was only a promise.
    drop(subscriber);
    encke.kill();
    let encke = Encke::start_by(&mut disk.enter(&command));
    assert_eq!(numbers(&encke), acknowledged);
}

/// At level accepted a full disk leaves behind what was acknowledged and can't be written. Who catches up waits for it, and
/// costs next to nothing meanwhile.
#[test]
fn catching_up_with_unwritten_records_of_a_full_disk_does_not_spin() {
    const PAD: usize = 100 << 10;
    let Some(disk) = SmallDisk::of("24m") else {
        return;
    };
    let filler = disk.path("filler");
    std::fs::write(&filler, vec![1; 12 << 20]).expect("there is room for it");
    let flags = [
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
        "--ring",
        "1MiB",
        "--ack",
        "accepted",
    ];
    let data = disk.at.path().join("data");
    let encke = Encke::start_by(&mut disk.enter(&serve(&data, &flags)));
    encke.create("s");
    let pad = "x".repeat(PAD);
    let mut connection = encke.connect();
    let mut acknowledged = 0;
    loop {
        let body = format!("{{\"n\":{acknowledged},\"pad\":\"{pad}\"}}");
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        if answer.status != 204 {
            is_full(&answer);
            break;
        }
        acknowledged += 1;
        assert!(acknowledged < 1_000, "the disk is never full");
    }
    // They read what there is, or they would wait for their sockets only.
    let late: Vec<_> = (0..4)
        .map(|_| {
            let mut subscriber = encke.subscribe("s", "-1");
            std::thread::spawn(move || {
                for number in 0..acknowledged {
                    assert_eq!(subscriber.message().expect("it is sent")["n"], number);
                }
            })
        })
        .collect();
    // Four of them, four times a second, once they have read what there is; without a pause it is tens of thousands.
    eventually("they ask a few times a second", || {
        let begin = Instant::now();
        let before = encke.metric("encke_catch_ups_total", "");
        std::thread::sleep(Duration::from_secs(1));
        let asked = encke.metric("encke_catch_ups_total", "") - before;
        asked < 100.0 * begin.elapsed().as_secs_f64()
    });
    // The room comes back, and with it the rest.
    std::fs::remove_file(&filler).expect("it is there");
    for reader in late {
        reader.join().expect("it got everything");
    }
}

#[test]
fn a_full_disk_of_one_log_leaves_the_others_working() {
    let Some(disk) = SmallDisk::of("12m") else {
        return;
    };
    let data = data_dir();
    std::os::unix::fs::symlink(disk.at.path(), data.path().join("log-1")).unwrap();
    let flags = ["--logs", "2", "--segment", "1MiB", "--body-max", "256KiB"];
    let encke = Encke::start_by(&mut disk.enter(&serve(data.path(), &flags)));
    let names: Vec<String> = (0..8).map(|number| format!("stream-{number}")).collect();
    names.iter().for_each(|name| encke.create(name));
    let body = format!("\"{}\"", "x".repeat(200 << 10));
    let mut connection = encke.connect();
    // Which streams share the small disk is in the first segment there.
    let in_small = made_in(&disk.path(""), &names);
    assert!(
        (1..names.len()).contains(&in_small.len()),
        "each log has some: {in_small:?}"
    );
    let mut stored: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused = 0;
    let mut rounds = 0;
    // A full log refuses, takes what history has made room for, and refuses again. The other takes everything all the time.
    while refused < 20 {
        for name in &names {
            let answer = connection.ask("POST", &path(name), &[JSON], body.as_bytes());
            if answer.status == 204 {
                *stored.entry(name).or_default() += 1;
            } else {
                is_full(&answer);
                assert!(in_small.contains(name), "{name} is in the other log");
                refused += 1;
            }
        }
        rounds += 1;
        assert!(rounds < 200, "the disk is never full");
    }
    for name in &names {
        assert_eq!(encke.messages(name).len(), stored[&**name], "{name}");
    }
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
}
