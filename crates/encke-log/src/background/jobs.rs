//! The jobs of the background thread, and the receiving end of the mailbox that they come through.

use crate::history::floor::Floor;
use crate::history::state::PendingCheckpoint;
use crate::ids::{Sequence, StreamNo};
use crate::segments::segment::Segment;
use encke_mailbox::{Closed, Receiver};
use std::sync::Arc;
use std::time::Duration;

/// The receiving end of the mailbox, with the job in flight.
#[derive(Debug)]
pub(crate) struct JobReceiver<F> {
    jobs: Receiver<Job<F>>,
    /// The job that is being done, or failed and is tried again. It counts as in the mailbox.
    in_flight: Option<Job<F>>,
}

#[derive(Debug)]
pub(crate) enum Job<F> {
    /// A segment whose records, those before `end`, are all durable and published.
    Segment {
        segment: Arc<Segment<F>>,
        end: Sequence,
    },
    Checkpoint {
        upto: Sequence,
        states: Arc<PendingCheckpoint>,
        floors: Vec<(StreamNo, Floor)>,
    },
    /// In the control lane, so that it overtakes all waiting jobs.
    Stop,
}

impl<F> Job<F> {
    /// Its size in the mailbox: the bytes that it keeps on the disk, or in memory.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = match self {
            Job::Segment { segment, .. } => segment.bytes,
            Job::Checkpoint { states, floors, .. } => {
                states.bytes() + size_of_val(floors.as_slice()) as u64
            }
            Job::Stop => 0,
        };
        // The mailbox takes no larger item.
        bytes.min(u64::from(u32::MAX)) as usize
    }
}

impl<F> JobReceiver<F> {
    pub(crate) fn new(jobs: Receiver<Job<F>>) -> JobReceiver<F> {
        JobReceiver {
            jobs,
            in_flight: None,
        }
    }

    /// The job in flight.
    pub(crate) fn in_flight(&self) -> Option<&Job<F>> {
        self.in_flight.as_ref()
    }

    /// Receives the next job, unless one is in flight. Returns whether there is one.
    pub(crate) fn try_receive(&mut self) -> bool {
        if self.in_flight.is_none() {
            self.in_flight = self.jobs.try_recv();
        }
        self.in_flight.is_some()
    }

    /// [`JobReceiver::try_receive`], but waits for a job.
    pub(crate) fn receive_timeout(&mut self, timeout: Duration) -> Result<bool, Closed> {
        if self.in_flight.is_none() {
            self.in_flight = self.jobs.recv_timeout(timeout)?;
        }
        Ok(self.in_flight.is_some())
    }

    /// Notes that the job in flight is done.
    pub(crate) fn finish(&mut self) {
        self.in_flight = None;
        self.jobs.handled(1);
    }

    /// Whether a stop is waiting.
    pub(crate) fn stop_pending(&self) -> bool {
        self.jobs.control_pending()
    }
}
