//! Commands on their way to the replicated order: encoded as batches, while their submitters wait.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::mem::Discriminant;
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_log::StreamNo;
use encke_mailbox::Receiver;
use parking_lot::{Condvar, Mutex};

use super::chain::{BatchId, Tip};
use super::message::{self, Content};
use super::status::OrderStatus;
use crate::StorageHold;
use crate::machine::command::{Command, FleetCommand};
use crate::machine::outcome::Refusal;
use crate::order::gather::Gather;
use crate::order::submission::{Submission, Submitter};

/// The batches that this node sends, one after the other.
pub struct OutgoingBatches {
    mailbox: Receiver<Submission>,
    /// Commands that did not fit the last batch.
    left: VecDeque<Submission>,
    /// Commands that the mailbox still counts as in hand.
    in_hand: usize,
    /// The last batch.
    batch: BatchId,
    outstanding: Arc<Outstanding>,
    status: Arc<OrderStatus>,
    message_bytes_max: MessageBytesMax,
    /// When the mailbox was closed.
    closed_at: Option<Instant>,
    gather: Gather,
    /// The last batch, until its answer was waited for: its number, and how many clients wait for it.
    sent: Option<(u64, usize)>,
}

/// Returns the size of the largest message that the shared log takes now.
pub type MessageBytesMax = Box<dyn Fn() -> usize + Send>;

/// A batch for the shared log.
#[derive(Debug)]
pub struct OutgoingBatch {
    /// The batch. Messages with the same batch and index are the same.
    pub batch: BatchId,
    /// The number of commands.
    pub commands: usize,
    applied: Tip,
    content: Vec<u8>,
}

impl OutgoingBatch {
    /// Its messages of at most about `bytes_max` bytes, in order. Each is sent when the one before it is stored. With another size they
    /// are other messages, and nodes cannot join the ones with the others.
    pub fn messages(&self, bytes_max: usize) -> Vec<Vec<u8>> {
        message::encode(&self.batch, self.applied, &self.content, bytes_max)
    }
}

/// The next commands of a node: to send or to refuse.
#[derive(Debug)]
pub enum NextOutgoing {
    /// Sends them.
    Batch(OutgoingBatch),
    /// Refuses them. Nothing of theirs was sent.
    Refused(Vec<Submitter>, Refusal),
}

/// The submitters of batches that are not applied yet, and what the node itself wants to send.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    state: Mutex<State>,
    /// A batch is no longer outstanding, or is answered.
    less: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: BTreeMap<u64, Vec<Option<Submitter>>>,
    /// The storage that the commands of batches will use. A batch that was given up may still be applied.
    holds: BTreeMap<u64, Vec<StorageHold>>,
    proposals: Vec<FleetCommand>,
    /// The kinds and streams of those that need not be there twice.
    proposed: HashSet<(Discriminant<FleetCommand>, StreamNo)>,
    /// When batches were made, until they are answered.
    made: VecDeque<(u64, Instant)>,
    answered: Option<LastAnswered>,
}

/// The last batch whose submitters have their replies.
#[derive(Clone, Copy, Debug)]
struct LastAnswered {
    number: u64,
    at: Instant,
    /// Since it was made.
    took: Duration,
}

impl Outstanding {
    /// Takes the submitters of a batch, as many as it has commands, and those of earlier ones that are outstanding. None are
    /// left of a batch that was given up.
    pub(super) fn take(&self, number: u64) -> (Vec<Option<Submitter>>, Vec<Submitter>) {
        let mut state = self.state.lock();
        let later = state.batches.split_off(&(number + 1));
        let mut upto = std::mem::replace(&mut state.batches, later);
        drop(state);
        self.less.notify_all();
        let taken = upto.remove(&number).unwrap_or_default();
        (taken, upto.into_values().flatten().flatten().collect())
    }

    /// Takes the storage that the commands of a batch, and of those before it, will use.
    pub(super) fn take_holds(&self, number: u64) -> Vec<StorageHold> {
        let mut state = self.state.lock();
        let later = state.holds.split_off(&(number + 1));
        let upto = std::mem::replace(&mut state.holds, later);
        upto.into_values().flatten().collect()
    }

    /// Takes the submitters of a batch that gets no answer.
    pub(super) fn give_up(&self, number: u64) -> Vec<Submitter> {
        let mut state = self.state.lock();
        let taken = state.batches.remove(&number).unwrap_or_default();
        state.made.retain(|(made, _)| *made != number);
        drop(state);
        self.less.notify_all();
        taken.into_iter().flatten().collect()
    }

    /// Takes the submitters of all batches.
    pub(super) fn take_all(&self) -> Vec<Option<Submitter>> {
        let mut state = self.state.lock();
        let batches = std::mem::take(&mut state.batches);
        state.holds.clear();
        state.made.clear();
        drop(state);
        self.less.notify_all();
        batches.into_values().flatten().collect()
    }

    /// The submitters of all batches up to this one have their replies.
    pub(super) fn answer(&self, number: u64) {
        let mut state = self.state.lock();
        let at = Instant::now();
        while let Some((made, made_at)) = state.made.front().copied()
            && made <= number
        {
            state.made.pop_front();
            let took = at.duration_since(made_at);
            state.answered = Some(LastAnswered {
                number: made,
                at,
                took,
            });
        }
        drop(state);
        self.less.notify_all();
    }

    /// Waits until the submitters of this batch have their replies, at most for as long as the last answer took.
    fn wait_for_answer(&self, number: u64) -> Option<LastAnswered> {
        let mut state = self.state.lock();
        let timeout = state.answered?.took.min(ANSWER_WAIT_MAX);
        let missing = |state: &mut State| state.made.iter().any(|(made, _)| *made == number);
        self.less.wait_while_for(&mut state, missing, timeout);
        state.answered.filter(|last| last.number >= number)
    }

    fn is_answered(&self, number: u64) -> bool {
        let answered = self.state.lock().answered;
        answered.is_some_and(|last| last.number >= number)
    }

    /// Sends these with the next batch, but for those that wait already. Proposals past a bound are dropped: they are made
    /// again.
    pub(super) fn propose(&self, proposals: Vec<FleetCommand>) {
        let mut state = self.state.lock();
        for proposal in proposals {
            if state.proposals.len() >= PROPOSALS_MAX {
                return;
            }
            let key = match &proposal {
                FleetCommand::End { stream }
                | FleetCommand::Renew { stream }
                | FleetCommand::Abandon { stream } => {
                    Some((std::mem::discriminant(&proposal), stream.no))
                }
                // A later one removes more.
                FleetCommand::Trim { .. }
                | FleetCommand::Barrier { .. }
                | FleetCommand::Dispatch { .. }
                | FleetCommand::Leave { .. } => None,
            };
            if key.is_none_or(|key| state.proposed.insert(key)) {
                state.proposals.push(proposal);
            }
        }
    }

    fn take_proposals(&self) -> Vec<FleetCommand> {
        let mut state = self.state.lock();
        state.proposed.clear();
        std::mem::take(&mut state.proposals)
    }

    /// Waits until few batches are outstanding.
    fn wait(&self, batches_max: usize, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        let full = |state: &mut State| state.batches.len() > batches_max;
        self.less.wait_while_for(&mut state, full, timeout);
        !full(&mut state)
    }
}

impl OutgoingBatches {
    pub(super) fn new(
        mailbox: Receiver<Submission>,
        batch: BatchId,
        outstanding: Arc<Outstanding>,
        status: Arc<OrderStatus>,
        message_bytes_max: MessageBytesMax,
    ) -> Self {
        OutgoingBatches {
            mailbox,
            left: VecDeque::new(),
            in_hand: 0,
            batch,
            outstanding,
            status,
            message_bytes_max,
            closed_at: None,
            gather: Gather::default(),
            sent: None,
        }
    }

    /// Batches whose answer is still expected.
    #[cfg(test)]
    pub(super) fn unanswered(&self) -> usize {
        self.outstanding.state.lock().made.len()
    }

    /// What the node itself wants to send.
    #[cfg(test)]
    pub(super) fn take_proposals(&self) -> Vec<FleetCommand> {
        self.outstanding.take_proposals()
    }

    /// The next commands, when the batch before is stored or given up. Waits for them. None when no command will arrive
    /// any more, and all batches were applied or given up, or were not for 10 s.
    pub fn next_commands(&mut self) -> Option<NextOutgoing> {
        let next = self.wait_for_commands();
        if next.is_none() {
            self.status.close();
        }
        next
    }

    /// Takes the submitters of everything that waits to be sent, because no broker answers or the node has stopped. Nothing of theirs was sent.
    pub fn take_waiting(&mut self) -> Vec<Submitter> {
        let mut commands = Vec::new();
        self.mailbox.drain(&mut commands);
        let waiting = self.left.drain(..).chain(commands);
        let submitters: Vec<_> = waiting.map(|submission| submission.from).collect();
        self.in_hand += submitters.len();
        submitters
    }

    fn wait_for_commands(&mut self) -> Option<NextOutgoing> {
        self.mailbox.handled(std::mem::take(&mut self.in_hand));
        loop {
            // Bounds the memory of what waits for this node's own log.
            if !self.outstanding.wait(OUTSTANDING_MAX, LOOK_EVERY) {
                if self.mailbox.is_closed() && self.has_closed_for_long() {
                    return None;
                }
                continue;
            }
            let mut proposals = self.outstanding.take_proposals();
            if self.left.is_empty() {
                let mut commands = Vec::new();
                let timeout = match proposals.is_empty() {
                    true => LOOK_EVERY,
                    false => Duration::ZERO,
                };
                let received = self.mailbox.recv_batch_timeout(&mut commands, timeout);
                if !commands.is_empty() {
                    self.gather(&mut commands);
                }
                self.left.extend(commands);
                if received.is_err() && self.left.is_empty() {
                    if self.outstanding.wait(0, LOOK_EVERY) || self.has_closed_for_long() {
                        return None;
                    }
                    continue;
                }
            }
            if self.left.is_empty() && proposals.is_empty() {
                continue;
            }
            // Before they are outstanding: a sequencer that stops does not know whether those were sent.
            return Some(match self.status.has_stopped() {
                true => {
                    NextOutgoing::Refused(self.take_waiting(), Refusal::LogFailed(STOPPED.into()))
                }
                false => self.build(&mut proposals),
            });
        }
    }

    /// Waits for more commands while that promises a larger batch: first for the replies to the last batch, then for what their
    /// clients send next ([`Gather`]). A message costs the brokers the same with few commands and with many.
    fn gather(&mut self, commands: &mut Vec<Submission>) {
        let Some((number, replies)) = self.sent.take() else {
            return;
        };
        // What has arrived before the replies is of other clients.
        let others = match self.outstanding.is_answered(number) {
            true => 0,
            false => commands.len(),
        };
        let Some(answered) = self.outstanding.wait_for_answer(number) else {
            return;
        };
        self.gather.synced(answered.took.min(ANSWER_WAIT_MAX));
        self.gather.expect(others + replies);
        self.mailbox.drain(commands);
        let pause = self.gather.begin(answered.at.elapsed(), commands.len());
        let Some(mut pause) = pause else { return };
        let begun = Instant::now();
        while let Some(sleep) = pause.next_sleep(begun.elapsed(), commands.len()) {
            std::thread::sleep(sleep);
            self.mailbox.drain(commands);
        }
        self.gather.end(&pause);
    }

    fn has_closed_for_long(&mut self) -> bool {
        let closed_at = *self.closed_at.get_or_insert_with(Instant::now);
        closed_at.elapsed() > CLOSE_WAIT
    }

    /// The next batch. A command that is too large for the shared log is refused alone, behind the batch of those before it.
    fn build(&mut self, proposals: &mut Vec<FleetCommand>) -> NextOutgoing {
        let bytes_max = message::content_bytes_max((self.message_bytes_max)());
        let mut content = Content::default();
        let (mut submitters, mut holds) = (Vec::new(), Vec::new());
        for proposal in proposals.drain(..) {
            content.push(&Command::Fleet(proposal));
            submitters.push(None);
        }
        while let Some(mut submission) = self.left.pop_front() {
            submission.command.detach();
            match content.push_within(&submission.command, bytes_max) {
                Ok(()) => {}
                Err(too_large) if submitters.is_empty() => {
                    self.in_hand += 1;
                    return NextOutgoing::Refused(vec![submission.from], too_large);
                }
                Err(_) => {
                    self.left.push_front(submission);
                    break;
                }
            }
            // Nodes do not tell each other of traces.
            holds.append(&mut submission.holds);
            submitters.push(Some(submission.from));
            self.in_hand += 1;
            if content.bytes() >= BATCH_BYTES.min(bytes_max) {
                break;
            }
        }
        self.batch.at.number += 1;
        let commands = submitters.len();
        let number = self.batch.at.number;
        self.sent = Some((number, submitters.iter().flatten().count()));
        let mut state = self.outstanding.state.lock();
        state.batches.insert(number, submitters);
        if !holds.is_empty() {
            state.holds.insert(number, holds);
        }
        state.made.push_back((number, Instant::now()));
        drop(state);
        NextOutgoing::Batch(OutgoingBatch {
            batch: self.batch.clone(),
            commands,
            applied: self.status.applied(),
            content: content.finish(),
        })
    }
}

/// Why a node sends nothing more.
const STOPPED: &str = "this node follows the order no longer";

/// A batch takes commands until it has this many bytes. A larger command makes a larger batch.
const BATCH_BYTES: usize = 512 << 10;

/// No batch is begun while more than this many are neither applied here nor given up.
const OUTSTANDING_MAX: usize = 16;

/// The answer to the last batch is waited for at most this long.
const ANSWER_WAIT_MAX: Duration = Duration::from_millis(200);

/// The most proposals that wait for the next batch.
const PROPOSALS_MAX: usize = 10_000;

/// When no command arrives any more, batches may take this long to be applied.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// How often proposals and the end are looked for while no command arrives.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::NamedStream;

    #[test]
    fn what_is_proposed_again_while_it_waits_is_sent_once() {
        let outstanding = Outstanding::default();
        let stream = |no| NamedStream {
            no,
            name: "s".into(),
        };
        let end = |no| FleetCommand::End { stream: stream(no) };
        let renew = |no| FleetCommand::Renew { stream: stream(no) };
        outstanding.propose(vec![end(1), end(2), renew(1)]);
        outstanding.propose(vec![end(1), renew(1), end(3)]);
        assert_eq!(outstanding.take_proposals().len(), 4);
        outstanding.propose(vec![end(1)]);
        assert_eq!(outstanding.take_proposals().len(), 1);
        outstanding.propose((0..PROPOSALS_MAX as u64 + 9).map(end).collect());
        assert_eq!(outstanding.take_proposals().len(), PROPOSALS_MAX);
    }
}
