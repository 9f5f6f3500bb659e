//! The streams of an app that hold no channel's events: how they are read and written.

use encke_protocol::ReportStream;
use encke_stream::{Data, Fetch, Item, Offset, Sequencers};

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
    pub(super) at: Offset,
    /// Records before the first one were removed that had not been read.
    pub(super) has_gap: bool,
}

impl ReportLog {
    /// Whether a stream is there, and where it ends.
    pub(super) fn tail(&self, stream: &ReportStream<'_>) -> Result<Option<Offset>, String> {
        let found = self.archive.find(stream.name)?;
        Ok(found.map(|stream| stream.facts().tail))
    }

    /// Calls `each` for records behind a position, until it returns false or there are no more. A missing stream has none.
    pub(super) fn read(
        &self,
        stream: &ReportStream<'_>,
        from: Offset,
        mut each: impl FnMut(&Item<'_>) -> bool,
    ) -> Result<Reached, String> {
        let mut reached = Reached {
            at: from,
            has_gap: false,
        };
        let Some(stream) = self.archive.find(stream.name)? else {
            return Ok(reached);
        };
        let facts = stream.facts();
        let first = Offset::behind(facts.floor);
        if first > reached.at {
            reached.has_gap = reached.at != Offset::START;
            reached.at = first;
        }
        while reached.at < facts.tail {
            let fetch = Fetch::new(&stream, reached.at, facts.tail, PIECE_BYTES);
            let piece = self
                .archive
                .read(&fetch)
                .map_err(|error| error.to_string())?;
            for item in piece.items() {
                if !each(&item) {
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
        if self.archive.find(stream.name)?.is_none() {
            commands.push(stream.create());
        }
        commands.push(stream.append(data));
        Ok(submit_unanswered(&self.sequencers, commands))
    }
}

/// Bytes read at a time.
const PIECE_BYTES: usize = 1 << 20;
