//! The threads that read from files; a shard never does.

mod delayed;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use encke_log::{ReadError, StreamNo};
use encke_mailbox::{Bounds, Gauge, Lane, Receiver, Sender, mailbox};
use encke_stream::{Fetch, OrderFetch};
use prometheus::Histogram;

use crate::archive::Archive;
use crate::compression::{CompressedPiece, Compressor};
use crate::feed::slot::Token;
use crate::shard_channel::{ShardEvent, ShardSender};
use delayed::DelayedPieces;

/// Sends tasks to the reader threads.
#[derive(Clone)]
pub(crate) struct Readers {
    jobs: Vec<Sender<ReadTask>>,
}

pub(crate) enum ReadTask {
    /// Reads a part of a stream, for a connection.
    Read {
        fetch: Fetch,
        token: Token,
        sender: Arc<ShardSender>,
    },
    /// Reads a part of the global order, for a subscriber of a pattern.
    ReadOrder {
        fetch: OrderFetch,
        token: Token,
        sender: Arc<ShardSender>,
    },
    /// Compresses a piece of a response.
    Compress(CompressTask),
    /// Loads what is known of a name, for a connection.
    LoadName {
        name: Box<str>,
        token: Token,
        sender: Arc<ShardSender>,
    },
    /// Loads a stream, for a subscriber.
    LoadStream {
        no: StreamNo,
        token: Token,
        sender: Arc<ShardSender>,
    },
    /// Loads a stream whose lifetime is over.
    End(StreamNo),
}

/// A compressor with input, for a connection.
pub(crate) struct CompressTask {
    pub(crate) compressor: Box<Compressor>,
    pub(crate) token: Token,
    pub(crate) sender: Arc<ShardSender>,
}

/// What the reader threads need.
#[derive(Clone)]
pub(crate) struct ReaderTools {
    pub(crate) archive: Archive,
    /// How long loading names took.
    pub(crate) took: Histogram,
}

/// The queues of reader threads that are not started yet.
pub(crate) struct ReaderQueues(Vec<Receiver<ReadTask>>);

impl Readers {
    /// Readers of `count` threads, which begin with [`ReaderQueues::start`].
    pub(crate) fn new(count: usize) -> (Readers, ReaderQueues) {
        let ends = (0..count.max(1)).map(|_| {
            let bounds = Bounds {
                items_max: JOBS_MAX,
                bytes_max: JOBS_MAX * size_of::<ReadTask>(),
            };
            mailbox("reader", bounds)
        });
        let (jobs, receivers) = ends.unzip();
        (Readers { jobs }, ReaderQueues(receivers))
    }

    /// Reads a piece and sends it to the shard under that token. False: the queue is full.
    pub(crate) fn read(&self, fetch: Fetch, token: Token, sender: &Arc<ShardSender>) -> bool {
        let sender = Arc::clone(sender);
        self.send(
            token,
            ReadTask::Read {
                fetch,
                token,
                sender,
            },
        )
    }

    /// Reads a piece of the global order and sends it to the shard under that token. False: the queue is full.
    pub(crate) fn read_order(
        &self,
        fetch: OrderFetch,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let sender = Arc::clone(sender);
        self.send(
            token,
            ReadTask::ReadOrder {
                fetch,
                token,
                sender,
            },
        )
    }

    /// Loads what is known of a name, and sends it as a piece. False: the queue is full.
    pub(crate) fn load_name(
        &self,
        name: Box<str>,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let sender = Arc::clone(sender);
        self.send(
            token,
            ReadTask::LoadName {
                name,
                token,
                sender,
            },
        )
    }

    /// Loads a stream, and sends it as a piece. False: the queue is full.
    pub(crate) fn load_stream(
        &self,
        no: StreamNo,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let sender = Arc::clone(sender);
        self.send(token, ReadTask::LoadStream { no, token, sender })
    }

    /// Has a piece compressed and sent to the shard. `Err`: the queue is full.
    pub(crate) fn compress(&self, task: CompressTask) -> Result<(), Box<Compressor>> {
        let key = task.token;
        let refused = match self.try_send(key, ReadTask::Compress(task)) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        match refused {
            ReadTask::Compress(task) => Err(task.compressor),
            _ => Ok(()),
        }
    }

    /// Loads a stream that is to end, unless the queue is full.
    pub(crate) fn end(&self, no: StreamNo) {
        self.send(no, ReadTask::End(no));
    }

    /// The queue of each thread.
    pub(crate) fn gauges(&self) -> impl Iterator<Item = Gauge> + '_ {
        self.jobs.iter().map(Sender::gauge)
    }

    fn send(&self, key: u64, job: ReadTask) -> bool {
        self.try_send(key, job).is_ok()
    }

    fn try_send(&self, key: u64, job: ReadTask) -> Result<(), ReadTask> {
        let reader = &self.jobs[key as usize % self.jobs.len()];
        reader
            .try_send(Lane::Data, job, size_of::<ReadTask>())
            .map_err(|refused| refused.item)
    }
}

impl ReaderQueues {
    /// Starts the threads. They end when the last clone of the readers is gone.
    pub(crate) fn start(self, means: &ReaderTools) -> std::io::Result<Vec<JoinHandle<()>>> {
        let threads = (0..).zip(self.0).map(|(number, jobs): (usize, _)| {
            let means = means.clone();
            std::thread::Builder::new()
                .name(format!("reader-{number}"))
                .spawn(move || work(&means, jobs))
        });
        threads.collect()
    }
}

fn work(means: &ReaderTools, mut jobs: Receiver<ReadTask>) {
    let ReaderTools { archive, took } = means;
    let loader = &archive.loaders;
    // For each log the pieces that are delayed.
    let mut held: Vec<DelayedPieces> = archive
        .readers()
        .iter()
        .map(|_| DelayedPieces::default())
        .collect();
    loop {
        let job = match held.iter().filter_map(DelayedPieces::pause).min() {
            None => jobs.recv().map(Some),
            Some(pause) => jobs.recv_timeout(pause),
        };
        for (held, log) in held.iter_mut().zip(archive.readers()) {
            held.look(log.published());
        }
        let job = match job {
            Ok(Some(job)) => job,
            Ok(None) => continue,
            Err(_) => return,
        };
        match job {
            ReadTask::Read {
                fetch,
                token,
                sender,
            } => {
                let log = fetch.log();
                let published = archive.published(log);
                let piece = archive.read(&fetch);
                match &piece {
                    // Retention is configured so, and the client learns it.
                    Err(error @ ReadError::BelowFloor { .. }) => tracing::debug!(%error),
                    Err(error) => tracing::error!(%error, "a stream could not be read"),
                    Ok(_) => {}
                }
                match (piece, held.get_mut(log)) {
                    (Ok(piece), Some(held)) if piece.lacks() => {
                        held.keep(sender, token, piece, published);
                    }
                    (piece, _) => sender.put_piece(token, piece),
                }
            }
            ReadTask::ReadOrder {
                fetch,
                token,
                sender,
            } => {
                let published = archive.published(fetch.log);
                match (archive.read_order(&fetch), held.get_mut(fetch.log)) {
                    (Ok(piece), Some(held)) if piece.lacks() => {
                        held.keep(sender, token, piece, published);
                    }
                    (Ok(piece), _) => sender.put_piece(token, Ok(piece)),
                    (Err(error), _) => {
                        match &error {
                            // Retention is configured so, and the client learns it.
                            ReadError::NoLongerKept { .. } => tracing::debug!(%error),
                            _ => tracing::error!(%error, "the order of streams could not be read"),
                        }
                        sender.put_piece(token, Err(error));
                    }
                }
            }
            ReadTask::Compress(CompressTask {
                mut compressor,
                token,
                sender,
            }) => {
                let out = compressor.step();
                let piece = CompressedPiece { compressor, out };
                sender.put(ShardEvent::Compressed { token, piece });
            }
            ReadTask::LoadName {
                name,
                token,
                sender,
            } => {
                let begun = Instant::now();
                let known = loader.load(&name);
                took.observe(begun.elapsed().as_secs_f64());
                if let Err(error) = &known {
                    tracing::error!(%error, name = &*name, "a stream could not be loaded");
                }
                sender.put(ShardEvent::NameLoaded { token, known });
            }
            ReadTask::LoadStream { no, token, sender } => {
                let stream = loader.load_number(no);
                if let Err(error) = &stream {
                    tracing::error!(%error, no, "a subscriber's stream could not be loaded");
                }
                sender.put(ShardEvent::StreamLoaded { token, stream });
            }
            ReadTask::End(no) => {
                if let Err(error) = loader.load_number(no) {
                    tracing::error!(%error, no, "a stream that is to end could not be loaded");
                }
            }
        }
        jobs.handled(1);
    }
}

/// Reads that may wait for one thread; further ones are refused as overload.
const JOBS_MAX: usize = 65_536;
