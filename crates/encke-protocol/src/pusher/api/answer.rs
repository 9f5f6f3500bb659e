//! Responses of the API.

use serde_json::Value;

use crate::problem::error;
use crate::pusher::channel_name::ChannelName;
use crate::response::Response;

/// The channel of that name.
pub(super) fn parse_channel(name: &str) -> Result<ChannelName<'_>, Response> {
    ChannelName::parse(name).map_err(|why| bad_request(&why.to_string()))
}

pub(super) fn bad_request(why: &str) -> Response {
    error(400, "bad_request", why)
}

pub(super) fn unauthorised(why: &str) -> Response {
    error(401, "bad_signature", why).field("WWW-Authenticate", "Pusher")
}

pub(super) fn respond(body: &Value) -> Response {
    Response::shared(200)
        .field("Content-Type", "application/json")
        .field("Cache-Control", "no-store")
        .body(body.to_string())
}
