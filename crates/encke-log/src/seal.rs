//! The work in the background: sealed segments go into history, checkpoints become durable, old segments go.
//!
//! Jobs are done one after the other, in the order in which they came. A job whose steps were interrupted is begun again,
//! by this process or the next: each step means the same when it is done twice, and a mark is set only when what it stands
//! for is durable. History that fails is tried again; meanwhile records stay readable where they are, and when too many
//! segments wait, the writer is told.

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
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Does the work in the background.
#[derive(Debug)]
pub(crate) struct Sealer<D: Disk> {
    work: Arc<Work<D>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
pub(crate) struct Work<D: Disk> {
    pub(crate) disk: D,
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) done_bytes_max: u64,
    pub(crate) done_age_max: Option<Duration>,
    pub(crate) retention: Vec<Retention>,
    /// Up to which stream it was looked for floors that nobody needs any more.
    pub(crate) swept_upto: Mutex<StreamNo>,
    queue: Mutex<Queue<D::File>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue<F> {
    /// The first one is being done.
    jobs: VecDeque<Job<F>>,
    /// How many of the jobs are segments.
    segments: usize,
    stop: bool,
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
}

impl<F> Clone for Job<F> {
    fn clone(&self) -> Self {
        match self {
            Job::Segment { segment, end } => Job::Segment {
                segment: segment.clone(),
                end: *end,
            },
            Job::Checkpoint {
                upto,
                states,
                floors,
            } => Job::Checkpoint {
                upto: *upto,
                states: states.clone(),
                floors: floors.clone(),
            },
        }
    }
}

impl<D: Disk> Sealer<D> {
    pub(crate) fn start(
        disk: D,
        shared: Arc<Shared<D>>,
        options: &Options,
    ) -> std::io::Result<Self> {
        let threaded = D::BACKGROUND && shared.history.is_some();
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
            swept_upto: Mutex::default(),
            queue: Mutex::new(Queue {
                jobs: VecDeque::new(),
                segments: 0,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let thread = if threaded {
            let work = work.clone();
            let seal = std::thread::Builder::new().name("encke-seal".to_owned());
            Some(seal.spawn(move || work.run())?)
        } else {
            None
        };
        Ok(Sealer { work, thread })
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

    /// Waits until fewer than `segments_max` segments are waiting.
    ///
    /// # Errors
    /// History does not take them; the reason.
    pub(crate) fn wait_for_room(&self, segments_max: usize) -> Result<(), HistoryFailure> {
        self.wait_while(|queue| queue.segments >= segments_max.max(1))
    }

    /// Waits until everything is done.
    ///
    /// # Errors
    /// History does not take it; the reason. The next open does it then.
    pub(crate) fn wait_for_all(&self) -> Result<(), HistoryFailure> {
        self.wait_while(|queue| !queue.jobs.is_empty())
    }

    fn push(&self, job: Job<D::File>) {
        if self.work.shared.history.is_none() {
            return;
        }
        let mut queue = self.work.queue.lock();
        queue.segments += usize::from(matches!(job, Job::Segment { .. }));
        queue.jobs.push_back(job);
        drop(queue);
        self.work.changed.notify_all();
        self.work_here();
    }

    fn wait_while(
        &self,
        mut waiting: impl FnMut(&Queue<D::File>) -> bool,
    ) -> Result<(), HistoryFailure> {
        self.work_here();
        let mut queue = self.work.queue.lock();
        while waiting(&queue) {
            if let Some(failure) = self.work.shared.vitals.history_failed() {
                return Err(failure);
            }
            self.work.changed.wait(&mut queue);
        }
        Ok(())
    }

    /// Where nothing runs in the background, does what there is to do.
    fn work_here(&self) {
        if self.thread.is_none() {
            while self.work.do_next() {}
        }
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
        self.work.queue.lock().stop = true;
        self.work.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was already reported by its hook.
            let _ = thread.join();
        }
    }
}

impl<D: Disk> Work<D> {
    fn run(&self) {
        self.retire();
        loop {
            let went_on = self.do_next();
            let mut queue = self.queue.lock();
            if queue.stop {
                return;
            }
            if queue.jobs.is_empty() {
                let woken = self.changed.wait_for(&mut queue, self.retire_every());
                drop(queue);
                // Time passes also when nothing else happens.
                if woken.timed_out() {
                    self.retire();
                }
            } else if !went_on {
                // What fails now may work later: room may have been made.
                self.changed.wait_for(&mut queue, RETRY);
            }
        }
    }

    /// Does the first job. Says whether there was one and it is done.
    fn do_next(&self) -> bool {
        let Some(job) = self.queue.lock().jobs.front().cloned() else {
            return false;
        };
        let Some(history) = &self.shared.history else {
            return false;
        };
        let done = match &job {
            Job::Segment { segment, end } => self.seal(history, segment, *end),
            Job::Checkpoint {
                upto,
                states,
                floors,
            } => self.check_point(history, *upto, states, floors),
        };
        if let Err(error) = done {
            let reason = format!(
                "history in {} fails: {}",
                history.path().display(),
                error.reason
            );
            // Some errors the tree goes on after only when it is opened again. If that fails too, the next try says so; and
            // what fails after a shortage, before anything has worked again, fails because of it.
            let reopened = history.reopen();
            let before = self.shared.vitals.history_failed();
            let shortage = error.shortage
                || reopened.is_err_and(|error| error.shortage)
                || before.is_some_and(|before| before.shortage);
            tracing::error!(reason, shortage, "sealed segments wait");
            let reason = reason.into();
            let failure = HistoryFailure { reason, shortage };
            self.shared.vitals.set_history_failed(Some(failure));
            self.changed.notify_all();
            return false;
        }
        self.shared.vitals.set_history_failed(None);
        let mut queue = self.queue.lock();
        queue.jobs.pop_front();
        queue.segments -= usize::from(matches!(job, Job::Segment { .. }));
        drop(queue);
        self.changed.notify_all();
        self.retire();
        true
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
        history.set_history_upto(end - 1)?;
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
        history.set_checkpoint_upto(upto)?;
        self.shared.index.write().checkpoint_upto = upto;
        self.shared.states.pop();
        self.shared.floors.settle(floors);
        Ok(())
    }
}

/// How long to wait before history is tried again.
const RETRY: Duration = Duration::from_secs(1);
