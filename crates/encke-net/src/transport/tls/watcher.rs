//! Reads certificates and keys again when their files change, or when it is asked to.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::files::{Certificates, FileStates};
use super::metrics::HandshakeMetrics;
use crate::settings::TlsSettings;

/// The thread that watches the files. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    asks: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    pub(crate) fn start(
        settings: TlsSettings,
        certificates: Arc<Certificates>,
        http2: bool,
        metrics: HandshakeMetrics,
    ) -> std::io::Result<Self> {
        let (asks, asked) = channel();
        let seen = FileStates::of(&settings);
        let thread = std::thread::Builder::new().name("tls-files".to_owned());
        let thread = thread.spawn(move || {
            watch(&settings, &certificates, http2, seen, &asked, &metrics);
        })?;
        Ok(FileWatcher {
            asks: Some(asks),
            thread: Some(thread),
        })
    }

    /// Has the files read again now.
    pub(crate) fn reload(&self) {
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
            // A panic of the thread is in the log.
            let _ = thread.join();
        }
    }
}

fn watch(
    settings: &TlsSettings,
    certificates: &Certificates,
    http2: bool,
    mut used: FileStates,
    asked: &Receiver<()>,
    metrics: &HandshakeMetrics,
) {
    let mut last = FileStates::of(settings);
    loop {
        let asked = match asked.recv_timeout(LOOK_EVERY) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let now = FileStates::of(settings);
        // Several files are replaced one after the other, so a change is looked at once it has settled.
        let settled = now == last;
        last = now;
        if asked || settled && last != used {
            used = FileStates::of(settings);
            let reloaded = certificates.reload(settings, http2);
            let result = if reloaded.is_ok() { "done" } else { "failed" };
            metrics.reloads.with_label_values(&[result]).inc();
            match reloaded {
                Ok(()) => tracing::info!("read the certificates and keys of TLS again"),
                Err(error) => {
                    tracing::error!(%error, "the certificates and keys of TLS stay as they were");
                }
            }
        }
    }
}

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
