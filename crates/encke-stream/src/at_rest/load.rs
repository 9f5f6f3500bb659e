//! Loads streams that are not in memory: a reader thread asks the state store.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::SteadyTime;
use encke_log::{Disk, EachState, Log, ReadError, Reader, Sequence, StateRange, StreamNo};

use crate::at_rest::stored::{self, StoredStream};
use crate::stream::label::StreamLabel;
use crate::stream::media::Media;
use crate::stream::record::BadRecord;
use crate::stream::{Facts, Life, Metadata, Source, Stream, StreamSettings};
use crate::view::View;
use crate::view::lookup::Lookup;
use crate::{Lifetime, Limits, Machine};

/// A store of the states of streams that are not in memory.
pub trait Store {
    /// The value of a key.
    ///
    /// # Errors
    /// The store cannot be read or is damaged. A missing key is not an error.
    fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError>;

    /// Calls `each` for all keys with this prefix, in their order.
    ///
    /// # Errors
    /// Like [`Store::state`].
    fn states(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), ReadError>;

    /// Calls `each` for the keys in a range, in their order, until it breaks.
    ///
    /// # Errors
    /// Like [`Store::state`].
    fn states_in(&self, range: StateRange<'_>, each: &mut EachState<'_>) -> Result<(), ReadError>;
}

impl<D: Disk> Store for Reader<D> {
    fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        Reader::state(self, key)
    }

    fn states(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), ReadError> {
        Reader::states(self, prefix, each)
    }

    fn states_in(&self, range: StateRange<'_>, each: &mut EachState<'_>) -> Result<(), ReadError> {
        Reader::states_in(self, range, each)
    }
}

impl<D: Disk> Store for Log<D> {
    fn state(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        Log::state(self, key)
    }

    fn states(&self, prefix: &[u8], each: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), ReadError> {
        Log::states(self, prefix, each)
    }

    fn states_in(&self, range: StateRange<'_>, each: &mut EachState<'_>) -> Result<(), ReadError> {
        self.reader().states_in(range, each)
    }
}

/// Loads streams from the store into the view. It reads files, so it belongs to threads that may wait for them.
#[derive(Clone, Debug)]
pub struct Loader<S> {
    view: Arc<View>,
    store: S,
    limits: Limits,
    started: Option<SteadyTime>,
}

/// A stream's state could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store could not be read.
    #[error("cannot read the state of a stream: {0}")]
    Read(#[from] ReadError),
    /// The store holds something that this version does not write.
    #[error("the state of a stream is damaged: {0}")]
    Damaged(#[from] BadRecord),
    /// The source of a stream is not in the store.
    #[error("the source {source_no} of the stream {no} is lost")]
    SourceLost {
        /// The stream.
        no: StreamNo,
        /// Its source.
        source_no: StreamNo,
    },
    /// Streams were evicted in every attempt. The caller may try again.
    #[error("too many streams are evicted and loaded; try again")]
    Contended,
}

/// What the readers of a stream may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outline {
    /// Not its records up to this one.
    pub(crate) floor: Sequence,
    /// Nothing, if this is false: the stream exists for its forks only.
    pub(crate) live: bool,
}

impl Machine {
    /// A loader of this machine's streams from the store of their log.
    pub fn loader<S: Store>(&self, store: S) -> Loader<S> {
        Loader::new(Arc::clone(&self.view), store, self.limits, self.started)
    }
}

/// The result of one attempt.
enum Attempt<T> {
    Done(T),
    /// A stream was evicted meanwhile.
    Overtaken,
}

impl<S: Store> Loader<S> {
    /// A loader into `view`. Sliding lifetimes count the start of the process as a read, except on a node of a fleet, which names none.
    pub fn new(view: Arc<View>, store: S, limits: Limits, started: Option<SteadyTime>) -> Self {
        Loader {
            view,
            store,
            limits,
            started,
        }
    }

    /// Looks a name up, in memory or in the store. The result stays in memory as long as it is held.
    ///
    /// # Errors
    /// See [`LoadError`]; never for a name that is free.
    pub fn load(&self, name: &str) -> Result<Lookup, LoadError> {
        let loaded = self.patiently(|evictions| self.try_name(name, evictions));
        let counts = self.view.counts();
        let count = match &loaded {
            Ok(Lookup::Free(_)) => &counts.absences,
            _ => &counts.loads,
        };
        count.fetch_add(1, Ordering::Relaxed);
        loaded
    }

    /// The label of a stream that the store has.
    pub(crate) fn stored_label(&self, no: StreamNo) -> Result<Option<StreamLabel>, LoadError> {
        let Some(value) = self.store.state(&stored::key(no))? else {
            return Ok(None);
        };
        let stored = StoredStream::decode(&value)?;
        Ok(Some(StreamLabel {
            name: stored.name.into(),
            kind: Media::new(stored.content_type).kind,
            owner: stored.extras.owner.map(Into::into),
        }))
    }

    /// The labels of streams in memory. Visits all streams in memory, unless no number is given.
    pub(crate) fn labels_in_memory(
        &self,
        numbers: &HashSet<StreamNo>,
    ) -> Vec<(StreamNo, StreamLabel)> {
        let mut labels = Vec::new();
        if !numbers.is_empty() {
            self.view.for_each(&mut |stream| {
                if numbers.contains(&stream.no) {
                    labels.push((stream.no, StreamLabel::of(stream)));
                }
            });
        }
        labels
    }

    /// What readers of a stream of that name may see, found without loading it. `None` if it has ended.
    pub(crate) fn outline(&self, no: StreamNo, name: &str) -> Result<Option<Outline>, LoadError> {
        match self.view.peek(name) {
            Some(known) => Ok(known
                .stream()
                .filter(|stream| stream.no == no)
                .map(|stream| {
                    let facts = stream.facts();
                    Outline {
                        floor: facts.floor,
                        live: facts.life == Life::Live,
                    }
                })),
            // Not in memory, so that the store has the present state.
            None => {
                let Some(value) = self.store.state(&stored::key(no))? else {
                    return Ok(None);
                };
                let stored = StoredStream::decode(&value)?;
                Ok(Some(Outline {
                    floor: stored.floor,
                    live: !stored.deleted,
                }))
            }
        }
    }

    /// The stream with this number, unless it has ended, from memory or from the store.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load_number(&self, no: StreamNo) -> Result<Option<Arc<Stream>>, LoadError> {
        self.patiently(|evictions| {
            let tried = self.try_number(no, evictions)?;
            if !matches!(tried, Attempt::Done(None)) {
                return Ok(tried);
            }
            // A stream that the store does not have yet is in memory, where streams are found by name. The search is
            // slow, but most callers know that the store has the stream.
            let found = self.view.find_number(no);
            Ok(match found {
                None if self.view.evictions() != evictions => Attempt::Overtaken,
                found => Attempt::Done(found),
            })
        })
    }

    fn patiently<T>(
        &self,
        attempt: impl Fn(u64) -> Result<Attempt<T>, LoadError>,
    ) -> Result<T, LoadError> {
        for _ in 0..ATTEMPTS_MAX {
            // Read before the store: an eviction after this makes the attempt void.
            let evictions = self.view.evictions();
            if let Attempt::Done(done) = attempt(evictions)? {
                return Ok(done);
            }
        }
        Err(LoadError::Contended)
    }

    fn try_name(&self, name: &str, evictions: u64) -> Result<Attempt<Lookup>, LoadError> {
        if let Some(known) = self.view.look(name) {
            return Ok(Attempt::Done(known));
        }
        let Some(value) = self.store.state(&stored::name_key(name))? else {
            let admitted = self.view.admit(Lookup::free(name), evictions);
            return Ok(admitted.map_or(Attempt::Overtaken, Attempt::Done));
        };
        let no = stored::named(&value)?;
        match self.try_number(no, evictions)? {
            Attempt::Done(Some(stream)) if *stream.name == *name => {
                Ok(Attempt::Done(Lookup::Stream(stream)))
            }
            // The name belongs to another stream now, which is in memory.
            _ => Ok(Attempt::Overtaken),
        }
    }

    fn try_number(
        &self,
        no: StreamNo,
        evictions: u64,
    ) -> Result<Attempt<Option<Arc<Stream>>>, LoadError> {
        // From the fork back to a source that is in memory or is not a fork.
        let mut missing = Vec::new();
        let mut next = Some(no);
        let mut source = None;
        while let Some(no) = next {
            let Some(value) = self.store.state(&stored::key(no))? else {
                if let Some((fork, _)) = missing.last() {
                    // The stream may have ended meanwhile, and its fork with it.
                    if self.store.state(&stored::key(*fork))?.is_none() {
                        return Ok(Attempt::Overtaken);
                    }
                    return Err(LoadError::SourceLost {
                        no: *fork,
                        source_no: no,
                    });
                }
                return Ok(Attempt::Done(None));
            };
            let stored = StoredStream::decode(&value)?;
            match self.view.peek(stored.name) {
                Some(Lookup::Stream(stream)) if stream.no == no => {
                    stream.used.store(true, Ordering::Relaxed);
                    source = Some(stream);
                    break;
                }
                // The name has another stream or none, so this one has ended, and the store does not know it yet.
                Some(_) if missing.is_empty() => return Ok(Attempt::Done(None)),
                _ => {}
            }
            next = stored.fork.map(|fork| fork.source);
            missing.push((no, value));
        }
        for (no, value) in missing.into_iter().rev() {
            let stored = StoredStream::decode(&value)?;
            let stream = Arc::new(self.stream(no, &stored, source.take()));
            match self.view.admit(Lookup::Stream(stream), evictions) {
                Some(Lookup::Stream(stream)) if stream.no == no => source = Some(stream),
                // The stream has ended meanwhile, or may have changed.
                _ => return Ok(Attempt::Overtaken),
            }
        }
        Ok(Attempt::Done(source))
    }

    pub(super) fn view(&self) -> &View {
        &self.view
    }

    pub(super) fn store(&self) -> &S {
        &self.store
    }

    /// A stream as the store has it. `source`: the stream that it continues, if it is a fork.
    pub(super) fn stream(
        &self,
        no: StreamNo,
        stored: &StoredStream<'_>,
        source: Option<Arc<Stream>>,
    ) -> Stream {
        let source = source.zip(stored.fork).map(|(stream, fork)| {
            Box::new(Source {
                stream,
                at: fork.at,
            })
        });
        let touched = match (stored.lifetime, self.started) {
            (Lifetime::Sliding { .. }, Some(started)) => stored.touched.max(started),
            _ => stored.touched,
        };
        let facts = Facts {
            tail: stored.tail,
            counted: stored.counted,
            appended: stored.appended,
            forks: stored.forks,
            floor: stored.floor,
            closed: stored.closed,
            end: stored.extras.end,
            stop_asked: stored.extras.stop_asked,
            life: match stored.deleted {
                true => Life::Kept,
                false => Life::Live,
            },
        };
        let settings = StreamSettings {
            media: self.view.media(stored.content_type),
            lifetime: stored.lifetime,
            ack: stored.ack,
            retention: stored.retention,
            owner: stored.extras.owner.map(Into::into),
            producer_timeout_s: stored.extras.producer_timeout_s,
            account: stored.account.map(|id| self.view.accounts.enter(id)),
        };
        let appended = stored.extras.last_append;
        let stream = Stream::new(no, stored.name.into(), settings, source, facts, touched);
        stream.set_last_append(
            self.started
                .map_or(appended, |started| appended.max(started)),
        );
        let mut state = stream.state();
        state.stored = Some(touched);
        if let Some(metadata) = stored.extras.metadata {
            state.metadata = Some(Box::new(Metadata::restored(metadata)));
        }
        if stream.keeps_part() {
            state.buckets = Some(Box::new(stored.buckets.clone()));
        }
        // The totals of the account have what the store has.
        stream.note_charged(stored.cost());
        // The list of deadlines has it at these times, unless it was not live.
        state.watched = stream.due(&state);
        if let Some(mut writers) = stored.writers() {
            writers.trim(self.limits.producers_max);
            writers.count_in(&self.view.producers);
            state.writers = Some(writers);
        }
        drop(state);
        stream
    }
}

/// How often a look-up is tried again when streams are evicted meanwhile.
pub(super) const ATTEMPTS_MAX: usize = 100;
