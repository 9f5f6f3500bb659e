//! Lists streams by name: those in memory, and those that only the store has.

use std::ops::ControlFlow;

use encke_clock::Now;
use encke_log::{Sequence, StateRange, StreamNo};

use super::load::{ATTEMPTS_MAX, LoadError, Loader, Store};
use super::stored::{self, StoredStream};
use crate::stream::record::EndReason;
use crate::stream::{Facts, Life, Stream};
use crate::view::lookup::Lookup;
use crate::{Offset, Viewer};

/// A page of the list of all streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListFetch {
    /// What the names begin with.
    pub prefix: Box<str>,
    /// Only the names behind this one.
    pub behind: Option<Box<str>>,
    /// The most streams that it has.
    pub count_max: usize,
    /// Whose streams it has.
    pub viewer: Viewer,
    /// Streams whose lifetime is over are left out.
    pub now: Now,
}

/// Streams in the order of their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StreamPage {
    /// The streams. There may be fewer than were asked for, or none, although more follow.
    pub streams: Vec<ListedStream>,
    /// The name behind which the next page begins. `None`: nothing follows.
    pub next: Option<Box<str>>,
}

/// A stream in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedStream {
    /// Its number.
    pub no: StreamNo,
    /// Its name.
    pub name: Box<str>,
    /// Its content type.
    pub content_type: Box<str>,
    /// The position after its last data.
    pub tail: Offset,
    /// Readers must not see its records up to this one.
    pub floor: Sequence,
    /// See [`Facts::messages`].
    pub messages: Option<u64>,
    /// Bytes that were appended, see [`ByteCount`](crate::ByteCount).
    pub appended_bytes: Option<u64>,
    /// No append follows.
    pub closed: bool,
    /// Why it was closed, if that was said.
    pub end: Option<EndReason>,
    /// A reader has asked the producer to stop.
    pub stop_asked: bool,
    /// The name of the caller to whom it belongs.
    pub owner: Option<Box<str>>,
    /// Its metadata, in JSON.
    pub metadata: Option<Box<str>>,
}

/// A name that a page may have, with the number of the stream in the store.
type Candidate = (Box<str>, Option<StreamNo>);

impl<S: Store> Loader<S> {
    /// A page of the streams of this log.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn list(&self, fetch: &ListFetch) -> Result<StreamPage, LoadError> {
        let mut page = StreamPage::default();
        let (candidates, more) = self.candidates(fetch)?;
        for (name, no) in candidates {
            if page.streams.len() == fetch.count_max {
                page.next = page.streams.last().map(|last| last.name.clone());
                return Ok(page);
            }
            page.streams.extend(self.listed(fetch, &name, no)?);
        }
        page.next = more;
        Ok(page)
    }

    /// The names that come next, in their order, and the last of them if others follow.
    fn candidates(
        &self,
        fetch: &ListFetch,
    ) -> Result<(Vec<Candidate>, Option<Box<str>>), LoadError> {
        let behind = fetch.behind.as_deref();
        // Before the store is read: a stream that the store gets meanwhile is in both, never in neither.
        let view = self.view();
        let unstored = view.unstored_names(&fetch.prefix, behind, LOOKED_AT_MAX);
        let mut stored: Vec<Candidate> = Vec::new();
        let prefix = stored::name_key(&fetch.prefix);
        let behind = behind.map(stored::name_key);
        let mut damaged = Ok(());
        let range = StateRange {
            prefix: &prefix,
            behind: behind.as_deref(),
        };
        self.store().states_in(range, &mut |key, value| {
            match stored::name_of(key)
                .and_then(|name| Ok((name.into(), Some(stored::named(value)?))))
            {
                Ok(one) => stored.push(one),
                Err(bad) => damaged = Err(bad),
            }
            match stored.len() < LOOKED_AT_MAX && damaged.is_ok() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        damaged?;
        // Where either list ends early, the other one may have names behind that would come later.
        let ends = [
            unstored.last().filter(|_| unstored.len() == LOOKED_AT_MAX),
            stored
                .last()
                .map(|(name, _)| name)
                .filter(|_| stored.len() == LOOKED_AT_MAX),
        ];
        let upto = ends.into_iter().flatten().min().cloned();
        let unstored = unstored.into_iter().map(|name| (name, None));
        let mut all: Vec<Candidate> = stored.into_iter().chain(unstored).collect();
        all.retain(|(name, _)| upto.as_ref().is_none_or(|upto| name <= upto));
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all.dedup_by(|(b, _), (a, _)| a == b);
        Ok((all, upto))
    }

    /// The stream of a name, as a page has it, if it has it.
    fn listed(
        &self,
        fetch: &ListFetch,
        name: &str,
        no: Option<StreamNo>,
    ) -> Result<Option<ListedStream>, LoadError> {
        let view = self.view();
        // Names that no client can use are the server's own.
        if name.starts_with(char::is_control) {
            return Ok(None);
        }
        let seen = |stream: &Stream| {
            let facts = stream.facts();
            let is_live =
                facts.life == Life::Live && !view.has_expired(stream, view.time(fetch.now));
            (is_live && fetch.viewer.sees(stream.owner())).then(|| ListedStream::of(stream, facts))
        };
        let mut no = no;
        for _ in 0..ATTEMPTS_MAX {
            match view.peek(name) {
                Some(Lookup::Stream(stream)) => return Ok(seen(&stream)),
                Some(Lookup::Free(_)) => return Ok(None),
                // Not in memory, so that the store has the present state.
                None => {}
            }
            let known = match no.take() {
                Some(no) => Some(no),
                // It has left memory since.
                None => self
                    .store()
                    .state(&stored::name_key(name))?
                    .as_deref()
                    .map(stored::named)
                    .transpose()?,
            };
            let Some(no) = known else { return Ok(None) };
            if let Some(value) = self.store().state(&stored::key(no))? {
                let stored = StoredStream::decode(&value)?;
                return Ok(seen(&self.stream(no, &stored, None)));
            }
            // It has ended since, and another stream may have the name.
        }
        Err(LoadError::Contended)
    }
}

impl ListedStream {
    fn of(stream: &Stream, facts: Facts) -> Self {
        ListedStream {
            no: stream.no,
            name: stream.name.clone(),
            content_type: stream.media.name.clone(),
            tail: facts.tail,
            floor: facts.floor,
            messages: facts.messages(),
            appended_bytes: facts.appended.known(),
            closed: facts.closed,
            end: facts.end,
            stop_asked: facts.stop_asked,
            owner: stream.owner().map(Into::into),
            metadata: stream.metadata().map(|metadata| (*metadata).into()),
        }
    }
}

impl StreamPage {
    /// What it takes in memory, about.
    pub fn bytes(&self) -> usize {
        let bytes = |one: &ListedStream| {
            let texts = [&one.owner, &one.metadata].into_iter().flatten();
            let texts: usize = texts.map(|text| text.len()).sum();
            size_of::<ListedStream>() + one.name.len() + one.content_type.len() + texts
        };
        self.streams.iter().map(bytes).sum()
    }

    /// The page that pages of several logs make together, each for the same request.
    pub(crate) fn joined(pages: Vec<StreamPage>, count_max: usize) -> StreamPage {
        let next = pages.iter().filter_map(|page| page.next.clone()).min();
        let streams = pages.into_iter().flat_map(|page| page.streams);
        let is_known = |one: &ListedStream| next.as_ref().is_none_or(|next| one.name <= *next);
        let mut streams: Vec<ListedStream> = streams.filter(is_known).collect();
        streams.sort_by(|a, b| a.name.cmp(&b.name));
        let cut = streams.len() > count_max;
        streams.truncate(count_max);
        let last = streams.last().map(|last| last.name.clone());
        StreamPage {
            next: if cut { last } else { next },
            streams,
        }
    }
}

/// Names that are looked at for one page. Those of streams of others, and of ended ones, count too.
const LOOKED_AT_MAX: usize = 10_000;
