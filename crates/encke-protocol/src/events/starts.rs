//! Finds where the streams of a subscriber begin that are to have their last messages, one after the other.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Facts, Offset, Stream};

use super::merge_plan::{MergeDraft, OnPlanned};
use super::refusals::missing;
use crate::action::Action;
use crate::last_messages::{LAST_BYTES_MAX, OnLastFound, WantedMessages, find_last};
use crate::response::Response;
use crate::streams::StreamAccess;

/// A stream of which the last messages are wanted.
#[derive(Debug)]
pub(super) struct StartSearch {
    /// The index of its source in the draft.
    pub(super) source: usize,
    pub(super) stream: Arc<Stream>,
    /// As they were when the source was planned.
    pub(super) facts: Facts,
    pub(super) count: usize,
}

/// Finds all beginnings, then resumes with the plan. They share the bytes that a request may have read, in equal parts.
pub(super) fn find_starts(
    streams: &StreamAccess,
    draft: MergeDraft,
    searches: Vec<StartSearch>,
    then: Box<dyn OnPlanned>,
    now: WallTime,
) -> Action {
    if searches.is_empty() {
        return then.planned(draft.finish());
    }
    let finding = FindStarts {
        streams: streams.clone(),
        draft,
        bytes_max: LAST_BYTES_MAX / searches.len(),
        found: Vec::with_capacity(searches.len()),
        searches,
        then,
    };
    Box::new(finding).go_on(now)
}

#[derive(Debug)]
struct FindStarts {
    streams: StreamAccess,
    draft: MergeDraft,
    /// Those that are left. The last one is next.
    searches: Vec<StartSearch>,
    /// Bytes for each of them.
    bytes_max: usize,
    /// The indices of the sources whose beginnings are found.
    found: Vec<usize>,
    then: Box<dyn OnPlanned>,
}

impl FindStarts {
    fn go_on(self: Box<Self>, now: WallTime) -> Action {
        let Some(next) = self.searches.last() else {
            return self.finish();
        };
        let wanted = WantedMessages {
            stream: Arc::clone(&next.stream),
            facts: next.facts,
            count: next.count,
            bytes_max: self.bytes_max,
        };
        let streams = self.streams.clone();
        find_last(&streams, wanted, self, now)
    }

    fn finish(mut self: Box<Self>) -> Action {
        for index in &self.found {
            let source = &mut self.draft.sources[*index];
            // What was found first may have been removed while the others were searched: then all that is left are the last messages.
            if let Some(stream) = source.kind.stream()
                && self.streams.check_kept(stream, source.from).is_err()
            {
                source.from = self.streams.first_kept(stream, Offset::START);
            }
        }
        self.then.planned(self.draft.finish())
    }
}

impl OnLastFound for FindStarts {
    fn found(mut self: Box<Self>, from: Result<Offset, Response>, now: WallTime) -> Action {
        let Some(search) = self.searches.pop() else {
            return self.go_on(now);
        };
        let from = match from {
            Ok(from) => from,
            Err(refused) => {
                let refused = match refused.status {
                    404 | 410 => missing(&search.stream.name, refused.status),
                    _ => refused,
                };
                return self.then.planned(Err(refused));
            }
        };
        // Without messages it begins where it was planned to, at the end.
        if from < search.facts.tail {
            let from = self.streams.first_kept(&search.stream, from);
            self.draft.sources[search.source].from = from;
            self.found.push(search.source);
        }
        self.go_on(now)
    }
}
