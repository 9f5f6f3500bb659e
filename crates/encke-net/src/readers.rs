//! The threads that read from files, so that no shard ever does.

use std::sync::Arc;
use std::thread::JoinHandle;

use encke_log::Reader;
use encke_mailbox::{Bounds, Lane, Options, Receiver, Sender, mailbox};
use encke_stream::{Desk, Fetch, Piece};

use crate::inbox::{Door, Note};
use crate::slot::Token;

/// Hands out reads to the reader threads.
#[derive(Clone)]
pub(crate) struct Readers {
    jobs: Vec<Sender<Job>>,
}

struct Job {
    fetch: Fetch,
    token: Token,
    door: Arc<Door>,
}

impl Readers {
    /// Starts `count` threads. A `desk` is told when something is asked for that it has accepted and not written. They end when the last clone of the answer is gone.
    pub(crate) fn start(
        log: &Reader,
        count: usize,
        desk: Option<&Arc<Desk>>,
    ) -> std::io::Result<(Readers, Vec<JoinHandle<()>>)> {
        let mut jobs = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for number in 0..count.max(1) {
            let options = Options::new(Bounds {
                items_max: JOBS_MAX,
                bytes_max: JOBS_MAX * size_of::<Job>(),
            });
            let (sender, receiver) = mailbox("reader", options);
            jobs.push(sender);
            let log = log.clone();
            let desk = desk.cloned();
            threads.push(
                std::thread::Builder::new()
                    .name(format!("reader-{number}"))
                    .spawn(move || work(&log, desk.as_deref(), receiver))?,
            );
        }
        Ok((Readers { jobs }, threads))
    }

    /// Asks for a piece; it comes back through the door under that token. False: too many wait.
    pub(crate) fn ask(&self, fetch: Fetch, token: Token, door: &Arc<Door>) -> bool {
        let reader = &self.jobs[token as usize % self.jobs.len()];
        let job = Job {
            fetch,
            token,
            door: Arc::clone(door),
        };
        reader.try_send(Lane::Data, job, size_of::<Job>()).is_ok()
    }
}

fn work(log: &Reader, desk: Option<&Desk>, mut jobs: Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let piece = Piece::read(log, &job.fetch);
        if let Err(error) = &piece {
            tracing::error!(%error, "a stream could not be read");
        }
        if let (Ok(piece), Some(desk)) = (&piece, desk)
            && piece.more
            && piece.bytes() == 0
        {
            desk.call();
        }
        job.door.put(Note::Fetched {
            token: job.token,
            piece,
        });
        jobs.handled(1);
    }
}

/// Reads that may wait for one thread; further ones are refused as overload.
const JOBS_MAX: usize = 65_536;
