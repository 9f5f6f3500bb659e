//! Streams as a checkpoint keeps them, and how they are brought back when a log is opened.

use std::collections::HashMap;
use std::sync::Arc;

use encke_log::{FrameView, Sequence, StreamNo};
use serde::{Deserialize, Serialize};

use crate::record::{BadRecord, Change, Fork, KIND_CHANGE, Lifetime};
use crate::stream::{Facts, Life, Media, ProducerState, Source, Stream, Writers};
use crate::{Offset, View};

/// The key and the value under which a checkpoint keeps a stream. An ended one has no value.
pub(crate) fn entry(stream: &Stream, applied: Sequence) -> (Vec<u8>, Option<Vec<u8>>) {
    let key = [KEY_STREAM, &stream.no.to_be_bytes()].concat();
    let state = stream.state();
    let facts = state.committed;
    if facts.life == Life::Ended {
        return (key, None);
    }
    let empty = Writers::default();
    let writers = state.writers.as_deref().unwrap_or(&empty);
    let stored = StoredStream {
        applied,
        name: &stream.name,
        content_type: &stream.media.name,
        lifetime: stream.lifetime,
        touched_ms: stream.touched_ms(),
        fork: stream.source.as_ref().map(|source| Fork {
            source: source.stream.no,
            at: source.at,
        }),
        tail: facts.tail,
        closed: facts.closed,
        kept: facts.life == Life::Kept,
        producers: writers
            .producers
            .iter()
            .map(|(id, state)| (&**id, *state))
            .collect(),
        writer_seq: writers.seq.as_deref(),
        closer: writers.closer.as_ref().map(|(id, state)| (&**id, *state)),
    };
    let value = postcard::to_allocvec(&stored).expect("growing a vector is all that writes here");
    (key, Some(value))
}

/// The prefix of all keys that hold streams.
pub(crate) const KEY_STREAM: &[u8] = b"s";

/// Brings the streams back: first those of the checkpoint, then what the log holds after it.
///
/// A log may hand over records that the checkpoint already contains; they are known by their
/// sequence and skipped.
#[derive(Debug, Default)]
pub(crate) struct Restore {
    streams: HashMap<StreamNo, Restored>,
    media: HashMap<Box<str>, Arc<Media>>,
    stored: Vec<(StreamNo, Vec<u8>)>,
    now_ms: u64,
}

#[derive(Debug)]
struct Restored {
    stream: Arc<Stream>,
    /// Records up to this one are in the stream's state.
    applied: Sequence,
}

impl Restore {
    pub(crate) fn new(now_ms: u64) -> Self {
        Restore {
            now_ms,
            ..Restore::default()
        }
    }

    /// Takes an entry of the checkpoint; all of them come before [`Restore::link`].
    pub(crate) fn store(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        let no = key
            .strip_prefix(KEY_STREAM)
            .and_then(|no| no.try_into().ok())
            .map(u64::from_be_bytes)
            .ok_or(BadRecord)?;
        self.stored.push((no, value.to_vec()));
        Ok(())
    }

    /// Makes streams of the entries. A source has a smaller number than its forks.
    pub(crate) fn link(&mut self) -> Result<(), BadRecord> {
        let mut stored = std::mem::take(&mut self.stored);
        stored.sort_unstable_by_key(|(no, _)| *no);
        for (no, value) in stored {
            let stored: StoredStream<'_> = postcard::from_bytes(&value).map_err(|_| BadRecord)?;
            let source = match stored.fork {
                None => None,
                Some(fork) => Some(self.source(fork).ok_or(BadRecord)?),
            };
            let facts = Facts {
                tail: stored.tail,
                forks: 0,
                closed: stored.closed,
                life: if stored.kept { Life::Kept } else { Life::Live },
            };
            let media = self.media(stored.content_type);
            let stream = Stream::new(
                no,
                stored.name,
                media,
                stored.lifetime,
                source,
                facts,
                self.now_ms,
            );
            stream.state().writers = stored.writers();
            self.streams.insert(
                no,
                Restored {
                    stream: Arc::new(stream),
                    applied: stored.applied,
                },
            );
        }
        Ok(())
    }

    /// Applies a record of the log.
    pub(crate) fn replay(&mut self, frame: &FrameView<'_>) -> Result<(), BadRecord> {
        if frame.kind != KIND_CHANGE {
            return Err(BadRecord);
        }
        let (change, _) = Change::decode(frame.payload)?;
        if let Some(restored) = self.streams.get(&frame.stream)
            && frame.sequence <= restored.applied
        {
            return Ok(());
        }
        match change {
            Change::Create {
                name,
                content_type,
                lifetime,
                fork,
                closed,
                units,
            } => {
                let source = match fork {
                    None => None,
                    // A source that is gone from the checkpoint took its forks along.
                    Some(fork) => match self.source(fork) {
                        None => return Ok(()),
                        source => source,
                    },
                };
                let tail = match &source {
                    Some(source) if units == 0 => source.at,
                    _ => Offset::behind(frame.sequence),
                };
                let facts = Facts {
                    tail,
                    forks: 0,
                    closed,
                    life: Life::Live,
                };
                let media = self.media(content_type);
                let stream = Stream::new(
                    frame.stream,
                    name,
                    media,
                    lifetime,
                    source,
                    facts,
                    self.now_ms,
                );
                self.streams.insert(
                    frame.stream,
                    Restored {
                        stream: Arc::new(stream),
                        applied: frame.sequence,
                    },
                );
            }
            Change::Append {
                producer,
                writer_seq,
                closes,
                units,
            } => {
                // An unknown stream ended before the checkpoint.
                let Some(restored) = self.streams.get(&frame.stream) else {
                    return Ok(());
                };
                let mut state = restored.stream.state();
                if units > 0 {
                    state.next.tail = Offset::behind(frame.sequence);
                }
                state.next.closed |= closes;
                if let Some(seq) = writer_seq {
                    state.writers_mut().seq = Some(seq.into());
                }
                if let Some(producer) = producer {
                    let known = ProducerState {
                        epoch: producer.epoch,
                        seq: producer.seq,
                        last: frame.sequence,
                    };
                    let writers = state.writers_mut();
                    writers.producers.insert(producer.id.into(), known);
                    if closes {
                        writers.closer = Some((producer.id.into(), known));
                    }
                }
            }
            Change::Delete => self.end(frame.stream),
        }
        Ok(())
    }

    /// The view of all streams that are left.
    pub(crate) fn finish(self) -> View {
        let view = View::default();
        for restored in self.streams.into_values() {
            let mut state = restored.stream.state();
            state.committed = state.next;
            drop(state);
            view.insert(restored.stream);
        }
        view
    }

    fn end(&mut self, no: StreamNo) {
        let Some(restored) = self.streams.get(&no) else {
            return;
        };
        let mut state = restored.stream.state();
        state.next.closed = true;
        if state.next.forks > 0 {
            state.next.life = Life::Kept;
            return;
        }
        drop(state);
        self.release(no);
    }

    fn release(&mut self, no: StreamNo) {
        let Some(Restored { stream, .. }) = self.streams.remove(&no) else {
            return;
        };
        let Some(source) = &stream.source else { return };
        let mut state = source.stream.state();
        state.next.forks = state.next.forks.saturating_sub(1);
        let unused = state.next.forks == 0 && state.next.life == Life::Kept;
        drop(state);
        if unused {
            self.release(source.stream.no);
        }
    }

    fn source(&mut self, fork: Fork) -> Option<Box<Source>> {
        let source = self.streams.get(&fork.source)?;
        source.stream.state().next.forks += 1;
        Some(Box::new(Source {
            stream: Arc::clone(&source.stream),
            at: fork.at,
        }))
    }

    fn media(&mut self, name: &str) -> Arc<Media> {
        let media = self
            .media
            .entry(name.into())
            .or_insert_with(|| Arc::new(Media::new(name)));
        Arc::clone(media)
    }
}

#[derive(Serialize, Deserialize)]
struct StoredStream<'a> {
    applied: Sequence,
    name: &'a str,
    content_type: &'a str,
    lifetime: Lifetime,
    touched_ms: u64,
    fork: Option<Fork>,
    tail: Offset,
    closed: bool,
    kept: bool,
    #[serde(borrow)]
    producers: Vec<(&'a str, ProducerState)>,
    writer_seq: Option<&'a str>,
    #[serde(borrow)]
    closer: Option<(&'a str, ProducerState)>,
}

impl StoredStream<'_> {
    fn writers(&self) -> Option<Box<Writers>> {
        if self.producers.is_empty() && self.writer_seq.is_none() {
            return None;
        }
        Some(Box::new(Writers {
            producers: self
                .producers
                .iter()
                .map(|(id, state)| ((*id).into(), *state))
                .collect(),
            seq: self.writer_seq.map(Into::into),
            closer: self.closer.map(|(id, state)| (id.into(), state)),
        }))
    }
}
