//! Messages to clients. The data of most is a string that holds JSON, as the protocol has it.

use std::io::Write;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::event::StoredEvent;
use super::position::SignedPosition;
use super::socket_id::SocketId;
use super::watchlist::{WATCHLIST_EVENTS, WatchedUsers};
use crate::ndjson;
use crate::presence::wire::MembersRecord;

/// Why a connection is closed, or a message not served: the codes of the protocol. Clients do not come back after those below 4100, come
/// back after a while after those below 4200, and at once after those below 4300.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PusherCode(u16);

impl PusherCode {
    pub(super) const APP_UNKNOWN: PusherCode = PusherCode(4001);
    pub(super) const APP_DISABLED: PusherCode = PusherCode(4003);
    pub(super) const CONNECTIONS_MAX: PusherCode = PusherCode(4004);
    pub(super) const PATH_UNKNOWN: PusherCode = PusherCode(4005);
    pub(super) const VERSION_INVALID: PusherCode = PusherCode(4006);
    pub(super) const VERSION_UNSUPPORTED: PusherCode = PusherCode(4007);
    pub(super) const VERSION_MISSING: PusherCode = PusherCode(4008);
    pub(super) const UNAUTHORISED: PusherCode = PusherCode(4009);
    /// The client connects again after a second.
    pub(super) const OVER_CAPACITY: PusherCode = PusherCode(4100);
    /// The client connects again at once.
    pub(super) const RECONNECT: PusherCode = PusherCode(4200);
    pub(super) const NO_PONG: PusherCode = PusherCode(4201);
    /// The message was not served, and the connection stays.
    pub(super) const NOT_SERVED: PusherCode = PusherCode(4301);

    pub(super) fn number(self) -> u16 {
        self.0
    }

    /// What stands for it in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            PusherCode::APP_UNKNOWN => "pusher_app_unknown",
            PusherCode::APP_DISABLED => "pusher_app_disabled",
            PusherCode::CONNECTIONS_MAX => "pusher_connections_max",
            PusherCode::PATH_UNKNOWN => "pusher_path_unknown",
            PusherCode::VERSION_INVALID
            | PusherCode::VERSION_UNSUPPORTED
            | PusherCode::VERSION_MISSING => "pusher_version",
            PusherCode::UNAUTHORISED => "pusher_origin",
            _ => "pusher",
        }
    }
}

/// The first message.
pub(super) fn established(socket: SocketId) -> Vec<u8> {
    let data = json!({ "socket_id": socket.to_string(), "activity_timeout": ACTIVITY_TIMEOUT_S });
    message("pusher:connection_established", None, Some(&data))
}

/// The answer to a ping.
pub(super) fn pong() -> Vec<u8> {
    message("pusher:pong", None, Some(&json!({})))
}

/// A subscription has begun.
pub(super) fn subscribed(channel: &str) -> Vec<u8> {
    let event = "pusher_internal:subscription_succeeded";
    message(event, Some(channel), Some(&json!({})))
}

/// Where a subscription begins, for a client that has asked to be told. `has_gap`: what was before is no longer kept.
pub(super) fn position(channel: &str, at: &SignedPosition, has_gap: bool) -> Vec<u8> {
    let data = json!({ "offset": at.to_string(), "gap": has_gap });
    message("pusher_internal:encke_position", Some(channel), Some(&data))
}

/// These users, whom a client watches, are online.
pub(super) fn online(users: &WatchedUsers) -> Vec<u8> {
    let message = json!({ "event": WATCHLIST_EVENTS, "data": users.data() });
    message.to_string().into_bytes()
}

/// A client has signed in, with the data that says who its user is.
pub(super) fn signin_success(user_data: &str) -> Vec<u8> {
    message(
        "pusher:signin_success",
        None,
        Some(&json!({ "user_data": user_data })),
    )
}

/// A subscription to a presence channel has begun: its data has the members. They are escaped as they are written, because a tree of them
/// would take long to build and to write.
pub(super) fn subscribed_with(channel: &str, list: &MembersRecord<'_>) -> Vec<u8> {
    let channel = Value::from(channel);
    let head = format!(
        r#"{{"event":"pusher_internal:subscription_succeeded","channel":{channel},"data":""#
    );
    let mut out = head.into_bytes();
    let mut put = |text: &str| ndjson::escape(text.as_bytes(), &mut out);
    put(&format!(r#"{{"presence":{{"count":{},"ids":["#, list.count));
    let mut comma = "";
    for member in &list.members {
        put(comma);
        put(member.id.get());
        comma = ",";
    }
    put(r#"],"hash":{"#);
    comma = "";
    for member in &list.members {
        put(comma);
        put(member.id.get());
        put(":");
        put(member.data.map_or("null", RawValue::get));
        comma = ",";
    }
    put("}}}");
    out.extend_from_slice(b"\"}");
    out
}

/// A member has come. Id and data are JSON.
pub(super) fn member_added(channel: &str, id: &str, info: Option<&str>) -> Vec<u8> {
    let mut data = format!("{{\"user_id\":{id}");
    if let Some(info) = info {
        data.push_str(",\"user_info\":");
        data.push_str(info);
    }
    data.push('}');
    member_event("pusher_internal:member_added", channel, data)
}

/// A member has left. The id is JSON.
pub(super) fn member_removed(channel: &str, id: &str) -> Vec<u8> {
    let data = format!("{{\"user_id\":{id}}}");
    member_event("pusher_internal:member_removed", channel, data)
}

fn member_event(event: &str, channel: &str, data: String) -> Vec<u8> {
    let message = json!({ "event": event, "channel": channel, "data": data });
    message.to_string().into_bytes()
}

/// A channel that caches has no last event.
pub(super) fn cache_miss(channel: &str) -> Vec<u8> {
    message("pusher:cache_miss", Some(channel), None)
}

/// A message was not served. Its data is an object, unlike that of others. With a code the client closes the connection if it has
/// just been opened.
pub(super) fn error(code: Option<PusherCode>, why: &str) -> Vec<u8> {
    let code = code.map(PusherCode::number);
    let data = json!({ "code": code, "message": why });
    json!({ "event": "pusher:error", "data": data })
        .to_string()
        .into_bytes()
}

/// A subscription was refused. The status is that of a response over HTTP.
pub(super) fn subscription_error(channel: &str, kind: &str, status: u16, why: &str) -> Vec<u8> {
    let data = json!({ "type": kind, "error": why, "status": status });
    json!({ "event": "pusher:subscription_error", "channel": channel, "data": data })
        .to_string()
        .into_bytes()
}

/// Appends an event of a channel.
/// `position`: the one behind it, if the client has asked for that.
pub(super) fn write_event(
    event: &StoredEvent<'_>,
    channel: &str,
    position: Option<&SignedPosition>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"event\":");
    out.extend_from_slice(event.name().as_bytes());
    // The characters of channels stand for themselves in JSON.
    out.extend_from_slice(b",\"channel\":\"");
    out.extend_from_slice(channel.as_bytes());
    out.push(b'"');
    if let Some(data) = event.data() {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(data.as_bytes());
    }
    if let Some(user) = event.user() {
        out.extend_from_slice(b",\"user_id\":");
        out.extend_from_slice(user.as_bytes());
    }
    if let Some(position) = position {
        // A vector takes all that is written.
        let _ = write!(out, ",\"offset\":\"{position}\"");
    }
    out.push(b'}');
}

fn message(event: &str, channel: Option<&str>, data: Option<&Value>) -> Vec<u8> {
    let mut message = json!({ "event": event });
    if let Some(channel) = channel {
        message["channel"] = channel.into();
    }
    if let Some(data) = data {
        message["data"] = data.to_string().into();
    }
    message.to_string().into_bytes()
}

/// Seconds without a message after which a client asks whether the server is still there.
const ACTIVITY_TIMEOUT_S: u32 = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_forms_of_the_protocol() {
        for (message, expected) in [
            (
                established(SocketId::from_number(7)),
                json!({
                    "event": "pusher:connection_established",
                    "data": "{\"activity_timeout\":120,\"socket_id\":\"0.7\"}",
                }),
            ),
            (pong(), json!({ "event": "pusher:pong", "data": "{}" })),
            (
                subscribed("a"),
                json!({ "event": "pusher_internal:subscription_succeeded", "channel": "a", "data": "{}" }),
            ),
            (
                cache_miss("a"),
                json!({ "event": "pusher:cache_miss", "channel": "a" }),
            ),
            (
                error(Some(PusherCode::APP_UNKNOWN), "why"),
                json!({ "event": "pusher:error", "data": { "code": 4001, "message": "why" } }),
            ),
            (
                error(None, "why"),
                json!({ "event": "pusher:error", "data": { "code": null, "message": "why" } }),
            ),
            (
                subscription_error("a", "AuthError", 401, "why"),
                json!({
                    "event": "pusher:subscription_error", "channel": "a",
                    "data": { "type": "AuthError", "error": "why", "status": 401 },
                }),
            ),
        ] {
            assert_eq!(serde_json::from_slice::<Value>(&message).unwrap(), expected);
        }
    }
}
