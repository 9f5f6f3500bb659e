//! Producers that are tasks: each sends a record, and sleeps until the reply to that very record wakes it.
//!
//! They stand for the report's processes. A queue with nothing but such producers and replies is the limit that the log
//! is measured against: every record costs a wake-up, whoever gives the reply.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;

use encke_mailbox::{Lane, ReplyTo, Sender, reply};
use encke_stream::{Batch, Outlet, Reply, Request};

use super::producers::{Crew, Maker, Replies};
use crate::BenchError;

/// Where producers wait for their replies.
pub(super) struct Desk {
    /// By producer; empty while it makes its next record.
    places: Vec<Mutex<Option<ReplyTo<()>>>>,
    replies: Arc<Replies>,
}

/// The desk, as the sequencer knows it.
pub(super) struct ToDesk(pub(super) Arc<Desk>);

impl Desk {
    pub(super) fn new(producers: u64, replies: &Arc<Replies>) -> Arc<Self> {
        Arc::new(Self {
            places: (0..producers).map(|_| Mutex::new(None)).collect(),
            replies: Arc::clone(replies),
        })
    }

    /// Who waits at this place, from now on or until now.
    fn swap(&self, producer: u64, waits: Option<ReplyTo<()>>) -> Option<ReplyTo<()>> {
        let place = self.places.get(usize::try_from(producer).ok()?)?;
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut place, waits)
    }
}

impl Outlet for ToDesk {
    fn deliver(&self, _batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        self.0.replies.count(&replies);
        for reply in replies {
            // The making of the stream was nobody's.
            if let Some(waits) = self.0.swap(reply.token, None) {
                // A producer that has given up needs no reply.
                let _ = waits.send(());
            }
        }
    }

    fn admit(&self) {}
}

impl Crew {
    /// Starts a task for each producer, in as many threads as the crew has; they send when `start` opens.
    pub(super) fn start_tasks(
        self,
        maker: Maker,
        sender: &Sender<Request>,
        desk: Arc<Desk>,
        start: &Arc<Barrier>,
    ) -> Result<JoinHandle<Result<(), BenchError>>, BenchError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(self.threads)
            .thread_name("producers")
            .build()
            .map_err(BenchError::system("start threads"))?;
        let (sender, start) = (sender.clone(), Arc::clone(start));
        std::thread::Builder::new()
            .name("producers".into())
            .spawn(move || {
                start.wait();
                let tasks: Vec<_> = (0..self.producers)
                    .map(|producer| {
                        let (maker, sender, desk) =
                            (maker.clone(), sender.clone(), Arc::clone(&desk));
                        let records = self.share(producer);
                        runtime.spawn(produce(producer, records, maker, sender, desk))
                    })
                    .collect();
                runtime.block_on(async {
                    for task in tasks {
                        task.await.map_err(|_| BenchError::Thread("producer"))??;
                    }
                    Ok(())
                })
            })
            .map_err(BenchError::system("start a thread"))
    }
}

/// Sends so many records, one after the other, each when the reply to the one before has come.
async fn produce(
    producer: u64,
    records: u64,
    maker: Maker,
    sender: Sender<Request>,
    desk: Arc<Desk>,
) -> Result<(), BenchError> {
    for left in (0..records).rev() {
        let (request, bytes) = maker.record(producer, left);
        let (reply_to, answer) = reply();
        desk.swap(producer, Some(reply_to));
        // There is a place in the mailbox for each producer.
        sender
            .try_send(Lane::Data, request, bytes)
            .map_err(|_| BenchError::Thread("sequencer"))?;
        answer.await.map_err(|_| BenchError::Thread("sequencer"))?;
    }
    Ok(())
}
