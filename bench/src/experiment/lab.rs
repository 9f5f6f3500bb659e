//! The environment of experiments: size, disk, progress and interruption.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::units::bytes;

use super::Setup;
use crate::BenchError;
use crate::load::progress::Progress;
use crate::machine::free_disk_bytes;

/// The environment of a run. Its directory is removed with it.
pub(crate) struct Lab<'a> {
    pub(crate) size: f64,
    /// The server's program.
    pub(crate) program: PathBuf,
    /// The program of the brokers of a fleet.
    pub(crate) broker: PathBuf,
    duration: Option<Duration>,
    folder: PathBuf,
    stop: &'a AtomicBool,
    progress: Progress,
    /// The same, for lines that come at intervals.
    due: Mutex<Progress>,
}

impl<'a> Lab<'a> {
    /// Makes the run's directory inside `setup.data`, which must exist.
    pub(crate) fn new(setup: &Setup, stop: &'a AtomicBool) -> Result<Self, BenchError> {
        let program = match &setup.encke {
            Some(program) => program.clone(),
            None => std::env::current_exe()
                .map_err(BenchError::system("find this program"))?
                .with_file_name("encke"),
        };
        let name = format!("encke-bench-{}", std::process::id());
        let folder = setup.data.join(name);
        std::fs::create_dir(&folder).map_err(BenchError::file("make", &folder))?;
        Ok(Self {
            size: setup.size,
            program,
            broker: setup.broker.clone(),
            duration: setup.duration,
            folder,
            stop,
            progress: Progress::new(None),
            due: Mutex::new(Progress::new(None)),
        })
    }

    /// How long to publish: as asked for, or `full` at full size and less below.
    pub(crate) fn duration(&self, full: Duration) -> Duration {
        let scaled = full.mul_f64(self.size.min(1.0)).max(DURATION_MIN);
        self.duration.unwrap_or(scaled)
    }

    /// The report's number at this run's size, but not less than `least`.
    pub(crate) fn scaled(&self, full: u64, least: u64) -> u64 {
        ((full as f64 * self.size).round() as u64).max(least)
    }

    /// How often everything is measured where the middle one counts: `full` times, and once in a run that is only a look.
    pub(crate) fn rounds(&self, full: u32) -> u32 {
        if self.size < 0.1 { 1 } else { full }
    }

    /// Prints a line of progress.
    pub(crate) fn say(&self, what: &str) {
        self.progress.say(what);
    }

    /// Prints a line of progress, if one is due.
    pub(crate) fn say_when_due(&self, what: impl FnOnce() -> String) {
        let progress = self.due.lock();
        let mut progress = progress.unwrap_or_else(PoisonError::into_inner);
        progress.when_due(what);
    }

    /// Seconds since the run began.
    pub(crate) fn seconds(&self) -> f64 {
        self.progress.seconds()
    }

    /// Returns an error when the run was interrupted.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        Ok(())
    }

    /// Sleeps, until the run is interrupted.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            self.check()?;
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    /// For loops that look at it themselves.
    pub(crate) fn stop(&self) -> &AtomicBool {
        self.stop
    }

    /// The directory of the run, on the disk that is measured.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A directory of that name, empty, and removed when the answer is dropped.
    pub(crate) fn scratch(&self, name: &str) -> Result<Scratch, BenchError> {
        Scratch::make(self.folder.join(name))
    }

    /// The same in memory, where no write waits for a disk.
    pub(crate) fn scratch_in_memory(&self, name: &str) -> Result<Scratch, BenchError> {
        let name = format!("encke-bench-{}-{name}", std::process::id());
        Scratch::make(Path::new(MEMORY).join(name))
    }
}

/// Why nothing can be stored in memory here; `None` if it can.
pub(crate) fn no_memory_disk() -> Option<String> {
    match free_disk_bytes(Path::new(MEMORY)) {
        Ok(bytes) if bytes >= MEMORY_BYTES_MIN => None,
        Ok(free) => Some(format!(
            "{MEMORY} has {} free and {} are needed",
            bytes(free),
            bytes(MEMORY_BYTES_MIN)
        )),
        Err(error) => Some(error.to_string()),
    }
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        // It holds nothing but what the run has made; what can't be removed is not worth an error any more.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A directory for a while.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn make(path: PathBuf) -> Result<Self, BenchError> {
        std::fs::create_dir(&path).map_err(BenchError::file("make", &path))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The shortest time of publishing in a scaled-down run.
const DURATION_MIN: Duration = Duration::from_millis(500);

/// A file system in memory, on Linux.
pub(crate) const MEMORY: &str = "/dev/shm";

/// The space for a server's log there: the prepared segments, and a minute's load.
const MEMORY_BYTES_MIN: u64 = 2 << 30;

/// How often a sleep checks for an interruption.
const LOOK: Duration = Duration::from_millis(50);

/// The middle one of several by a figure, and the greater of the two middle ones of an even number.
pub(crate) fn middle_by<T>(all: impl Iterator<Item = T>, figure: impl Fn(&T) -> f64) -> Option<T> {
    let mut all: Vec<_> = all.collect();
    all.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
    let middle = all.len() / 2;
    all.into_iter().nth(middle)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn setup(size: f64, data: &Path) -> Setup {
        Setup {
            size,
            data: data.to_owned(),
            encke: Some("no program".into()),
            broker: "no broker".into(),
            duration: None,
        }
    }

    /// A lab of a size for tests, that runs until its end.
    pub(crate) fn lab(size: f64, data: &Path) -> Lab<'static> {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Lab::new(&setup(size, data), &NEVER).unwrap()
    }

    #[test]
    fn directories_are_removed_with_their_owner() {
        let data = tempfile::tempdir().unwrap();
        let lab = lab(1.0, data.path());
        let scratch = lab.scratch("a").unwrap();
        std::fs::write(scratch.path().join("file"), "x").unwrap();
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists() && lab.folder().exists());
        let folder = lab.folder().to_owned();
        drop(lab);
        assert!(!folder.exists());
    }

    #[test]
    fn a_stop_wakes_a_sleep() {
        let data = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let lab = Lab::new(&setup(1.0, data.path()), &stop).unwrap();
        let begun = Instant::now();
        lab.sleep(Duration::from_millis(60)).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(60));
        stop.store(true, Ordering::Relaxed);
        let ended = lab.sleep(Duration::from_secs(3_600));
        assert!(matches!(ended, Err(BenchError::Interrupted)));
        assert!(Lab::new(&setup(1.0, &data.path().join("none")), &stop).is_err());
    }

    #[test]
    fn sizes_scale_down_to_a_least() {
        let data = tempfile::tempdir().unwrap();
        let lab = lab(0.01, data.path());
        assert_eq!(
            (lab.scaled(1_000_000, 10), lab.scaled(100, 10)),
            (10_000, 10)
        );
    }
}
