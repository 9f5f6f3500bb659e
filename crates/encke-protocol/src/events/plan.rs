//! Which records a subscriber of several streams gets: of which streams, and from which positions on.

use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{Offset, Sequence, log_of};

use super::id::{self, Id};
use super::merge_plan::{EndedStream, MergeDraft, OnPlanned};
use super::parameters::{Named, Parameters, digest};
use super::refusals::{check_count, check_id, check_names, missing};
use super::starts::{StartSearch, find_starts};
use crate::action::{Action, MergeSource, SourceKind, ViewedPattern};
use crate::encoder::StreamEnd;
use crate::gate::Admitted;
use crate::last_messages::ReadStart;
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

impl MergePlanner {
    /// Plans the feed of a subscriber with these parameters, then resumes. Something else may have to be known before: then the action
    /// makes the reactor ask again. `barriers`: how often the request has waited for the order.
    pub(crate) fn plan(
        &self,
        parameters: &Parameters,
        admitted: &Admitted<'_>,
        now: Now,
        barriers: usize,
        then: Box<dyn OnPlanned>,
    ) -> Result<Action, Response> {
        self.check_count(&parameters.named)?;
        let resumed = parameters.after.as_ref();
        if let Some(id) = resumed {
            check_names(id, &parameters.named)?;
        }
        let mut over = Vec::new();
        let allowed = self.allowed(parameters, admitted, &mut over)?;
        let logs = self.streams.views.logs();
        if self.streams.in_fleet && !allowed.is_empty() && barriers < logs {
            return Ok(Action::AwaitOrder(barriers, Vec::new()));
        }
        // Read before any stream's facts, so that they include everything up to here.
        let committed = self.streams.views.all_committed();
        if let Some(id) = resumed {
            check_id(id, &committed)?;
        }
        let mut sources = Vec::with_capacity(allowed.len());
        let mut searches = Vec::new();
        let mut recreated = None;
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
                return Ok(load(&named.name, Vec::new()));
            };
            held.push(known);
            let stream = match self.streams.find_for(&named.name, now, &admitted.rights) {
                Ok(stream) => stream,
                // A client that resumes learns what has ended meanwhile, and continues with the rest.
                Err(_) if resumed.is_some() => {
                    over.push(deleted(place, named));
                    continue;
                }
                Err(response) => return Err(missing(&named.name, response.status)),
            };
            // The client's position is one of the stream that it had, and leads nowhere in another one.
            if resumed.is_some_and(|id| id.is_of_an_earlier(&stream, place)) {
                over.push(deleted(place, named));
                recreated.get_or_insert_with(|| named.name.clone());
                continue;
            }
            if resumed.is_none_or(|id| id.generation(place).is_none()) {
                id::note_generation(&mut begun, &stream, place);
            }
            let committed = committed[log_of(stream.no)];
            let from = named.start(&self.streams, &stream, place, resumed, committed)?;
            if let ReadStart::Last(count) = named.from
                && resumed.is_none()
            {
                searches.push(StartSearch {
                    source: sources.len(),
                    facts: stream.facts(),
                    stream: Arc::clone(&stream),
                    count,
                });
            }
            self.streams.touch(&stream, now);
            sources.push(MergeSource {
                kind: SourceKind::Stream(stream),
                from,
                place: place as u8,
            });
        }
        let known = resumed.map_or(&[][..], |id| &id.generations);
        let draft = MergeDraft {
            sources,
            over,
            recreated,
            after: resumed.map(|id| id.after.clone()),
            committed,
            generations: [known, &begun].concat(),
            names: digest(&parameters.named),
        };
        Ok(find_starts(&self.streams, draft, searches, then, now.wall))
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
        over: &mut Vec<EndedStream>,
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
                    over.push(deleted(place, named));
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
            ReadStart::Behind(StartPosition::Start) => Ok(Offset::behind(kept_behind)),
            ReadStart::NOW => Ok(Offset::behind(committed)),
            ReadStart::Last(_) => Err(error(
                400,
                "bad_parameter",
                format!(
                    "last counts the messages of each stream, and which streams match the pattern {} changes: give the pattern \
                     its own beginning, as in {}@now, or name the streams",
                    named.name, named.name
                ),
            )),
            ReadStart::Behind(StartPosition::At(_)) => Err(error(
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

/// That a stream of a client that resumes is over, because it is not there any more.
fn deleted(place: usize, named: &Named) -> EndedStream {
    EndedStream {
        place,
        name: named.name.clone(),
        end: StreamEnd::Deleted,
    }
}
