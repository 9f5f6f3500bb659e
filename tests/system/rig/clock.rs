//! A time of day that a test can set, for servers under libfaketime.

use std::fs::{rename, write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

use tempfile::TempDir;

use super::{can_use, data_dir};

/// The time of day of servers, apart from that of the machine. Their steady clocks are the machine's.
pub(crate) struct SteppedClock {
    library: PathBuf,
    dir: TempDir,
    ahead_s: AtomicI64,
}

/// The library that `make test` installs, or that of the system.
fn library() -> Option<PathBuf> {
    let exported = std::env::var_os("LIBFAKETIME").map(PathBuf::from);
    let installed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../target/tools/libfaketime.so.1"
    );
    let of_system = std::fs::read_dir("/usr/lib").into_iter().flatten();
    let of_system = of_system
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    exported
        .into_iter()
        .chain([installed.into()])
        .chain(of_system)
        .find(|path| path.is_file())
}

impl SteppedClock {
    /// A clock that is right. `None` if there is no libfaketime here.
    pub(crate) fn new() -> Option<SteppedClock> {
        let library = library();
        if !can_use("libfaketime", || library.is_some()) {
            return None;
        }
        let clock = SteppedClock {
            library: library?,
            dir: data_dir(),
            ahead_s: AtomicI64::new(0),
        };
        clock.step(0);
        Some(clock)
    }

    /// Has a command live by this clock.
    pub(crate) fn applied_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Sets the time of day forward, or back, by so many seconds.
    pub(crate) fn step(&self, by_s: i64) {
        let ahead_s = self.ahead_s.fetch_add(by_s, Ordering::SeqCst) + by_s;
        // Servers read the file whenever they look at the time.
        let next = self.dir.path().join("next");
        write(&next, format!("{ahead_s:+}\n")).expect("a file can be written");
        rename(&next, self.file()).expect("a file can be renamed");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("offset")
    }
}
