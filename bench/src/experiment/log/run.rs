//! One run: producers, a mailbox, and a log or an empty loop as its receiver.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::load::{Latencies, Percentiles};
use encke_log::{CommitError, Sequence};
use encke_mailbox::{Bounds, Lane, Receiver, ReplyTo, Sender, mailbox, reply};
use encke_stream::{
    AckLevel, Change, Command, Committed, Create, Journal, Limits, Machine, Offset, Outcome,
    Outlet, Refusal, Reply, Sequencer, Stream, Submission, Submitter, View, restore,
};
use serde::Serialize;

use encke_clock::{Now, SteadyTime};

use super::producers::{ProducerGroup, Replies, STRANGER};
use super::watch::{self, Sample, Watch};
use crate::BenchError;
use crate::experiment::lab::{Lab, Scratch};
use crate::machine::{cores, cpu_seconds, process_bytes};

/// The receiver of the mailbox, and how producers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mode {
    /// A receiver that only replies. and each producer is a task that its reply wakes: the limit.
    Empty,
    /// The log; the same producers, each of which waits until its record is on the disk.
    Sync,
    /// The log; producers wait only for room in the mailbox.
    Async,
    /// Replies only, and producers like connections of shards: they send and receive in batches.
    EmptyInBatches,
    /// The log, and producers as connections of shards are.
    SyncInBatches,
}

/// How much is sent.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Plan {
    /// Producers.
    pub(super) producers: u64,
    /// Records in all.
    pub(super) records: u64,
    /// Bytes of a record.
    pub(super) record_bytes: usize,
    /// Records that may wait and be in work.
    pub(super) queue_records_max: usize,
}

/// The measurements of a run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    /// The mode of the run.
    pub(super) mode: Mode,
    /// From the first record until all were handled and the queue was empty.
    pub(super) seconds: f64,
    /// Records that were acknowledged.
    pub(super) acknowledged: u64,
    /// Records that the log has stored.
    pub(super) stored: u64,
    /// Records per second.
    pub(super) records_per_second: f64,
    /// Processor time in the same time, for a million records.
    pub(super) cpu_seconds_per_million: f64,
    /// The most records that ever waited or were in work.
    pub(super) queue_records_longest: usize,
    /// The bound on records that wait or are in work.
    pub(super) queue_records_bound: usize,
    /// The most that was seen of what they weigh.
    pub(super) queue_bytes_most: usize,
    /// The bound on the queue's bytes.
    pub(super) queue_bytes_bound: usize,
    /// Anonymous memory of the whole process before the log was opened.
    pub(super) process_bytes_before: u64,
    /// The most that was seen of it.
    pub(super) process_bytes_most: u64,
    /// Batches that the log has written.
    pub(super) batches: u64,
    /// How long each fdatasync took.
    pub(super) syncs: Option<Percentiles>,
    /// Until the log was closed: everything durable, every sealed segment in history.
    pub(super) closed_seconds: f64,
    /// Processor time until then, for a million records.
    pub(super) closed_cpu_seconds_per_million: f64,
    /// The queue and the memory over time.
    pub(super) samples: Vec<Sample>,
}

/// The sequencer's reports on its batches.
#[derive(Debug, Default)]
struct Book {
    commands: u64,
    records: u64,
    batches: u64,
    syncs: Latencies,
}

/// The far end of the mailbox at work.
struct Far {
    thread: JoinHandle<Result<(), CommitError>>,
    book: Arc<Mutex<Book>>,
    /// Comes when all is handled.
    done: encke_mailbox::PendingReply<()>,
    view: Option<Arc<View>>,
    _data: Option<Scratch>,
}

impl Mode {
    /// Every mode, in the order of a round.
    pub(super) const ALL: [Self; 5] = [
        Self::Empty,
        Self::Sync,
        Self::Async,
        Self::EmptyInBatches,
        Self::SyncInBatches,
    ];

    /// Its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Empty => "no log",
            Self::Sync => "sync",
            Self::Async => "async",
            Self::EmptyInBatches => "no log, in batches",
            Self::SyncInBatches => "sync, in batches",
        }
    }

    /// Whether there is nothing but replies.
    pub(super) fn is_empty(self) -> bool {
        matches!(self, Self::Empty | Self::EmptyInBatches)
    }

    /// Whether producers are tasks.
    fn has_tasks(self) -> bool {
        matches!(self, Self::Empty | Self::Sync)
    }
}

impl Run {
    /// Makes one run.
    pub(super) fn make(lab: &Lab<'_>, plan: Plan, mode: Mode) -> Result<Self, BenchError> {
        let process_bytes_before = process_bytes();
        let group = ProducerGroup {
            producers: plan.producers,
            threads: cores().min(THREADS_MAX).min(plan.producers as usize),
            records: plan.records,
            bytes: plan.record_bytes,
            waits: mode != Mode::Async,
        };
        // A producer that does not wait fills the mailbox while as many records are in the sequencer's hands.
        let items_max = match group.waits {
            true => plan.queue_records_max,
            false => plan.queue_records_max / 2,
        };
        let bounds = Bounds {
            items_max,
            bytes_max: items_max * (plan.record_bytes + REQUEST_BYTES),
        };
        let (sender, receiver) = mailbox("log", bounds);
        let replies = Arc::new(Replies::default());
        let (outlets, posts, inboxes) = match mode.has_tasks() {
            true => {
                let (outlets, posts) = group.posts();
                (outlets, posts, Vec::new())
            }
            false => {
                let (outlets, inboxes) = group.outlets(&replies);
                (outlets, Vec::new(), inboxes)
            }
        };
        let far = match mode {
            Mode::Empty | Mode::EmptyInBatches => Far::replies(receiver, outlets, plan)?,
            Mode::Sync | Mode::SyncInBatches => {
                Far::log(lab, receiver, outlets, plan, AckLevel::Synced)?
            }
            Mode::Async => Far::log(lab, receiver, outlets, plan, AckLevel::Accepted)?,
        };
        let stream = far.stream(&sender)?;
        let start = Arc::new(Barrier::new(group.threads + 1));
        let threads = match mode.has_tasks() {
            true => group.start_tasks(&stream, &sender, posts, &replies, &start)?,
            false => group.start(&stream, &sender, inboxes, &replies, &start)?,
        };
        let watch = Watch::start(sender.clone())?;
        let cpu = cpu_seconds();
        start.wait();
        let begun = Instant::now();
        for thread in threads {
            thread
                .join()
                .map_err(|_| BenchError::Thread("producer"))??;
        }
        // None comes only when its thread has panicked.
        far.done
            .wait()
            .map_err(|_| BenchError::Thread("sequencer"))?;
        // It reports a batch before it drops it; if it panics, the mailbox is emptied.
        while sender.gauge().depth() > 0 {
            std::thread::yield_now();
        }
        let seconds = begun.elapsed().as_secs_f64();
        let used = cpu_seconds() - cpu;
        let samples = watch.end()?;
        let gauge = sender.gauge();
        drop(sender);
        let book = Far::close(far.thread, &far.book)?;
        let closed_seconds = begun.elapsed().as_secs_f64();
        let closed_used = cpu_seconds() - cpu;
        replies.check(plan.records)?;
        let millions = plan.records as f64 / 1e6;
        let most = |value: fn(&Sample) -> u64| samples.iter().map(value).max().unwrap_or(0);
        Ok(Self {
            mode,
            seconds,
            acknowledged: replies.acknowledged(),
            stored: book.records,
            records_per_second: plan.records as f64 / seconds,
            cpu_seconds_per_million: used / millions,
            queue_records_longest: gauge.data.depth_high_water,
            queue_records_bound: plan.queue_records_max,
            queue_bytes_most: most(|s| s.queue_bytes as u64) as usize,
            queue_bytes_bound: plan.queue_records_max * (plan.record_bytes + REQUEST_BYTES),
            process_bytes_before,
            process_bytes_most: most(|s| s.process_bytes),
            batches: book.batches,
            syncs: book.syncs.percentiles(),
            closed_seconds,
            closed_cpu_seconds_per_million: closed_used / millions,
            samples: watch::thinned(samples, SAMPLES_KEPT),
        })
    }
}

impl Far {
    /// The real sequencer over a new log.
    fn log(
        lab: &Lab<'_>,
        mailbox: Receiver<Submission>,
        outlets: Vec<Box<dyn Outlet>>,
        plan: Plan,
        level: AckLevel,
    ) -> Result<Self, BenchError> {
        let data = lab.scratch("log")?;
        let (machine, view, log) = restore(
            data.path(),
            encke_log::Options::default(),
            Limits::default(),
            SteadyTime::from_ms(0),
        )?;
        let (all_done, done) = reply();
        let mut all_done = Some(all_done);
        let book = Arc::new(Mutex::new(Book::default()));
        let notes = Arc::clone(&book);
        let watch = move |committed: &Committed| {
            let mut book = notes.lock().unwrap_or_else(PoisonError::into_inner);
            book.note(committed);
            // The creation of the stream is one more.
            if book.commands == plan.records + 1 {
                notify(&mut all_done);
            }
        };
        let sequencer = Sequencer::new(machine, log, mailbox, outlets, level, Box::new(watch));
        let thread = std::thread::Builder::new()
            .name("sequencer".into())
            .spawn(move || sequencer.run(Now::default))
            .map_err(BenchError::system("start a thread"))?;
        Ok(Self {
            thread,
            book,
            done,
            view: Some(view),
            _data: Some(data),
        })
    }

    /// A receiver that only replies.
    fn replies(
        mut mailbox: Receiver<Submission>,
        outlets: Vec<Box<dyn Outlet>>,
        plan: Plan,
    ) -> Result<Self, BenchError> {
        let (all_done, done) = reply();
        let mut all_done = Some(all_done);
        let work = move || {
            let mut requests = Vec::new();
            let mut commands = 0;
            while mailbox.recv_batch(&mut requests).is_ok() {
                let taken = requests.len();
                commands += taken as u64;
                let mut replies: Vec<Vec<Reply>> = outlets.iter().map(|_| Vec::new()).collect();
                for request in requests.drain(..) {
                    replies[usize::from(request.from.shard)].push(Reply {
                        token: request.from.token,
                        outcome: APPENDED,
                    });
                }
                // As the sequencer does.
                mailbox.handled(taken);
                for (outlet, replies) in outlets.iter().zip(replies) {
                    if !replies.is_empty() {
                        outlet.deliver(None, replies);
                    }
                }
                if commands == plan.records {
                    notify(&mut all_done);
                }
            }
            Ok(())
        };
        let thread = std::thread::Builder::new()
            .name("replies".into())
            .spawn(work)
            .map_err(BenchError::system("start a thread"))?;
        Ok(Self {
            thread,
            book: Arc::default(),
            done,
            view: None,
            _data: None,
        })
    }

    /// The stream that all records go to.
    fn stream(&self, sender: &Sender<Submission>) -> Result<Arc<Stream>, BenchError> {
        let Some(view) = &self.view else {
            return stream_without_log();
        };
        make_stream(sender, view)
    }

    /// Waits until the log is closed. All senders must be gone.
    fn close(
        thread: JoinHandle<Result<(), CommitError>>,
        book: &Mutex<Book>,
    ) -> Result<Book, BenchError> {
        thread
            .join()
            .map_err(|_| BenchError::Thread("sequencer"))??;
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        let mut book = std::mem::take(&mut *book);
        // Without the making of the stream.
        book.records = book.records.saturating_sub(1);
        book.batches = book.batches.saturating_sub(1);
        Ok(book)
    }
}

impl Book {
    fn note(&mut self, committed: &Committed) {
        self.commands += committed.commands as u64;
        self.records += committed.records as u64;
        self.batches += u64::from(committed.records > 0);
        if let Some(sync) = committed.sync {
            self.syncs.record(sync.as_nanos() as u64);
        }
    }
}

/// Reports once that all records are handled.
fn notify(all_done: &mut Option<ReplyTo<()>>) {
    if let Some(all_done) = all_done.take() {
        // If the run has failed, the receiver is gone.
        let _ = all_done.send(());
    }
}

/// Creates a stream through the sequencer, and waits for it.
pub(super) fn make_stream(
    sender: &Sender<Submission>,
    view: &View,
) -> Result<Arc<Stream>, BenchError> {
    let command = creation();
    let bytes = command.weight_bytes();
    let from = Submitter {
        shard: 0,
        token: STRANGER,
    };
    let request = Submission::new(command, from);
    sender
        .send(Lane::Data, request, bytes)
        .map_err(|_| BenchError::Thread("sequencer"))?;
    let begun = Instant::now();
    while begun.elapsed() < STREAM_WAIT {
        if let Some(stream) = view.find(STREAM) {
            return Ok(stream);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(BenchError::Thread("sequencer"))
}

/// A stream that no log has, for requests without a machine.
fn stream_without_log() -> Result<Arc<Stream>, BenchError> {
    let view = Arc::new(View::default());
    let mut machine = Machine::new(Arc::clone(&view), Limits::default());
    machine.apply(creation(), Now::default(), &mut NoJournal);
    machine.publish(1);
    view.find(STREAM).ok_or(BenchError::Thread("sequencer"))
}

/// The making of the stream that all records go to.
fn creation() -> Command {
    Command::Create(Create {
        content_type: Some("application/octet-stream".into()),
        ..Create::new(STREAM)
    })
}

/// Takes one record and keeps nothing.
struct NoJournal;

impl Journal for NoJournal {
    fn next_sequence(&self) -> Sequence {
        1
    }

    fn record(
        &mut self,
        _stream: &Arc<Stream>,
        _change: &Change<'_>,
        _data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        Ok(1)
    }
}

/// The reply without a log.
const APPENDED: Outcome = Outcome::Appended {
    tail: Offset::START,
    closed: false,
    stop_asked: false,
    producer: None,
    duplicate: false,
};

/// The stream that all records go to.
const STREAM: &str = "bench";

/// How long the making of a stream may take: a disk may be slow, but not this slow.
const STREAM_WAIT: Duration = Duration::from_secs(30);

/// More threads than this don't make more load: one mailbox takes it all.
const THREADS_MAX: usize = 4;

/// Samples of a run that the report keeps.
const SAMPLES_KEPT: usize = 200;

/// The maximum weight of a request beside its record.
const REQUEST_BYTES: usize = 512;
