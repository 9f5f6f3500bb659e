//! What the log says of channels stands in it again now and then, because it forgets what is old. So a node that begins to report knows
//! all of it.

use std::collections::HashMap;
use std::time::Duration;

use encke_clock::SteadyTime;

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
    /// How many of its records were read since its begin. `None`: that was not read.
    read: Option<usize>,
    /// The log that was read had all of one.
    is_complete: bool,
    /// Records of channels that were written and not read back: what the log says of these channels is not known.
    on_their_way: HashMap<Box<str>, usize>,
}

/// One that is under way.
#[derive(Debug)]
struct Progress {
    began: SteadyTime,
    /// The channels that are not written yet.
    left: Vec<Box<str>>,
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

    /// A record is written that tells of a channel.
    pub(super) fn write(&mut self, channel: &str) {
        *self.on_their_way.entry(channel.into()).or_default() += 1;
    }

    /// Such a record was read.
    pub(super) fn read(&mut self, channel: &str) {
        if let Some(records) = self.on_their_way.get_mut(channel) {
            *records -= 1;
            if *records == 0 {
                self.on_their_way.remove(channel);
            }
        }
    }

    /// A record was read that was written before. `is_live`: the node reports already.
    pub(super) fn read_again(&mut self, event: &WebhookEvent<'_>, is_live: bool, now: SteadyTime) {
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

    /// The next records of it, if it is time for them. `channels`: those of which something is told; `events`: what is told of one.
    pub(super) fn next<'a, E: IntoIterator<Item = WebhookEvent<'a>>>(
        &mut self,
        channels: impl Iterator<Item = &'a Box<str>>,
        events: impl Fn(&str) -> E,
        now: SteadyTime,
    ) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        if self.progress.is_none() {
            if self.at > now && self.grown <= GROWN_MAX.max(self.size) {
                return records;
            }
            self.progress = Some(Progress {
                began: now,
                left: channels.cloned().collect(),
                written: 0,
            });
            self.size = 0;
            records.push(WebhookEvent::mark(BEGINS).record());
        }
        let Some(progress) = &mut self.progress else {
            return records;
        };
        let may_wait = now < progress.began.after(WAIT_MAX);
        let (mut bytes, mut waiting) = (0, Vec::new());
        while bytes < PIECE_BYTES
            && let Some(channel) = progress.left.pop()
        {
            if may_wait && self.on_their_way.contains_key(&channel) {
                waiting.push(channel);
                continue;
            }
            for event in events(&channel) {
                let record = event.again().record();
                bytes += record.len();
                progress.written += 1;
                records.push(record);
            }
        }
        self.size += bytes;
        progress.left.append(&mut waiting);
        if progress.left.is_empty() {
            let mut end = WebhookEvent::mark(ENDS);
            end.subscription_count = Some(progress.written);
            records.push(end.record());
            self.progress = None;
            self.grown = 0;
            self.at = now.after(PAUSE);
        }
        records
    }

    /// Some of it could not be written: it begins anew after a while.
    pub(super) fn begin_anew(&mut self, now: SteadyTime) {
        self.progress = None;
        self.grown = 0;
        self.at = now.after(WAIT_MAX);
    }
}

/// How long a node that begins to report waits with the first one.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// Between two of them: a quarter of the time that the log keeps a record.
const PAUSE: Duration = Duration::from_secs(6 * 3600);

/// Bytes by which the log grows at most between two, unless the last one had more: a quarter of what it keeps.
pub(super) const GROWN_MAX: usize = 32 << 20;

/// How long a channel may wait for its records that are on their way, and how long a new attempt waits.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Bytes that are written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The names of the records before and behind it. The last one has the number of those between, as the number of subscriptions.
const BEGINS: &str = "#repetition_begins";
pub(super) const ENDS: &str = "#repetition_ends";
