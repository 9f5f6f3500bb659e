//! What `encke import` says while it runs and at the end.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use encke_import::{CopyOutcome, ImportProgress, ImportReport, StreamReport};

use crate::failure::say;

/// Lines on standard error that say how far an import is.
pub(crate) struct ProgressLines {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLines {
    /// Begins to print lines, unless they are not wanted.
    pub(crate) fn start(progress: Arc<ImportProgress>, quiet: bool) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let thread = std::thread::Builder::new().name("progress".into());
        // Without a thread there are no lines.
        let thread = match quiet {
            true => None,
            false => thread.spawn(move || print(&progress, &seen)).ok(),
        };
        ProgressLines { ended, thread }
    }

    /// Prints no more.
    pub(crate) fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            // It only prints.
            let _ = thread.join();
        }
    }
}

fn print(progress: &ImportProgress, ended: &AtomicBool) {
    let mut last = (Instant::now(), 0);
    let (mut shown, mut was_following) = (String::new(), false);
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
        let following = progress.following() > 0;
        let begins_to_follow = following && !was_following;
        was_following = following;
        if last.0.elapsed() < PROGRESS_EVERY && !begins_to_follow {
            continue;
        }
        let moved = progress.bytes() + progress.checked_bytes();
        let rate = (moved - last.1) as f64 / last.0.elapsed().as_secs_f64();
        last = (Instant::now(), moved);
        let line = line(progress);
        if line != shown {
            say(format_args!("{line}, {}/s\n", ByteSize(rate as u64)));
            shown = line;
        }
    }
}

/// How far an import is.
fn line(progress: &ImportProgress) -> String {
    let (streams, current) = (progress.streams(), progress.current());
    let mut line = match progress.following() {
        0 => format!("{current} of {streams} streams"),
        following => format!("up to date, following {following} of {streams} streams"),
    };
    let mut add = |count: u64, what: &str| {
        if count > 0 {
            let _ = write!(line, ", {count} {what}");
        }
    };
    add(progress.failed(), "failed");
    add(progress.retries(), "repeated requests");
    add(progress.records(), "records copied");
    let _ = write!(line, ", {}", ByteSize(progress.bytes()));
    if progress.checked_bytes() > 0 {
        let _ = write!(line, ", {} compared", ByteSize(progress.checked_bytes()));
    }
    line
}

/// The report for people: each stream if there are few, and all that failed.
pub(crate) fn report_text(report: &ImportReport) -> String {
    let mut text = String::new();
    let few = report.of_streams.len() <= STREAMS_SHOWN_MAX;
    let shown = report
        .of_streams
        .iter()
        .filter(|stream| few || stream.failure().is_some());
    for stream in shown {
        text += &stream_text(stream);
    }
    let (streams, failed) = (report.streams, report.failed);
    // Writing to a string does not fail.
    let _ = write!(text, "{} of {streams} streams complete", streams - failed);
    if failed > 0 {
        let _ = write!(text, ", {failed} FAILED");
    }
    let _ = writeln!(
        text,
        "; {} records, {}; copied now: {} records, {} in {:.1} s{}",
        report.records,
        ByteSize(report.bytes),
        report.records_copied,
        ByteSize(report.bytes_copied),
        report.seconds,
        match report.retries {
            0 => String::new(),
            retries => format!(", {retries} repeated requests"),
        }
    );
    text
}

fn stream_text(stream: &StreamReport) -> String {
    let state = match (&stream.outcome, stream.failure()) {
        (_, Some(failure)) => return format!("{}: FAILED: {failure}\n", stream.stream),
        (CopyOutcome::Closed, None) => ", closed",
        (_, None) => "",
    };
    let compared = match &stream.compared {
        None => String::new(),
        Some(compared) => format!(
            ", the same at both sides, SHA-256 {}",
            &compared.sha256[..16]
        ),
    };
    format!(
        "{}: {} records, {}{state}{compared}\n",
        stream.stream,
        stream.records,
        ByteSize(stream.bytes)
    )
}

/// How often a line is printed at most, and how often is looked whether there is something to print.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The number of streams up to which a report names each.
const STREAMS_SHOWN_MAX: usize = 50;
