//! What the tests stand on: a running Encke, raw connections to it, and subscribers.
//!
//! Nothing here knows HTTP libraries: what goes over the wire is written down byte by byte, and what comes back is read
//! strictly, so that a malformed answer fails the test that got it.

mod bystanders;
mod connection;
mod faults;
mod process;
mod subscriber;

pub(crate) use bystanders::Bystanders;
pub(crate) use connection::{Connection, Response, request};
pub(crate) use faults::{Fault, first_segment, strace_works, traced, wait_for_sync};
pub(crate) use process::{
    Encke, Ended, JSON, command, data_dir, made_in, newest_segment, path, serve,
};
pub(crate) use subscriber::Subscriber;

use std::time::{Duration, Instant};

/// How long anything may take that is expected to happen: far more than it needs, because tests share their cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again until the answer is yes. Panics with `what` when patience runs out.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
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

/// Whether a tool that only some tests need is there. Where it is missing the test says so and passes, except in
/// continuous integration, where everything has to be there.
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
