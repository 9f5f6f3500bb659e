//! What the observer of commits learns of streams.

use encke_log::StreamNo;

use crate::stream::number::born;
use crate::{Fetch, Life, Offset, Piece, Stream};

/// A stream as of a commit or of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamState {
    /// Its number.
    pub no: StreamNo,
    /// Its name.
    pub name: Box<str>,
    /// The caller to whom it belongs.
    pub owner: Option<Box<str>>,
    /// The position before its first own data: its tail while it has none.
    pub begin: Offset,
    /// The position behind its last data.
    pub tail: Offset,
}

/// A change of a stream that is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamChange {
    /// It exists, with this state.
    Changed(StreamState),
    /// It was deleted, or its lifetime is over.
    Ended {
        /// Its number.
        no: StreamNo,
        /// Its name.
        name: Box<str>,
    },
}

impl StreamState {
    /// The state of a stream that was looked up; `None` if it has ended. It reads at most one record, and only of a stream that has at
    /// most the one that created it.
    ///
    /// # Errors
    /// That record cannot be read.
    pub fn of(
        stream: &Stream,
        read: &dyn Fn(&Fetch) -> Result<Piece, String>,
    ) -> Result<Option<StreamState>, String> {
        let facts = stream.facts();
        if facts.life != Life::Live {
            return Ok(None);
        }
        let tail = facts.tail;
        let begin = match &stream.source {
            Some(source) => source.at,
            None if tail == Offset::behind(born(stream.no)) => {
                let piece = read(&Fetch::new(stream, Offset::START, tail, 1))?;
                let is_empty = piece.items().next().is_none() && !piece.more;
                if is_empty { tail } else { Offset::START }
            }
            None => Offset::START,
        };
        Ok(Some(StreamState {
            no: stream.no,
            name: stream.name.clone(),
            owner: stream.owner().map(Into::into),
            begin,
            tail,
        }))
    }
}

impl StreamChange {
    /// The name of the stream.
    pub fn name(&self) -> &str {
        match self {
            StreamChange::Changed(state) => &state.name,
            StreamChange::Ended { name, .. } => name,
        }
    }
}
