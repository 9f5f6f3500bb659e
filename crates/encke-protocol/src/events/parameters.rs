//! The parameters of a request: the streams that it names, and where their records begin.

use std::sync::Arc;

use encke_access::{LAST_EVENT_ID, Operation};
use encke_stream::{Offset, Pattern, Sequence, Stream, log_of};

use super::id::Id;
use crate::last_messages::{BadLast, ReadStart};
use crate::misspelled;
use crate::number::decimal;
use crate::problem::error;
use crate::query::{self, truth};
use crate::request::Headers;
use crate::requirement::{Paths, Requirement};
use crate::response::Response;
use crate::resume;
use crate::stream_rights::StreamRights;
use crate::streams::{StartPosition, StreamAccess, check_own};

/// The parameters of a request.
pub(crate) struct Parameters {
    pub(crate) named: Vec<Named>,
    /// The position to go on from: the one that a client that resumes has added, or else the one of its URL.
    pub(crate) after: Option<Id>,
    /// Records have their times.
    pub(crate) has_times: bool,
    /// The same as text.
    position: Option<String>,
    /// The position of its URL, if it has added another one.
    replaced: Option<Id>,
    /// It has added a position.
    resumes: bool,
}

/// A stream or a pattern that the request names, and where its records begin.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) pattern: Option<Arc<Pattern>>,
    pub(crate) from: ReadStart,
}

impl Parameters {
    pub(crate) fn parse(query: Option<&str>, headers: Headers<'_>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut named = Vec::new();
        let mut last = None;
        let mut has_times = false;
        let (mut after, mut resumed) = (None, None);
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
            match &*name {
                "stream" => named.push(parse_named(&value)),
                "after" => after = Some(value.into_owned()),
                LAST_EVENT_ID => resumed = Some(value.into_owned()),
                "times" => has_times = truth("times", &value).map_err(bad)?,
                "last" if last.is_some() => return Err(bad("last is there twice".into())),
                "last" => {
                    let count = decimal(&value).ok_or(BadLast).and_then(ReadStart::last);
                    let count =
                        count.map_err(|why| bad(format!("last is {why}, not {value:?}")))?;
                    last = Some(count);
                }
                other => misspelled::check_parameter(other, PARAMETERS)?,
            }
        }
        if last.is_some() && named.iter().all(|(_, own)| own.is_some()) {
            return Err(bad(LAST_OF_NONE.into()));
        }
        let start = last.unwrap_or(ReadStart::NOW);
        let named = named.into_iter().map(|(name, own)| {
            let own = own.map(ReadStart::Behind);
            Named::new(name, own.unwrap_or(start))
        });
        let named = named.collect();
        let field = resume::last_event_id(headers, resumed.as_deref());
        let field = field.map_err(|_| bad("Last-Event-ID is not text".into()))?;
        // The id of a client that resumes is newer than the one in its URL, which need not be good any more.
        let replaced = field.and(after.as_deref());
        let replaced = replaced.and_then(|id| id.parse().ok());
        Ok(Parameters {
            replaced,
            resumes: field.is_some(),
            ..Parameters::of(named, field.or(after.as_deref()), has_times)?
        })
    }

    /// The parameters of a request that names these, with a position to go on from.
    pub(crate) fn of(
        named: Vec<Named>,
        position: Option<&str>,
        has_times: bool,
    ) -> Result<Self, Response> {
        Ok(Parameters {
            named,
            after: position.map(parse_id).transpose()?,
            has_times,
            position: position.map(str::to_owned),
            replaced: None,
            resumes: false,
        })
    }

    /// The position to go on from, as text.
    pub(crate) fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// Whether the events that the request gets are among those that its URL alone allows, now or later.
    pub(crate) fn goes_on_behind_its_url(&self) -> bool {
        let Some(after) = self.after.as_ref().filter(|_| self.resumes) else {
            return true;
        };
        match &self.replaced {
            Some(replaced) => (0..self.named.len()).all(|place| after.is_behind(replaced, place)),
            // From a position that is in the URL on, nothing before it is sent. `now` is another position each time, and so is `last`.
            None => !self
                .named
                .iter()
                .any(|one| matches!(one.from, ReadStart::NOW | ReadStart::Last(_))),
        }
    }
}

impl Named {
    /// What a name stands for: a pattern if it can be parsed as one.
    pub(crate) fn new(name: String, from: ReadStart) -> Named {
        Named {
            pattern: name.parse().ok().map(Arc::new),
            name,
            from,
        }
    }

    /// Whether it is a pattern that ends in `*` instead of `**`.
    pub(crate) fn has_old_form(&self) -> bool {
        self.pattern.is_some() && !self.name.ends_with("**")
    }

    /// The paths of the streams that it names. `root` is the path above the streams.
    pub(crate) fn paths(&self, root: &str) -> Paths<'static> {
        match &self.pattern {
            Some(pattern) => Paths::Below(format!("{root}{}", pattern.prefix()).into()),
            None => Paths::One(format!("{root}{}", self.name).into()),
        }
    }

    /// The rights to read all that it names. `root` is the path above the streams.
    pub(crate) fn requirements(
        &self,
        root: &str,
        rights: &StreamRights,
    ) -> Vec<Requirement<'static>> {
        match &self.pattern {
            Some(pattern) => rights.of_all_below(root, pattern.prefix()),
            None => {
                let path = format!("{root}{}", self.name);
                vec![rights.of_stream(Operation::Read, &self.name, path)]
            }
        }
    }

    /// Whether both name a stream.
    pub(crate) fn overlaps(&self, other: &Named) -> bool {
        match (&self.pattern, &other.pattern) {
            (Some(own), Some(others)) => own.overlaps(others),
            (Some(own), None) => own.matches(&other.name),
            (None, Some(others)) => others.matches(&self.name),
            (None, None) => self.name == other.name,
        }
    }

    /// The position behind which the stream's records are delivered. Where the last messages begin is found elsewhere; a client that
    /// resumes goes on instead.
    pub(crate) fn start(
        &self,
        streams: &StreamAccess,
        stream: &Arc<Stream>,
        place: usize,
        resumed: Option<&Id>,
        committed: Sequence,
    ) -> Result<Offset, Response> {
        let asked = match self.from {
            ReadStart::Behind(StartPosition::Start) => Offset::START,
            ReadStart::NOW | ReadStart::Last(_) if resumed.is_some() => Offset::START,
            ReadStart::NOW | ReadStart::Last(_) => {
                return Ok(Offset::behind(committed).max(stream.facts().tail));
            }
            ReadStart::Behind(StartPosition::At(offset)) => offset,
        };
        let tail = stream.facts().tail;
        if asked > tail && asked > Offset::behind(committed) {
            return Err(error(
                400,
                "beyond_tail",
                format!(
                    "the offset {asked} is beyond the end of the stream {:?} at {tail}",
                    self.name
                ),
            ));
        }
        check_own(stream, asked)?;
        let had = resumed.map_or(Offset::START, |id| id.position(place, log_of(stream.no)));
        let had = had.max(asked);
        // All of it is new to a client that did not have the stream.
        let had = match stream.reaches_back_to(had) {
            true => had,
            false => Offset::START,
        };
        streams.check_kept(stream, had)?;
        Ok(streams.first_kept(stream, had))
    }
}

/// A name, and the offset behind its last `@`. What cannot be parsed as an offset belongs to the name.
fn parse_named(value: &str) -> (String, Option<StartPosition>) {
    let split = value.rsplit_once('@');
    let split = split.and_then(|(name, token)| Some((name, token.parse().ok()?)));
    match split {
        Some((name, from)) => (name.to_owned(), Some(from)),
        None => (value.to_owned(), None),
    }
}

/// A digest of what a request names, in its order: FNV-1a with 32 bits. Ids hold it, so it must not change.
pub(super) fn digest(named: &[Named]) -> u32 {
    let name = |one: &Named| match &one.pattern {
        // Its old form means the same.
        Some(pattern) => format!("{}**\n", pattern.prefix()),
        None => format!("{}\n", one.name),
    };
    let names: String = named.iter().map(name).collect();
    names.bytes().fold(0x811c_9dc5, |digest, byte| {
        (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn parse_id(id: &str) -> Result<Id, Response> {
    id.parse().map_err(|_| {
        let why = format!(
            "{id:?} is not the id of an event of this server; without an id, events begin where the URL says"
        );
        error(400, "bad_parameter", why)
    })
}

/// The parameters of a request. Others are ignored, but for those that are nearly one of these.
const PARAMETERS: &[&str] = &["stream", "last", "after", "times", LAST_EVENT_ID];

/// The refusal of a number of last messages where every stream has an offset.
const LAST_OF_NONE: &str = "last is for the streams without an offset of their own, and there is none, as in stream=a&stream=b@-1&last=50";
