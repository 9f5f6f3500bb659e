//! A thread that fails: the server does not continue without it. It stops in order, says why, and starts again with all records. A thread that
//! the system refuses ends a start before anybody is served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::failed_upgrades::clones;
use crate::ports::fixed_port;
use crate::rig::{
    Encke, SetWhenDropped, Slowed, data_dir, eventually, serve_on, strace_works, traced,
};

#[test]
fn a_shard_that_fails_stops_the_server_in_order() {
    if !strace_works() {
        return;
    }
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--shards", "2"]);
    encke.create("s");
    encke.connect().append("s", 1);
    let waits = "epoll_wait,epoll_pwait,epoll_pwait2";
    let slowed = Slowed::new(&encke, "shard-1", &format!("{waits}:error=EBADF"));
    let stopped = encke.wait();
    drop(slowed);
    assert_eq!(stopped.code, Some(1), "{}", stopped.log);
    let why = "the thread shard-1 has failed";
    assert!(stopped.log.contains(why), "{}", stopped.log);
    let encke = Encke::start_in(data.path(), &[]);
    eventually("it serves", || {
        encke.ask("GET", "/readyz", &[], b"").status == 200
    });
    assert_eq!(encke.numbers("s"), [1]);
    assert_eq!(encke.terminate().code, Some(0));
}

const FLAGS: [&str; 4] = ["--shards", "2", "--access-log", "combined"];

/// How many threads the first thread of a server starts before the server prints where it listens.
fn threads_of_a_start() -> usize {
    let (data, aside) = (data_dir(), data_dir());
    let trace = aside.path().join("trace");
    let how = [
        "-o",
        trace.to_str().expect("text"),
        "-e",
        "trace=clone,clone3",
    ];
    let serve = serve_on("127.0.0.1:0", data.path(), &FLAGS);
    let encke = Encke::start_by(&mut traced(how, &serve));
    encke.create("s");
    let threads = clones(&trace, encke.pid());
    assert_eq!(encke.terminate().code, Some(0));
    threads
}

/// All that clients of this address get until `ended`.
fn received(address: SocketAddr, ended: &AtomicBool) -> Vec<u8> {
    let mut all = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        if let Ok(mut client) = TcpStream::connect(address) {
            let sent = client.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
            let mut answer = [0; 100];
            all.extend(
                sent.and_then(|()| client.read(&mut answer))
                    .map_or(&[][..], |count| &answer[..count]),
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    all
}

/// A start fails if the system refuses all threads from that number on, and no client is served before.
fn refuses_to_start(first_refused: usize) {
    let data = data_dir();
    let address = SocketAddr::from(([127, 0, 0, 1], fixed_port()));
    let inject = format!("inject=clone3:error=EAGAIN:when={first_refused}+");
    let serve = serve_on(&address.to_string(), data.path(), &FLAGS);
    let how = ["-o", "/dev/null", "-e", &inject];
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = SetWhenDropped(&ended);
        let clients = scope.spawn(|| received(address, &ended));
        let started = Encke::try_start_by(&mut traced(how, &serve));
        let refused = started.err().expect("it does not start");
        drop(ends);
        assert!(
            matches!(refused.code, Some(1 | 3)),
            "{first_refused}: {refused:?}"
        );
        let says = refused.stderr.contains("Resource temporarily unavailable");
        assert!(
            says && !refused.stderr.contains("panicked"),
            "{first_refused}: {refused:?}"
        );
        let received = clients.join().expect("no panic");
        assert!(
            received.is_empty(),
            "{first_refused}: {}",
            String::from_utf8_lossy(&received)
        );
    });
}

#[test]
fn nobody_is_served_before_all_threads_exist() {
    if !strace_works() {
        return;
    }
    let threads = threads_of_a_start();
    assert!(threads > 15, "{threads}");
    // Those of the log, of the shards, and what comes behind them.
    for first_refused in [
        1,
        2,
        threads / 2,
        threads - 3,
        threads - 2,
        threads - 1,
        threads,
    ] {
        refuses_to_start(first_refused);
    }
}

#[test]
#[ignore = "starts a server for each thread that a server starts"]
fn every_refused_thread_ends_a_start_cleanly() {
    if strace_works() {
        (1..=threads_of_a_start()).for_each(refuses_to_start);
    }
}

#[test]
fn a_server_that_gets_no_more_threads_stops_cleanly() {
    if !strace_works() {
        return;
    }
    let data = data_dir();
    let inject = format!(
        "inject=clone3:error=EAGAIN:when={}+",
        threads_of_a_start() + 1
    );
    let serve = serve_on("127.0.0.1:0", data.path(), &FLAGS);
    let encke = Encke::start_by(&mut traced(["-o", "/dev/null", "-e", &inject], &serve));
    encke.create("s");
    encke.connect().append("s", 1);
    assert_eq!(encke.terminate().code, Some(0));
    let encke = Encke::start_in(data.path(), &[]);
    assert_eq!(encke.numbers("s"), [1]);
}
