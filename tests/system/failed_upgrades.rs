//! Upgrades that fail late: the server that has closed its log serves again, and no other process gets the log in between.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::fleet::node;
use crate::rig::{
    Brokers, Encke, JSON, Subscriber, command, data_dir, eventually, serve, strace_works, traced,
};
use crate::upgrades::{append, program, upgrade, upgraded};

/// A successor that says what it has to say until the log is closed, and then runs these lines of Python. It takes its shape from the
/// arguments of the server.
fn successor(then: &str) -> (TempDir, PathBuf) {
    program(&format!("exec python3 -c '{UNTIL_CLOSED}{then}' \"$@\""))
}

const UNTIL_CLOSED: &str = r#"
import array, fcntl, json, os, socket, struct, subprocess, sys, time
wire = socket.socket(fileno=os.dup(0))
def tell(message):
    body = json.dumps(message).encode()
    wire.sendall(struct.pack(">I", len(body)) + body)
def hear():
    length = struct.unpack(">I", wire.recv(4, socket.MSG_WAITALL))[0]
    return json.loads(wire.recv(length, socket.MSG_WAITALL))
def take(count):
    while count > 0:
        _, parts, _, _ = wire.recvmsg(1, socket.CMSG_SPACE(250 * 4))
        for _, _, data in parts:
            got = array.array("i", data)
            count -= len(got)
            for one in got: os.close(one)
arguments = sys.argv
data = os.path.realpath(arguments[arguments.index("--data") + 1])
shards = int(arguments[arguments.index("--shards") + 1]) if "--shards" in arguments else os.cpu_count()
shape = {"data": data, "listen": "127.0.0.1:0", "admin_listen": None, "shards": shards, "tls": False, "proxy_protocol": False}
formats = {"superblock": [1, 1], "segments": [1, 1], "states of streams": [4, 8]}
tell({"prepared": {"version": "almost", "forms": [1, 1], "data": formats, "shape": shape, "takes_locks": True}})
callers = closed = False
while not (callers and closed):
    message = hear()
    if message == "log_closed": closed = True
    elif "listeners" in message: take(message["listeners"]["clients"] + message["listeners"]["operators"])
    elif "connections" in message: take(len(message["connections"]))
    elif "directories" in message: take(message["directories"]["count"])
    elif "callers" in message: callers = True
"#;

/// Another process holds the lock of the log, as one that an earlier version excludes, until there is a file of that name, or its
/// directory is gone.
fn holds_lock_until(release: &Path) -> String {
    let (release, held) = (release.display(), release.with_extension("held"));
    let held = held.display();
    format!(
        r#"
if os.fork() == 0:
    wire.close()
    os.close(0)
    lock = open(data + "/lock", "rb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    open("{held}", "w").close()
    while os.path.exists("{held}") and not os.path.exists("{release}"): time.sleep(0.01)
    os._exit(0)
while not os.path.exists("{held}"): time.sleep(0.01)
"#
    )
}

/// Each step of an upgrade may take long beside other builds.
const PATIENT: [&str; 2] = ["--tuning", "upgrade-timeout=10m"];

/// A server with a subscriber of the stream `a` that has read its first record.
fn followed(data: &Path) -> (Encke, Subscriber) {
    let encke = Encke::start_in(data, &PATIENT);
    encke.create("a");
    append(&encke, "a", 1);
    let mut follower = encke.subscribe("a", "-1");
    assert_eq!(follower.numbers(1), [1]);
    (encke, follower)
}

#[test]
fn no_other_process_gets_the_log_while_it_is_handed_over() {
    let data = data_dir();
    let (encke, mut follower) = followed(data.path());
    let checks = data.path().with_extension("checks");
    let program_of_checks = env!("CARGO_BIN_EXE_encke");
    let (_directory, file) = successor(&format!(
        r#"
checks = [subprocess.run(["{program_of_checks}", "log", "check", data], capture_output=True) for _ in range(2)]
open("{}", "w").write(json.dumps([check.stderr.decode() for check in checks]))
"#,
        checks.display()
    ));
    let ended = upgrade(data.path(), &["--program", file.to_str().expect("ours")]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("the successor has ended"),
        "{ended:?}"
    );
    let text = std::fs::read_to_string(&checks).expect("the checks were made");
    let _ = std::fs::remove_file(&checks);
    let refusals: Vec<String> = serde_json::from_str(&text).expect("ours");
    assert_eq!(refusals.len(), 2);
    for refusal in refusals {
        assert!(refusal.contains("is in use by"), "{refusal}");
    }
    append(&encke, "a", 2);
    assert_eq!(follower.numbers(1), [2]);
    // A successor that serves has the lock, and the last process releases it.
    upgraded(data.path());
    let check = |says: &str| {
        let ended = crate::rig::Ended::of(command(&["log", "check"]).arg(data.path()));
        assert!(
            ended.stderr.contains(says) || ended.stdout.contains(says),
            "{ended:?}"
        );
    };
    check("is in use by");
    assert_eq!(encke.terminate().code, Some(0));
    check("sound");
}

#[test]
fn a_server_that_can_not_serve_again_yet_retries() {
    let data = data_dir();
    let (encke, mut follower) = followed(data.path());
    let aside = data_dir();
    let release = aside.path().join("release");
    let (_directory, file) = successor(&holds_lock_until(&release));
    std::thread::scope(|scope| {
        let file = file.to_str().expect("ours");
        let asking = scope.spawn(|| upgrade(data.path(), &["--program", file]));
        eventually("the server retries", || {
            encke.log().matches("can't serve again yet").count() >= 3
        });
        assert!(!asking.is_finished(), "it is answered when it serves");
        std::fs::write(&release, "").expect("it is ours");
        let ended = asking.join().expect("the command");
        assert_eq!(ended.code, Some(1), "{ended:?}");
    });
    append(&encke, "a", 2);
    assert_eq!(follower.numbers(1), [2]);
    assert_eq!(upgraded(data.path())["moved"], json!(1));
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_server_that_retries_stops_cleanly() {
    let data = data_dir();
    let (encke, mut follower) = followed(data.path());
    let aside = data_dir();
    let release = aside.path().join("release");
    let (_directory, file) = successor(&holds_lock_until(&release));
    let mut asking = command(&["upgrade", "--program"]);
    let mut asking = asking
        .arg(&file)
        .arg(data.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    eventually("the server retries", || {
        encke.log().contains("can't serve again yet")
    });
    assert_eq!(encke.terminate().code, Some(0));
    assert_eq!(follower.rest(), [0; 0], "its connection has ended");
    std::fs::write(&release, "").expect("it is ours");
    asking.wait().expect("it ends with the server");
}

#[test]
fn a_server_does_not_retry_over_data_that_it_can_not_read_after_a_one_way_upgrade() {
    let data = data_dir();
    let (encke, mut follower) = followed(data.path());
    let (_directory, file) = successor(
        r#"
for name in ("superblock-0", "superblock-1"):
    with open(data + "/" + name, "r+b") as superblock: superblock.write(b"of another format")
"#,
    );
    let mut asking = command(&["upgrade", "--one-way", "--program"]);
    let ended = crate::rig::Ended::of(asking.arg(&file).arg(data.path()));
    assert_ne!(ended.code, Some(0), "{ended:?}");
    let ended = encke.wait();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(!ended.log.contains("retries"), "{ended:?}");
    assert_eq!(follower.rest(), [0; 0], "its connection has ended");
}

#[test]
fn a_node_that_can_not_serve_again_retries_until_a_broker_answers() {
    let Some(brokers) = Brokers::start(1) else {
        return;
    };
    let data = data_dir();
    let encke = node(
        &brokers,
        "a",
        data.path(),
        &[&["--fleet-silence-max", "5s"][..], &PATIENT[..]].concat(),
    );
    encke.create("a");
    let mut idle = encke.connect();
    assert_eq!(idle.ask("GET", "/", &[], b"").status, 200);
    brokers.freeze(0);
    let (_directory, file) = successor("");
    std::thread::scope(|scope| {
        let file = file.to_str().expect("ours");
        let asking = scope.spawn(|| upgrade(data.path(), &["--program", file]));
        eventually("the node retries", || {
            encke.log().contains("can't serve again yet")
        });
        brokers.thaw(0);
        let ended = asking.join().expect("the command");
        assert_eq!(ended.code, Some(1), "{ended:?}");
    });
    eventually("an append is acknowledged", || {
        idle.ask("POST", "/v1/stream/a", &[JSON], b"1").status == 204
    });
    assert_eq!(encke.terminate().code, Some(0));
}

/// Upgrades to a successor that ends when the log is closed. `inject`: a call that fails when the server starts again.
fn survives(inject: &str) {
    let data = data_dir();
    let how = ["-o", "/dev/null", "-e", inject];
    let flags = [&["--shards", "2"][..], &PATIENT[..]].concat();
    let mut server = traced(how, &serve(data.path(), &flags));
    server.env("ENCKE_LOG", "warn");
    let encke = Encke::start_by(&mut server);
    encke.create("a");
    let mut follower = encke.subscribe("a", "-1");
    let (_directory, file) = successor("");
    let ended = upgrade(data.path(), &["--program", file.to_str().expect("ours")]);
    assert_eq!(ended.code, Some(1), "{inject}: {ended:?}");
    append(&encke, "a", 1);
    assert_eq!(follower.numbers(1), [1], "{inject}");
    let log = encke.log();
    assert_eq!(encke.terminate().code, Some(0), "{inject}: {log}");
}

#[test]
fn calls_that_fail_when_the_server_starts_again_cost_nothing() {
    if !strace_works() {
        return;
    }
    for inject in [
        // Each shard has one.
        "inject=epoll_create1:error=EMFILE:when=3",
        "inject=epoll_create1:error=EMFILE:when=4",
        // The first call is that of the first start.
        "inject=flock:error=EIO:when=4..6",
    ] {
        survives(inject);
    }
}

/// The number of threads and processes that the main thread of a server has started.
pub(crate) fn clones(trace: &Path, main: u32) -> usize {
    let text = std::fs::read_to_string(trace).unwrap_or_default();
    let main = main.to_string();
    let of_main = |line: &&str| line.split_whitespace().next() == Some(&main);
    let begun = |line: &&str| line.contains("clone3(") || line.contains("clone(");
    text.lines().filter(of_main).filter(begun).count()
}

#[test]
#[ignore = "starts a server for each thread that a server starts"]
fn threads_that_can_not_be_created_cost_nothing() {
    if !strace_works() {
        return;
    }
    let (data, aside) = (data_dir(), data_dir());
    let trace = aside.path().join("trace");
    let output = trace.to_str().expect("it is text");
    let how = ["-o", output, "-e", "trace=clone,clone3"];
    let flags = [&["--shards", "2"][..], &PATIENT[..]].concat();
    let encke = Encke::start_by(&mut traced(how, &serve(data.path(), &flags)));
    let before = clones(&trace, encke.pid());
    let (_directory, file) = successor("");
    let ended = upgrade(data.path(), &["--program", file.to_str().expect("ours")]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let after = clones(&trace, encke.pid());
    assert!(before > 10 && after > before + 10, "{before} to {after}");
    assert_eq!(encke.terminate().code, Some(0));
    for clone in before + 1..=after {
        survives(&format!("inject=clone3:error=EAGAIN:when={clone}"));
    }
}

#[test]
fn the_successor_of_an_upgraded_server_is_not_left_behind_when_that_stops() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    upgraded(data.path());
    // A process that ends by a signal, as a successor that has not begun to catch them.
    let (directory, file) = program("touch \"${0%/*}/begun\"; while true; do sleep 0.05; done");
    let mut asking = command(&["upgrade", "--program"]);
    let mut asking = asking
        .arg(&file)
        .arg(data.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    eventually("a successor is being prepared", || {
        directory.path().join("begun").exists()
    });
    assert_eq!(encke.terminate().code, Some(0));
    asking.wait().expect("it ends with the server");
}

#[test]
fn a_signal_that_comes_directly_and_by_the_first_process_is_one() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("a");
    // A request in work keeps the server from stopping at once.
    let report = upgraded(data.path());
    let successor = report["process"].as_i64().expect("a process") as i32;
    let successor = rustix::process::Pid::from_raw(successor).expect("a number");
    let mut slow = encke.connect();
    slow.send(b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1\r\n\r\n");
    eventually("the request is in work", || {
        encke.metric("encke_connections", "") >= 2.0
    });
    // As a shell or a service manager does that signals all processes.
    rustix::process::kill_process(successor, Signal::TERM).expect("it is ours");
    encke.signal(Signal::TERM);
    slow.send(b"1");
    assert_eq!(encke.wait().code, Some(0));
}

#[test]
fn a_successor_that_ends_when_it_is_to_serve_costs_the_connections_and_not_the_server() {
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &PATIENT);
    encke.create("a");
    append(&encke, "a", 1);
    let mut follower = encke.subscribe("a", "-1");
    assert_eq!(follower.numbers(1), [1]);
    // It says everything that a successor says up to the last word.
    let (_directory, file) = successor("tell(\"ready\")\nhear()\n");
    let ended = upgrade(data.path(), &["--program", file.to_str().expect("ours")]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("its connections are lost"),
        "{ended:?}"
    );
    assert_eq!(follower.rest(), [0; 0], "its connection has ended");
    append(&encke, "a", 2);
    assert_eq!(encke.messages("a").len(), 2);
    assert_eq!(upgraded(data.path())["closed"], json!(0));
    assert_eq!(encke.terminate().code, Some(0));
}
