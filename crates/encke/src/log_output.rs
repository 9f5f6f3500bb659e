//! Where the access log and the audit log are written.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

/// A standard stream, or a file that is opened again when a rotation has renamed it.
pub(crate) struct LogOutput {
    /// The name of the log, for messages.
    name: &'static str,
    file: File,
    /// Its path; `None` for a standard stream.
    path: Option<PathBuf>,
    reopen: Arc<AtomicBool>,
}

/// Has the file of a log opened again before its next line.
pub(crate) struct ReopenHandle(Arc<AtomicBool>);

impl LogOutput {
    /// Opens a file, or standard output.
    pub(crate) fn file_or_stdout(
        name: &'static str,
        path: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        // Without the buffer of `stdout()`, whose lock the rest of the program may need while a write blocks.
        let stream = || std::io::stdout().as_fd().try_clone_to_owned();
        LogOutput::open(name, path, &stream)
    }

    /// Opens a file, or standard error.
    pub(crate) fn file_or_stderr(
        name: &'static str,
        path: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let stream = || std::io::stderr().as_fd().try_clone_to_owned();
        LogOutput::open(name, path, &stream)
    }

    fn open(
        name: &'static str,
        path: Option<PathBuf>,
        stream: &dyn Fn() -> std::io::Result<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let file = match &path {
            Some(path) => encke_files::open_to_append(path)
                .with_context(|| format!("the {name} {} can't be opened", path.display()))?,
            None => File::from(
                stream().with_context(|| format!("the {name} needs its standard stream"))?,
            ),
        };
        Ok(LogOutput {
            name,
            file,
            path,
            reopen: Arc::default(),
        })
    }

    pub(crate) fn reopen_handle(&self) -> ReopenHandle {
        ReopenHandle(Arc::clone(&self.reopen))
    }
}

impl ReopenHandle {
    pub(crate) fn reopen(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Write for LogOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(path) = &self.path
            && self.reopen.swap(false, Ordering::Relaxed)
        {
            match encke_files::open_to_append(path) {
                Ok(file) => self.file = file,
                Err(error) => tracing::error!(
                    %error,
                    log = self.name,
                    path = %path.display(),
                    "a log can't be opened again; it continues in the file that is open"
                ),
            }
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
