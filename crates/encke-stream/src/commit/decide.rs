//! Ordered → decided: the machine judges each command, and the log's batch in memory gets what changed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_log::{Disk, Log, Sequence, StreamNo};

use super::levels;
use super::replies::{LateReply, Replies};
use crate::commit::batch::{Batch, Record, Reply};
use crate::machine::journal::{Journal, LogJournal};
use crate::order::Ordered;
use crate::order::submission::{Submission, Submitter};
use crate::replicated::CutRecord;
use crate::stream::record::Change;
use crate::{AckLevel, FleetCommand, Machine, Offset, Outcome, Refusal, StorageHold, Stream};

/// A group of commands that the machine has judged. It is committed or taken back as a whole.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The strictest level among the streams of the records; the weakest level when there are no records. Where there are
    /// several logs, a group with a deletion is synced whatever the levels.
    pub(super) level: AckLevel,
    pub(super) batch: Option<Arc<Batch>>,
    /// The streams of the records, each at least once.
    pub(super) streams: Vec<Arc<Stream>>,
    /// Sent when the records become visible.
    pub(super) replies: Replies,
    /// Sent before that, because the request asks for less: when the order is decided, and when the records are written.
    pub(super) accepted: Replies,
    pub(super) written: Replies,
    /// Sent after that, because the request asks for more.
    pub(super) late: Vec<LateReply>,
    /// Commands that the mailbox still counts as in hand.
    pub(super) commands: usize,
    /// Whether the group can still be taken back: the log's batch in memory holds nothing else, and no reply was sent.
    pub(super) revocable: bool,
    /// Bytes that the group added to the log's batch in memory.
    pub(super) log_bytes: usize,
    /// The storage that its commands will use, until it is visible.
    pub(super) holds: Vec<StorageHold>,
    /// The stages of the commit and when each began, if a record is traced.
    pub(super) stages: Vec<(&'static str, Instant)>,
}

/// Judges the commands, in their order. With `expiry`, streams whose lifetime is over end first.
pub(crate) fn decide<D: Disk>(
    ordered: &mut Ordered,
    machine: &mut Machine,
    log: &mut Log<D>,
    expiry: Option<&mut Expiry>,
) -> Decided {
    let now = ordered.now;
    let before = log.batch_bytes();
    let mut none = VecDeque::new();
    let mut draft = Draft::new(LogJournal { log, now: now.wall }, &mut none);
    draft.records.reserve(ordered.commands.len());
    if let Some(expiry) = expiry {
        expiry.run(now, machine, &mut draft);
    }
    let mut judged = Vec::with_capacity(ordered.commands.len());
    let mut traces = Vec::new();
    let mut stages = Vec::new();
    let mut holds = Vec::new();
    for submission in ordered.commands.drain(..) {
        let Submission {
            command,
            from,
            trace,
            holds: held,
        } = submission;
        holds.extend(held);
        if trace.is_some() && stages.is_empty() {
            stages.push(("decide", Instant::now()));
        }
        let ack = command.ack();
        let may_be_early = levels::asks_for_less(&command, machine);
        let first = draft.records.len();
        let outcome = machine.apply(command, now, &mut draft);
        if let Some(trace) = trace
            && draft.records.len() > first
        {
            traces.push((first as u32, trace));
        }
        judged.push(Judged {
            from,
            ack,
            may_be_early,
            outcome,
        });
    }
    let Draft {
        records, streams, ..
    } = draft;
    let mut level = streams.iter().map(|stream| stream.ack).max();
    if machine.has_siblings() && records.iter().any(|record| record.deletes) {
        // Another log can take the name as soon as readers see that it is free.
        level = Some(AckLevel::Synced);
    }
    let mut decided = Decided::new(level.unwrap_or(AckLevel::Accepted), judged);
    decided.batch = (!records.is_empty()).then(|| {
        Arc::new(Batch {
            traces,
            ..Batch::new(records)
        })
    });
    decided.stages = stages;
    decided.holds = holds;
    decided.streams = streams;
    decided.revocable = before == 0;
    decided.log_bytes = log.batch_bytes() - before;
    decided
}

/// Refuses all commands.
pub(crate) fn refuse(ordered: &mut Ordered, refusal: &Refusal) -> Decided {
    let commands = ordered.commands.drain(..);
    let judged = commands.map(|submission| Judged {
        from: submission.from,
        ack: None,
        may_be_early: false,
        outcome: Outcome::Refused(refusal.clone()),
    });
    Decided::new(AckLevel::Accepted, judged.collect())
}

/// The outcome of a command, and the level that its request asks for.
pub(super) struct Judged {
    pub(super) from: Submitter,
    /// None: the level of the group.
    pub(super) ack: Option<AckLevel>,
    /// Whether the reply may come before the group is visible. Not because the group is stricter than the stream of the command.
    pub(super) may_be_early: bool,
    pub(super) outcome: Outcome,
}

impl Decided {
    /// A group without records.
    pub(super) fn new(level: AckLevel, judged: Vec<Judged>) -> Decided {
        let mut decided = Decided {
            level,
            batch: None,
            streams: Vec::new(),
            replies: Replies::default(),
            accepted: Replies::default(),
            written: Replies::default(),
            late: Vec::new(),
            commands: judged.len(),
            revocable: true,
            log_bytes: 0,
            holds: Vec::new(),
            stages: Vec::new(),
        };
        for one in judged {
            let Judged { from, outcome, .. } = one;
            let ack = match (one.ack, &outcome) {
                // A refusal depends on the commands before it, so it is sent with their replies.
                (None, _) | (_, Outcome::Refused(_)) => level,
                (Some(ack), _) if one.may_be_early => ack,
                (Some(ack), _) => ack.max(level),
            };
            let Submitter { shard, token } = from;
            let reply = Reply { token, outcome };
            match ack {
                _ if ack > level => decided.late.push(LateReply { ack, shard, reply }),
                _ if ack == level => decided.replies.push(shard, reply),
                AckLevel::Accepted => decided.accepted.push(shard, reply),
                AckLevel::Written | AckLevel::Synced => decided.written.push(shard, reply),
            }
        }
        decided
    }

    /// A stage of the commit begins.
    pub(super) fn begin_stage(&mut self, name: &'static str) {
        if !self.stages.is_empty() {
            self.stages.push((name, Instant::now()));
        }
    }

    /// The commands that the mailbox still counts as in hand, once.
    pub(super) fn take_commands(&mut self) -> usize {
        std::mem::take(&mut self.commands)
    }

    /// Whether the group must be written before readers may see it: it has records of a stricter level than `accepted`.
    pub(super) fn needs_file(&self) -> bool {
        self.batch.is_some() && self.level > AckLevel::Accepted
    }

    pub(super) fn records(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.records.len())
    }
}

/// The batch that is being built.
pub(super) struct Draft<'a, D: Disk> {
    pub(super) journal: LogJournal<'a, D>,
    pub(super) records: Vec<Record>,
    /// The streams of the records, in their order; one for several records in a row.
    pub(super) streams: Vec<Arc<Stream>>,
    /// Records that the log has already, from a batch that a crash has cut. The batch makes the same again.
    cut: &'a mut VecDeque<CutRecord>,
    /// A record differs from the one that the log has.
    pub(super) differs: Option<Sequence>,
}

impl<'a, D: Disk> Draft<'a, D> {
    pub(super) fn new(journal: LogJournal<'a, D>, cut: &'a mut VecDeque<CutRecord>) -> Self {
        Draft {
            journal,
            records: Vec::new(),
            streams: Vec::new(),
            cut,
            differs: None,
        }
    }

    /// The sequence of a record: that of the same record in the log, or a new one.
    fn append(
        &mut self,
        stream: &Stream,
        change: &Change<'_>,
        data: &[u8],
    ) -> Result<Sequence, Refusal> {
        let Some(cut) = self.cut.pop_front() else {
            return self.journal.append(stream, change, data);
        };
        let header = change.encode();
        let same = cut.payload.strip_prefix(&*header) == Some(data);
        if !same || cut.stream != stream.no {
            self.differs.get_or_insert(cut.sequence);
        }
        Ok(cut.sequence)
    }
}

impl<D: Disk> Journal for Draft<'_, D> {
    fn next_sequence(&self) -> Sequence {
        let cut = self.cut.front().map(|cut| cut.sequence);
        cut.unwrap_or_else(|| self.journal.next_sequence())
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let sequence = self.append(stream, change, &data)?;
        let again = matches!(self.streams.last(), Some(last) if Arc::ptr_eq(last, stream));
        if !again {
            self.streams.push(Arc::clone(stream));
        }
        let extras = change.extras();
        self.records.push(Record {
            sequence,
            time: self.journal.now,
            stream: stream.no,
            data,
            tail: match change.units() {
                0 => stream.state().next.tail,
                _ => Offset::behind(sequence),
            },
            units: change.units(),
            closes: change.closes(),
            end: extras.and_then(|extras| extras.end),
            asks_stop: extras.is_some_and(|extras| extras.asks_stop),
            deletes: matches!(change, Change::Delete),
        });
        Ok(sequence)
    }
}

/// Ends streams whose lifetime is over, and removes records that are too old.
pub(crate) struct Expiry {
    /// Nothing expires before this moment.
    not_before: Instant,
    /// Has a reader thread load a stream that is not in memory.
    load: Box<dyn FnMut(StreamNo) + Send>,
}

impl Expiry {
    pub(crate) fn new() -> Self {
        Expiry {
            not_before: Instant::now(),
            load: Box::new(|_| {}),
        }
    }

    /// Calls `load` from now on for streams that must end and are not in memory.
    pub(crate) fn load_with(&mut self, load: Box<dyn FnMut(StreamNo) + Send>) {
        self.load = load;
    }

    /// Tries again later what the log has refused.
    pub(crate) fn postpone(&mut self) {
        self.not_before = Instant::now() + RETRY;
    }

    /// How long until something expires; None when nothing does.
    pub(crate) fn expires_in(&self, machine: &Machine, now: Now) -> Option<Duration> {
        let wait = machine.expires_in(now)?;
        let wait = wait.clamp(Duration::from_millis(1), EXPIRY_WAIT_MAX);
        Some(wait.max(self.not_before.saturating_duration_since(Instant::now())))
    }

    /// What a node of a fleet proposes now. It makes a proposal again after a while, in case that the order has not taken it.
    pub(crate) fn propose(&mut self, now: Now, machine: &mut Machine) -> Vec<FleetCommand> {
        if Instant::now() < self.not_before {
            return Vec::new();
        }
        let mut loads = 0;
        let mut load = |no| {
            loads += 1;
            (self.load)(no);
        };
        let proposals = machine.proposals(now, &mut load);
        if loads > 0 {
            self.not_before = Instant::now() + LOADED_AFTER;
        } else if !proposals.is_empty() || is_due(machine, now) {
            self.not_before = Instant::now() + PROPOSE_EVERY;
        }
        proposals
    }

    fn run(&mut self, now: Now, machine: &mut Machine, journal: &mut dyn Journal) {
        if Instant::now() < self.not_before {
            return;
        }
        let mut loads = 0;
        let mut load = |no| {
            loads += 1;
            (self.load)(no);
        };
        if let Err(error) = machine.expire(now, journal, &mut load) {
            tracing::error!(%error, "cannot end streams whose lifetime is over; trying again");
            self.postpone();
        } else if loads > 0 || is_due(machine, now) {
            self.not_before = Instant::now() + LOADED_AFTER;
        }
    }
}

/// Whether a deadline has passed. After an attempt it is one that the attempt could not meet, which needs a pause before the next.
fn is_due(machine: &Machine, now: Now) -> bool {
    machine.expires_in(now) == Some(Duration::ZERO)
}

/// Deadlines are checked at least this often, because reads can move them, and the time of day can be set.
const EXPIRY_WAIT_MAX: Duration = Duration::from_secs(60);

/// The time that loading an expired stream from the store may take.
const LOADED_AFTER: Duration = Duration::from_millis(50);

/// A node of a fleet proposes ends and removals at most this often.
const PROPOSE_EVERY: Duration = Duration::from_millis(100);

/// What a full disk refused is tried again after this long.
pub(crate) const RETRY: Duration = Duration::from_millis(250);
