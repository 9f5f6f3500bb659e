//! The work in the background: sealed segments go into history, checkpoints become durable, old segments go.
//!
//! Jobs are done one after the other, in the order in which they came. A job whose steps were interrupted is begun again,
//! by this process or the next: each step means the same when it is done twice, and a mark is set only when what it stands
//! for is durable. History that fails is tried again; meanwhile records stay readable where they are, and when too many
//! segments wait, the writer is told.
//!
//! Jobs come through a mailbox, `seal`, which holds at most [`Options::background_jobs_max`], the one that is being done or
//! tried again included.

use crate::background;
use crate::disk::Disk;
use crate::floor::Floor;
use crate::health::HistoryFailure;
use crate::history::{History, HistoryError, Kind};
use crate::index::Done;
use crate::options::Options;
use crate::read::Shared;
use crate::retention::{Class, Retention};
use crate::segment::Segment;
use crate::sort::Sorted;
use crate::state::Pending;
use crate::stored;
use crate::{Sequence, StreamNo};
use encke_mailbox::{Bounds, Closed, Gauge, Lane, Receiver, Sender, mailbox};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Does the work in the background.
#[derive(Debug)]
pub(crate) struct Sealer<D: Disk> {
    work: Arc<Work<D>>,
    jobs: Sender<Job<D::File>>,
    jobs_max: usize,
    /// What does the jobs where nothing runs in the background.
    here: Option<Mutex<Desk<D::File>>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Work<D: Disk> {
    pub(crate) disk: D,
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) done_bytes_max: u64,
    pub(crate) done_age_max: Option<Duration>,
    pub(crate) retention: Vec<Retention>,
    pub(crate) removed: Mutex<Removed>,
    /// Up to which stream it was looked for floors that nobody needs any more.
    pub(crate) swept_upto: Mutex<StreamNo>,
    /// Taken to look whether to wait, and told of whenever a job is done or fails, or work is to stop.
    moment: Mutex<()>,
    changed: Condvar,
}

/// What is known of the removal of old segments.
#[derive(Debug)]
pub(crate) struct Removed {
    /// No crash brings back records of the global order before this one.
    pub(crate) oldest: Sequence,
    /// One could not be removed: what is before it is there until the next open.
    pub(crate) failed: bool,
}

/// Where a job lies until it is done.
#[derive(Debug)]
struct Desk<F> {
    jobs: Receiver<Job<F>>,
    /// The job that is being done, or failed and is to be tried again. It counts as in the mailbox.
    job: Option<Job<F>>,
}

#[derive(Debug)]
enum Job<F> {
    /// A segment whose records, those before `end`, are all durable and published.
    Segment {
        segment: Arc<Segment<F>>,
        end: Sequence,
    },
    Checkpoint {
        upto: Sequence,
        states: Arc<Pending>,
        floors: Vec<(StreamNo, Floor)>,
    },
    /// In the control lane, so that it goes before all that waits.
    Stop,
}

impl<D: Disk> Sealer<D> {
    pub(crate) fn start(
        disk: D,
        shared: Arc<Shared<D>>,
        options: &Options,
    ) -> std::io::Result<Self> {
        let threaded = D::BACKGROUND && shared.history.is_some();
        // The names that it was opened with are durable.
        let removed = Removed {
            oldest: shared.index.read().oldest(),
            failed: false,
        };
        let work = Arc::new(Work {
            disk,
            shared,
            done_bytes_max: options.done_bytes_max,
            done_age_max: options.done_age_max,
            // The last one of a class counts.
            retention: (options.retention.iter().map(|one| (one.class, *one)))
                .collect::<BTreeMap<_, _>>()
                .into_values()
                .collect(),
            removed: Mutex::new(removed),
            swept_upto: Mutex::default(),
            moment: Mutex::default(),
            changed: Condvar::new(),
        });
        let jobs_max = options.background_jobs_max.max(1);
        let bounds = Bounds {
            items_max: jobs_max,
            bytes_max: usize::MAX,
        };
        let (sender, jobs) = mailbox("seal", encke_mailbox::Options::new(bounds));
        let mut desk = Desk { jobs, job: None };
        let (mut here, mut thread) = (None, None);
        if threaded {
            let work = work.clone();
            let seal = std::thread::Builder::new().name("encke-seal".to_owned());
            thread = Some(seal.spawn(move || {
                background::step_back();
                work.run(&mut desk);
            })?);
        } else {
            here = Some(Mutex::new(desk));
        }
        Ok(Sealer {
            work,
            jobs: sender,
            jobs_max,
            here,
            thread,
        })
    }

    /// What is in the mailbox, for as long as anybody asks.
    pub(crate) fn gauge(&self) -> impl Fn() -> Gauge + Send + Sync + use<D> {
        let jobs = self.jobs.clone();
        move || jobs.gauge()
    }

    /// Takes a segment whose records, those before `end`, are all durable and published.
    pub(crate) fn segment(&self, segment: Arc<Segment<D::File>>, end: Sequence) {
        self.push(Job::Segment { segment, end });
    }

    /// Takes a checkpoint of the state after `upto`, which is durable.
    pub(crate) fn checkpoint(
        &self,
        upto: Sequence,
        states: Arc<Pending>,
        floors: Vec<(StreamNo, Floor)>,
    ) {
        self.push(Job::Checkpoint {
            upto,
            states,
            floors,
        });
    }

    /// Looks for what is past its retention.
    pub(crate) fn retire(&self) {
        self.work.retire();
    }

    /// Raises the floors of classes over what is past its retention now.
    pub(crate) fn raise_class_floors(&self) -> Result<(), HistoryError> {
        self.work.raise_class_floors()
    }

    /// Whether fewer than `segments_max` segments are waiting.
    pub(crate) fn has_room(&self, segments_max: usize) -> bool {
        let shared = &self.work.shared;
        // The index is what says which segments are not in history; the last one there is being written.
        shared.history.is_none() || shared.index.read().segments.len() <= segments_max.max(1)
    }

    /// Waits until fewer than `segments_max` segments are waiting.
    ///
    /// # Errors
    /// History does not take them; the reason.
    pub(crate) fn wait_for_room(&self, segments_max: usize) -> Result<(), HistoryFailure> {
        if self.work.shared.history.is_none() {
            return Ok(());
        }
        self.wait_while(|| !self.has_room(segments_max))
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// History does not take it; the reason. The next open does it then.
    pub(crate) fn wait_for_all(&self) -> Result<(), HistoryFailure> {
        self.wait_while(|| self.jobs.gauge().depth() > 0 || self.jobs.is_closed())
    }

    fn push(&self, job: Job<D::File>) {
        if self.work.shared.history.is_none() {
            return;
        }
        let bytes = job.bytes();
        // It is only the caller of endless checkpoints, or of batches of very many segments, who waits here. Nobody else
        // sends, so there is room afterwards.
        while let Err(failure) = self.wait_while(|| self.jobs.gauge().depth() >= self.jobs_max) {
            if self.thread.is_none() || self.jobs.is_closed() {
                tracing::error!(reason = %failure.reason, "a job is left to the next open");
                return;
            }
            let mut moment = self.work.moment.lock();
            self.work.changed.wait_for(&mut moment, RETRY);
        }
        // It is refused only when the thread is gone, and then everything is left to the next open.
        let _ = self.jobs.try_send(Lane::Data, job, bytes);
        self.work_here();
    }

    fn wait_while(&self, waiting: impl Fn() -> bool) -> Result<(), HistoryFailure> {
        self.work_here();
        let mut moment = self.work.moment.lock();
        while waiting() {
            if let Some(failure) = self.work.shared.vitals.history_failed() {
                return Err(failure);
            }
            if self.jobs.is_closed() {
                return Err(HistoryFailure {
                    reason: "the thread that fills history is gone".into(),
                    shortage: false,
                });
            }
            // A thread that is gone can't say so.
            self.work.changed.wait_for(&mut moment, RETRY);
        }
        Ok(())
    }

    /// Where nothing runs in the background, does what there is to do.
    fn work_here(&self) {
        if let Some(desk) = &self.here {
            let mut desk = desk.lock();
            while desk.take_if_any() && self.work.do_job(&mut desk) {}
        }
    }
}

impl<F> Job<F> {
    /// What it counts for in the mailbox: what it keeps on the disk, or in memory.
    fn bytes(&self) -> usize {
        let bytes = match self {
            Job::Segment { segment, .. } => segment.bytes,
            Job::Checkpoint { states, floors, .. } => {
                states.bytes() + size_of_val(floors.as_slice()) as u64
            }
            Job::Stop => 0,
        };
        // A mailbox takes no larger one.
        bytes.min(u64::from(u32::MAX)) as usize
    }
}

impl<F> Desk<F> {
    /// Takes the next job, if none is on the desk. Says whether there is one.
    fn take_if_any(&mut self) -> bool {
        if self.job.is_none() {
            self.job = self.jobs.try_recv();
        }
        self.job.is_some()
    }

    /// The same, but waits.
    fn take_within(&mut self, timeout: Duration) -> Result<bool, Closed> {
        if self.job.is_none() {
            self.job = self.jobs.recv_timeout(timeout)?;
        }
        Ok(self.job.is_some())
    }
}

impl<D: Disk> Drop for Sealer<D> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<D: Disk> Sealer<D> {
    /// Stops when the job that is being done is done. What is left is for the next open.
    pub(crate) fn stop(&mut self) {
        // It is refused when the thread has stopped already.
        let _ = self.jobs.try_send(Lane::Control, Job::Stop, 0);
        self.work.tell();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
    }
}

impl<D: Disk> Work<D> {
    fn run(&self, desk: &mut Desk<D::File>) {
        self.retire();
        while let Ok(any) = desk.take_within(self.retire_every()) {
            if matches!(desk.job, Some(Job::Stop)) {
                return;
            }
            if !any {
                // Time passes also when nothing else happens.
                self.retire();
                self.restate();
            } else if !self.do_job(desk) {
                let mut moment = self.moment.lock();
                // Only a stop is heard meanwhile.
                if !desk.jobs.control_pending() {
                    // What fails now may work later: room may have been made.
                    self.changed.wait_for(&mut moment, RETRY);
                }
                drop(moment);
                if desk.jobs.control_pending() {
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

    /// Tells everybody who waits that something has changed.
    fn tell(&self) {
        // Whoever looks now waits afterwards, and is told.
        drop(self.moment.lock());
        self.changed.notify_all();
    }

    /// Does the job on the desk. Says whether it is done.
    fn do_job(&self, desk: &mut Desk<D::File>) -> bool {
        let Some(history) = &self.shared.history else {
            return false;
        };
        let job = match &desk.job {
            Some(Job::Stop) | None => return false,
            Some(job) => job,
        };
        let mut done = self.try_job(history, job);
        // What failed earlier, such as a compaction for which there was no room, has to be seen to be told.
        if done.as_ref().is_err_and(|error| error.earlier) && self.reopen(history).is_ok() {
            done = self.try_job(history, job);
        }
        if let Err(error) = done {
            let reason = format!(
                "history in {} fails: {}",
                history.path().display(),
                error.reason
            );
            // Some errors the tree goes on after only when it is opened again. If that fails too, the next try says so; and
            // what fails after a shortage, before anything has worked again, fails because of it.
            let reopened = self.reopen(history);
            let before = self.shared.vitals.history_failed();
            let shortage = error.shortage
                || reopened.is_err_and(|error| error.shortage)
                || before.is_some_and(|before| before.shortage);
            tracing::error!(reason, shortage, "sealed segments wait");
            let reason = reason.into();
            let failure = HistoryFailure { reason, shortage };
            self.shared.vitals.set_history_failed(Some(failure));
            self.tell();
            return false;
        }
        self.shared.vitals.set_history_failed(None);
        desk.job = None;
        desk.jobs.handled(1);
        self.tell();
        self.retire();
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

    /// Brings a segment into history and lets its index go.
    fn seal(
        &self,
        history: &History,
        segment: &Arc<Segment<D::File>>,
        end: Sequence,
    ) -> Result<(), HistoryError> {
        let mut sorted = Sorted::of(segment, end)?;
        let times_ms = sorted.times_ms();
        for class in sorted.classes() {
            // What is below the floor of its class already need not go there.
            if self.shared.class_floors.of(class) >= end - 1 {
                sorted.skip(class);
                continue;
            }
            let retention = self.retention_of(class);
            history.ingest_records(&retention, segment.first, times_ms, |put| {
                sorted.put(class, put)
            })?;
            self.disk.between_steps()?;
        }
        drop(sorted);
        self.disk.between_steps()?;
        self.shared
            .state_history(|stated| stated.history_upto = end - 1)?;
        self.disk.between_steps()?;
        let mut index = self.shared.index.write();
        let index_of_segment = index
            .segments
            .pop_front_if(|oldest| oldest.segment.number == segment.number);
        if let Some(mut oldest) = index_of_segment {
            let places = oldest.take_places();
            index.done.push_back(Done {
                segment: segment.clone(),
                end,
                places: Some(places),
            });
            index.history_upto = end - 1;
            drop(index);
            // Letting go of some hundred thousand lists takes a while, so nobody waits for it.
            drop(oldest);
        }
        Ok(())
    }

    fn retention_of(&self, class: Class) -> Retention {
        let mut all = self.retention.iter();
        let of_class = all.find(|retention| retention.class == class).copied();
        of_class.unwrap_or(Retention {
            class,
            ..Retention::default()
        })
    }

    /// Makes a checkpoint durable.
    fn check_point(
        &self,
        history: &History,
        upto: Sequence,
        states: &Pending,
        floors: &[(StreamNo, Floor)],
    ) -> Result<(), HistoryError> {
        self.disk.between_steps()?;
        let entries = states.in_order();
        if entries.len() > 0 {
            history.ingest(Kind::States, |put| {
                entries
                    .into_iter()
                    .try_for_each(|(key, value)| put(key, value))
            })?;
        }
        self.disk.between_steps()?;
        let mut raised = Vec::with_capacity(floors.len());
        for (stream, floor) in floors {
            if floor.upto > history.floor(*stream)? {
                raised.push((stream.to_be_bytes(), stored::floor_value(*floor)));
            }
        }
        if !raised.is_empty() {
            history.ingest(Kind::Floors, |put| {
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
        Ok(())
    }
}

/// How long to wait before history is tried again.
const RETRY: Duration = Duration::from_secs(1);
