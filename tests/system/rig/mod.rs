//! The rig of the tests: a running Encke, raw connections to it, and subscribers.
//!
//! No HTTP library: requests are written byte by byte, and responses are parsed strictly, so that a malformed response fails the
//! test.

mod broker;
mod broker_proxy;
mod bystanders;
mod chunks;
mod clock;
mod connection;
mod faults;
pub(crate) mod http2;
mod incompressible;
mod memory;
mod overdue;
mod process;
mod snapshot;
mod subscriber;
mod tls;
mod webhook;
pub(crate) mod websocket;

pub(crate) use broker::Brokers;
pub(crate) use broker_proxy::BrokerProxy;
pub(crate) use bystanders::Bystanders;
pub(crate) use clock::SteppedClock;
pub(crate) use connection::{Connection, Response, connect_from, request};
pub(crate) use faults::{Call, Fault, Slowed, first_segment, strace_works, traced, wait_for_sync};
pub(crate) use incompressible::Incompressible;
pub(crate) use memory::{anonymous_memory_bytes, found_on_stacks};
pub(crate) use process::{
    Encke, Ended, JSON, command, data_dir, made_in, newest_segment, operators_address, path, serve,
    serve_on, without_settings,
};
pub(crate) use snapshot::{Snapshot, copy_any, copy_tree, names_below, remove_any};
pub(crate) use subscriber::Subscriber;
pub(crate) use tls::{Authority, CertificateFiles, TlsClient, text};
pub(crate) use webhook::{Answer, Call as WebhookCall, Receiver};

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use chunks::Chunks;

/// How long a test waits for an expected condition: far longer than it needs, because tests share their cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Polls a condition until it is true. Panics with `what` after [`PATIENCE`].
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ends a wait in which nothing but heartbeats comes.
pub(crate) fn still_waits(begin: Instant) {
    assert!(begin.elapsed() < PATIENCE, "nothing but heartbeats comes");
}

/// Ends what threads of a scope do until this is set, also if the test fails: the scope waits for them.
pub(crate) struct SetWhenDropped<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Stops a process until it is continued. Its threads go on for a moment after the signal, on a busy machine for long.
pub(crate) fn freeze(process: Pid) {
    kill_process(process, Signal::STOP).expect("it is ours");
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    eventually("all threads of the process stand still", || {
        let mut tasks = std::fs::read_dir(&tasks).expect("it is ours");
        tasks.all(|task| {
            let stat = std::fs::read_to_string(task.expect("it is ours").path().join("stat"));
            // Behind the name, which may hold anything, comes the state.
            let stat = stat.unwrap_or_default();
            stat.rsplit_once(')')
                .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    });
}

/// Lets this process open as many files as the system allows; tests with many clients need it.
pub(crate) fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("a process may use what it is allowed");
}

/// Whether a tool that only some tests need works here. Otherwise such a test prints that and passes, except in continuous
/// integration, where it fails.
pub(crate) fn can_use(tool: &str, works: impl FnOnce() -> bool) -> bool {
    if works() {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "{tool} does not work here, and CI is set"
    );
    eprintln!("SKIPPED: {tool} does not work here");
    false
}
