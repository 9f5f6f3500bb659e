//! The streams of an app that hold no channel's events: how they are read and written.

use std::ops::ControlFlow;

use encke_protocol::{AppWebhook, ReportStream};
use encke_stream::{Data, Fetch, Item, MediaKind, Offset, Sequencers, born};

use crate::archive::Archive;
use crate::unanswered::submit_unanswered;

/// Reads and writes the streams.
#[derive(Clone)]
pub(super) struct ReportLog {
    pub(super) archive: Archive,
    pub(super) sequencers: Sequencers,
}

/// What a read has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// Where it began: behind what was removed.
    pub(super) from: Offset,
    pub(super) at: Offset,
    /// Records before the first one were removed that had not been read.
    pub(super) has_gap: bool,
}

impl ReportLog {
    /// Where a stream ends. A missing one has nothing.
    pub(super) fn tail(&self, stream: &ReportStream<'_>) -> Result<Offset, String> {
        let found = self.archive.find(stream.name)?;
        Ok(found.map_or(Offset::START, |stream| stream.facts().tail))
    }

    /// Up to where a webhook was told. `None`: that is not written yet.
    pub(super) fn reached(&self, webhook: &AppWebhook) -> Result<Option<Offset>, String> {
        let tail = self.tail(&webhook.log())?;
        let mut reached = None;
        self.read(&webhook.reached(), Offset::START, |item| {
            // A node that did not know yet that another one calls may have written less behind more.
            let at = AppWebhook::parse_reached(item.data).filter(|at| *at <= tail);
            reached = reached.max(at);
            ControlFlow::Continue(())
        })?;
        Ok(reached)
    }

    /// Calls `each` for records behind a position, until it breaks with the position up to where it has got, or there are no more. A missing
    /// stream has none.
    pub(super) fn read(
        &self,
        stream: &ReportStream<'_>,
        from: Offset,
        mut each: impl FnMut(&Item<'_>) -> ControlFlow<Offset>,
    ) -> Result<Reached, String> {
        let Some(stream) = self.archive.find(stream.name)? else {
            return Ok(Reached {
                from,
                at: from,
                has_gap: false,
            });
        };
        let (facts, born) = (stream.facts(), born(stream.no));
        let view = self.sequencers.views().of(stream.no);
        let kept_behind = view.kept_behind(&stream).max(born);
        let first = Offset::behind(kept_behind).min(facts.tail);
        let has_gap = match from {
            // From the begin of whatever stream has the name.
            Offset::START => kept_behind > born,
            // The end of a stream that was deleted.
            from if from.sequence < born => true,
            from => from < first,
        };
        let from = from.max(first);
        let mut reached = Reached {
            from,
            at: from,
            has_gap,
        };
        while reached.at < facts.tail {
            let fetch = Fetch::new(&stream, reached.at, facts.tail, PIECE_BYTES);
            let piece = self
                .archive
                .read(&fetch)
                .map_err(|error| error.to_string())?;
            for item in piece.items() {
                if let ControlFlow::Break(at) = each(&item) {
                    reached.at = at;
                    return Ok(reached);
                }
                reached.at = item.end;
            }
            reached.at = piece.end;
            if !piece.more {
                break;
            }
        }
        Ok(reached)
    }

    /// Appends to a stream, which is created if it is missing. False: there is no room for the command now.
    pub(super) fn append(&self, stream: &ReportStream<'_>, data: Data) -> Result<bool, String> {
        let mut commands = Vec::with_capacity(2);
        match self.archive.find(stream.name)? {
            Some(found) if found.facts().closed => {
                return Err(format!("the stream {} is closed", stream.name));
            }
            Some(found) if found.media.kind != MediaKind::Json => {
                let media = &found.media.name;
                return Err(format!("the stream {} has the type {media}", stream.name));
            }
            Some(_) => {}
            None => commands.push(stream.create()),
        }
        commands.push(stream.append(data));
        Ok(submit_unanswered(&self.sequencers, commands))
    }
}

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
