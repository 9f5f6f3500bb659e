//! The threads that read from files, for shards and sequencers.

mod delayed;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use encke_log::ReadError;
use encke_mailbox::Receiver;
use encke_net::{ReadTask, wall_time};
use encke_protocol::PresenceStreams;
use encke_stream::Piece;
use encke_threads::spawn_essential;
use prometheus::Histogram;

use crate::archive::Archive;
use delayed::DelayedPieces;

/// What the reader threads need.
#[derive(Clone)]
pub(crate) struct ReaderTools {
    pub(crate) archive: Archive,
    /// How long loading names took.
    pub(crate) took: Histogram,
    /// Knows what streams in memory tell of.
    pub(crate) presence: Arc<PresenceStreams>,
}

/// Starts a thread for each queue. They end when the last clone of their [`encke_net::Readers`] is gone.
pub(crate) fn start(
    queues: Vec<Receiver<ReadTask>>,
    tools: &ReaderTools,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let threads = queues.into_iter().enumerate().map(|(number, tasks)| {
        let tools = tools.clone();
        spawn_essential(format!("reader-{number}"), move || work(&tools, tasks))
    });
    threads.collect()
}

fn work(tools: &ReaderTools, mut tasks: Receiver<ReadTask>) {
    // For each log the pieces that are delayed.
    let mut delayed: Vec<DelayedPieces> = tools
        .archive
        .readers()
        .iter()
        .map(|_| DelayedPieces::default())
        .collect();
    loop {
        let task = match delayed.iter().filter_map(DelayedPieces::pause).min() {
            None => tasks.recv().map(Some),
            Some(pause) => tasks.recv_timeout(pause),
        };
        for (delayed, log) in delayed.iter_mut().zip(tools.archive.readers()) {
            delayed.look(log.published());
        }
        match task {
            Ok(Some(task)) => tools.perform(task, &mut delayed),
            Ok(None) => continue,
            Err(_) => return,
        }
        tasks.handled(1);
    }
}

impl ReaderTools {
    fn perform(&self, task: ReadTask, delayed: &mut [DelayedPieces]) {
        let ReaderTools {
            archive,
            took,
            presence,
        } = self;
        let loaders = &archive.loaders;
        match task {
            ReadTask::Read(fetch, reply) if fetch.is_of_memory() => {
                let piece = Piece::read_memory(&**presence, &fetch, wall_time());
                reply.piece(piece.ok_or_else(|| ReadError::Io {
                    file: "memory".into(),
                    position: 0,
                    source: std::io::ErrorKind::NotFound.into(),
                }));
            }
            ReadTask::Read(fetch, reply) => {
                let log = fetch.log();
                let published = archive.published(log);
                let piece = archive.read_for_client(&fetch);
                match &piece {
                    // Retention is configured so, and the client learns it.
                    Err(error @ ReadError::BelowFloor { .. }) => tracing::debug!(%error),
                    Err(error) => tracing::error!(%error, "a stream could not be read"),
                    Ok(_) => {}
                }
                match (piece, delayed.get_mut(log)) {
                    (Ok(piece), Some(delayed)) if piece.lacks() => {
                        delayed.keep(reply, piece, published);
                    }
                    (piece, _) => reply.piece(piece),
                }
            }
            ReadTask::ReadOrder(fetch, reply) => {
                let published = archive.published(fetch.log);
                let piece = archive.read_order(&fetch);
                match &piece {
                    // Retention is configured so, and the client learns it.
                    Err(error @ ReadError::NoLongerKept { .. }) => tracing::debug!(%error),
                    Err(error) => tracing::error!(%error, "the order of streams could not be read"),
                    Ok(_) => {}
                }
                match (piece, delayed.get_mut(fetch.log)) {
                    (Ok(piece), Some(delayed)) if piece.lacks() => {
                        delayed.keep(reply, piece, published);
                    }
                    (piece, _) => reply.piece(piece),
                }
            }
            ReadTask::Compress(task) => task.run(),
            ReadTask::LoadName(name, reply) => {
                let begun = Instant::now();
                let known = loaders.load(&name);
                took.observe(begun.elapsed().as_secs_f64());
                if let Err(error) = &known {
                    tracing::error!(%error, name = &*name, "a stream could not be loaded");
                }
                reply.name(known);
            }
            ReadTask::List(fetch, reply) => {
                let page = loaders.list(&fetch);
                if let Err(error) = &page {
                    tracing::error!(%error, "streams could not be listed");
                }
                reply.page(page);
            }
            ReadTask::LoadStream(no, reply) => {
                let stream = loaders.load_number(no);
                if let Err(error) = &stream {
                    tracing::error!(%error, no, "a subscriber's stream could not be loaded");
                }
                reply.stream(stream);
            }
            ReadTask::End(no) => {
                if let Err(error) = loaders.load_number(no) {
                    tracing::error!(%error, no, "a stream that is to end could not be loaded");
                }
            }
        }
    }
}
