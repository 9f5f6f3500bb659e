//! How a batch of commands is judged, and what they changed gathered for the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_log::{Disk, Sequence};

use crate::batch::{Record, Submission};
use crate::commit::Told;
use crate::journal::{Journal, LogJournal};
use crate::record::Change;
use crate::sequencer::{Committed, RETRY, Sequencer, refused};
use crate::{Offset, Refusal, Stream};

impl<D: Disk> Sequencer<D> {
    pub(crate) fn batch(&mut self, requests: &mut Vec<Submission>, now_ms: u64) {
        self.pay();
        self.judge(requests, now_ms, true);
    }

    /// Decides a batch of commands, and what has expired, unless this thread must not wait.
    pub(crate) fn judge(&mut self, requests: &mut Vec<Submission>, now_ms: u64, waits: bool) {
        let mut committed = Committed {
            commands: requests.len(),
            records: 0,
            bytes: 0,
            sync: None,
            failed: false,
        };
        if self.is_of_one_level(requests) {
            self.judge_group(requests, (now_ms, waits, waits), &mut committed);
        } else {
            let mut expires = waits;
            for mut group in self.by_level(requests, waits) {
                self.judge_group(&mut group, (now_ms, expires, waits), &mut committed);
                expires = false;
            }
        }
        if waits && !self.shared {
            self.sync_awaited();
        }
        requests.shrink_to(COMMANDS_KEPT);
        committed.failed = self.failed.is_some();
        self.unkept += committed.records;
        (self.watch)(&committed);
    }

    /// Decides commands whose streams have one level.
    fn judge_group(
        &mut self,
        requests: &mut Vec<Submission>,
        (now_ms, expires, waits): (u64, bool, bool),
        committed: &mut Committed,
    ) {
        match self.barred() {
            Some(refusal) => {
                let told = requests.drain(..).map(|request| Told {
                    from: request.from,
                    ack: None,
                    outcome: refused(&refusal),
                });
                let group = self.group(Vec::new(), 0, Vec::new(), told.collect());
                self.commit(group, (true, waits));
            }
            None => self.decide(requests, (now_ms, expires, waits), committed),
        }
    }

    /// Why nothing can be decided now.
    pub(crate) fn barred(&self) -> Option<Refusal> {
        match &self.failed {
            Some(reason) => Some(Refusal::LogFailed(Arc::clone(reason))),
            None => self.owed.clone(),
        }
    }

    /// Judges the commands and commits what they changed.
    fn decide(
        &mut self,
        requests: &mut Vec<Submission>,
        (now_ms, expires, waits): (u64, bool, bool),
        committed: &mut Committed,
    ) {
        let unwritten = self.log.batch_bytes();
        let mut draft = Draft {
            journal: LogJournal {
                log: &mut self.log,
                now_ms,
            },
            records: Vec::with_capacity(requests.len()),
            streams: Vec::new(),
            bytes: 0,
        };
        if expires && self.expire_after <= Instant::now() {
            let mut loads = 0;
            let mut load = |no| {
                loads += 1;
                (self.load)(no);
            };
            if let Err(error) = self.machine.expire(now_ms, &mut draft, &mut load) {
                tracing::error!(%error, "streams whose lifetime is over could not be ended");
                self.expire_after = Instant::now() + RETRY;
            } else if loads > 0 {
                self.expire_after = Instant::now() + LOADED_AFTER;
            }
        }
        let mut told = Vec::with_capacity(requests.len());
        for Submission { command, from } in requests.drain(..) {
            let ack = command.ack();
            let outcome = self.machine.apply(command, now_ms, &mut draft);
            told.push(Told { from, ack, outcome });
        }
        let Draft {
            records,
            streams,
            bytes,
            ..
        } = draft;
        let count = records.len();
        let stored = self.log.batch_bytes() - unwritten;
        let group = self.group(records, bytes, streams, told);
        let kept = self.commit(group, (unwritten == 0, waits));
        if let Some(sync) = kept {
            committed.records += count;
            committed.bytes += stored;
            committed.sync = committed.sync.or(sync);
        }
    }
}

/// The batch that is being built.
struct Draft<'a, D: Disk> {
    journal: LogJournal<'a, D>,
    records: Vec<Record>,
    /// The streams of the records, in their order; one for several records in a row.
    streams: Vec<Arc<Stream>>,
    bytes: usize,
}

impl<D: Disk> Journal for Draft<'_, D> {
    fn next_sequence(&self) -> Sequence {
        self.journal.next_sequence()
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let sequence = self.journal.append(stream, change, &data)?;
        self.bytes += data.len();
        let again = matches!(self.streams.last(), Some(last) if Arc::ptr_eq(last, stream));
        if !again {
            self.streams.push(Arc::clone(stream));
        }
        self.records.push(Record {
            sequence,
            stream: stream.no,
            data,
            tail: match change.units() {
                0 => stream.state().next.tail,
                _ => Offset::behind(sequence),
            },
            units: change.units(),
            closes: change.closes(),
            deletes: matches!(change, Change::Delete),
        });
        Ok(sequence)
    }
}

/// For how many commands there is room left after a batch, so that a large one does not keep its memory.
const COMMANDS_KEPT: usize = 256;

/// How long a stream whose lifetime is over may take to come from the store.
const LOADED_AFTER: Duration = Duration::from_millis(50);
