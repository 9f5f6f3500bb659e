//! The requests of servers: they trigger events, and ask about channels.
//!
//! `signed_query` checks the signature of each request, `trigger` reads events, `publish` commits them, `channels` answers questions.

mod channels;
mod publish;
mod signed_query;
mod trigger;

use std::sync::Arc;

use self::signed_query::{SignedParts, SignedQuery};
use super::PusherContext;
use super::app::App;
use super::channel_name::ChannelName;
use crate::action::Action;
use crate::gate::{Admitted, refused};
use crate::known_field::KnownFields;
use crate::mount::Mount;
use crate::problem::{check_method, error};
use crate::protocol::Protocol;
use crate::request::Request;
use crate::requirement::{RequestHead, Requirement};
use crate::response::Response;

/// The side of servers.
#[derive(Debug)]
pub(crate) struct PusherApi {
    mounts: [Mount; 1],
    context: Arc<PusherContext>,
}

/// What a path below an app stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiRoute<'a> {
    Events,
    BatchEvents,
    Channels,
    Channel(&'a str),
    Users(&'a str),
}

impl PusherApi {
    pub(super) fn new(context: Arc<PusherContext>) -> Self {
        PusherApi {
            mounts: [Mount::below("/apps/")],
            context,
        }
    }

    fn answer(
        &self,
        mut request: Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let (id, below) = admitted
            .below
            .split_once('/')
            .unwrap_or((admitted.below, ""));
        let unknown = |why: &str| error(404, "not_found", why);
        let app = self.context.app_of_id(id);
        let app = app.ok_or_else(|| unknown("no app has this id"))?;
        let route = ApiRoute::parse(below).ok_or_else(|| {
            unknown("an app has events, batch_events, channels and channels/NAME here")
        })?;
        check_method(request.method, &[route.method()])?;
        if !app.settings.enabled {
            return Err(error(403, "app_disabled", "the app is disabled"));
        }
        let signed = SignedParts {
            method: request.method,
            path: request.path,
            body: &request.body,
        };
        let query = SignedQuery::check(app, request.query, signed, request.now.wall);
        let query = query.map_err(|response| match response.status {
            401 => refused(&request, response, "bad_signature"),
            _ => response,
        })?;
        let body = std::mem::take(&mut request.body);
        match route {
            ApiRoute::Events => trigger::one(&self.context, app, body, request.now),
            ApiRoute::BatchEvents => trigger::batch(&self.context, app, body, request.now),
            ApiRoute::Channels => channels::list(app, &query),
            ApiRoute::Channel(name) => channels::describe(
                &self.context,
                app,
                parse_channel(name)?,
                &query,
                request.now,
            ),
            ApiRoute::Users(name) => Err(match parse_channel(name)?.is_presence() {
                true => error(
                    501,
                    "not_enabled",
                    "presence channels are not enabled on this server",
                ),
                false => bad_request("only presence channels have users"),
            }),
        }
    }
}

impl Protocol for PusherApi {
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    fn methods(&self) -> &'static [&'static str] {
        &["GET", "POST"]
    }

    fn fields(&self) -> &'static KnownFields {
        &KnownFields::NONE
    }

    fn overview(&self) -> &'static str {
        "             POST, GET         /apps/{id}/events, /apps/{id}/channels\n"
    }

    fn requirements<'a>(&self, _: &RequestHead<'a>) -> Result<Vec<Requirement<'a>>, Response> {
        Ok(Vec::new())
    }

    /// Requests are signed with the secret of their app.
    fn has_own_credentials(&self, _method: &str, _below: &str) -> bool {
        true
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = self.answer(request, admitted);
        action.unwrap_or_else(Action::Respond)
    }
}

impl<'a> ApiRoute<'a> {
    fn parse(below: &'a str) -> Option<Self> {
        let mut segments = below.split('/');
        let route = [segments.next()?, segments.next().unwrap_or_default()];
        let last = segments.next();
        match (route, last, segments.next()) {
            (["events", ""], None, _) => Some(ApiRoute::Events),
            (["batch_events", ""], None, _) => Some(ApiRoute::BatchEvents),
            (["channels", ""], None, _) => Some(ApiRoute::Channels),
            (["channels", name], None, _) => Some(ApiRoute::Channel(name)),
            (["channels", name], Some("users"), None) => Some(ApiRoute::Users(name)),
            _ => None,
        }
    }

    fn method(self) -> &'static str {
        match self {
            ApiRoute::Events | ApiRoute::BatchEvents => "POST",
            ApiRoute::Channels | ApiRoute::Channel(_) | ApiRoute::Users(_) => "GET",
        }
    }
}

/// What a request asks to be told of channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WantedInfo {
    subscription_count: bool,
    user_count: bool,
    cache: bool,
}

impl WantedInfo {
    fn parse(info: Option<&str>) -> Result<Self, Response> {
        let mut wanted = WantedInfo::default();
        let names = info.unwrap_or_default().split(',').map(str::trim);
        for name in names.filter(|name| !name.is_empty()) {
            match name {
                "subscription_count" => wanted.subscription_count = true,
                "user_count" => wanted.user_count = true,
                "cache" => wanted.cache = true,
                _ => {
                    return Err(bad_request(
                        "info is a list of subscription_count, user_count and cache",
                    ));
                }
            }
        }
        Ok(wanted)
    }

    /// What is said of a channel.
    fn of(
        self,
        app: &App,
        channel: ChannelName<'_>,
    ) -> Result<serde_json::Map<String, serde_json::Value>, Response> {
        let mut members = serde_json::Map::new();
        if self.subscription_count {
            let count = app.occupancy.count(channel.as_str());
            members.insert("subscription_count".into(), count.into());
        }
        if self.user_count {
            if !channel.is_presence() {
                return Err(bad_request("only presence channels have a user_count"));
            }
            // Nobody can be subscribed to one.
            members.insert("user_count".into(), 0.into());
        }
        Ok(members)
    }
}

fn parse_channel(name: &str) -> Result<ChannelName<'_>, Response> {
    ChannelName::parse(name).map_err(|why| bad_request(&why.to_string()))
}

fn bad_request(why: &str) -> Response {
    error(400, "bad_request", why)
}

fn unauthorised(why: &str) -> Response {
    error(401, "bad_signature", why).field("WWW-Authenticate", "Pusher")
}

fn respond(body: &serde_json::Value) -> Response {
    Response::shared(200)
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store")
        .body(body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_protocol() {
        for (below, route) in [
            ("events", Some(ApiRoute::Events)),
            ("batch_events", Some(ApiRoute::BatchEvents)),
            ("channels", Some(ApiRoute::Channels)),
            ("channels/a", Some(ApiRoute::Channel("a"))),
            ("channels/a/users", Some(ApiRoute::Users("a"))),
            ("", None),
            ("events/a", None),
            ("channels/a/user", None),
            ("channels/a/users/b", None),
            ("users", None),
        ] {
            assert_eq!(ApiRoute::parse(below), route, "{below}");
        }
    }
}
