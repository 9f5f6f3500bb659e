//! Files that cannot be read: `/readyz` reports it as long as reads fail.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Connection, Encke, Response, can_use, data_dir, eventually, path};

/// While it lives, each read of a running server's files fails.
struct FailingReads(Child);

impl FailingReads {
    fn of(server: &Encke) -> FailingReads {
        let mut strace = strace(server.pid());
        let strace = strace
            .args(["-f", "-e", "inject=pread64:error=EIO"])
            .spawn();
        let failing = FailingReads(strace.expect("it worked before"));
        eventually("strace is attached", || is_traced(server.pid()));
        failing
    }

    /// Lets the server go on as before.
    fn stop(mut self) {
        self.detach();
    }

    fn detach(&mut self) {
        // At this signal strace detaches from the server.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let _ = self.0.wait();
    }
}

impl Drop for FailingReads {
    fn drop(&mut self) {
        self.detach();
    }
}

/// The command that attaches to a process.
fn strace(pid: u32) -> Command {
    let mut strace = Command::new("strace");
    let pid = pid.to_string();
    strace.args(["-qqq", "-o", "/dev/null", "-e", "trace=pread64", "-p", &pid]);
    strace.stdin(Stdio::null()).stderr(Stdio::null());
    strace
}

/// Whether all threads of a process are traced.
fn is_traced(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    threads.into_iter().all(|thread| {
        let status = thread.expect("it can be listed").path().join("status");
        // A thread that has ended meanwhile reads nothing any more.
        let status = std::fs::read_to_string(status).unwrap_or_default();
        !status.contains("TracerPid:\t0\n")
    })
}

fn strace_can_attach() -> bool {
    can_use("strace -p", || {
        let sleep = Command::new("sleep").arg("0.1").spawn();
        sleep.is_ok_and(|mut sleep| {
            let attached = strace(sleep.id()).status();
            let _ = sleep.wait();
            attached.is_ok_and(|status| status.success())
        })
    })
}

const SEGMENTS: [&str; 4] = ["--segment", "1MiB", "--body-max", "256KiB"];

/// A server that has records of `s` in files and not in memory.
fn with_records(data: &std::path::Path) -> Encke {
    let encke = Encke::start_in(data, &SEGMENTS);
    encke.create("s");
    for number in 0..20 {
        encke.connect().append("s", number);
    }
    assert_eq!(encke.terminate().code, Some(0));
    Encke::start_in(data, &SEGMENTS)
}

fn readyz(connection: &mut Connection) -> (u16, String) {
    let answer = connection.ask("GET", "/readyz", &[], b"");
    let why = String::from_utf8(answer.body).expect("it is text");
    (answer.status, why)
}

fn read(connection: &mut Connection) -> Response {
    connection.ask("GET", &format!("{}?offset=-1", path("s")), &[], b"")
}

#[test]
fn a_server_is_not_ready_while_reads_fail() {
    if !strace_can_attach() {
        return;
    }
    let data = data_dir();
    let encke = with_records(data.path());
    let mut connection = encke.connect();
    assert_eq!(readyz(&mut connection).0, 200);

    let failing = FailingReads::of(&encke);
    eventually("a read fails", || {
        encke
            .ask("GET", &format!("{}?offset=-1", path("s")), &[], b"")
            .status
            == 500
    });
    let (status, why) = readyz(&mut connection);
    assert_eq!(status, 503);
    assert!(
        why.contains("reads fail") && why.contains("Input/output error"),
        "{why}"
    );
    // What needs no read goes on, and proves nothing.
    assert_eq!(connection.ask("GET", "/healthz", &[], b"").status, 200);
    connection.append("s", 20);
    assert_eq!(readyz(&mut connection).0, 503);

    failing.stop();
    eventually("it is ready again", || readyz(&mut connection).0 == 200);
    let all = read(&mut connection);
    assert_eq!(all.status, 200);
    assert_eq!(encke.numbers("s"), (0..=20).collect::<Vec<_>>());
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_server_is_not_ready_while_history_takes_no_segments() {
    if !strace_can_attach() {
        return;
    }
    let data = data_dir();
    let encke = with_records(data.path());
    let mut connection = encke.connect();
    let body = format!("\"{}\"", "x".repeat(100 << 10));
    let mut append = || {
        let fields = [crate::rig::JSON];
        connection.ask("POST", &path("s"), &fields, body.as_bytes())
    };

    let failing = FailingReads::of(&encke);
    // A segment that is full is read on its way into history; with too many that wait, nothing more is taken.
    let mut taken = 20;
    loop {
        let answer = append();
        if answer.status != 204 {
            assert_eq!(answer.status, 503, "{answer:?}");
            break;
        }
        taken += 1;
        assert!(taken < 200, "history still takes segments");
    }
    let (status, why) = readyz(&mut encke.connect());
    assert_eq!(status, 503);
    assert!(
        why.contains("history in") && why.contains("Input/output error"),
        "{why}"
    );

    failing.stop();
    let mut other = encke.connect();
    eventually("it is ready again", || readyz(&mut other).0 == 200);
    eventually("it takes records again", || append().status == 204);
    assert_eq!(encke.messages("s").len(), taken + 1);
    assert_eq!(encke.terminate().code, Some(0));
}
