//! Where the access log is written.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::config::Config;

/// Standard output, or a file that is opened again when a rotation has renamed it.
pub(crate) struct AccessLogOutput {
    file: File,
    /// Its path; `None` for standard output.
    path: Option<PathBuf>,
    reopen: Arc<AtomicBool>,
}

/// Has the file of an access log opened again before its next line.
pub(crate) struct ReopenHandle(Arc<AtomicBool>);

impl AccessLogOutput {
    /// Opens the configured output.
    pub(crate) fn open(config: &Config) -> anyhow::Result<AccessLogOutput> {
        let path = config.access_log_file.clone();
        let file = match &path {
            Some(path) => open(path)
                .with_context(|| format!("the access log {} can't be opened", path.display()))?,
            // Without the buffer of `stdout()`, whose lock the rest of the program may need while a write blocks.
            None => File::from(
                std::io::stdout()
                    .as_fd()
                    .try_clone_to_owned()
                    .context("the access log needs standard output")?,
            ),
        };
        Ok(AccessLogOutput {
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

impl Write for AccessLogOutput {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(path) = &self.path
            && self.reopen.swap(false, Ordering::Relaxed)
        {
            match open(path) {
                Ok(file) => self.file = file,
                Err(error) => tracing::error!(
                    %error,
                    path = %path.display(),
                    "the access log can't be opened again; it continues in the file that is open"
                ),
            }
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Opens a file for lines at its end.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}
