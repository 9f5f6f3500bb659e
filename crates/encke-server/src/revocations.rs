//! Revoked credentials in the log: a stream that no client can name.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use encke_access::{Access, Revocation};
use encke_net::wall_time;
use encke_protocol::REVOCATIONS;
use encke_stream::{Fetch, Lookup, Offset, each_record};
use encke_threads::spawn_restarting;

use crate::archive::Archive;
use crate::errors::StartError;

/// Reads all revocations from the log, and hands them to the access control.
///
/// # Errors
/// The stream can't be read, or holds something else.
pub(crate) fn restore(archive: &Archive, access: &Access) -> Result<(), StartError> {
    let read = read(archive, access, Offset::START);
    read.map(drop).map_err(StartError::Revocations)
}

/// Reads the revocations behind a position. Returns the position behind the last one.
fn read(archive: &Archive, access: &Access, from: Offset) -> Result<Offset, String> {
    let known = archive.loaders.load(REVOCATIONS);
    let stream = match known.map_err(|error| error.to_string())? {
        Lookup::Stream(stream) => stream,
        Lookup::Free(_) => return Ok(from),
    };
    let read = |fetch: &Fetch| archive.read(fetch).map_err(|error| error.to_string());
    each_record(&stream, from, read, |sequence, data| {
        let revocation: Revocation =
            serde_json::from_slice(data).map_err(|error| format!("record {sequence}: {error}"))?;
        access
            .restore(revocation, wall_time())
            .map_err(|error| error.to_string())
    })
}

/// On a node of a fleet: hands what other nodes revoke to the access control.
pub(crate) struct RevocationFollower {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl RevocationFollower {
    pub(crate) fn start(archive: Archive, access: Arc<Access>) -> std::io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let mut from = Offset::START;
        let thread = spawn_restarting("revocations", move || {
            while !ended.load(Ordering::Relaxed) {
                match read(&archive, &access, from) {
                    Ok(reached) => from = reached,
                    Err(error) => tracing::error!(error, "cannot read revocations of other nodes"),
                }
                std::thread::park_timeout(FOLLOW_EVERY);
            }
        })?;
        Ok(RevocationFollower { ends, thread })
    }

    /// False if the thread panicked.
    pub(crate) fn stop(self) -> bool {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().is_ok()
    }
}

/// Revocations of other nodes are looked for this often: a connection ends within a second.
const FOLLOW_EVERY: Duration = Duration::from_millis(250);
