//! Which records a subscriber of several streams gets: of which streams, and from which positions on.

use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{Life, Offset, Sequence, log_of};

use super::id::{self, Id};
use super::parameters::{Named, Parameters, digest};
use super::refusals::{check_count, check_id, check_names, earlier, missing};
use crate::action::{Action, MergeSource, SourceKind, ViewedPattern};
use crate::encoder::{AheadStream, MergedPosition, StreamEnd, StreamGeneration};
use crate::gate::Admitted;
use crate::problem::error;
use crate::response::Response;
use crate::streams::{StartPosition, StreamAccess, load};

/// Plans the feeds of subscribers to several streams.
#[derive(Clone, Debug)]
pub(crate) struct MergePlanner {
    pub(crate) streams: StreamAccess,
    /// Streams and patterns that one subscriber may name.
    pub(crate) streams_max: usize,
    /// The path above the streams.
    pub(crate) root: Box<str>,
}

/// What comes next for a subscriber.
#[derive(Debug)]
pub(crate) enum MergeStep {
    /// Something must be known first: this action makes the reactor ask again.
    Before(Action),
    /// The feed.
    Feed(MergePlan),
}

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
    /// Streams that have ended, and of which nothing follows.
    pub(crate) over: Vec<(String, StreamEnd)>,
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

impl MergePlanner {
    /// The feed of a subscriber with these parameters. `barriers`: how often the request has waited for the order.
    pub(crate) fn plan(
        &self,
        parameters: &Parameters,
        admitted: &Admitted<'_>,
        now: Now,
        barriers: usize,
    ) -> Result<MergeStep, Response> {
        self.check_count(&parameters.named)?;
        let resumed = parameters.after.as_ref();
        if let Some(id) = resumed {
            check_names(id, &parameters.named)?;
        }
        let mut over = Vec::new();
        let allowed = self.allowed(parameters, admitted, &mut over)?;
        let logs = self.streams.views.logs();
        if self.streams.in_fleet && !allowed.is_empty() && barriers < logs {
            return Ok(MergeStep::Before(Action::AwaitOrder(barriers, Vec::new())));
        }
        // Read before any stream's facts, so that they include everything up to here.
        let committed = self.streams.views.all_committed();
        if let Some(id) = resumed {
            check_id(id, &committed)?;
        }
        let mut sources = Vec::with_capacity(allowed.len());
        let mut recreated = None;
        // Streams that have ended, and what the client has of them.
        let mut had = Vec::new();
        let mut begun = Vec::new();
        let mut held = Vec::with_capacity(allowed.len());
        for (place, named) in allowed {
            if let Some(pattern) = &named.pattern {
                let pattern = Arc::new(ViewedPattern {
                    names: Arc::clone(pattern),
                    viewer: admitted.rights.viewer(&named.paths(&self.root)),
                });
                for (log, committed) in (0..).zip(&committed) {
                    let from = self.pattern_start(named, log, place, resumed, *committed)?;
                    sources.push(MergeSource {
                        kind: SourceKind::Pattern {
                            pattern: Arc::clone(&pattern),
                            log,
                        },
                        from,
                        place: place as u8,
                    });
                }
                continue;
            }
            // Held until the action is decided, so that the stream stays in memory.
            let Some(known) = self.streams.known(&named.name) else {
                return Ok(MergeStep::Before(load(&named.name, Vec::new())));
            };
            held.push(known);
            let stream = match self.streams.find_for(&named.name, now, &admitted.rights) {
                Ok(stream) => stream,
                // A client that resumes learns what has ended meanwhile, and continues with the rest.
                Err(_) if resumed.is_some() => {
                    over.push((named.name.clone(), StreamEnd::Deleted));
                    continue;
                }
                Err(response) => return Err(missing(&named.name, response.status)),
            };
            // The client's position is one of the stream that it had, and leads nowhere in another one.
            if resumed.is_some_and(|id| id.is_of_an_earlier(&stream, place)) {
                over.push((named.name.clone(), StreamEnd::Deleted));
                recreated.get_or_insert(named);
                continue;
            }
            if resumed.is_none_or(|id| id.generation(place).is_none()) {
                id::note_generation(&mut begun, &stream, place);
            }
            let committed = committed[log_of(stream.no)];
            let from = named.start(&self.streams, &stream, place, resumed, committed)?;
            let facts = stream.facts();
            self.streams.touch(&stream, now);
            if from >= facts.tail && (facts.closed || facts.life != Life::Live) {
                over.push((named.name.clone(), StreamEnd::Closed(facts.end)));
                had.push((log_of(stream.no), from, place as u8));
                continue;
            }
            sources.push(MergeSource {
                kind: SourceKind::Stream(stream),
                from,
                place: place as u8,
            });
        }
        if sources.is_empty()
            && let Some(named) = recreated
        {
            return Err(earlier(&named.name));
        }
        let after = match resumed {
            Some(id) => id.after.clone(),
            None => common_position(&sources, committed),
        };
        let ended = had
            .iter()
            .filter_map(|(log, at, place)| AheadStream::of(*log, *at, *place, &after));
        let ended: Vec<AheadStream> = ended.collect();
        let ahead = sources.iter().filter_map(|source| {
            AheadStream::of(source.kind.log(), source.from, source.place, &after)
        });
        let ahead: Vec<AheadStream> = ahead.chain(ended.iter().copied()).collect();
        let known = resumed.map_or(&[][..], |id| &id.generations);
        let generations = [known, &begun].concat();
        Ok(MergeStep::Feed(MergePlan {
            sources,
            after,
            ahead,
            generations,
            names: digest(&parameters.named),
            ended,
            over,
        }))
    }

    /// Refuses a number of streams and patterns that no subscriber may name, and names that overlap.
    pub(crate) fn check_count(&self, named: &[Named]) -> Result<(), Response> {
        check_count(named, self.streams_max, self.streams.views.logs())
    }

    /// What the caller may read of what it names, with its place in the request. What is hidden from a caller that resumes
    /// is over.
    pub(crate) fn allowed<'a>(
        &self,
        parameters: &'a Parameters,
        admitted: &Admitted<'_>,
        over: &mut Vec<(String, StreamEnd)>,
    ) -> Result<Vec<(usize, &'a Named)>, Response> {
        let mut allowed = Vec::with_capacity(parameters.named.len());
        for (place, named) in parameters.named.iter().enumerate() {
            if let Some(pattern) = &named.pattern {
                if let Some(segments) = pattern.prefix().strip_suffix('/') {
                    self.streams.check_name(segments)?;
                }
                for needed in named.requirements(&self.root, &self.streams.rights) {
                    admitted.meet(&needed)?;
                }
                allowed.push((place, named));
                continue;
            }
            self.streams.check_name(&named.name)?;
            let needed = named.requirements(&self.root, &self.streams.rights);
            match needed.iter().try_for_each(|needed| admitted.meet(needed)) {
                Ok(()) => allowed.push((place, named)),
                // The same answers as for a stream that does not exist.
                Err(refused) if refused.status == 404 && parameters.after.is_some() => {
                    over.push((named.name.clone(), StreamEnd::Deleted));
                }
                Err(refused) if refused.status == 404 => {
                    return Err(missing(&named.name, 404).audited(refused.audit));
                }
                Err(refused) => return Err(refused),
            }
        }
        Ok(allowed)
    }

    /// The position behind which the records of a pattern are delivered, in one of the logs.
    fn pattern_start(
        &self,
        named: &Named,
        log: u8,
        place: usize,
        resumed: Option<&Id>,
        committed: Sequence,
    ) -> Result<Offset, Response> {
        let order_from = self.streams.views.log(usize::from(log)).order_from();
        let kept_behind = order_from.saturating_sub(1).min(committed);
        if let Some(id) = resumed {
            let had = id.position(place, usize::from(log));
            if had.units > 0 {
                return Err(error(
                    400,
                    "bad_parameter",
                    format!(
                        "the event id has a position inside a record for the pattern {}, and this server gives none",
                        named.name
                    ),
                ));
            }
            if had.sequence < kept_behind {
                return Err(error(
                    410,
                    "no_longer_kept",
                    format!(
                        "records behind this id are no longer in the order of all streams, of which the server keeps \
                         order-size; begin again with {}@-1 and without the id",
                        named.name
                    ),
                ));
            }
            return Ok(had);
        }
        match named.from {
            StartPosition::Start => Ok(Offset::behind(kept_behind)),
            StartPosition::Now => Ok(Offset::behind(committed)),
            StartPosition::At(_) => Err(error(
                400,
                "bad_parameter",
                format!(
                    "the pattern {} begins at an offset, but offsets are of one stream: use -1 or now, or the id of an event",
                    named.name
                ),
            )),
        }
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
