//! What requests ask to be told of channels.

use serde_json::{Map, Value};

use super::answer::bad_request;
use crate::pusher::app::App;
use crate::pusher::channel_name::ChannelName;
use crate::pusher::context::PusherContext;
use crate::response::Response;

/// What a request asks to be told of channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WantedInfo {
    pub(super) subscription_count: bool,
    pub(super) user_count: bool,
    pub(super) cache: bool,
}

impl WantedInfo {
    pub(super) fn parse(info: Option<&str>) -> Result<Self, Response> {
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

    /// The attributes of a channel that were asked for and that such a channel has.
    pub(super) fn of(
        self,
        (context, app): (&PusherContext, &App),
        channel: ChannelName<'_>,
    ) -> Map<String, Value> {
        let mut members = Map::new();
        let counts = context.counts(app, channel.as_str());
        if self.subscription_count {
            members.insert("subscription_count".into(), counts.connections.into());
        }
        if self.user_count && channel.is_presence() {
            members.insert("user_count".into(), counts.members.into());
        }
        members
    }
}
