//! Questions about members: `GET /v1/presence/NAME`, once or as events.

use std::sync::Arc;

use encke_access::Operation;
use encke_clock::WallTime;
use encke_stream::{Fetch, Offset, Stream, home};

use super::PresenceStreams;
use super::encode::{CountEvents, MemberEvents, counted};
use super::wire::MembersRecord;
use crate::action::{Action, Failure, Feed, OnRead, Subscription};
use crate::encoder::{EncoderId, Encoders};
use crate::gate::Admitted;
use crate::known_field::KnownFields;
use crate::misspelled;
use crate::mount::Mount;
use crate::problem::{check_method, error, failed};
use crate::protocol::Protocol;
use crate::query;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::{Body, Response};
use crate::run::Run;
use crate::sse;
use crate::streams::{StreamAccess, load};

/// The members of streams.
#[derive(Debug)]
pub(crate) struct PresenceApi {
    mounts: [Mount; 1],
    streams: StreamAccess,
    presence: Arc<PresenceStreams>,
    members: EncoderId,
    counts: EncoderId,
}

impl PresenceApi {
    pub(crate) fn new(
        streams: StreamAccess,
        presence: Arc<PresenceStreams>,
        encoders: &mut Encoders,
    ) -> Self {
        PresenceApi {
            mounts: [Mount::below(ROOT).for_operators_by_grant()],
            streams,
            presence,
            members: encoders.add("members", MemberEvents),
            counts: encoders.add("member counts", CountEvents),
        }
    }

    fn get(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<Action, Response> {
        check_method(request.method, METHODS)?;
        let parameters = Parameters::parse(request.query)?;
        admitted.meet(&parameters.needed(&self.streams, admitted.below))?;
        let name = admitted.below;
        self.streams.check_name(name)?;
        if self.streams.in_fleet && request.barriers == 0 {
            let log = home(name, self.streams.views.logs());
            return Ok(Action::AwaitOrder(log, Vec::new()));
        }
        if self.streams.known(name).is_none() {
            return Ok(load(name, Vec::new()));
        }
        self.streams.find_for(name, request.now, &admitted.rights)?;
        if self.presence.rules_of(name).is_none() {
            let why = "the stream has no members: an entry of [[presence.streams]] in the configuration names those that have";
            return Err(error(404, "no_presence", why));
        }
        let members = self.presence.stream(name);
        if !parameters.is_live {
            let fetch = Fetch::new(&members, Offset::START, members.facts().tail, usize::MAX);
            let told = PresenceAnswer {
                only_count: parameters.only_count,
                _members: members,
            };
            return Ok(Action::Read(fetch, Box::new(told)));
        }
        Ok(Action::Subscribe(Subscription {
            beside: None,
            response: sse::head().body(Body::Open(Vec::new())),
            feed: Feed::Single {
                stream: members,
                from: Offset::START,
                encoder: match parameters.only_count {
                    true => self.counts,
                    false => self.members,
                },
                option: 0,
            },
        }))
    }
}

impl Protocol for PresenceApi {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        METHODS
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn overview(&self) -> &'static str {
        match self.presence.has_rules() {
            true => "Who is there GET /v1/presence/{name}?live=sse\n",
            // No stream has members.
            false => "",
        }
    }

    fn requirements<'a>(&self, head: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        let parameters = Parameters::parse(head.query)?;
        Ok(vec![parameters.needed(&self.streams, head.below)])
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = self.get(&request, admitted);
        action.unwrap_or_else(Action::Respond)
    }
}

/// The parameters of a question.
#[derive(Clone, Copy, Debug, Default)]
struct Parameters {
    /// As events, for as long as the connection lasts.
    is_live: bool,
    /// How many there are, and not who.
    only_count: bool,
}

impl Parameters {
    fn parse(query: Option<&str>) -> Result<Self, Response> {
        let bad = |why: String| error(400, "bad_parameter", why);
        let mut parameters = Parameters::default();
        for parameter in query::parameters(query) {
            let (name, value) = parameter.map_err(|why| bad(format!("the query {why}")))?;
            match (&*name, &*value) {
                ("live", "sse") => parameters.is_live = true,
                ("live", _) => return Err(bad("live is sse here".into())),
                ("only", "count") => parameters.only_count = true,
                ("only", _) => return Err(bad("only is count".into())),
                (other, _) => misspelled::check_parameter(other, PARAMETERS)?,
            }
        }
        Ok(parameters)
    }

    /// Who may read the stream may know how many there are; who they are needs a right at a path of its own.
    fn needed(self, streams: &StreamAccess, name: &str) -> Requirement<'static> {
        match self.only_count {
            true => {
                let path = format!("{}{name}", streams.root);
                streams.rights.of_stream(Operation::Read, name, path)
            }
            false => Requirement::at(Operation::Read, format!("{ROOT}{name}")),
        }
    }
}

/// Answers with the members when they are read.
#[derive(Debug)]
struct PresenceAnswer {
    only_count: bool,
    /// It is there until it is read.
    _members: Arc<Stream>,
}

impl OnRead for PresenceAnswer {
    fn read(self: Box<Self>, run: Result<Run<'_>, Failure>, _now: WallTime) -> Action {
        let run = match run {
            Ok(run) => run,
            Err(failure) => return Action::Respond(failed(failure)),
        };
        let data = run.items.last().map_or(&[][..], |item| item.data);
        let body = match (self.only_count, MembersRecord::parse(data)) {
            (true, Some(record)) => counted(record.count),
            _ => data.to_vec(),
        };
        let response = Response::shared(200)
            .field("Content-Type", "application/json")
            .field("Cache-Control", "no-store");
        Action::Respond(response.body(body))
    }
}

const ROOT: &str = "/v1/presence/";

const METHODS: &[&str] = &["GET"];

const PARAMETERS: &[&str] = &["live", "only"];
