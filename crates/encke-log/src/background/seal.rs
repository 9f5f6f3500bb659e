//! The background work: sealed segments go into history, checkpoints become durable, old segments are removed.
//!
//! Jobs run in the order in which they come. An interrupted job is repeated, by this process or the next: each step has
//! the same effect when it is repeated, and a mark is stated only when its data is durable. When history fails, the job
//! is retried; meanwhile records stay readable in their segments. When too many segments wait, the writer waits, or
//! gets the error.
//!
//! Jobs come through a mailbox, `seal`, which holds at most [`Options::background_jobs_max`], including the job in
//! flight.

use crate::background::jobs::{Job, JobReceiver};
use crate::background::priority;
use crate::background::retire::Retirement;
use crate::disk::Disk;
use crate::health::HistoryFailure;
use crate::history::History;
use crate::history::error::HistoryError;
use crate::history::floor::{self, FORGOTTEN, Floor};
use crate::history::sort::Sorted;
use crate::history::state::PendingCheckpoint;
use crate::history::tree::KeyspaceKind;
use crate::ids::{Sequence, StreamNo};
use crate::options::Options;
use crate::retention::LogRetention;
use crate::segments::index::IngestedSegment;
use crate::segments::segment::Segment;
use crate::shared::Shared;
use encke_mailbox::{Bounds, Gauge, Lane, Sender, mailbox};
use encke_threads::spawn_essential;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Runs the background work.
#[derive(Debug)]
pub(crate) struct Sealer<D: Disk> {
    work: Arc<Background<D>>,
    jobs: Sender<Job<D::File>>,
    jobs_max: usize,
    /// The receiver, where the disk does not allow a thread; the caller runs the jobs.
    inline: Option<Mutex<JobReceiver<D::File>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Background<D: Disk> {
    disk: D,
    shared: Arc<Shared<D>>,
    retirement: Retirement<D>,
    retention: LogRetention,
    /// Held while a waiter tests its condition. [`Background::changed`] is notified whenever a job is done or fails, or
    /// a stop is requested.
    waiting_lock: Mutex<()>,
    changed: Condvar,
}

impl<D: Disk> Sealer<D> {
    pub(crate) fn start(
        disk: D,
        shared: Arc<Shared<D>>,
        options: &Options,
    ) -> std::io::Result<Self> {
        let threaded = D::BACKGROUND && shared.history.is_some();
        let work = Arc::new(Background {
            retirement: Retirement::new(disk.clone(), shared.clone(), options),
            disk,
            shared,
            retention: options.retention,
            waiting_lock: Mutex::default(),
            changed: Condvar::new(),
        });
        let jobs_max = options.background_jobs_max.max(1);
        let bounds = Bounds {
            items_max: jobs_max,
            bytes_max: usize::MAX,
        };
        let (sender, jobs) = mailbox("seal", bounds);
        let mut jobs = JobReceiver::new(jobs);
        let (mut inline, mut thread) = (None, None);
        if threaded {
            let work = work.clone();
            thread = Some(spawn_essential("encke-seal", move || {
                priority::lower_priority();
                work.run(&mut jobs);
            })?);
        } else {
            inline = Some(Mutex::new(jobs));
        }
        Ok(Sealer {
            work,
            jobs: sender,
            jobs_max,
            inline,
            thread,
        })
    }

    /// Returns a function for the gauge of the mailbox.
    pub(crate) fn gauge(&self) -> impl Fn() -> Gauge + Send + Sync + use<D> {
        let jobs = self.jobs.clone();
        move || jobs.gauge()
    }

    /// Enqueues a segment whose records, those before `end`, are all durable and published.
    pub(crate) fn segment(&self, segment: Arc<Segment<D::File>>, end: Sequence) {
        self.push(Job::Segment { segment, end });
    }

    /// Enqueues a checkpoint of the state after `upto`, which is durable.
    pub(crate) fn checkpoint(
        &self,
        upto: Sequence,
        states: Arc<PendingCheckpoint>,
        floors: Vec<(StreamNo, Floor)>,
    ) {
        self.push(Job::Checkpoint {
            upto,
            states,
            floors,
        });
    }

    /// Removes what is no longer kept.
    pub(crate) fn retire(&self) {
        self.work.retirement.retire();
    }

    /// The last record that exceeds a limit now, see [`Retirement::due_floor`].
    pub(crate) fn due_floor(&self, history: &History) -> Result<Sequence, HistoryError> {
        self.work.retirement.due_floor(history)
    }

    /// Whether fewer than `segments_max` segments are waiting.
    pub(crate) fn has_room(&self, segments_max: usize) -> bool {
        let shared = &self.work.shared;
        // The index has all segments that are not in history; the last one is still written to.
        shared.history.is_none() || shared.index.read().segments.len() <= segments_max.max(1)
    }

    /// Waits until fewer than `segments_max` segments are waiting.
    ///
    /// # Errors
    /// History fails.
    pub(crate) fn wait_for_room(&self, segments_max: usize) -> Result<(), HistoryFailure> {
        if self.work.shared.history.is_none() {
            return Ok(());
        }
        self.wait_while(|| !self.has_room(segments_max))
    }

    /// Waits until all jobs are done.
    ///
    /// # Errors
    /// History fails; the next open repeats the jobs.
    pub(crate) fn wait_for_all(&self) -> Result<(), HistoryFailure> {
        self.wait_while(|| self.jobs.gauge().depth() > 0 || self.jobs.is_closed())
    }

    fn push(&self, job: Job<D::File>) {
        if self.work.shared.history.is_none() {
            return;
        }
        let bytes = job.bytes();
        // Only a caller with very many checkpoints, or with batches of very many segments, waits here. This is the only
        // sender, so there is room afterwards.
        while let Err(failure) = self.wait_while(|| self.jobs.gauge().depth() >= self.jobs_max) {
            if self.thread.is_none() || self.jobs.is_closed() {
                tracing::error!(reason = %failure.reason, "a job is left to the next open");
                return;
            }
            let mut waiting_lock = self.work.waiting_lock.lock();
            self.work.changed.wait_for(&mut waiting_lock, RETRY);
        }
        // Refused only when the thread has ended. Then the next open does the job.
        let _ = self.jobs.try_send(Lane::Data, job, bytes);
        self.work_inline();
    }

    fn wait_while(&self, waiting: impl Fn() -> bool) -> Result<(), HistoryFailure> {
        self.work_inline();
        let mut waiting_lock = self.work.waiting_lock.lock();
        while waiting() {
            if let Some(failure) = self.work.shared.vitals.history_failed() {
                return Err(failure);
            }
            if self.jobs.is_closed() {
                return Err(HistoryFailure {
                    reason: "the thread that fills history has ended".into(),
                    shortage: false,
                });
            }
            // The timeout, because a thread that panicked notifies nothing.
            self.work.changed.wait_for(&mut waiting_lock, RETRY);
        }
        Ok(())
    }

    /// Runs all jobs, where the disk does not allow a thread.
    fn work_inline(&self) {
        if let Some(jobs) = &self.inline {
            let mut jobs = jobs.lock();
            while jobs.try_receive() && self.work.do_job(&mut jobs) {}
        }
    }
}

impl<D: Disk> Drop for Sealer<D> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<D: Disk> Sealer<D> {
    /// Stops after the job in flight. The other jobs are left to the next open.
    pub(crate) fn stop(&mut self) {
        // Refused when the thread has stopped already.
        let _ = self.jobs.try_send(Lane::Control, Job::Stop, 0);
        self.work.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
    }
}

impl<D: Disk> Background<D> {
    fn run(&self, jobs: &mut JobReceiver<D::File>) {
        self.retirement.retire();
        while let Ok(any) = jobs.receive_timeout(self.retirement.interval()) {
            if matches!(jobs.in_flight(), Some(Job::Stop)) {
                return;
            }
            if !any {
                // Ages grow also without jobs.
                self.retirement.retire();
                self.restate();
            } else if !self.do_job(jobs) {
                let mut waiting_lock = self.waiting_lock.lock();
                // Only a stop interrupts the wait.
                if !jobs.stop_pending() {
                    // A retry may work: there may be room by then.
                    self.changed.wait_for(&mut waiting_lock, RETRY);
                }
                drop(waiting_lock);
                if jobs.stop_pending() {
                    return;
                }
            }
        }
    }

    /// States the lists of tables that compaction has made since the last statement.
    fn restate(&self) {
        if let Err(error) = self.shared.state_history(|_| {}) {
            tracing::warn!(
                reason = error.reason,
                "the newest lists of tables are not stated yet"
            );
        }
    }

    /// Wakes all waiting threads.
    fn notify(&self) {
        // A thread that tests its condition now waits afterwards, and is woken.
        drop(self.waiting_lock.lock());
        self.changed.notify_all();
    }

    /// Does the job in flight. Returns whether it is done.
    fn do_job(&self, jobs: &mut JobReceiver<D::File>) -> bool {
        let Some(history) = &self.shared.history else {
            return false;
        };
        let job = match jobs.in_flight() {
            Some(Job::Stop) | None => return false,
            Some(job) => job,
        };
        let background = self.shared.background.lock();
        let mut done = self.try_job(history, job);
        // An earlier failure of the tree, such as a compaction without room, shows its cause only when it is repeated.
        if done.as_ref().is_err_and(|error| error.earlier) && self.reopen(history).is_ok() {
            done = self.try_job(history, job);
        }
        if let Err(error) = done {
            let reason = format!(
                "history in {} fails: {}",
                history.path().display(),
                error.reason
            );
            // After some errors the tree continues only when it is opened again. If that fails too, the next try
            // reports it. A failure that follows a shortage, before any job has worked, counts as a shortage.
            let reopened = self.reopen(history);
            drop(background);
            let before = self.shared.vitals.history_failed();
            let shortage = error.shortage
                || reopened.is_err_and(|error| error.shortage)
                || before.is_some_and(|before| before.shortage);
            tracing::error!(reason, shortage, "sealed segments wait");
            let reason = reason.into();
            let failure = HistoryFailure { reason, shortage };
            self.shared.vitals.set_history_failed(Some(failure));
            self.notify();
            return false;
        }
        drop(background);
        self.shared.vitals.set_history_failed(None);
        jobs.finish();
        self.notify();
        self.retirement.retire();
        true
    }

    /// Opens history again, if it holds what is stated.
    fn reopen(&self, history: &History) -> Result<(), HistoryError> {
        let statement = self.shared.superblock.statement();
        history.reopen(statement.log_id, &statement.history.unwrap_or_default())
    }

    fn try_job(&self, history: &History, job: &Job<D::File>) -> Result<(), HistoryError> {
        match job {
            Job::Segment { segment, end } => self.seal(history, segment, *end),
            Job::Checkpoint {
                upto,
                states,
                floors,
            } => self.check_point(history, *upto, states, floors),
            Job::Stop => Ok(()),
        }
    }

    /// Ingests a segment into history and drops its index.
    fn seal(
        &self,
        history: &History,
        segment: &Arc<Segment<D::File>>,
        end: Sequence,
    ) -> Result<(), HistoryError> {
        let mut sorted = Sorted::of(segment, end)?;
        let times = sorted.times();
        // Other records below the retention floor need not go to history: the floor is durable.
        if self.shared.retention_floor.get() >= end - 1
            && let Some(exempt) = self.shared.exempt.all()
        {
            sorted.retain(|stream| exempt.contains(&stream));
        }
        if !sorted.is_empty() {
            history.ingest_records(&self.retention, segment.first, times, |put| sorted.put(put))?;
            self.disk.between_steps()?;
        }
        drop(sorted);
        self.disk.between_steps()?;
        self.shared
            .state_history(|stated| stated.history_upto = end - 1)?;
        self.shared.measure_history();
        self.disk.between_steps()?;
        let mut index = self.shared.index.write();
        let index_of_segment = index
            .segments
            .pop_front_if(|oldest| oldest.segment.number == segment.number);
        if let Some(mut oldest) = index_of_segment {
            let places = oldest.take_sparse_index();
            index.done.push_back(IngestedSegment {
                segment: segment.clone(),
                end,
                places: Some(places),
            });
            index.history_upto = end - 1;
            drop(index);
            // Outside of the lock: dropping some hundred thousand lists takes long.
            drop(oldest);
        }
        Ok(())
    }

    /// Makes a checkpoint durable.
    fn check_point(
        &self,
        history: &History,
        upto: Sequence,
        states: &PendingCheckpoint,
        floors: &[(StreamNo, Floor)],
    ) -> Result<(), HistoryError> {
        self.disk.between_steps()?;
        let entries = states.in_order();
        if entries.len() > 0 {
            history.ingest(KeyspaceKind::States, |put| {
                entries
                    .into_iter()
                    .try_for_each(|(key, value)| put(key, value))
            })?;
        }
        self.disk.between_steps()?;
        let mut raised = Vec::with_capacity(floors.len());
        for (stream, floor) in floors {
            if floor.upto > history.floor(*stream)? {
                raised.push((stream.to_be_bytes(), floor::floor_value(*floor)));
            }
        }
        if !raised.is_empty() {
            history.ingest(KeyspaceKind::Floors, |put| {
                let mut raised = raised.iter();
                raised.try_for_each(|(stream, floor)| put(stream, Some(floor)))
            })?;
        }
        self.disk.between_steps()?;
        self.shared
            .state_history(|stated| stated.checkpoint_upto = upto)?;
        self.shared.index.write().checkpoint_upto = upto;
        self.shared.states.pop();
        self.shared.floors.settle(floors);
        for (stream, _) in floors.iter().filter(|(_, floor)| floor.upto == FORGOTTEN) {
            self.shared.exempt.remove(*stream);
        }
        Ok(())
    }
}

/// The interval of retries.
const RETRY: Duration = Duration::from_secs(1);
