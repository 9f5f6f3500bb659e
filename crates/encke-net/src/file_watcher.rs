//! Reads files again when they change, or when it is asked to: certificates and keys of TLS, and the configuration.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use encke_threads::spawn_restarting;

/// A thread that watches files. It ends when this is dropped.
#[derive(Debug)]
pub struct FileWatcher {
    asks: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    /// Starts the thread, which has that name. `files`: the paths to watch; they may change. `read_again` reads them: it runs in the
    /// thread, once for changes that come together.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        name: &str,
        files: impl Fn() -> Vec<PathBuf> + Send + 'static,
        mut read_again: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (asks, asked) = channel();
        let mut used = FileStates::of(&files());
        let thread = spawn_restarting(name, move || {
            watch(&files, &mut read_again, &mut used, &asked);
        })?;
        Ok(FileWatcher {
            asks: Some(asks),
            thread: Some(thread),
        })
    }

    /// Has the files read again now.
    pub fn ask(&self) {
        if let Some(asks) = &self.asks {
            // The thread lives as long as this sender.
            let _ = asks.send(());
        }
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(
    files: &impl Fn() -> Vec<PathBuf>,
    read_again: &mut impl FnMut(),
    used: &mut FileStates,
    asked: &Receiver<()>,
) {
    let mut last = FileStates::of(&files());
    loop {
        let asked = match asked.recv_timeout(LOOK_EVERY) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let now = FileStates::of(&files());
        // Several files are replaced one after the other, so a change is looked at once it has settled.
        let settled = now == last;
        last = now;
        if asked || settled && last != *used {
            // Before they are read: what changes meanwhile is read once more. So is all of it if the list of files has changed.
            *used = FileStates::of(&files());
            read_again();
        }
    }
}

/// The states of files, to find out whether one has changed.
#[derive(Debug, PartialEq, Eq)]
struct FileStates(Vec<Option<FileState>>);

#[derive(Debug, PartialEq, Eq)]
struct FileState {
    modified: SystemTime,
    bytes: u64,
    inode: u64,
}

impl FileStates {
    fn of(files: &[PathBuf]) -> Self {
        let state = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some(FileState {
                modified: metadata.modified().ok()?,
                bytes: metadata.len(),
                inode: metadata.ino(),
            })
        };
        FileStates(files.iter().map(state).collect())
    }
}

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn files_are_read_again_when_they_change_and_when_it_is_asked_to() {
        let folder = tempfile::tempdir().unwrap();
        let paths = [folder.path().join("a"), folder.path().join("b")];
        std::fs::write(&paths[0], "1").unwrap();
        let (reads, read) = mpsc::channel();
        let (watched, content) = (paths.to_vec(), paths.to_vec());
        let watcher = FileWatcher::start(
            "files",
            move || watched.clone(),
            move || {
                let text = |path| std::fs::read_to_string(path).unwrap_or_default();
                let _ = reads.send(content.iter().map(text).collect::<String>());
            },
        );
        let watcher = watcher.unwrap();
        watcher.ask();
        assert_eq!(read.recv().unwrap(), "1");
        // One that did not exist.
        std::fs::write(&paths[1], "2").unwrap();
        assert_eq!(read.recv().unwrap(), "12");
        // One of the same size in the place of another.
        std::fs::write(folder.path().join("new"), "3").unwrap();
        std::fs::rename(folder.path().join("new"), &paths[0]).unwrap();
        assert_eq!(read.recv().unwrap(), "32");
        drop(watcher);
        assert!(read.recv().is_err(), "the thread has ended");
    }
}
