//! Producers as tasks: each sends a record, and sleeps until the reply to this record wakes it.
//!
//! They represent the report's processes. Each thread runs its share of them, and replies arrive as in the server: with each
//! commit one message for each thread, which wakes the waiting tasks. A queue with only such producers and replies is the
//! limit that the log is compared with: every record costs a wake-up.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;

use encke_mailbox::{Lane, ReplyTo, Sender, reply};
use encke_stream::{Batch, Outlet, Reply, Stream, Submission};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::producers::{Maker, ProducerGroup, Replies, STRANGER};
use crate::BenchError;

/// The ends at which the replies to tasks come in, one for each thread.
pub(super) type Posts = Vec<UnboundedReceiver<Vec<Reply>>>;

/// Hands replies to a thread whose producers are tasks. There is no more in it than a reply for each of them.
struct Post(UnboundedSender<Vec<Reply>>);

impl Outlet for Post {
    fn deliver(&self, _batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        // A thread that is gone waits for nothing.
        let _ = self.0.send(replies);
    }

    fn admit(&self) {}
}

/// Where the producers of one thread wait for their replies; empty while one makes its next record.
struct Places(Vec<Mutex<Option<ReplyTo<()>>>>);

impl Places {
    fn new(producers: usize) -> Arc<Self> {
        Arc::new(Self((0..producers).map(|_| Mutex::new(None)).collect()))
    }

    /// The task that waits at this place.
    fn swap(&self, producer: u64, waits: Option<ReplyTo<()>>) -> Option<ReplyTo<()>> {
        let place = self.0.get(usize::try_from(producer).ok()?)?;
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut place, waits)
    }
}

impl ProducerGroup {
    /// Where the sequencer leaves replies to tasks, and where their threads find them.
    pub(super) fn posts(&self) -> (Vec<Box<dyn Outlet>>, Posts) {
        let post = |_| {
            let (sender, receiver) = unbounded_channel();
            (Box::new(Post(sender)) as Box<dyn Outlet>, receiver)
        };
        (0..self.threads).map(post).unzip()
    }

    /// Starts the threads, with a task for each producer; they send when `start` opens.
    pub(super) fn start_tasks(
        self,
        stream: &Arc<Stream>,
        sender: &Sender<Submission>,
        posts: Posts,
        replies: &Arc<Replies>,
        start: &Arc<Barrier>,
    ) -> Result<Vec<JoinHandle<Result<(), BenchError>>>, BenchError> {
        let threads = posts.into_iter().enumerate().map(|(number, post)| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .map_err(BenchError::system("start a runtime"))?;
            let maker = self.maker(stream, number);
            let shares = self.shares(number);
            let (sender, replies, start) = (sender.clone(), Arc::clone(replies), Arc::clone(start));
            std::thread::Builder::new()
                .name(format!("producers-{number}"))
                .spawn(move || {
                    start.wait();
                    runtime.block_on(produce_all(maker, shares, sender, (post, replies)))
                })
                .map_err(BenchError::system("start a thread"))
        });
        threads.collect()
    }
}

/// The producers of one thread, from the first record to the last reply.
async fn produce_all(
    maker: Maker,
    shares: Vec<u64>,
    sender: Sender<Submission>,
    (post, replies): (UnboundedReceiver<Vec<Reply>>, Arc<Replies>),
) -> Result<(), BenchError> {
    let places = Places::new(shares.len());
    let hands_out = tokio::spawn(hand_out(post, Arc::clone(&places), replies));
    let start = |(producer, records)| {
        let (maker, sender, places) = (maker.clone(), sender.clone(), Arc::clone(&places));
        tokio::spawn(produce(producer as u64, records, maker, sender, places))
    };
    let tasks: Vec<_> = shares.into_iter().enumerate().map(start).collect();
    for task in tasks {
        task.await.map_err(|_| BenchError::Thread("producer"))??;
    }
    hands_out.abort();
    Ok(())
}

/// Sends records one after the other, each after the reply to the one before.
async fn produce(
    producer: u64,
    records: u64,
    maker: Maker,
    sender: Sender<Submission>,
    places: Arc<Places>,
) -> Result<(), BenchError> {
    for left in (0..records).rev() {
        let (request, bytes) = maker.record(producer, left);
        let (reply_to, answer) = reply();
        places.swap(producer, Some(reply_to));
        // There is a place in the mailbox for each producer.
        sender
            .try_send(Lane::Data, request, bytes)
            .map_err(|_| BenchError::Thread("sequencer"))?;
        answer.await.map_err(|_| BenchError::Thread("sequencer"))?;
    }
    Ok(())
}

/// Gives each reply to the task that waits for it, until the sequencer is gone: then to none that still waits.
async fn hand_out(
    mut post: UnboundedReceiver<Vec<Reply>>,
    places: Arc<Places>,
    replies: Arc<Replies>,
) {
    while let Some(batch) = post.recv().await {
        replies.count(&batch);
        // The creation of the stream has no task.
        for reply in batch.into_iter().filter(|reply| reply.token != STRANGER) {
            if let Some(waits) = places.swap(reply.token, None) {
                // A producer that has given up needs no reply.
                let _ = waits.send(());
            }
        }
    }
    for producer in 0..places.0.len() as u64 {
        places.swap(producer, None);
    }
}
