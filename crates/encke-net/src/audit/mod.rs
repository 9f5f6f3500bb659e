//! The audit log: one line of JSON for each request that access control refuses, and for each that an operator makes. A thread of
//! its own writes it; a shard never waits for it. Credentials are never in it: a line has the path without the query.
//!
//! A client that is refused again and again gets a line at once and then one for each interval, with the number of its refusals: see
//! `repeats`.

mod entry;
mod recent;
mod repeats;

use std::io::Write;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_mailbox::{Bounds, Gauge, Lane, Receiver, Sender, mailbox};
use encke_protocol::AuditNote;
use encke_threads::{spawn_restarting, wait_for_end};
use prometheus::IntCounter;

pub(crate) use self::entry::AuditEntry;
use self::entry::{PATH_BYTES_MAX, TEXT_BYTES_MAX};
pub use self::recent::{RecentRefusals, RefusalEntry};
use self::repeats::Repeats;
use crate::access_log::{json_text, without_secrets};

/// A shard's end of the queue.
#[derive(Clone)]
pub(crate) struct AuditSender {
    sender: Sender<AuditEntry>,
    dropped: IntCounter,
}

/// The writer's end, before a thread writes.
pub(crate) struct AuditQueue {
    receiver: Receiver<AuditEntry>,
    recent: RecentRefusals,
}

/// The thread that writes. It ends when all senders are gone and everything is written.
pub(crate) struct AuditThread(JoinHandle<()>);

/// A queue for at most [`AUDIT_ENTRIES_MAX`] entries; `dropped` counts further ones.
pub(crate) fn audit_log(dropped: IntCounter) -> (AuditSender, AuditQueue) {
    let bounds = Bounds {
        items_max: AUDIT_ENTRIES_MAX,
        bytes_max: AUDIT_BYTES_MAX,
    };
    let (sender, receiver) = mailbox("audit-log", bounds);
    let recent = RecentRefusals::default();
    let queue = AuditQueue { receiver, recent };
    (AuditSender { sender, dropped }, queue)
}

impl AuditSender {
    /// Puts an entry in, or drops and counts it.
    pub(crate) fn send(&self, entry: AuditEntry) {
        let note = &entry.note;
        let texts = note.caller.len() + note.method.len() + note.path.len();
        let bytes = size_of::<AuditEntry>() + size_of::<AuditNote>() + texts;
        let mut entries = vec![(entry, bytes)];
        self.sender.try_send_many(Lane::Data, &mut entries);
        self.dropped.inc_by(entries.len() as u64);
    }

    /// The state of the queue, for as long as it is open.
    pub(crate) fn watch(&self) -> impl Fn() -> Gauge + Send + 'static {
        let watch = self.sender.watch();
        move || watch.gauge()
    }
}

impl std::fmt::Debug for AuditSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditSender")
    }
}

impl AuditQueue {
    /// The last refusals, as far as they were taken off the queue.
    pub(crate) fn recent(&self) -> RecentRefusals {
        self.recent.clone()
    }

    /// Starts to write. Lines that the output refuses are counted in `lost`.
    pub(crate) fn start(
        self,
        mut out: Box<dyn Write + Send>,
        lost: IntCounter,
    ) -> std::io::Result<AuditThread> {
        let AuditQueue {
            mut receiver,
            recent,
        } = self;
        let (mut entries, mut text) = (Vec::new(), Vec::new());
        let mut repeats = Repeats::default();
        let thread = spawn_restarting("audit-log", move || {
            let mut write = |entry: &AuditEntry, repeated: u64| {
                text.clear();
                line(entry, repeated, &mut text);
                recent.note(entry, repeated);
                // One write for each line: other processes may write to the same file.
                lost.inc_by(u64::from(out.write_all(&text).is_err()));
            };
            loop {
                let received = match repeats.due_in(Instant::now()) {
                    None => receiver.recv_batch(&mut entries),
                    Some(wait) => receiver.recv_batch_timeout(&mut entries, wait),
                };
                let now = Instant::now();
                for entry in entries.drain(..) {
                    if let Some(entry) = repeats.take(entry, now) {
                        write(&entry, 0);
                    }
                }
                let ended = received.is_err();
                for (entry, repeated) in repeats.due(now, ended) {
                    write(&entry, repeated);
                }
                if ended {
                    return;
                }
            }
        })?;
        Ok(AuditThread(thread))
    }
}

impl AuditThread {
    /// Waits until everything is written, but no longer than this. False: the thread panicked.
    pub(crate) fn join(self, timeout: Duration) -> bool {
        wait_for_end(self.0, timeout).unwrap_or_else(|| {
            tracing::warn!("the audit log's output is blocked; its last entries are lost");
            true
        })
    }
}

fn line(entry: &AuditEntry, repeated: u64, out: &mut Vec<u8>) {
    let at = i64::try_from(entry.at.as_ms()).ok();
    let at = at.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    // Writing to a vector does not fail.
    let _ = write!(
        out,
        "{{\"time\":\"{:.3}\",\"audit\":",
        at.unwrap_or_default()
    );
    let AuditNote {
        event,
        reason,
        caller,
        method,
        path,
    } = &*entry.note;
    json_text(Some(event.as_bytes()), out);
    let path = without_secrets(path.as_bytes());
    let path = String::from_utf8_lossy(&path);
    for (key, text, bytes_max) in [
        ("reason", Some(*reason), usize::MAX),
        ("caller", Some(&**caller), TEXT_BYTES_MAX),
        ("client", Some(&*entry.client), usize::MAX),
        ("method", Some(&**method), TEXT_BYTES_MAX),
        ("path", Some(&*path), PATH_BYTES_MAX),
    ] {
        let _ = write!(out, ",\"{key}\":");
        let text = text.filter(|text| !text.is_empty()).map(str::as_bytes);
        json_text(text.map(|text| &text[..text.len().min(bytes_max)]), out);
    }
    let _ = write!(out, ",\"status\":{}", entry.status);
    if repeated > 0 {
        let _ = write!(out, ",\"repeated\":{repeated}");
    }
    out.extend_from_slice(b"}\n");
}

/// Entries that wait to be written; further ones are dropped and counted.
const AUDIT_ENTRIES_MAX: usize = 16_384;
const AUDIT_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use encke_clock::WallTime;
    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    pub(super) fn entry(path: &str) -> AuditEntry {
        AuditEntry {
            at: WallTime::from_ms(1_700_000_000_042),
            client: "192.0.2.1".into(),
            status: 403,
            note: Box::new(AuditNote {
                event: "refused",
                reason: "forbidden",
                caller: "ann".into(),
                method: "GET".into(),
                path: path.into(),
            }),
        }
    }

    #[test]
    fn a_line_is_one_line_of_json() {
        let mut out = Vec::new();
        line(&entry("/v1/\n\"x\u{2028}"), 7, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["time"], "2023-11-14T22:13:20.042Z");
        assert_eq!(read["audit"], "refused");
        assert_eq!(read["path"], "/v1/\n\"x\u{2028}");
        assert_eq!(read["caller"], "ann");
        assert_eq!(read["status"], 403);
        assert_eq!(read["repeated"], 7);
    }

    #[test]
    fn a_path_of_a_wrong_url_is_without_its_secret() {
        let mut out = Vec::new();
        line(&entry("/v1/stream/a&signature=c2ln"), 0, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("/v1/stream/a&signature=-\""), "{text}");
    }

    #[test]
    fn entries_that_find_no_room_are_counted() {
        let dropped = IntCounter::new("dropped", "x").unwrap();
        let lost = IntCounter::new("lost", "x").unwrap();
        let (sender, queue) = audit_log(dropped.clone());
        // A lane holds twice its bound at most.
        let sent = 2 * AUDIT_ENTRIES_MAX as u64 + 10;
        for _ in 0..sent {
            sender.send(entry("/"));
        }
        assert!(dropped.get() >= 10);
        let output = Output::default();
        let thread = queue.start(Box::new(output.clone()), lost.clone()).unwrap();
        drop(sender);
        assert!(thread.join(Duration::from_secs(60)));
        let text = String::from_utf8(output.0.lock().clone()).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        // Each line is a refusal, or the number of those like the last one.
        let told = lines.map(|line: serde_json::Value| line["repeated"].as_u64().unwrap_or(1));
        assert_eq!(told.sum::<u64>() + dropped.get(), sent);
        assert_eq!(text.lines().count(), 2);
        assert_eq!(lost.get(), 0);
    }
}
