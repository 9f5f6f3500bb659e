//! The thread that reads jobs for the dispatcher.

use std::time::Duration;

use encke_mailbox::Receiver;
use encke_stream::{Fetch, Piece};

use crate::dispatcher_mailbox::DispatcherSender;
use crate::message::DispatcherMessage;
use crate::record;
use crate::request::{JobId, Payload};

/// A job to read.
pub(crate) struct JobLoad {
    pub(crate) pool: u64,
    pub(crate) id: JobId,
    pub(crate) fetch: Fetch,
}

/// Reads jobs until the dispatcher ends.
pub(crate) fn load(
    mut loads: Receiver<JobLoad>,
    sender: &DispatcherSender,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) {
    while let Ok(job) = loads.recv() {
        load_job(&job, sender, read);
        loads.handled(1);
    }
}

pub(crate) fn load_job(
    job: &JobLoad,
    sender: &DispatcherSender,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) {
    let payload = read_job(&job.fetch, read);
    sender.put(DispatcherMessage::Loaded {
        pool: job.pool,
        id: job.id,
        payload,
    });
}

fn read_job(
    fetch: &Fetch,
    read: &dyn Fn(&Fetch) -> Result<Piece, String>,
) -> Result<Payload, String> {
    for _ in 0..UNWRITTEN_TRIES {
        let piece = read(fetch)?;
        if let Some(item) = piece.items().next() {
            return record::payload(item.data).map_err(|error| error.to_string());
        }
        if !piece.more {
            break;
        }
        // The job was acknowledged before it was written.
        std::thread::sleep(UNWRITTEN_WAIT);
    }
    Err("the record is missing".into())
}

/// How often, and how long apart, the loader tries to read a job that is not written yet.
const UNWRITTEN_TRIES: u32 = 500;
const UNWRITTEN_WAIT: Duration = Duration::from_millis(10);
