//! Messages of the replicated order on their way to the sequencer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use encke_clock::WallTime;

use super::assembly::{Assembly, FollowError, FollowedBatch};
use super::chain::{BatchId, Chain, Tip, message_hash};
use super::outgoing::Outstanding;
use super::status::OrderStatus;
use crate::StorageHold;
use crate::machine::command::FleetCommand;
use crate::machine::outcome::Refusal;
use crate::order::submission::Submitter;

/// Takes the messages of the order, in order.
pub struct IncomingBatches {
    assembly: Assembly,
    sequencer: SyncSender<Incoming>,
    status: Arc<OrderStatus>,
    /// The name of this node.
    own: Box<str>,
}

/// The sequencer has stopped, so that nothing more can be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sequencer has stopped")]
pub struct FollowStopped;

/// What the sequencer gets.
pub(super) enum Incoming {
    Batch(FollowedBatch),
    /// A batch of this node was not stored in time. Its submitters get this reason.
    GaveUp(u64, Arc<str>),
    /// These were never sent, for this reason.
    Refused(Vec<Submitter>, Refusal),
    /// The order cannot be followed any further.
    Stop(Arc<str>),
}

/// A batch in its place in the order, with the submitters that wait for it on this node.
#[derive(Debug)]
pub(crate) struct OrderedBatch {
    pub(crate) batch: FollowedBatch,
    /// As many as commands if the batch is this node's own.
    pub(crate) submitters: Vec<Option<Submitter>>,
    /// The storage that its commands will use, if this node has sent it.
    pub(crate) holds: Vec<StorageHold>,
}

/// The sequencer's end.
pub struct Following {
    incoming: Receiver<Incoming>,
    /// What was received behind batches, and is no batch.
    after: Option<Incoming>,
    /// Those whose batch is not in the order, although a later one of this node is.
    passed: Vec<Submitter>,
    /// This node, in this run.
    own: BatchId,
    outstanding: Arc<Outstanding>,
    pub(super) status: Arc<OrderStatus>,
}

/// What the sequencer does next.
pub(super) enum Next {
    /// Nothing arrived in time.
    Nothing,
    Batches(Vec<OrderedBatch>),
    /// These submitters get no reply from the order.
    Refused(Vec<Submitter>, Refusal),
    Stop(Arc<str>),
    /// No message arrives any more.
    End,
}

pub(super) fn following(
    chain: Chain,
    own: BatchId,
    outstanding: Arc<Outstanding>,
    status: Arc<OrderStatus>,
) -> (IncomingBatches, Following) {
    let (sequencer, incoming) = sync_channel(INCOMING_MAX);
    let batches = IncomingBatches {
        assembly: Assembly::new(chain),
        sequencer,
        status: Arc::clone(&status),
        own: own.node.clone(),
    };
    let following = Following {
        incoming,
        after: None,
        passed: Vec::new(),
        own,
        outstanding,
        status,
    };
    (batches, following)
}

impl IncomingBatches {
    /// The last message that was taken. The next one must follow it.
    pub fn position(&self) -> u64 {
        self.assembly.position()
    }

    /// The position up to which the chain was computed, and its hash.
    pub fn tip(&self) -> Tip {
        self.assembly.tip()
    }

    /// Takes the message at a position, with its time. Waits while the sequencer is far behind. A
    /// message that was taken before is ignored.
    ///
    /// # Errors
    /// The order cannot be followed with this message. With a gap nothing changed. For good it is [`OrderHandle::stop`] that
    /// stops the node.
    pub fn take(
        &mut self,
        position: u64,
        time: WallTime,
        message: &[u8],
    ) -> Result<Result<(), FollowStopped>, FollowError> {
        let batch = match self.assembly.take(position, time, message) {
            // It is the other node that cannot take part.
            Err(FollowError::TooManyNodes { node }) if node != self.own => None,
            taken => taken?,
        };
        self.status.receive(position, batch.is_some());
        Ok(match batch {
            None => Ok(()),
            Some(batch) => {
                self.status.add_node(&batch.batch.node);
                self.status.forget(&batch.left);
                let sent = self.sequencer.send(Incoming::Batch(batch));
                sent.map_err(|_| FollowStopped)
            }
        })
    }

    /// Continues behind the tip of the chain. What has arrived in part before stays incomplete: the order was made anew, and
    /// no node has the messages.
    pub fn begin_behind_tip(&mut self) {
        self.assembly.begin_behind_tip();
    }

    /// A handle for other threads.
    pub fn handle(&self) -> OrderHandle {
        OrderHandle {
            sequencer: self.sequencer.clone(),
            status: Arc::clone(&self.status),
        }
    }
}

/// Reports to the sequencer what else happens to the order. The sequencer runs as long as a handle exists.
#[derive(Clone)]
pub struct OrderHandle {
    sequencer: SyncSender<Incoming>,
    status: Arc<OrderStatus>,
}

impl OrderHandle {
    /// Reports to the submitters of a batch of this node that it was not stored in time. It may still be applied.
    pub fn give_up(&self, number: u64, reason: Arc<str>) {
        // A sequencer that has stopped has refused everything.
        let _ = self.sequencer.send(Incoming::GaveUp(number, reason));
    }

    /// Reports to submitters that nothing of theirs was sent ([`OutgoingBatches::take_waiting`](super::OutgoingBatches::take_waiting)).
    pub fn refuse(&self, submitters: Vec<Submitter>, refusal: Refusal) {
        let _ = self.sequencer.send(Incoming::Refused(submitters, refusal));
    }

    /// Stops this node: it applies nothing more and refuses everything until it is started again.
    pub fn stop(&self, reason: Arc<str>) {
        self.status.stop(Arc::clone(&reason));
        let _ = self.sequencer.send(Incoming::Stop(reason));
    }

    /// How far this node is.
    pub fn status(&self) -> &Arc<OrderStatus> {
        &self.status
    }
}

impl Following {
    /// Waits for batches, at most for `timeout`, and takes several if they are there.
    pub(super) fn next(&mut self, timeout: Duration) -> Next {
        if !self.passed.is_empty() {
            return Next::Refused(
                std::mem::take(&mut self.passed),
                Refusal::Unknown(PASSED.into()),
            );
        }
        let first = match self.after.take() {
            Some(after) => Some(after),
            None => match self.incoming.recv_timeout(timeout) {
                Ok(incoming) => Some(incoming),
                Err(RecvTimeoutError::Timeout) => return Next::Nothing,
                Err(RecvTimeoutError::Disconnected) => None,
            },
        };
        match first {
            None => Next::End,
            Some(Incoming::Batch(first)) => {
                let mut batches = vec![self.ordered(first)];
                let mut commands = batches[0].batch.commands.len();
                while batches.len() < BATCHES_AT_ONCE
                    && commands < COMMANDS_AT_ONCE
                    && self.after.is_none()
                {
                    match self.incoming.try_recv() {
                        Ok(Incoming::Batch(next)) => {
                            commands += next.commands.len();
                            batches.push(self.ordered(next));
                        }
                        Ok(other) => {
                            self.after = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                Next::Batches(batches)
            }
            Some(Incoming::GaveUp(number, reason)) => {
                Next::Refused(self.outstanding.give_up(number), Refusal::Unknown(reason))
            }
            Some(Incoming::Refused(submitters, refusal)) => Next::Refused(submitters, refusal),
            Some(Incoming::Stop(reason)) => Next::Stop(reason),
        }
    }

    fn ordered(&mut self, batch: FollowedBatch) -> OrderedBatch {
        let same_node = batch.batch.node == self.own.node;
        let own = same_node && batch.batch.at.run == self.own.at.run;
        if same_node && batch.batch.at.run > self.own.at.run {
            self.after = Some(Incoming::Stop(OTHER_RUN.into()));
        }
        let (mut submitters, mut holds) = (Vec::new(), Vec::new());
        if own {
            holds = self.outstanding.take_holds(batch.batch.at.number);
            let (taken, passed) = self.outstanding.take(batch.batch.at.number);
            submitters = taken;
            self.passed.extend(passed);
        }
        OrderedBatch {
            batch,
            submitters,
            holds,
        }
    }

    /// The submitters of all batches up to this one have their replies.
    pub(super) fn answered(&self, number: u64) {
        self.outstanding.answer(number);
    }

    /// The submitters of everything that is outstanding.
    pub(super) fn take_outstanding(&self) -> Vec<Submitter> {
        self.outstanding.take_all().into_iter().flatten().collect()
    }

    /// Sends commands of this node with its next batch.
    pub(super) fn propose(&self, proposals: Vec<FleetCommand>) {
        if !proposals.is_empty() {
            self.outstanding.propose(proposals);
        }
    }

    /// A time of this node, so that not all nodes do the same at once.
    pub(super) fn jitter(&self) -> Duration {
        let hash = message_hash(self.own.node.as_bytes());
        Duration::from_millis(hash % JITTER_MS_MAX)
    }

    /// Whether the batch is this node's own.
    pub(super) fn is_own(&self, batch: &BatchId) -> bool {
        batch.node == self.own.node
    }

    /// The number of a batch that this node has sent since its start.
    pub(super) fn own_number(&self, batch: &BatchId) -> Option<u64> {
        (self.is_own(batch) && batch.at.run == self.own.at.run).then_some(batch.at.number)
    }
}

/// The longest [`Following::jitter`], in milliseconds.
const JITTER_MS_MAX: u64 = if cfg!(test) { 1_000 } else { 30_000 };

/// All other nodes leave out what this one sends from then on.
const OTHER_RUN: &str = "another process runs under the name of this node, or the clock was set back: start the node again, with a name \
                         of its own";

/// No node applies a batch behind a later one of the same node.
const PASSED: &str = "a later batch of this node was stored before it";

/// The most batches that wait for the sequencer.
const INCOMING_MAX: usize = 64;

/// The most batches that share a write and a sync.
const BATCHES_AT_ONCE: usize = 64;

/// No more batches share a sync once they have this many commands.
const COMMANDS_AT_ONCE: usize = 10_000;
