//! How the streams are brought back when a log is opened: from the last checkpoint and what the log
//! holds after it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use encke_log::{Disk, FrameView, Log, OpenError, Options, ReadError, Sequence, StreamNo};

use crate::record::{BadRecord, Change, Fork, KIND_CHANGE, Lifetime};
use crate::stored::{self, KEY_STREAM, StoredStream};
use crate::stream::{Facts, Life, Media, Source, Stream};
use crate::writers::{ProducerState, Writers};
use crate::{Limits, Machine, Offset, View};

/// Opens the log in `dir` and brings back its streams. `now_ms` is the time in milliseconds since
/// 1970; sliding lifetimes start anew with it, because nobody could read while nobody served.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore(
    dir: &Path,
    options: Options,
    limits: Limits,
    now_ms: u64,
) -> Result<(Machine, Arc<View>, Log), RestoreError> {
    let mut restore = Restore::default();
    let log = Log::open(dir, options, &mut |frame| restore.record(&frame))?;
    restore.finish(log, limits, now_ms)
}

/// [`restore`] from a log on any disk, for simulations.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore_on<D: Disk>(
    disk: D,
    options: Options,
    limits: Limits,
    now_ms: u64,
) -> Result<(Machine, Arc<View>, Log<D>), RestoreError> {
    let mut restore = Restore::default();
    let log = Log::open_on(disk, options, &mut |frame| restore.record(&frame))?;
    restore.finish(log, limits, now_ms)
}

/// The log could not be opened, or holds what this version can't read.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A record that this version does not write.
    #[error("record {sequence} of the log: {source}")]
    Record {
        /// Which one.
        sequence: Sequence,
        /// What is wrong with it.
        source: BadRecord,
    },
    /// An entry of the checkpoint that this version does not write.
    #[error("the checkpoint's entry with the key {key:02x?}: {source}")]
    Entry {
        /// Its key.
        key: Vec<u8>,
        /// What is wrong with it.
        source: BadRecord,
    },
    /// The checkpoint could not be read.
    #[error("the checkpoint of the streams can't be read: {0}")]
    Checkpoint(#[from] ReadError),
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Gathers what is known of each stream, from the checkpoint and from the log.
///
/// The records of the log may begin anywhere before the checkpoint's end, and go on to the log's
/// end: what they say is newer than what the checkpoint says, or the same. So for each thing that
/// can be known the log is believed first, and the checkpoint where the log is silent.
#[derive(Debug, Default)]
struct Restore {
    streams: HashMap<StreamNo, Found>,
    media: HashMap<Box<str>, Arc<Media>>,
    failed: Option<RestoreError>,
}

/// What was found of one stream.
#[derive(Debug, Default)]
struct Found {
    /// How it was created; unknown if its first record is older than what was replayed.
    origin: Option<Origin>,
    /// The position behind its last data, if any was found.
    tail: Option<Offset>,
    closed: bool,
    deleted: bool,
    writers: Option<Box<Writers>>,
    /// The log has something of it that the checkpoint may not have.
    replayed: bool,
    /// The checkpoint has it.
    stored: bool,
    /// Forks that have not ended.
    forks: u32,
}

#[derive(Debug)]
struct Origin {
    name: Box<str>,
    media: Arc<Media>,
    lifetime: Lifetime,
    fork: Option<Fork>,
}

impl Restore {
    /// Takes a record of the log. What it can't read is told in the end.
    fn record(&mut self, frame: &FrameView<'_>) {
        let sequence = frame.sequence;
        let applied = match frame.kind {
            KIND_CHANGE => self.apply(frame.stream, sequence, frame.payload),
            _ => Err(BadRecord),
        };
        if let Err(source) = applied {
            let failed = RestoreError::Record { sequence, source };
            self.failed.get_or_insert(failed);
        }
    }

    fn apply(&mut self, no: StreamNo, sequence: Sequence, payload: &[u8]) -> Result<(), BadRecord> {
        let (change, _) = Change::decode(payload)?;
        let origin = match &change {
            Change::Create {
                name,
                content_type,
                lifetime,
                fork,
                ..
            } => Some(Origin {
                name: (*name).into(),
                media: self.media(content_type),
                lifetime: *lifetime,
                fork: *fork,
            }),
            _ => None,
        };
        let found = self.streams.entry(no).or_default();
        found.replayed = true;
        match change {
            Change::Create {
                closed,
                units,
                fork,
                ..
            } => {
                found.origin = origin;
                found.tail = Some(Facts::first_tail(no, fork, units));
                found.closed = closed;
            }
            Change::Append {
                producer,
                writer_seq,
                closes,
                units,
            } => {
                if units > 0 {
                    found.tail = Some(Offset::behind(sequence));
                }
                found.closed |= closes;
                if let Some(seq) = writer_seq {
                    found.writers.get_or_insert_default().set_seq(seq.into());
                }
                if let Some(producer) = producer {
                    let state = ProducerState {
                        epoch: producer.epoch,
                        seq: producer.seq,
                        last: sequence,
                    };
                    let writers = found.writers.get_or_insert_default();
                    writers.set_producer(producer.id.into(), state);
                    if closes {
                        writers.set_closer(producer.id.into(), state);
                    }
                }
            }
            Change::Delete => {
                found.closed = true;
                found.deleted = true;
            }
        }
        Ok(())
    }

    /// Takes an entry of the checkpoint, before the records or after them.
    fn entry(&mut self, key: &[u8], value: &[u8]) {
        if let Err(source) = self.fill(key, value) {
            let key = key.to_vec();
            let failed = RestoreError::Entry { key, source };
            self.failed.get_or_insert(failed);
        }
    }

    fn fill(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        let no = stored::number(key)?;
        let stored = StoredStream::decode(value)?;
        let media = self.media(stored.content_type);
        let found = self.streams.entry(no).or_default();
        found.stored = true;
        found.closed |= stored.closed;
        found.deleted |= stored.deleted;
        // A tail never moves back.
        found.tail = found.tail.max(Some(stored.tail));
        if let Some(older) = stored.writers() {
            match &mut found.writers {
                None => found.writers = Some(older),
                Some(newer) => newer.fill(*older),
            }
        }
        found.origin = Some(Origin {
            name: stored.name.into(),
            media,
            lifetime: stored.lifetime,
            fork: stored.fork,
        });
        Ok(())
    }

    /// Reads the checkpoint and makes streams of all that was found.
    fn finish<D: Disk>(
        mut self,
        log: Log<D>,
        limits: Limits,
        now_ms: u64,
    ) -> Result<(Machine, Arc<View>, Log<D>), RestoreError> {
        log.states(KEY_STREAM, &mut |key, value| self.entry(key, value))?;
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        let (machine, view) = self.build(limits, now_ms);
        view.set_committed(log.next_sequence() - 1);
        Ok((machine, view, log))
    }

    /// Lets those streams go that have ended, and links forks to their sources.
    fn build(mut self, limits: Limits, now_ms: u64) -> (Machine, Arc<View>) {
        let ended = self.settle();
        let mut left: Vec<(StreamNo, Found)> = self.streams.into_iter().collect();
        left.sort_unstable_by_key(|(no, _)| *no);
        let mut streams: HashMap<StreamNo, Arc<Stream>> = HashMap::with_capacity(left.len());
        let view = Arc::new(View::default());
        let mut changed = Vec::new();
        for (no, found) in left {
            let replayed = found.replayed;
            // A source has a smaller number than its forks, and is there as long as they are.
            let find = |no: StreamNo| streams.get(&no).map(Arc::clone);
            let Some(stream) = found.into_stream(no, limits, now_ms, find) else {
                continue;
            };
            if replayed {
                changed.push(Arc::clone(&stream));
            }
            view.insert(Arc::clone(&stream));
            streams.insert(no, stream);
        }
        let mut machine = Machine::new(Arc::clone(&view), limits);
        for stream in changed {
            machine.mark_changed(stream);
        }
        machine.mark_ended(ended);
        (machine, view)
    }

    /// Counts forks and takes out what has ended. Returns the ended ones that the checkpoint still
    /// has.
    fn settle(&mut self) -> Vec<StreamNo> {
        let mut numbers: Vec<StreamNo> = self.streams.keys().copied().collect();
        // Forks before their sources: whether a source has ended depends on them.
        numbers.sort_unstable_by_key(|no| Reverse(*no));
        let mut ended = Vec::new();
        for no in numbers {
            let Entry::Occupied(found) = self.streams.entry(no) else {
                continue;
            };
            // What was not created in sight ended before the checkpoint.
            let over = found.get().deleted && found.get().forks == 0;
            let Some(origin) = found.get().origin.as_ref().filter(|_| !over) else {
                if found.remove().stored {
                    ended.push(no);
                }
                continue;
            };
            if let Some(fork) = origin.fork
                && let Some(source) = self.streams.get_mut(&fork.source)
            {
                source.forks += 1;
            }
        }
        ended
    }

    /// The type of that name; all of them are shared while they are being gathered.
    fn media(&mut self, name: &str) -> Arc<Media> {
        if let Some(media) = self.media.get(name) {
            return Arc::clone(media);
        }
        let media = Arc::new(Media::new(name));
        self.media.insert(name.into(), Arc::clone(&media));
        media
    }
}

impl Found {
    /// The stream, with its source as `find` has it.
    fn into_stream(
        self,
        no: StreamNo,
        limits: Limits,
        now_ms: u64,
        find: impl FnOnce(StreamNo) -> Option<Arc<Stream>>,
    ) -> Option<Arc<Stream>> {
        let Origin {
            name,
            media,
            lifetime,
            fork,
        } = self.origin?;
        let source = match fork {
            None => None,
            Some(fork) => match find(fork.source) {
                Some(stream) => Some(Box::new(Source {
                    stream,
                    at: fork.at,
                })),
                None => {
                    // A source outlives its forks, unless a repair that accepts loss took it.
                    tracing::error!(stream = %name, "a fork is lost, because its source is");
                    return None;
                }
            },
        };
        let facts = Facts {
            tail: self.tail?,
            forks: self.forks,
            closed: self.closed,
            life: if self.deleted { Life::Kept } else { Life::Live },
        };
        let stream = Stream::new(no, name, media, lifetime, source, facts, now_ms);
        if let Some(mut writers) = self.writers {
            writers.trim(limits.producers_max);
            stream.state().writers = Some(writers);
        }
        Some(Arc::new(stream))
    }
}

#[cfg(test)]
mod tests;
