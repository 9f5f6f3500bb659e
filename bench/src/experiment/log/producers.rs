//! The producers of the server: many state machines in a few threads, as connections are in a shard.
//!
//! A producer that waits has at most one record in flight and makes the next one after the reply. Replies arrive as in
//! the server: with each commit, one message for each thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;

use encke_mailbox::{Bounds, Lane, Receiver, Sender, mailbox};
use encke_stream::{
    Append, Batch, Command, Data, Outcome, Outlet, Reply, Stream, Submission, Submitter, Target,
};

use crate::BenchError;

/// What each producer sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProducerGroup {
    /// Producers, over all threads.
    pub(super) producers: u64,
    /// The threads that run them.
    pub(super) threads: usize,
    /// Records in all.
    pub(super) records: u64,
    /// Bytes of a record.
    pub(super) bytes: usize,
    /// Whether a producer waits for the reply to its record before it sends the next one.
    pub(super) waits: bool,
}

/// Makes records.
#[derive(Debug, Clone)]
pub(super) struct Maker {
    /// The stream that they are for.
    stream: Arc<Stream>,
    /// The number of the outlet that takes the replies.
    outlet: u16,
    /// Bytes of a record.
    bytes: usize,
}

/// The outcomes of all replies.
#[derive(Debug, Default)]
pub(super) struct Replies {
    acknowledged: AtomicU64,
    refused: AtomicU64,
    first_refusal: Mutex<Option<String>>,
}

/// The ends at which replies come in, one for each thread.
pub(super) type Receivers = Vec<Receiver<Vec<Reply>>>;

impl ProducerGroup {
    /// Where the sequencer leaves replies, and, if the producers wait, where their threads find them.
    pub(super) fn outlets(&self, replies: &Arc<Replies>) -> (Vec<Box<dyn Outlet>>, Receivers) {
        let mut outlets: Vec<Box<dyn Outlet>> = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..self.threads {
            if self.waits {
                // Never full: a reply for each producer at the most.
                let bounds = Bounds {
                    items_max: self.producers as usize + 1,
                    bytes_max: INBOX_BYTES,
                };
                let (sender, receiver) = mailbox("producers", bounds);
                outlets.push(Box::new(ReplySender(sender)));
                receivers.push(receiver);
            } else {
                outlets.push(Box::new(Count(Arc::clone(replies))));
            }
        }
        (outlets, receivers)
    }

    /// Starts the threads; they send when `start` opens.
    pub(super) fn start(
        self,
        stream: &Arc<Stream>,
        sender: &Sender<Submission>,
        receivers: Receivers,
        replies: &Arc<Replies>,
        start: &Arc<Barrier>,
    ) -> Result<Vec<JoinHandle<Result<(), BenchError>>>, BenchError> {
        let mut receivers = receivers.into_iter();
        (0..self.threads)
            .map(|number| {
                let thread = Thread {
                    maker: self.maker(stream, number),
                    sender: sender.clone(),
                    left: self.shares(number),
                    out: Vec::new(),
                };
                let (receiver, replies, start) =
                    (receivers.next(), Arc::clone(replies), Arc::clone(start));
                std::thread::Builder::new()
                    .name(format!("producers-{number}"))
                    .spawn(move || {
                        start.wait();
                        match receiver {
                            Some(receiver) => thread.wait_for_each(receiver, &replies),
                            None => thread.send_all(),
                        }
                    })
                    .map_err(BenchError::system("start a thread"))
            })
            .collect()
    }

    /// The maker of a thread's records, whose replies arrive at the outlet of the same number.
    pub(super) fn maker(&self, stream: &Arc<Stream>, thread: usize) -> Maker {
        Maker {
            stream: Arc::clone(stream),
            outlet: thread as u16,
            bytes: self.bytes,
        }
    }

    /// How many records each producer of a thread sends.
    pub(super) fn shares(&self, thread: usize) -> Vec<u64> {
        let one_more = |producer| u64::from(producer < self.records % self.producers);
        (0..self.producers)
            .filter(|producer| producer % self.threads as u64 == thread as u64)
            .map(|producer| self.records / self.producers + one_more(producer))
            .collect()
    }
}

impl Maker {
    /// A record of a producer with this many left to send, and its weight; all that can be done before the order is
    /// known is done here.
    pub(super) fn record(&self, producer: u64, left: u64) -> (Submission, usize) {
        let mut bytes = vec![b'.'; self.bytes];
        for (to, from) in bytes.iter_mut().zip(left.to_le_bytes()) {
            *to = from;
        }
        let units = bytes.len() as u32;
        let command = Command::Append(Append {
            data: Data { bytes, units },
            ..Append::to(Target::Known(Arc::clone(&self.stream)))
        });
        let weight = command.weight_bytes();
        let from = Submitter {
            shard: self.outlet,
            token: producer,
        };
        (Submission::new(command, from), weight)
    }
}

impl Replies {
    /// Records that were acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Fails if something was refused.
    pub(super) fn check(&self, records: u64) -> Result<(), BenchError> {
        match self.refused.load(Ordering::Relaxed) {
            0 => Ok(()),
            refused => Err(BenchError::Refused {
                refused,
                records,
                first: self.first().take().unwrap_or_default(),
            }),
        }
    }

    pub(super) fn count(&self, replies: &[Reply]) {
        let mut acknowledged = 0;
        for reply in replies {
            match &reply.outcome {
                Outcome::Appended { .. } => acknowledged += 1,
                Outcome::Refused(refusal) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    self.first().get_or_insert_with(|| refusal.to_string());
                }
                // The making of the stream.
                Outcome::Created { .. }
                | Outcome::Truncated { .. }
                | Outcome::Deleted
                | Outcome::Done => {}
            }
        }
        self.acknowledged.fetch_add(acknowledged, Ordering::Relaxed);
    }

    fn first(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.first_refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands replies to a thread whose producers wait.
struct ReplySender(Sender<Vec<Reply>>);

impl Outlet for ReplySender {
    fn deliver(&self, _batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        // A thread that is gone waits for nothing.
        let _ = self.0.send(Lane::Data, replies, 0);
    }

    fn admit(&self) {}
}

/// Counts replies without a waiting producer.
struct Count(Arc<Replies>);

impl Outlet for Count {
    fn deliver(&self, _batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        self.0.count(&replies);
    }

    fn admit(&self) {}
}

/// The producers of one thread.
struct Thread {
    maker: Maker,
    sender: Sender<Submission>,
    /// How many records each producer has still to send.
    left: Vec<u64>,
    /// The next item for the mailbox.
    out: Vec<(Submission, usize)>,
}

impl Thread {
    fn wait_for_each(
        mut self,
        mut receiver: Receiver<Vec<Reply>>,
        replies: &Replies,
    ) -> Result<(), BenchError> {
        let mut under_way: u64 = (0..self.left.len())
            .map(|producer| u64::from(self.make(producer)))
            .sum();
        let mut notes = Vec::new();
        while under_way > 0 {
            self.flush()?;
            receiver
                .recv_batch(&mut notes)
                .map_err(|_| BenchError::Thread("sequencer"))?;
            for note in notes.drain(..) {
                replies.count(&note);
                for reply in note {
                    // The creation of the stream has no producer.
                    if reply.token == STRANGER {
                        continue;
                    }
                    under_way -= 1;
                    under_way += u64::from(self.make(reply.token as usize));
                }
            }
        }
        Ok(())
    }

    fn send_all(mut self) -> Result<(), BenchError> {
        loop {
            let mut made = false;
            for producer in 0..self.left.len() {
                made |= self.make(producer);
            }
            if !made {
                return Ok(());
            }
            self.flush()?;
        }
    }

    /// Makes the next record of a producer.
    fn make(&mut self, producer: usize) -> bool {
        let left = &mut self.left[producer];
        if *left == 0 {
            return false;
        }
        *left -= 1;
        self.out.push(self.maker.record(producer as u64, *left));
        true
    }

    /// Puts everything into the mailbox; when that is full, waits for room.
    fn flush(&mut self) -> Result<(), BenchError> {
        loop {
            self.sender.try_send_many(Lane::Data, &mut self.out);
            if self.out.is_empty() {
                return Ok(());
            }
            let (request, bytes) = self.out.remove(0);
            self.sender
                .send(Lane::Data, request, bytes)
                .map_err(|_| BenchError::Thread("sequencer"))?;
        }
    }
}

/// The token of requests that no producer made.
pub(super) const STRANGER: u64 = u64::MAX;

/// More than the replies of all producers weigh.
const INBOX_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_somebodys() {
        for (producers, threads, records) in [(1_000, 2, 1_000_000), (7, 3, 100), (5, 2, 3)] {
            let group = ProducerGroup {
                producers,
                threads,
                records,
                bytes: 128,
                waits: true,
            };
            let shares: Vec<u64> = (0..threads).flat_map(|n| group.shares(n)).collect();
            assert_eq!(shares.len() as u64, producers);
            assert_eq!(shares.iter().sum::<u64>(), records);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1, "{shares:?}");
        }
    }
}
