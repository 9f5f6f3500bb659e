//! Reads that begin so many messages before the end of a stream.
//!
//! `last=50` is a page of a chat: the last 50 messages, then what follows. What a message is, and how the beginning is found, is in
//! [`LastMessages`]. The beginning is an offset like any other, so the read goes on as one from that offset.

use std::fmt::{self, Debug};
use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{Facts, LastMessages, LastMessagesBounds, Life, Offset, Refusal, Stream};

use crate::action::{Action, Failure, OnRead};
use crate::problem::{failed, refused};
use crate::response::Response;
use crate::run::Run;
use crate::streams::{StartPosition, StreamAccess};

/// Where a read of one stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStart {
    /// Behind a position.
    Behind(StartPosition),
    /// So many messages before the end, at least one.
    Last(usize),
}

impl ReadStart {
    /// At the end.
    pub(crate) const NOW: ReadStart = ReadStart::Behind(StartPosition::Now);

    /// So many messages before the end; none is the end.
    pub(crate) fn last(count: u64) -> Result<Self, BadLast> {
        match usize::try_from(count) {
            Ok(0) => Ok(ReadStart::NOW),
            Ok(count) if count <= LAST_MESSAGES_MAX => Ok(ReadStart::Last(count)),
            _ => Err(BadLast),
        }
    }
}

/// The number of last messages is no number, or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadLast;

impl fmt::Display for BadLast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {LAST_MESSAGES_MAX}")
    }
}

/// The last messages of a stream, as a request wants them.
#[derive(Debug)]
pub(crate) struct WantedMessages {
    pub(crate) stream: Arc<Stream>,
    /// Of the stream: they are counted before the tail that these have.
    pub(crate) facts: Facts,
    pub(crate) count: usize,
    /// Bytes of data that are read to find the beginning, at most, but for the last record.
    pub(crate) bytes_max: usize,
}

/// Waits for the position at which a stream's last messages begin.
pub(crate) trait OnLastFound: Debug + Send {
    /// What follows from the position, or from the refusal.
    fn found(self: Box<Self>, from: Result<Offset, Response>, now: WallTime) -> Action;
}

/// Finds where the last messages of a stream begin, then resumes.
pub(crate) fn find_last(
    streams: &StreamAccess,
    wanted: WantedMessages,
    then: Box<dyn OnLastFound>,
    now: WallTime,
) -> Action {
    let WantedMessages {
        stream,
        facts,
        count,
        bytes_max,
    } = wanted;
    let bounds = LastMessagesBounds {
        bytes_max,
        piece_bytes: PIECE_BYTES.min(bytes_max),
    };
    let finding = FindLast {
        search: LastMessages::new(&stream, facts, count, bounds),
        streams: streams.clone(),
        stream,
        then,
    };
    Box::new(finding).go_on(now)
}

/// A search, and what waits for its result. It holds the stream, so that it stays in memory.
#[derive(Debug)]
struct FindLast {
    streams: StreamAccess,
    stream: Arc<Stream>,
    search: LastMessages,
    then: Box<dyn OnLastFound>,
}

impl FindLast {
    fn go_on(self: Box<Self>, now: WallTime) -> Action {
        let Some(from) = self.search.found() else {
            return Action::Read(self.search.fetch(), self);
        };
        // What was found may have been removed meanwhile: then all that is left are the last messages.
        let from = match self.streams.check_kept(&self.stream, from) {
            Ok(()) => from,
            Err(_) => Offset::START,
        };
        self.then.found(Ok(from), now)
    }
}

impl OnRead for FindLast {
    fn read(mut self: Box<Self>, run: Result<Run<'_>, Failure>, now: WallTime) -> Action {
        let run = match (run, self.stream.facts().life) {
            (_, Life::Ended) => return self.then.found(Err(refused(&Refusal::NotFound)), now),
            (_, Life::Kept) => return self.then.found(Err(refused(&Refusal::Gone)), now),
            (Err(failure), Life::Live) => return self.then.found(Err(failed(failure)), now),
            (Ok(run), Life::Live) => run,
        };
        self.search.take(run.items, run.end, !run.at_tail);
        self.go_on(now)
    }
}

/// Messages before the end at which a read may begin, at most: several hundred screens of a chat. Who wants more wants the stream
/// from an offset on.
pub(crate) const LAST_MESSAGES_MAX: usize = 10_000;

/// Bytes of data that a request may have read to find where it begins: 1,677 for each of so many messages.
pub(crate) const LAST_BYTES_MAX: usize = 16 << 20;

/// Bytes that are read of it at a time, so that a reader thread has other work in between.
const PIECE_BYTES: usize = 256 << 10;
