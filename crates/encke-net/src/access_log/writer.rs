//! The queue of the access log, and the thread that writes it.

use std::io::{ErrorKind, Write};
use std::thread::JoinHandle;
use std::time::Duration;

use encke_mailbox::{Bounds, Gauge, GaugeReader, Lane, Receiver, Sender, mailbox};
use encke_threads::{spawn_restarting, wait_for_end};
use memchr::memchr_iter;

use super::AccessEntry;
use super::format::{AccessLogFormat, Formatter};
use crate::metrics::{Metrics, QUEUE_FULL, UNWRITABLE};

type Entry = Box<AccessEntry>;

/// A shard's end of the queue.
#[derive(Clone)]
pub(crate) struct AccessLogSender(Sender<Entry>);

/// The writer's end of the queue, before a thread writes.
pub(crate) struct AccessLogQueue {
    receiver: Receiver<Entry>,
    format: AccessLogFormat,
}

/// The thread that writes. It ends when all senders are gone and everything is written.
pub(crate) struct AccessLogThread(JoinHandle<()>);

/// A queue that holds entries of `bytes_max` bytes.
pub(crate) fn access_log(
    format: AccessLogFormat,
    bytes_max: usize,
) -> (AccessLogSender, AccessLogQueue) {
    let bounds = Bounds {
        // The bytes bound it.
        items_max: bytes_max / size_of::<AccessEntry>() + 1,
        bytes_max,
    };
    let (sender, receiver) = mailbox("access-log", bounds);
    (AccessLogSender(sender), AccessLogQueue { receiver, format })
}

impl AccessLogSender {
    /// Puts in what there is room for; drops and counts the rest.
    pub(crate) fn send(&self, entries: &mut Vec<(Entry, usize)>, metrics: &Metrics) {
        self.0.try_send_many(Lane::Data, entries);
        if !entries.is_empty() {
            let dropped = &metrics.access_log_dropped;
            let dropped = dropped.with_label_values(&[QUEUE_FULL]);
            dropped.inc_by(entries.len() as u64);
            entries.clear();
        }
    }

    /// The state of the queue, for as long as it is open.
    pub(crate) fn watch(&self) -> impl Fn() -> Gauge + Send + 'static {
        let watch: GaugeReader<Entry> = self.0.watch();
        move || watch.gauge()
    }
}

impl std::fmt::Debug for AccessLogSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AccessLogSender")
    }
}

impl AccessLogQueue {
    /// Starts to write, first what waits already.
    pub(crate) fn start(
        mut self,
        out: Box<dyn Write + Send>,
        metrics: &Metrics,
    ) -> std::io::Result<AccessLogThread> {
        let mut out = Output::new(out, metrics.clone());
        let thread = spawn_restarting("access-log", move || self.run(&mut out))?;
        Ok(AccessLogThread(thread))
    }

    fn run(&mut self, out: &mut Output) {
        let mut formatter = Formatter::new(self.format);
        let (mut entries, mut text) = (Vec::new(), Vec::new());
        while self.receiver.recv_batch(&mut entries).is_ok() {
            for entry in entries.drain(..) {
                formatter.line(&entry, &mut text);
                if text.len() >= WRITE_BYTES {
                    out.write(&mut text);
                }
            }
            out.write(&mut text);
        }
    }
}

impl AccessLogThread {
    /// Waits until everything is written, but no longer than this. False: the thread panicked. What a blocked output has not
    /// taken by then is lost with the process.
    pub(crate) fn join(self, timeout: Duration) -> bool {
        wait_for_end(self.0, timeout).unwrap_or_else(|| {
            tracing::warn!("the access log's output is blocked; its last entries are lost");
            true
        })
    }
}

/// Where lines are written. It may fail, and recover: a full disk, or a pipe that has no reader, costs only lines.
struct Output {
    out: Box<dyn Write + Send>,
    metrics: Metrics,
    /// The last write failed within a line.
    torn: bool,
    failing: bool,
}

impl Output {
    fn new(out: Box<dyn Write + Send>, metrics: Metrics) -> Output {
        Output {
            out,
            metrics,
            torn: false,
            failing: false,
        }
    }

    /// Writes lines and empties `text`. Lines that cannot be written are dropped and counted.
    fn write(&mut self, text: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if self.torn {
            // The beginning of a line that failed must not become the beginning of another.
            text.insert(0, b'\n');
        }
        let written = self.write_bytes(text);
        let (written, lost) = text.split_at(written);
        let lines = |bytes| memchr_iter(b'\n', bytes).count();
        let (repairs, lost) = (usize::from(self.torn && !written.is_empty()), lines(lost));
        // Of a repaired line, the break is no line.
        let lost = lost - usize::from(self.torn && written.is_empty());
        let count = &self.metrics.access_log_lines;
        count.inc_by((lines(written) - repairs) as u64);
        if lost > 0 {
            let dropped = &self.metrics.access_log_dropped;
            let dropped = dropped.with_label_values(&[UNWRITABLE]);
            dropped.inc_by(lost as u64);
        }
        if let Some(last) = written.last() {
            self.torn = *last != b'\n';
        }
        text.clear();
    }

    /// How many bytes were written: fewer than all when the output fails.
    fn write_bytes(&mut self, text: &[u8]) -> usize {
        let mut written = 0;
        while written < text.len() {
            let error = match self.out.write(&text[written..]) {
                Ok(count) if count > 0 => {
                    written += count;
                    continue;
                }
                Ok(_) => ErrorKind::WriteZero.into(),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Another process has made the pipe or terminal that it shares with this one non-blocking.
                    std::thread::sleep(BLOCKED_PAUSE);
                    continue;
                }
                Err(error) => error,
            };
            if !self.failing {
                tracing::error!(%error, "the access log can't be written; its entries are dropped until it can");
            }
            self.failing = true;
            return written;
        }
        if self.failing {
            tracing::info!("the access log can be written again");
        }
        self.failing = false;
        written
    }
}

/// Bytes at which lines are written together; less when no more wait.
const WRITE_BYTES: usize = 64 << 10;

/// How long the writer waits for an output that is non-blocking and full.
const BLOCKED_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Takes bytes while it has room, and fails otherwise.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let (content, room) = &mut *self.0.lock();
            let count = bytes.len().min(*room);
            *room -= count;
            content.extend_from_slice(&bytes[..count]);
            match count {
                0 => Err(ErrorKind::StorageFull.into()),
                _ => Ok(count),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_tears_no_other_line() {
        // Wherever the disk is full within two lines, later lines are whole, and every line is counted once.
        for room in 0..=8 {
            let (disk, metrics) = (
                Disk::default(),
                Metrics::new(&prometheus::Registry::new()).unwrap(),
            );
            let mut out = Output::new(Box::new(disk.clone()), metrics.clone());
            disk.0.lock().1 = room;
            out.write(&mut b"abc\ndef\n".to_vec());
            out.write(&mut b"lost\n".to_vec());
            disk.0.lock().1 = 100;
            out.write(&mut b"ghi\n".to_vec());
            out.write(&mut b"jkl\n".to_vec());
            let content = String::from_utf8(disk.0.lock().0.clone()).unwrap();
            let lines: Vec<&str> = content.lines().collect();
            let whole = |line: &str| ["abc", "def", "ghi", "jkl", "lost"].contains(&line);
            assert!(content.ends_with("ghi\njkl\n"), "{room}: {content:?}");
            assert!(lines.iter().filter(|line| !whole(line)).count() <= 1);
            let written = metrics.access_log_lines.get();
            let lost = metrics.access_log_dropped.with_label_values(&[UNWRITABLE]);
            assert_eq!(written + lost.get(), 5, "{room}: {content:?}");
            let shown = lines.iter().filter(|line| whole(line)).count();
            assert!(
                shown - written as usize <= 1,
                "a line that lost its end may look whole"
            );
        }
    }
}
