//! Ports for servers that tests stop and start again.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A free port below those that the system gives to connections, so that none takes it while its server is not there.
pub(crate) fn fixed_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes of tests that run at the same time begin at different places.
    let begin = std::process::id().wrapping_mul(97);
    loop {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        assert!(given < PORTS, "there is a free port");
        let port = (FIRST + begin.wrapping_add(given) % PORTS) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

const FIRST: u32 = 20_000;

/// Linux gives ports from 32,768 on to connections by default.
const PORTS: u32 = 12_000;
