//! The requests of servers: they trigger events, and ask about channels.
//!
//! `signed_query` checks the signature of each request, `trigger` reads events, `publish` commits them, `channels` answers questions.

mod answer;
mod channels;
mod info;
mod publish;
mod signed_query;
mod terminate;
mod trigger;

use std::sync::Arc;

use self::answer::parse_channel;
use self::signed_query::{SignedParts, SignedQuery};
use super::app::App;
use super::context::PusherContext;
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
    /// Closes the connections of a user.
    Terminate(&'a str),
}

impl PusherApi {
    pub(super) fn new(context: Arc<PusherContext>) -> Self {
        PusherApi {
            mounts: [Mount::below("/apps/")],
            context,
        }
    }

    /// Checks a request by its head: it has a signature of its app, which covers the query. The digest of the body, which the query
    /// has, is checked when the body is there.
    fn check<'r>(
        &self,
        request: &Request<'_>,
        admitted: &Admitted<'r>,
    ) -> Result<(&Arc<App>, ApiRoute<'r>, SignedQuery), Response> {
        let (id, below) = app_and_below(admitted.below);
        let unknown = |why: &str| error(404, "not_found", why);
        let app = self.context.app_of_id(id);
        let app = app.ok_or_else(|| unknown("no app has this id"))?;
        let route = ApiRoute::parse(below).ok_or_else(|| {
            unknown("an app has events, batch_events, channels, channels/NAME, channels/NAME/users and users/ID/terminate_connections here")
        })?;
        check_method(request.method, &[route.method()])?;
        if !app.settings.enabled {
            return Err(error(403, "app_disabled", "the app is disabled"));
        }
        let signed = SignedParts {
            method: request.method,
            path: request.path,
            query: request.query,
        };
        let query = SignedQuery::check(app, signed, request.now.wall);
        let query = query.map_err(|response| unauthorised_by(request, response))?;
        Ok((app, route, query))
    }

    fn answer(
        &self,
        mut request: Request<'_>,
        admitted: &Admitted<'_>,
    ) -> Result<Action, Response> {
        let (app, route, query) = self.check(&request, admitted)?;
        let body = std::mem::take(&mut request.body);
        let checked = query.check_body(&body);
        checked.map_err(|response| unauthorised_by(&request, response))?;
        match route {
            ApiRoute::Events => trigger::one(&self.context, app, body, request.now),
            ApiRoute::BatchEvents => trigger::batch(&self.context, app, body, request.now),
            ApiRoute::Channels => channels::list(&self.context, app, &query),
            ApiRoute::Channel(name) => channels::describe(
                &self.context,
                app,
                parse_channel(name)?,
                &query,
                request.now,
            ),
            ApiRoute::Terminate(user) => terminate::terminate(
                &self.context,
                app,
                user,
                (body, request.now, request.barriers),
            ),
            ApiRoute::Users(name) => channels::users(&self.context, app, parse_channel(name)?),
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

    fn authorise(&self, request: &Request<'_>, admitted: &Admitted<'_>) -> Result<(), Response> {
        let (_, _, query) = self.check(request, admitted)?;
        let checked = query.check_announced_body();
        checked.map_err(|response| unauthorised_by(request, response))
    }

    fn signing_app(&self, below: &str) -> Option<u32> {
        let (id, _) = app_and_below(below);
        let mut apps = self.context.apps.iter();
        let number = apps.position(|app| app.settings.id == id)?;
        u32::try_from(number).ok()
    }

    fn request(&self, request: Request<'_>, admitted: &Admitted<'_>) -> Action {
        let action = self.answer(request, admitted);
        action.unwrap_or_else(Action::Respond)
    }
}

/// The id of an app, and what is below it in a path.
fn app_and_below(below: &str) -> (&str, &str) {
    below.split_once('/').unwrap_or((below, ""))
}

/// A refusal, which the audit log mentions if it is that of a signature.
fn unauthorised_by(request: &Request<'_>, response: Response) -> Response {
    match response.status {
        401 => refused(request, response, "bad_signature"),
        _ => response,
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
            (["users", user], Some("terminate_connections"), None) => {
                Some(ApiRoute::Terminate(user))
            }
            _ => None,
        }
    }

    fn method(self) -> &'static str {
        match self {
            ApiRoute::Events | ApiRoute::BatchEvents | ApiRoute::Terminate(_) => "POST",
            ApiRoute::Channels | ApiRoute::Channel(_) | ApiRoute::Users(_) => "GET",
        }
    }
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
            (
                "users/a/terminate_connections",
                Some(ApiRoute::Terminate("a")),
            ),
            ("users/a", None),
        ] {
            assert_eq!(ApiRoute::parse(below), route, "{below}");
        }
    }
}
