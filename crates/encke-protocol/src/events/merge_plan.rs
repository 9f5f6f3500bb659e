//! The feed of a subscriber of several streams, as it is planned.

use std::fmt::Debug;

use encke_stream::{Life, Sequence};

use super::refusals::earlier;
use crate::action::{Action, MergeSource};
use crate::encoder::{AheadStream, MergedPosition, StreamEnd, StreamGeneration};
use crate::response::Response;

/// A feed of several streams.
#[derive(Debug)]
pub(crate) struct MergePlan {
    /// What it has records of. None: all that the subscriber names has ended.
    pub(crate) sources: Vec<MergeSource>,
    /// The subscriber has everything up to these sequences, one for each log.
    pub(crate) after: Vec<Sequence>,
    /// The sources of which it has more.
    pub(crate) ahead: Vec<AheadStream>,
    /// The streams that its positions are of.
    pub(crate) generations: Vec<StreamGeneration>,
    /// A digest of the names in the request.
    pub(crate) names: u32,
    /// Those of `ahead` that have ended.
    pub(crate) ended: Vec<AheadStream>,
    /// Streams that have ended, and of which nothing follows, in the order of the request.
    pub(crate) over: Vec<EndedStream>,
}

impl MergePlan {
    /// The position at which the feed begins.
    pub(crate) fn position(&self) -> MergedPosition<'_> {
        MergedPosition {
            after: &self.after,
            ahead: &self.ahead,
            generations: &self.generations,
            names: self.names,
        }
    }
}

/// A stream that has ended, as a client learns it.
#[derive(Debug)]
pub(crate) struct EndedStream {
    /// Its place in the request.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) end: StreamEnd,
}

/// Waits for the plan of a feed.
pub(crate) trait OnPlanned: Debug + Send {
    /// What follows from the plan, or from the refusal.
    fn planned(self: Box<Self>, plan: Result<MergePlan, Response>) -> Action;
}

/// A plan whose sources begin at positions that may still change.
#[derive(Debug)]
pub(super) struct MergeDraft {
    pub(super) sources: Vec<MergeSource>,
    /// See [`MergePlan::over`]: those that are known to have ended.
    pub(super) over: Vec<EndedStream>,
    /// A stream that took the name of one that the client had.
    pub(super) recreated: Option<String>,
    /// What a client that resumes has, see [`MergePlan::after`].
    pub(super) after: Option<Vec<Sequence>>,
    /// The logs were committed up to these sequences before anything was looked at.
    pub(super) committed: Vec<Sequence>,
    pub(super) generations: Vec<StreamGeneration>,
    pub(super) names: u32,
}

impl MergeDraft {
    /// The plan, now that all beginnings are known.
    pub(super) fn finish(self) -> Result<MergePlan, Response> {
        let MergeDraft {
            sources: all,
            mut over,
            ..
        } = self;
        let mut sources = Vec::with_capacity(all.len());
        // Streams that have ended, and what the client has of them.
        let mut had = Vec::new();
        for source in all {
            if let Some(stream) = source.kind.stream() {
                let facts = stream.facts();
                if source.from >= facts.tail && (facts.closed || facts.life != Life::Live) {
                    let end = match facts.life {
                        Life::Live => StreamEnd::Closed(facts.end),
                        // It was deleted since it was found.
                        Life::Kept | Life::Ended => StreamEnd::Deleted,
                    };
                    over.push(EndedStream {
                        place: source.place.into(),
                        name: stream.name.to_string(),
                        end,
                    });
                    had.push(source);
                    continue;
                }
            }
            sources.push(source);
        }
        if sources.is_empty()
            && let Some(name) = &self.recreated
        {
            return Err(earlier(name));
        }
        over.sort_by_key(|ended| ended.place);
        let committed = self.committed;
        let after = self
            .after
            .unwrap_or_else(|| common_position(&sources, committed));
        let ahead = |source: &MergeSource| {
            AheadStream::of(source.kind.log(), source.from, source.place, &after)
        };
        let ended: Vec<AheadStream> = had.iter().filter_map(ahead).collect();
        let ahead = sources.iter().filter_map(ahead);
        let ahead = ahead.chain(ended.iter().copied()).collect();
        Ok(MergePlan {
            sources,
            after,
            ahead,
            generations: self.generations,
            names: self.names,
            ended,
            over,
        })
    }
}

/// The positions up to which a new client has everything of all its streams: those at the tail need nothing before it.
fn common_position(sources: &[MergeSource], committed: Vec<Sequence>) -> Vec<Sequence> {
    let mut after = committed;
    for source in sources {
        let after = &mut after[source.kind.log()];
        *after = source.from.sequence.min(*after);
    }
    after
}
