//! Ports for servers that tests stop and start again.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// Returns a free port that this process keeps to itself, also while its server does not run. It is below those that the system gives to
/// connections.
pub(crate) fn fixed_port() -> u16 {
    // A lock for each port excludes other test processes; it ends with the process.
    static LOCKS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let mut locks = LOCKS.lock().expect("no thread panics with it");
    let begin = std::process::id().wrapping_mul(97);
    for number in 0..PORTS {
        let port = (FIRST + begin.wrapping_add(number) % PORTS) as u16;
        let path = std::env::temp_dir().join(format!("encke-test-port-{port}"));
        // The file of another user cannot be opened.
        let Ok(lock) = File::create(path) else {
            continue;
        };
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            locks.push(lock);
            return port;
        }
    }
    panic!("there is no free port");
}

const FIRST: u32 = 20_000;

/// Tests in other languages, which run beside these, use the ports from 28,000 to 31,999. Linux gives those from 32,768 on to connections by default.
const PORTS: u32 = 8_000;
