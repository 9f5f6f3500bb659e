//! Durable → visible: readers see the records, shards get them, and callers get their replies.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use encke_log::{Disk, Log, StreamNo};

use super::decide::Decided;
use super::replies::{LateReply, Replies};
use super::sync::Durable;
use crate::commit::batch::{AwaitedStream, Batch, Handover, ObserveCommits, Outlet, PatternMatch};
use crate::stream::label::StreamLabel;
use crate::view::View;
use crate::view::watchers::watcher;
use crate::{AckLevel, Machine, Stream};

/// Makes the group visible and sends its replies. Returns the replies that wait for more than that.
pub(crate) fn publish<D: Disk>(
    durable: Durable,
    machine: &mut Machine,
    log: &mut Log<D>,
    outlets: &mut Outlets,
) -> Vec<LateReply> {
    let mut group = durable.into_group();
    group.begin_stage("publish");
    let Decided {
        level,
        batch,
        streams,
        replies,
        late,
        stages,
        holds,
        ..
    } = group;
    let Some(batch) = batch else {
        drop(holds);
        outlets.send(None, replies);
        return late;
    };
    // Before their first record may be past its age.
    machine.created_own().for_each(|stream| log.exempt(stream));
    if level > AckLevel::Accepted {
        log.publish();
    }
    let last = log.next_sequence() - 1;
    machine.publish(last);
    // The accounts are charged. After that, and before a client may count on it.
    drop(holds);
    for (stream, floor) in machine.take_floors() {
        log.set_floor(stream, floor);
    }
    let view = &machine.view;
    count_acknowledged(view, level, &replies);
    // After the position is visible: a shard that reads it before it subscribes gets what follows.
    let shards = end_waits(&batch, &streams, view)
        | watchers(&streams, view)
        | match_patterns(&batch, &streams, view)
        | outlets.note_changes(&batch, &streams);
    end_traces(&batch, &stages);
    outlets.send(Some((batch, shards)), replies);
    if outlets.backlog.is_empty() {
        view.set_delivered(last);
    }
    late
}

/// The records of the group are visible: ends the spans of those that are traced.
fn end_traces(batch: &Batch, stages: &[(&'static str, Instant)]) {
    if batch.traces.is_empty() {
        return;
    }
    let visible = Instant::now();
    for (index, trace) in &batch.traces {
        let record = &batch.records[*index as usize];
        trace.committed(stages, visible, record.sequence);
    }
}

/// Sends replies whose records become visible at another time.
pub(crate) fn acknowledge(level: AckLevel, replies: Replies, view: &View, outlets: &mut Outlets) {
    count_acknowledged(view, level, &replies);
    outlets.send(None, replies);
}

/// Sends late replies.
pub(crate) fn acknowledge_late(late: Vec<LateReply>, view: &View, outlets: &mut Outlets) {
    if late.is_empty() {
        return;
    }
    let mut replies = Replies::default();
    for LateReply { ack, shard, reply } in late {
        if reply.outcome.changes() {
            count(view, ack, 1);
        }
        replies.push(shard, reply);
    }
    outlets.send(None, replies);
}

fn count_acknowledged(view: &View, level: AckLevel, replies: &Replies) {
    let changes = replies.changes();
    if changes > 0 {
        count(view, level, changes);
    }
}

fn count(view: &View, level: AckLevel, changes: u64) {
    let counter = &view.counts().acknowledged[level as usize];
    counter.fetch_add(changes, Ordering::Relaxed);
}

/// The shards that have subscribers of these streams, one bit for each.
fn watchers(streams: &[Arc<Stream>], view: &View) -> u64 {
    let streams = streams.iter();
    streams.fold(0, |all, stream| all | view.watchers(stream))
}

/// Makes the shards that have awaited the names of streams of the batch watchers of these streams, and notes it in the batch. Returns the
/// shards, one bit for each.
fn end_waits(batch: &Batch, streams: &[Arc<Stream>], view: &View) -> u64 {
    if view.awaited().is_empty() {
        return 0;
    }
    let mut found = Vec::new();
    let mut all = 0;
    for stream in streams.iter().filter(|stream| batch.creates(stream.no)) {
        let Some((awaited, shards)) = view.awaited().take(&stream.name) else {
            continue;
        };
        for shard in &shards {
            view.watch(stream, *shard);
            all |= watcher(*shard);
        }
        found.push(AwaitedStream {
            awaited,
            no: stream.no,
            stream: Arc::downgrade(stream),
            kind: stream.media.kind,
            shards: shards.into(),
        });
    }
    if !found.is_empty() {
        // A batch is published once.
        let _ = batch.awaited.set(found.into());
    }
    all
}

/// Notes which records are of streams that match patterns. Returns the shards with subscribers of these, one bit for each.
fn match_patterns(batch: &Batch, streams: &[Arc<Stream>], view: &View) -> u64 {
    if view.patterns().is_empty() {
        return 0;
    }
    let mut shards = 0;
    let mut matched = Vec::new();
    let mut records = (0..).zip(&batch.records).peekable();
    for stream in streams {
        let found = view.patterns().of(&stream.name);
        let shards_of = found.shards.iter();
        shards |= shards_of.fold(0, |all, shard| all | watcher(*shard));
        let found = (!found.patterns.is_empty()).then(|| {
            let patterns: Arc<[StreamNo]> = found.patterns.into();
            (Arc::new(StreamLabel::of(stream)), patterns)
        });
        while let Some((index, _)) = records.next_if(|(_, record)| record.stream == stream.no) {
            if let Some((label, patterns)) = &found {
                matched.push(PatternMatch {
                    index,
                    stream: Arc::clone(label),
                    patterns: Arc::clone(patterns),
                });
            }
        }
    }
    if !matched.is_empty() {
        // A batch is published once.
        let _ = batch.pattern_matches.set(matched.into());
    }
    shards
}

/// The shards, and the dispatcher of the pools behind them.
pub(crate) struct Outlets {
    outlets: Vec<Box<dyn Outlet>>,
    /// Whether the thread that sends may wait for an outlet. If not, what an outlet has no room for is kept.
    may_wait: bool,
    /// What outlets had no room for, oldest first. Nothing else is decided before it is delivered.
    backlog: VecDeque<(usize, Handover)>,
    /// Which outlet observes commits.
    observer: Option<(usize, Arc<dyn ObserveCommits>)>,
}

impl Outlets {
    pub(crate) fn new(outlets: Vec<Box<dyn Outlet>>) -> Self {
        let mut observers = outlets.iter().enumerate();
        let observer = observers.find_map(|(index, outlet)| Some((index, outlet.observer()?)));
        Outlets {
            outlets,
            observer,
            may_wait: true,
            backlog: VecDeque::new(),
        }
    }

    /// From now on [`Outlets::send`] never waits.
    pub(crate) fn never_wait(&mut self) {
        self.may_wait = false;
    }

    /// Notes in the batch what its records change of streams that concern the observer. Returns the bit of the observer if there is any.
    fn note_changes(&self, batch: &Batch, streams: &[Arc<Stream>]) -> u64 {
        let Some((outlet, observer)) = &self.observer else {
            return 0;
        };
        let mut changes = Vec::new();
        let mut records = batch.records.iter().peekable();
        for stream in streams {
            let concerns = observer.concerns(&stream.name);
            while let Some(record) = records.next_if(|record| record.stream == stream.no) {
                if concerns {
                    changes.push(record.change(stream));
                }
            }
        }
        if changes.is_empty() {
            return 0;
        }
        // A batch is published once.
        let _ = batch.changes.set(changes.into());
        watcher(*outlet as u16)
    }

    /// Sends each outlet its replies, and the batch to those whose bit is set.
    fn send(&mut self, batch: Option<(Arc<Batch>, u64)>, mut replies: Replies) {
        for (index, outlet) in self.outlets.iter().enumerate() {
            let bit = watcher(index as u16);
            let batch = batch.as_ref().filter(|(_, watchers)| watchers & bit != 0);
            let batch = batch.map(|(batch, _)| Arc::clone(batch));
            let replies = replies.take(index);
            if batch.is_none() && replies.is_empty() {
                continue;
            }
            if self.may_wait {
                outlet.deliver(batch, replies);
            } else if self.backlog.iter().any(|(other, _)| *other == index) {
                // Nothing overtakes the backlog of an outlet.
                self.backlog.push_back((index, Handover { batch, replies }));
            } else if let Err(handover) = outlet.offer(batch, replies) {
                self.backlog.push_back((index, handover));
            }
        }
    }

    /// Sends replies that acknowledge nothing.
    pub(crate) fn refuse(&mut self, refusals: Replies) {
        self.send(None, refusals);
    }

    /// Delivers the backlog and waits until the outlets have taken it.
    pub(crate) fn flush(&mut self) {
        for (index, Handover { batch, replies }) in self.backlog.drain(..) {
            if let Some(outlet) = self.outlets.get(index) {
                outlet.deliver(batch, replies);
            }
        }
    }

    /// Whether the outlets take more without a wait.
    pub(crate) fn are_free(&self) -> bool {
        self.backlog.is_empty() && self.outlets.iter().all(|outlet| outlet.admits())
    }

    /// Waits until every outlet is near enough to the newest record.
    pub(crate) fn admit(&self) {
        for outlet in &self.outlets {
            outlet.admit();
        }
    }
}
