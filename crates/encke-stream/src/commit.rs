//! How what was decided is made as safe as it must be, and who hears of it when.
//!
//! A batch is decided and committed in groups, one for each level of its commands' streams, those that wait least first.
//! So a group is committed or taken back as a whole, records become visible in the order of the log whatever their
//! levels, and nobody at a lower level waits for the sync of the same batch. A group is told as late as its strictest
//! stream asks ([`Group::level`]), however it came about; grouping only spares the others the wait.
//!
//! A request may ask for another level than its stream has. That moves its own acknowledgement, never what readers see:
//! asking for less, it is told while its record is not visible yet, so the group can't be taken back any more
//! ([`Sequencer::pending`]); asking for more, it is told later than its record is visible ([`Sequencer::late`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use encke_log::Disk;

use crate::batch::{Batch, Caller, Record, Reply, Submission};
use crate::sequencer::{RETRY, Sequencer, refused};
use crate::{AckLevel, Command, Outcome, Refusal, Stream, Target};

/// What became of a command, and how safe it is to be when its caller hears of it.
pub(crate) struct Told {
    pub(crate) from: Caller,
    /// As the records of the group, when nothing is said.
    pub(crate) ack: Option<AckLevel>,
    pub(crate) outcome: Outcome,
}

/// A reply that waits for more than its record does.
pub(crate) struct Late {
    ack: AckLevel,
    shard: usize,
    reply: Reply,
}

/// What is committed as a whole.
pub(crate) struct Group {
    /// The strictest of its streams' levels; the weakest of all when it has no records. Where there are several logs a
    /// deletion is synced whatever the level.
    level: AckLevel,
    batch: Option<Arc<Batch>>,
    /// The streams of the records, each once at least.
    streams: Vec<Arc<Stream>>,
    /// What is told with the records, for each shard.
    replies: Vec<Vec<Reply>>,
    /// What is told when they are ordered, or written, for each shard; empty when nothing is.
    accepted: Vec<Vec<Reply>>,
    written: Vec<Vec<Reply>>,
    /// What is told later than the records.
    late: Vec<Late>,
    /// Commands of which the mailbox has not heard that they are done.
    commands: usize,
}

impl<D: Disk> Sequencer<D> {
    /// Whether all commands are for streams of one level.
    pub(crate) fn is_of_one_level(&self, requests: &[Submission]) -> bool {
        let mut levels = requests
            .iter()
            .map(|request| self.level_of(&request.command));
        let first = levels.next();
        levels.all(|level| Some(level) == first)
    }

    /// The commands in groups, those of the lowest level first; all that wait in one if this thread must not.
    pub(crate) fn by_level(
        &self,
        requests: &mut Vec<Submission>,
        waits: bool,
    ) -> [Vec<Submission>; 3] {
        // All that a batch has for one name stays together, in its order.
        let mut of_names: HashMap<Box<str>, AckLevel> = HashMap::new();
        for Submission { command, .. } in requests.iter() {
            let level = of_names
                .entry(name_of(command).into())
                .or_insert(AckLevel::Accepted);
            *level = self.level_of(command).max(*level);
        }
        let mut groups = [Vec::new(), Vec::new(), Vec::new()];
        for request in requests.drain(..) {
            let group = match of_names.get(name_of(&request.command)) {
                Some(AckLevel::Accepted) => 0,
                Some(AckLevel::Written) if waits => 1,
                _ => 2,
            };
            groups[group].push(request);
        }
        groups
    }

    /// The level of a command's stream, as far as can be known before it is judged.
    fn level_of(&self, command: &Command) -> AckLevel {
        let stream = match command {
            Command::Create(create) => return create.ack.unwrap_or(self.level),
            Command::Append(append) => &append.target,
            Command::Delete { .. } if self.machine.siblings.is_some() => return AckLevel::Synced,
            Command::Truncate { target, .. } | Command::Delete { target, .. } => target,
        };
        match stream {
            Target::Known(stream) => stream.ack,
            Target::Named(name) => {
                let stream = self.machine.view.find(name);
                stream.map_or(self.level, |stream| stream.ack)
            }
        }
    }

    pub(crate) fn group(
        &self,
        records: Vec<Record>,
        bytes: usize,
        streams: Vec<Arc<Stream>>,
        told: Vec<Told>,
    ) -> Group {
        let mut level = streams.iter().map(|stream| stream.ack).max();
        if self.machine.siblings.is_some() && records.iter().any(|record| record.deletes) {
            // Another log may take the name as soon as readers see that it is free.
            level = Some(AckLevel::Synced);
        }
        let mut group = Group {
            level: level.unwrap_or(AckLevel::Accepted),
            batch: (!records.is_empty()).then(|| Arc::new(Batch { records, bytes })),
            streams,
            replies: self.no_replies(),
            accepted: Vec::new(),
            written: Vec::new(),
            late: Vec::new(),
            commands: told.len(),
        };
        for Told { from, ack, outcome } in told {
            let ack = match (ack, &outcome) {
                // What was refused was judged by all that came before it, so it is told with it.
                (None, _) | (_, Outcome::Refused(_)) => group.level,
                (Some(ack), _) => ack,
            };
            let shard = usize::from(from.shard);
            let token = from.token;
            let reply = Reply { token, outcome };
            if ack > group.level {
                group.late.push(Late { ack, shard, reply });
                continue;
            }
            let replies = match ack {
                _ if ack == group.level => &mut group.replies,
                AckLevel::Accepted => &mut group.accepted,
                _ => &mut group.written,
            };
            if replies.is_empty() {
                *replies = self.no_replies();
            }
            put(replies, shard, reply);
        }
        group
    }

    /// Makes the group as safe as its level asks and hands it out as soon as it is, or has that done later. It can be
    /// taken back if the log's batch holds nothing `else`. Nothing when it was taken back; else how long a sync took, if
    /// there was one.
    pub(crate) fn commit(
        &mut self,
        mut group: Group,
        (alone, waits): (bool, bool),
    ) -> Option<Option<Duration>> {
        if group.batch.is_none() || group.level == AckLevel::Accepted {
            let stores = group.batch.is_some();
            self.show(group);
            if stores && !self.shared {
                self.write_owed();
            }
            return Some(None);
        }
        let told = !group.accepted.is_empty();
        if told {
            self.count_done(&mut group);
            let accepted = std::mem::take(&mut group.accepted);
            self.count_acknowledged(AckLevel::Accepted, accepted.iter().flatten());
            self.hand_out(None, accepted);
        }
        if !waits {
            self.pending = Some(group);
            return Some(None);
        }
        self.finish(group, alone && !told)
    }

    /// Writes the group, syncs it if its level asks for it, and hands it out.
    fn finish(&mut self, mut group: Group, revocable: bool) -> Option<Option<Duration>> {
        if let Err(error) = self.log.write() {
            let refusal = self.refusal(&error);
            if revocable || self.failed.is_some() {
                self.take_back(group, &refusal, revocable);
                return None;
            }
            self.owed = Some(refusal);
            self.pending = Some(group);
            return Some(None);
        }
        self.owed = None;
        self.unsettled = true;
        self.release(AckLevel::Written);
        if !group.written.is_empty() {
            self.count_done(&mut group);
            let written = std::mem::take(&mut group.written);
            self.count_acknowledged(AckLevel::Written, written.iter().flatten());
            self.hand_out(None, written);
        }
        let mut sync = None;
        if group.level == AckLevel::Synced {
            let start = Instant::now();
            if let Err(error) = self.log.sync() {
                let refusal = self.refusal(&error);
                self.take_back(group, &refusal, true);
                return None;
            }
            sync = Some(start.elapsed());
        }
        self.log.publish();
        self.show(group);
        Some(sync)
    }

    /// Lets readers see the group, and tells who waited for no more than that.
    fn show(&mut self, mut group: Group) {
        self.count_done(&mut group);
        self.late.extend(group.late);
        let batch = group.batch.map(|batch| (batch, &group.streams[..]));
        if batch.is_some() {
            self.machine.publish(self.log.next_sequence() - 1);
            for (stream, floor) in self.machine.take_floors() {
                self.log.set_floor(stream, floor);
            }
            self.count_acknowledged(group.level, group.replies.iter().flatten());
        }
        self.hand_out(batch, group.replies);
    }

    /// Before anybody hears of the group, its commands leave the mailbox: who waits for each reply before sending the next
    /// command never has two of them there.
    fn count_done(&mut self, group: &mut Group) {
        self.mailbox.handled(std::mem::take(&mut group.commands));
    }

    /// Counts the changes that somebody is being told of.
    fn count_acknowledged<'a>(&self, level: AckLevel, told: impl Iterator<Item = &'a Reply>) {
        let changes = told.filter(|reply| reply.outcome.changes()).count() as u64;
        if changes > 0 {
            let counts = self.machine.view.counts();
            counts.acknowledged[level as usize].fetch_add(changes, Ordering::Relaxed);
        }
    }

    /// The group could not be stored: nobody is told that anything changed.
    fn take_back(&mut self, mut group: Group, refusal: &Refusal, drops: bool) {
        self.count_done(&mut group);
        self.machine.abandon();
        if drops {
            self.log.abandon();
        }
        self.expire_after = Instant::now() + RETRY;
        for Late { shard, reply, .. } in group.late {
            put(&mut group.replies, shard, reply);
        }
        // Even those that were refused anyway: what they were judged by is gone.
        for mut replies in [group.written, group.replies] {
            for reply in replies.iter_mut().flatten() {
                reply.outcome = refused(refusal);
            }
            self.hand_out(None, replies);
        }
    }

    /// Tries again to write what was acknowledged, and does what a thread that must not wait has left.
    pub(crate) fn pay(&mut self) {
        if self.failed.is_some() {
            return;
        }
        match self.pending.take() {
            Some(group) => {
                self.finish(group, false);
            }
            None if self.owed.is_some() => self.write_owed(),
            None => return,
        }
        if !self.shared {
            self.sync_awaited();
        }
    }

    /// Writes a batch that was acknowledged already. Until it is written nothing else is taken:
    /// its sequences are known, so it can't be abandoned.
    pub(crate) fn write_owed(&mut self) {
        match self.log.write() {
            Ok(()) => {
                self.log.publish();
                self.unsettled = true;
                self.owed = None;
                self.release(AckLevel::Written);
            }
            Err(error) => {
                let refusal = self.refusal(&error);
                self.owed = Some(refusal);
            }
        }
    }

    /// Whether somebody waits for more than the records that they know of.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.late.is_empty()
    }

    /// Whether everything that was decided is written.
    pub(crate) fn is_written(&self) -> bool {
        self.owed.is_none() && self.pending.is_none() && self.log.batch_bytes() == 0
    }

    /// Tells those who wait for no more than that it is written, if it is.
    pub(crate) fn release_written(&mut self) {
        if self.is_awaited() && self.failed.is_none() && self.is_written() {
            self.release(AckLevel::Written);
        }
    }

    /// Syncs for those who asked for it beyond what their streams ask for.
    pub(crate) fn sync_awaited(&mut self) {
        self.release_written();
        if self.is_awaited() && self.failed.is_none() && self.is_written() {
            match self.log.sync() {
                Ok(()) => self.release(AckLevel::Synced),
                Err(error) => {
                    self.fail(&error);
                }
            }
        }
    }

    /// Tells those who waited for this level.
    pub(crate) fn release(&mut self, reached: AckLevel) {
        if self.late.is_empty() {
            return;
        }
        let (told, late) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|late| late.ack <= reached);
        self.late = late;
        self.tell(told);
    }

    /// Tells those who waited for the sync that is over.
    pub(crate) fn release_syncing(&mut self) {
        let told = std::mem::take(&mut self.syncing);
        self.tell(told);
    }

    /// Refuses everybody who still waits, because what they wait for will not come.
    pub(crate) fn give_up(&mut self, refusal: &Refusal) {
        let late = std::mem::take(&mut self.late);
        let mut waiting = std::mem::take(&mut self.syncing);
        waiting.extend(late);
        for late in &mut waiting {
            late.reply.outcome = refused(refusal);
        }
        self.tell(waiting);
        if let Some(group) = self.pending.take() {
            self.take_back(group, refusal, false);
        }
    }

    fn tell(&mut self, told: Vec<Late>) {
        if told.is_empty() {
            return;
        }
        let mut replies = self.no_replies();
        for Late { ack, shard, reply } in told {
            self.count_acknowledged(ack, std::iter::once(&reply));
            put(&mut replies, shard, reply);
        }
        self.hand_out(None, replies);
    }
}

/// Adds a reply to those for a shard.
fn put(replies: &mut [Vec<Reply>], shard: usize, reply: Reply) {
    if let Some(replies) = replies.get_mut(shard) {
        replies.push(reply);
    }
}

fn name_of(command: &Command) -> &str {
    let target = match command {
        Command::Create(create) => return &create.name,
        Command::Append(append) => &append.target,
        Command::Truncate { target, .. } | Command::Delete { target, .. } => target,
    };
    match target {
        Target::Known(stream) => &stream.name,
        Target::Named(name) => name,
    }
}
