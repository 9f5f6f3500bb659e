//! What the log says of channels stands in it again now and then, because it forgets what is old. So a node that begins to report knows
//! all of it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use encke_clock::SteadyTime;

use super::channel_state::{ChannelPart, ChannelSubject};
use super::event::WebhookEvent;

/// When that is, and how far it is.
#[derive(Debug, Default)]
pub(super) struct Repetition {
    /// When it begins the next time, unless the log has grown much before.
    at: SteadyTime,
    /// By how many bytes the log has grown since the last one, and how many that one had.
    grown: usize,
    size: usize,
    progress: Option<Progress>,
    /// When the end of one was written that was not read back.
    ended: Option<SteadyTime>,
    /// How many of its records were read since its begin. `None`: that was not read.
    read: Option<usize>,
    /// The log that was read had all of one.
    is_complete: bool,
    /// When records were written that were not read back: what the log says of their subjects is not known.
    on_their_way: HashMap<ChannelSubject, Vec<SteadyTime>>,
}

/// One that is under way.
#[derive(Debug)]
struct Progress {
    began: SteadyTime,
    /// What is not written yet: channels, and of some only what had to wait.
    left: Vec<(Box<str>, Option<HashSet<ChannelPart>>)>,
    /// How many records are written.
    written: usize,
}

impl Repetition {
    /// The node has read all that was in the log. False: some of what the log had before can't be known.
    pub(super) fn restored(&mut self, is_trimmed: bool, now: SteadyTime) -> bool {
        self.at = now.after(FIRST_PAUSE);
        !is_trimmed || self.is_complete
    }

    /// The log has grown.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.grown += bytes;
    }

    /// A record is written that tells of a subject.
    pub(super) fn write(&mut self, subject: &ChannelSubject, now: SteadyTime) {
        let written = self.on_their_way.entry(subject.clone()).or_default();
        written.retain(|at| !is_lost(*at, now));
        written.push(now);
    }

    /// Such a record was read: the last one, so that the time of one that was lost passes.
    pub(super) fn read(&mut self, subject: &ChannelSubject) {
        if let Some(written) = self.on_their_way.get_mut(subject) {
            written.pop();
            if written.is_empty() {
                self.on_their_way.remove(subject);
            }
        }
    }

    /// A record was read that was written before. `is_live`: the node reports already.
    pub(super) fn read_again(&mut self, event: &WebhookEvent<'_>, is_live: bool, now: SteadyTime) {
        if event.name() == ENDS {
            self.ended = None;
        }
        match event.name() {
            BEGINS => self.read = Some(0),
            ENDS if self.read.is_some() && self.read == event.subscription_count => {
                self.is_complete = true;
                self.grown = 0;
            }
            // Some of it was lost on its way.
            ENDS if is_live => self.begin_anew(now),
            _ => self.read = self.read.map(|read| read + 1),
        }
    }

    /// The next records of the repetition, if it is due. `channels`: those that the log says something of; `events`: the events of one, by
    /// parts.
    pub(super) fn next<'a>(
        &mut self,
        channels: impl Iterator<Item = &'a Box<str>>,
        events: impl Fn(&str) -> Vec<(ChannelPart, WebhookEvent<'a>)>,
        now: SteadyTime,
    ) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        if self.ended.is_some_and(|written| is_lost(written, now)) {
            self.begin_anew(now);
        }
        if self.progress.is_none() {
            if self.at > now && self.grown <= GROWN_MAX.max(self.size) {
                return records;
            }
            self.progress = Some(Progress {
                began: now,
                left: channels.map(|channel| (channel.clone(), None)).collect(),
                written: 0,
            });
            self.size = 0;
            records.push(WebhookEvent::mark(BEGINS).record());
        }
        let Some(progress) = &mut self.progress else {
            return records;
        };
        self.on_their_way.retain(|_, written| {
            written.retain(|at| !is_lost(*at, now));
            !written.is_empty()
        });
        // What is on its way then was written behind the begin, so that the log has it there.
        let may_wait = now < progress.began.after(WAIT_MAX);
        let (mut bytes, mut waiting) = (0, Vec::new());
        while bytes < PIECE_BYTES
            && let Some((channel, wanted)) = progress.left.pop()
        {
            let is_wanted = |part: &ChannelPart| wanted.as_ref().is_none_or(|of| of.contains(part));
            let mut on_their_way = HashSet::new();
            let events = events(&channel).into_iter();
            for (part, event) in events.filter(|(part, _)| is_wanted(part)) {
                let channel = channel.clone();
                let subject = ChannelSubject { channel, part };
                if self.on_their_way.contains_key(&subject) {
                    on_their_way.insert(subject.part);
                    continue;
                }
                let record = event.again().record();
                bytes += record.len();
                progress.written += 1;
                records.push(record);
            }
            if may_wait && !on_their_way.is_empty() {
                waiting.push((channel, Some(on_their_way)));
            }
        }
        self.size += bytes;
        progress.left.append(&mut waiting);
        if progress.left.is_empty() {
            let mut end = WebhookEvent::mark(ENDS);
            end.subscription_count = Some(progress.written);
            records.push(end.record());
            self.progress = None;
            self.ended = Some(now);
            self.grown = 0;
            self.at = now.after(PAUSE);
        }
        records
    }

    /// Some of it could not be written: it begins anew after a while.
    pub(super) fn begin_anew(&mut self, now: SteadyTime) {
        self.progress = None;
        self.ended = None;
        self.grown = 0;
        self.at = now.after(WAIT_MAX);
    }
}

/// Whether a record that was written then and not read back does not come any more.
fn is_lost(written: SteadyTime, now: SteadyTime) -> bool {
    written.after(WAIT_MAX) <= now
}

/// How long a node that begins to report waits with the first one.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Between two of them: a quarter of the time that the log keeps a record.
const PAUSE: Duration = Duration::from_secs(6 * 3600);

/// Bytes by which the log grows at most between two, unless the last one had more: a quarter of what it keeps.
pub(super) const GROWN_MAX: usize = 32 << 20;

/// How long a record may be on its way, and how long what is on its way may be waited for. A new attempt waits as long.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Bytes that are written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The names of the records before and behind it. The last one has the number of those between, as the number of subscriptions.
pub(super) const BEGINS: &str = "#repetition_begins";
pub(super) const ENDS: &str = "#repetition_ends";
