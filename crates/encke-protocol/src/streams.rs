//! Access to the committed streams by name, for every protocol over streams.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{
    BadOffset, Facts, Life, Lookup, Offset, Refusal, Sequence, Stream, Viewer, Views,
};
use encke_subscriptions::RESERVED_SEGMENT;

use crate::action::{Action, LoadName};
use crate::gate::Rights;
use crate::problem::{error, refused};
use crate::requirement::Paths;
use crate::response::Response;
use crate::stream_rights::StreamRights;

/// The committed streams, and which names they may have.
#[derive(Clone, Debug)]
pub(crate) struct StreamAccess {
    pub(crate) views: Arc<Views>,
    pub(crate) name_bytes_max: usize,
    /// See [`ProtocolSettings::ephemeral_bytes_max`](crate::ProtocolSettings::ephemeral_bytes_max).
    pub(crate) ephemeral_bytes_max: usize,
    /// Other nodes change the same streams.
    pub(crate) in_fleet: bool,
    /// Which right a stream needs.
    pub(crate) rights: StreamRights,
    /// The path above the streams.
    pub(crate) root: Arc<str>,
}

/// A position in a stream, as clients name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartPosition {
    /// `-1`: the beginning, or the beginning of what is left.
    Start,
    /// `now`: the end.
    Now,
    /// Behind what was read before.
    At(Offset),
}

impl FromStr for StartPosition {
    type Err = BadOffset;

    fn from_str(text: &str) -> Result<Self, BadOffset> {
        Ok(match text {
            "-1" => StartPosition::Start,
            "now" => StartPosition::Now,
            token => StartPosition::At(token.parse()?),
        })
    }
}

impl fmt::Display for StartPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartPosition::Start => f.write_str("-1"),
            StartPosition::Now => f.write_str("now"),
            StartPosition::At(offset) => write!(f, "{offset}"),
        }
    }
}

impl StreamAccess {
    /// Refuses a name that no stream can have.
    pub(crate) fn check_name(&self, name: &str) -> Result<(), Response> {
        let bad = |why: String| Err(error(400, "bad_path", why));
        if name.is_empty() {
            return bad("the path names no stream; a stream is /v1/stream/NAME".into());
        }
        if name.len() > self.name_bytes_max {
            return bad(format!(
                "the stream's name has {} bytes, at most {} are allowed",
                name.len(),
                self.name_bytes_max
            ));
        }
        if !is_canonical(name) {
            return bad("the stream's name holds a control character, an empty segment, or `.` or `..` as a segment".into());
        }
        if name.split('/').next() == Some(RESERVED_SEGMENT) {
            return Err(error(
                400,
                "reserved_name",
                "no stream's name begins with the segment __ds: it is reserved for subscriptions",
            ));
        }
        Ok(())
    }

    /// What is known of a name. While the caller holds it, it stays in memory. `None`: it must be loaded.
    pub(crate) fn known(&self, name: &str) -> Option<Lookup> {
        self.views.look(name)
    }

    /// The stream of that name, if the caller with these rights may use it, as far as its owner says: one that belongs to somebody else
    /// is missing.
    pub(crate) fn find_for(
        &self,
        name: &str,
        now: Now,
        rights: &Rights,
    ) -> Result<Arc<Stream>, Response> {
        // Looked up once: what has the name a moment later may belong to somebody else.
        match self.views.find(name) {
            // Before anything is said of its life: one that forks still read is missing as well.
            Some(stream) if self.admits(&stream, rights) => self.alive(stream, now),
            _ => Err(refused(&Refusal::NotFound)),
        }
    }

    /// Whether a stream belongs to nobody, to the caller with these rights, or to somebody else whose streams the caller may use. A signed
    /// URL that names its stream is good for that one, and was given by somebody who may use it.
    pub(crate) fn admits(&self, stream: &Stream, rights: &Rights) -> bool {
        match (rights.only_stream(), stream.owner()) {
            (Some(only), _) => stream.no == only,
            (None, None) => true,
            (None, owner) => self.viewer(&stream.name, rights).sees(owner),
        }
    }

    /// Whose streams of a name the caller with these rights may use.
    pub(crate) fn viewer(&self, name: &str, rights: &Rights) -> Viewer {
        rights.viewer(&Paths::One(format!("{}{name}", self.root).into()))
    }

    /// The stream of that name, whoever asks.
    pub(crate) fn find(&self, name: &str, now: Now) -> Result<Arc<Stream>, Response> {
        let stream = self.views.find(name);
        let stream = stream.ok_or_else(|| refused(&Refusal::NotFound))?;
        self.alive(stream, now)
    }

    /// A stream, unless its life is over.
    fn alive(&self, stream: Arc<Stream>, now: Now) -> Result<Arc<Stream>, Response> {
        let facts = stream.facts();
        let view = self.views.of(stream.no);
        let is_over = view.has_expired(&stream, view.time(now));
        match facts.life {
            Life::Live if !is_over => Ok(stream),
            Life::Live if facts.forks == 0 => Err(refused(&Refusal::NotFound)),
            Life::Ended => Err(refused(&Refusal::NotFound)),
            Life::Live | Life::Kept => Err(refused(&Refusal::Gone)),
        }
    }

    /// The position behind which a read of a stream begins that asks for `start`.
    ///
    /// # Errors
    /// The stream never gave the position, or no longer has what follows it.
    pub(crate) fn begin(
        &self,
        stream: &Stream,
        facts: Facts,
        start: StartPosition,
    ) -> Result<Offset, Response> {
        let from = match start {
            StartPosition::Start => Offset::START,
            StartPosition::Now => facts.tail,
            StartPosition::At(offset) => offset,
        };
        if from > facts.tail {
            return Err(error(
                400,
                "beyond_tail",
                format!(
                    "the offset {from} is beyond the stream's end at {}: this server never gave it \
                     for this stream, or has lost what was only accepted or written",
                    facts.tail
                ),
            ));
        }
        check_own(stream, from)?;
        self.check_kept(stream, from)?;
        Ok(from)
    }

    /// Notes a read of a stream: a sliding lifetime begins again.
    pub(crate) fn touch(&self, stream: &Arc<Stream>, now: Now) {
        self.views.of(stream.no).touch(stream, now);
    }

    /// Where an answer begins: one from the beginning depends on what retention has left.
    pub(crate) fn first_kept(&self, stream: &Stream, from: Offset) -> Offset {
        match from {
            Offset::START => Offset::behind(self.kept_behind(stream)),
            from => from,
        }
    }

    /// Refuses a read whose first records are no longer kept.
    pub(crate) fn check_kept(&self, stream: &Stream, from: Offset) -> Result<(), Response> {
        let kept_behind = self.kept_behind(stream);
        if from == Offset::START || from >= stream.facts().tail || from.sequence >= kept_behind {
            return Ok(());
        }
        Err(error(
            410,
            "no_longer_kept",
            format!(
                "what follows the offset {from} of the stream {:?} is no longer kept; -1 returns what is left",
                stream.name
            ),
        ))
    }

    fn kept_behind(&self, stream: &Stream) -> Sequence {
        self.views.of(stream.no).kept_behind(stream)
    }
}

/// Whether a name has the form of the names in paths: no control characters, and no segments that are empty, `.` or `..`.
pub(crate) fn is_canonical(name: &str) -> bool {
    !name.chars().any(char::is_control)
        && !name
            .split('/')
            .any(|segment| matches!(segment, "" | "." | ".."))
}

/// Refuses an offset of an earlier stream of that name.
pub(crate) fn check_own(stream: &Stream, from: Offset) -> Result<(), Response> {
    if stream.can_have_given(from) {
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

/// Asks for a name to be loaded.
pub(crate) fn load(name: &str, body: Vec<u8>) -> Action {
    Action::Load(LoadName {
        name: name.into(),
        body,
    })
}

/// Another path above the streams: where the production adapter of TanStack AI (`@tanstack/ai-durable-stream` 0.1) looks for them below
/// the URL of a server.
pub(crate) const ALIAS_ROOT: &str = "/streams/";
