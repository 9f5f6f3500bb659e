//! Closes the connections of a user, at every node: the stream of events for the user is deleted, which ends the feeds of those who follow it.

use encke_clock::Now;
use encke_stream::{Command, Outcome, Target, home};
use serde_json::json;

use super::answer::{bad_request, respond};
use crate::action::{Action, OnCommit};
use crate::problem::unexpected;
use crate::pusher::app::App;
use crate::pusher::channel_stream::check_stream;
use crate::pusher::context::PusherContext;
use crate::pusher::user::{channel_of_user, is_user_id};
use crate::response::Response;
use crate::streams::load;

/// Waits until the stream is deleted.
#[derive(Debug)]
struct Termination;

/// Closes the connections of a user. The body is the request's, in case that it must wait.
pub(super) fn terminate(
    context: &PusherContext,
    app: &App,
    user: &str,
    (body, now, barriers): (Vec<u8>, Now, usize),
) -> Result<Action, Response> {
    if !is_user_id(user) {
        return Err(bad_request("the path names no user"));
    }
    let streams = &context.streams;
    let name = app.stream(&channel_of_user(user));
    if streams.in_fleet && barriers == 0 {
        return Ok(Action::AwaitOrder(home(&name, streams.views.logs()), body));
    }
    if streams.known(&name).is_none() {
        return Ok(load(&name, body));
    }
    match streams.find(&name, now) {
        Ok(stream) => {
            check_stream(&stream)?;
            let command = Command::Delete {
                target: Target::Known(stream),
                ack: None,
            };
            Ok(Action::Commit(command, Box::new(Termination)))
        }
        // Nobody has signed in as that user.
        Err(response) if response.status == 404 => Ok(Action::Respond(respond(&json!({})))),
        Err(response) => Err(response),
    }
}

impl OnCommit for Termination {
    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        match outcome {
            Outcome::Deleted => respond(&json!({})),
            other => unexpected(&other),
        }
    }
}
