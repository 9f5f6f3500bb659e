//! The parameters of a request: the streams that it names, and where their records begin.

use std::sync::Arc;

use encke_access::{LAST_EVENT_ID, Operation};
use encke_stream::{Offset, Pattern, Sequence, Stream, log_of};

use super::id::Id;
use crate::misspelled;
use crate::problem::error;
use crate::query;
use crate::request::Headers;
use crate::requirement::Requirement;
use crate::response::Response;
use crate::resume;
use crate::stream_rights::StreamRights;
use crate::streams::{StartPosition, StreamAccess, check_own};

/// The parameters of a request.
pub(super) struct Parameters {
    pub(super) named: Vec<Named>,
    /// The position to go on from: the one that a client that resumes has added, or else the one of its URL.
    pub(super) after: Option<Id>,
    /// The position of its URL, if it has added another one.
    replaced: Option<Id>,
    /// It has added a position.
    resumes: bool,
}

/// A stream or a pattern that the request names, and the position behind which its records begin.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) pattern: Option<Arc<Pattern>>,
    pub(super) from: StartPosition,
}

impl Parameters {
    pub(super) fn parse(query: Option<&str>, headers: Headers<'_>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut named = Vec::new();
        let (mut after, mut resumed) = (None, None);
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
            match &*name {
                "stream" => named.push(Named::parse(&value)),
                "after" => after = Some(value.into_owned()),
                LAST_EVENT_ID => resumed = Some(value.into_owned()),
                other => misspelled::check_parameter(other, PARAMETERS)?,
            }
        }
        let field = resume::last_event_id(headers, resumed.as_deref());
        let field = field.map_err(|_| bad("Last-Event-ID is not text".into()))?;
        let parse = |id: &str| {
            id.parse::<Id>().map_err(|_| {
                bad(format!(
                    "{id:?} is not the id of an event of this server; without an id, events begin where the URL says"
                ))
            })
        };
        // The id of a client that resumes is newer than the one in its URL, which need not be good any more.
        let (after, replaced) = match (field, &after) {
            (Some(field), after) => {
                let replaced = after.as_deref().and_then(|id| id.parse().ok());
                (Some(parse(field)?), replaced)
            }
            (None, Some(after)) => (Some(parse(after)?), None),
            (None, None) => (None, None),
        };
        Ok(Parameters {
            named,
            after,
            replaced,
            resumes: field.is_some(),
        })
    }

    /// Whether the events that the request gets are among those that its URL alone allows, now or later.
    pub(super) fn goes_on_behind_its_url(&self) -> bool {
        let Some(after) = self.after.as_ref().filter(|_| self.resumes) else {
            return true;
        };
        match &self.replaced {
            Some(replaced) => (0..self.named.len()).all(|place| after.is_behind(replaced, place)),
            // From a position that is in the URL on, nothing before it is sent. `now` is another position each time.
            None => !self.named.iter().any(|one| one.from == StartPosition::Now),
        }
    }
}

impl Named {
    /// The text behind the last `@` is an offset if it can be parsed as one; otherwise it belongs to the name.
    fn parse(value: &str) -> Named {
        let split = value.rsplit_once('@');
        let split = split.and_then(|(name, token)| Some((name, token.parse().ok()?)));
        let (name, from) = split.unwrap_or((value, StartPosition::Now));
        Named {
            name: name.to_owned(),
            pattern: name.parse().ok().map(Arc::new),
            from,
        }
    }

    /// Whether it is a pattern that ends in `*` instead of `**`.
    pub(super) fn has_old_form(&self) -> bool {
        self.pattern.is_some() && !self.name.ends_with("**")
    }

    /// The rights to read all that it names. `root` is the path above the streams.
    pub(super) fn requirements(
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
    pub(super) fn overlaps(&self, other: &Named) -> bool {
        match (&self.pattern, &other.pattern) {
            (Some(own), Some(others)) => own.overlaps(others),
            (Some(own), None) => own.matches(&other.name),
            (None, Some(others)) => others.matches(&self.name),
            (None, None) => self.name == other.name,
        }
    }

    /// The position behind which the stream's records are delivered.
    pub(super) fn start(
        &self,
        streams: &StreamAccess,
        stream: &Arc<Stream>,
        place: usize,
        resumed: Option<&Id>,
        committed: Sequence,
    ) -> Result<Offset, Response> {
        let asked = match self.from {
            StartPosition::Start => Offset::START,
            StartPosition::Now if resumed.is_some() => Offset::START,
            StartPosition::Now => return Ok(Offset::behind(committed).max(stream.facts().tail)),
            StartPosition::At(offset) => offset,
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

/// The parameters of a request. Others are ignored, but for those that are nearly one of these.
const PARAMETERS: &[&str] = &["stream", "after", LAST_EVENT_ID];
