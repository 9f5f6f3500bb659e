//! Lines for standard error wait in a bounded queue for a thread that writes them. So no thread that logs waits for the reader of the
//! log: a pipe that is full and not read costs lines, which are counted, and not the server.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Context;
use encke_mailbox::{Bounds, Gauge, Lane, Receiver, Sender, mailbox};
use encke_threads::spawn_restarting;
use prometheus::{IntCounter, IntCounterVec, Opts};

use crate::log_output::LogOutput;

/// The queue of the process; a server starts it once.
static QUEUE: OnceLock<StderrQueue> = OnceLock::new();

/// The end of the queue for threads that log. Every write is a line.
pub(crate) struct StderrQueue {
    sender: Sender<Box<[u8]>>,
    dropped: IntCounterVec,
    queue_full: IntCounter,
}

/// Starts the thread, and sends the messages of panics through the queue as well.
pub(crate) fn start() -> anyhow::Result<&'static StderrQueue> {
    let mut out = LogOutput::file_or_stderr("program log", None)?;
    let (queue, mut lines) = StderrQueue::new()?;
    let unwritable = queue.dropped.with_label_values(&[UNWRITABLE]);
    let queue_full = queue.queue_full.clone();
    spawn_restarting("program-log", move || {
        run(&mut lines, &mut out, &queue_full, &unwritable);
    })
    .context("the thread that writes the log can't be started")?;
    // Without the thread lines are written at once.
    let queue = QUEUE.get_or_init(|| queue);
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let mut text = format!("\nthread '{name}' {info}\n");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            let _ = writeln!(text, "stack backtrace:\n{backtrace}");
        }
        say(text.as_bytes());
        if name == MAIN_THREAD {
            // The process may end with this thread.
            flush();
        }
    }));
    Ok(queue)
}

/// The queue, once a server has started it.
pub(crate) fn started() -> Option<&'static StderrQueue> {
    QUEUE.get()
}

/// Puts a line into the queue, or writes it at once where there is none.
pub(crate) fn say(line: &[u8]) {
    match QUEUE.get() {
        Some(queue) => queue.send(line),
        None => drop(std::io::stderr().write_all(line)),
    }
}

/// Waits until the lines so far are written, but no longer than [`FLUSH_TIMEOUT`].
pub(crate) fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIMEOUT);
    }
}

impl StderrQueue {
    fn new() -> anyhow::Result<(StderrQueue, Receiver<Box<[u8]>>)> {
        let bounds = Bounds {
            items_max: LINES_MAX,
            bytes_max: BYTES_MAX,
        };
        let (sender, lines) = mailbox("program-log", bounds);
        let dropped = IntCounterVec::new(
            Opts::new(
                "encke_program_log_dropped_total",
                "Lines of the program log that were dropped because its queue was full or its output failed, by reason.",
            ),
            &["reason"],
        )?;
        let queue_full = dropped.with_label_values(&["queue_full"]);
        let queue = StderrQueue {
            sender,
            dropped,
            queue_full,
        };
        Ok((queue, lines))
    }

    /// Counts the lines that were dropped.
    pub(crate) fn dropped(&self) -> &IntCounterVec {
        &self.dropped
    }

    /// A function that reads the state of the queue.
    pub(crate) fn watch(&self) -> impl Fn() -> Gauge + Send + 'static {
        let watch = self.sender.watch();
        move || watch.gauge()
    }

    /// Puts a line in, or drops and counts it.
    fn send(&self, line: &[u8]) {
        let bytes = size_of::<Box<[u8]>>() + line.len();
        if self
            .sender
            .try_send(Lane::Data, line.into(), bytes)
            .is_err()
        {
            self.queue_full.inc();
        }
    }

    fn flush(&self, timeout: Duration) {
        let begin = Instant::now();
        let accepted = self.sender.gauge().data.accepted;
        while self.sender.gauge().data.handled < accepted && !self.sender.is_closed() {
            if begin.elapsed() >= timeout {
                return;
            }
            std::thread::sleep(FLUSH_PAUSE);
        }
    }
}

/// Takes a whole line with each call of `write`, as `tracing_subscriber` makes them.
impl Write for &StderrQueue {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.send(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes lines until all senders are gone. A line that says how many were dropped goes through the queue like all others.
fn run(
    lines: &mut Receiver<Box<[u8]>>,
    out: &mut impl Write,
    queue_full: &IntCounter,
    unwritable: &IntCounter,
) {
    let (mut batch, mut reported) = (Vec::new(), 0);
    while lines.recv_batch(&mut batch).is_ok() {
        for line in batch.drain(..) {
            // One write for each line: other processes may write to the same file.
            if write_line(out, &line).is_err() {
                unwritable.inc();
            }
        }
        let dropped = queue_full.get();
        if dropped > reported {
            tracing::warn!(
                lines = dropped - reported,
                "lines of this log were dropped, because standard error did not take them in time"
            );
            reported = dropped;
        }
    }
}

fn write_line(out: &mut impl Write, mut line: &[u8]) -> std::io::Result<()> {
    while !line.is_empty() {
        match out.write(line) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => line = &line[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Another process has made the pipe or terminal that it shares with this one non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(BLOCKED_PAUSE);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Lines that wait to be written, and their bytes; further ones are dropped and counted.
const LINES_MAX: usize = 16_384;
const BYTES_MAX: usize = 4 << 20;

/// How long the end of the process waits for an output that blocks.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// How long the writer waits for an output that is non-blocking and full.
const BLOCKED_PAUSE: Duration = Duration::from_millis(10);

/// The name that the standard library gives the first thread.
const MAIN_THREAD: &str = "main";

/// The reason for a line that the output refused.
const UNWRITABLE: &str = "unwritable";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_find_no_room_are_counted_and_a_flush_ends() {
        let (queue, mut lines) = StderrQueue::new().unwrap();
        // Nothing takes lines yet, as when the output blocks.
        for _ in 0..LINES_MAX + 10 {
            queue.send(b"line\n");
        }
        assert_eq!(queue.queue_full.get(), 10);
        let long = vec![b'x'; BYTES_MAX + 1];
        queue.send(&long);
        assert_eq!(queue.queue_full.get(), 11);
        queue.flush(Duration::from_millis(1));
        let (mut out, unwritable) = (Vec::new(), IntCounter::new("a", "b").unwrap());
        std::thread::scope(|scope| {
            let dropped = queue.queue_full.clone();
            let writer = scope.spawn(move || {
                run(&mut lines, &mut out, &dropped, &unwritable);
                (out, unwritable.get())
            });
            queue.flush(Duration::MAX);
            drop(queue);
            let (out, refused) = writer.join().unwrap();
            assert_eq!((out.len(), refused), (LINES_MAX * 5, 0));
        });
    }

    #[test]
    fn lines_that_the_output_refuses_are_counted() {
        let (queue, mut lines) = StderrQueue::new().unwrap();
        let unwritable = queue.dropped.with_label_values(&[UNWRITABLE]);
        (&queue).write_all(b"line\n").unwrap();
        let dropped = queue.queue_full.clone();
        drop(queue);
        let full = std::fs::File::options().write(true).open("/dev/full");
        run(&mut lines, &mut full.unwrap(), &dropped, &unwritable);
        assert_eq!((unwritable.get(), dropped.get()), (1, 0));
    }
}
