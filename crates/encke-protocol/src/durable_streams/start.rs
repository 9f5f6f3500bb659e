//! From where a reader asks to be told, and whether it can be.

use std::str::FromStr;

use encke_stream::{BadOffset, Offset, Stream};

use super::{DurableStreams, error};
use crate::Response;

/// A place in a stream, as clients name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// `-1`: the beginning, or what is left of it.
    Start,
    /// `now`: the end.
    Now,
    /// Behind what was read before.
    At(Offset),
}

impl FromStr for From {
    type Err = BadOffset;

    fn from_str(text: &str) -> Result<Self, BadOffset> {
        Ok(match text {
            "-1" => From::Start,
            "now" => From::Now,
            token => From::At(token.parse()?),
        })
    }
}

/// Refuses an offset of an earlier stream of that name.
pub(crate) fn check_own(stream: &Stream, from: Offset) -> Result<(), Response> {
    if stream.reaches_back_to(from) {
        return Ok(());
    }
    Err(error(
        410,
        "before_start",
        format!(
            "the offset {from} is of an earlier stream of the name {:?}",
            stream.name
        ),
    ))
}

impl DurableStreams {
    /// From where an answer begins: an answer from the beginning changes with what is left.
    pub(crate) fn left(&self, stream: &Stream, from: Offset) -> Offset {
        match from {
            Offset::START => Offset::behind(self.kept_behind(stream)),
            from => from,
        }
    }

    fn kept_behind(&self, stream: &Stream) -> encke_stream::Sequence {
        self.views.of(stream.no).kept_behind(stream)
    }

    /// Refuses to tell what follows an offset when not all of it is there.
    pub(crate) fn check_kept(&self, stream: &Stream, from: Offset) -> Result<(), Response> {
        let kept_behind = self.kept_behind(stream);
        if from == Offset::START || from >= stream.facts().tail || from.sequence >= kept_behind {
            return Ok(());
        }
        Err(error(
            410,
            "no_longer_kept",
            format!(
                "what follows the offset {from} of the stream {:?} is no longer kept; -1 gives what is left",
                stream.name
            ),
        ))
    }
}
