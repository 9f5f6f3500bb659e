//! Reads the events that a server triggers.

use std::sync::Arc;

use encke_clock::Now;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answer::{bad_request, parse_channel};
use super::info::WantedInfo;
use super::publish::{ChannelEvent, publish};
use crate::action::Action;
use crate::problem::error;
use crate::pusher::app::App;
use crate::pusher::client_event::NAME_BYTES_MAX;
use crate::pusher::context::PusherContext;
use crate::pusher::event::{NewData, NewEvent};
use crate::pusher::socket_id::SocketId;
use crate::pusher::user::user_of_channel;
use crate::response::Response;

/// An event on one channel or several.
#[derive(Deserialize)]
struct EventBody {
    #[serde(flatten)]
    event: EventParts,
    channel: Option<String>,
    channels: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct BatchBody {
    batch: Vec<BatchedEvent>,
}

#[derive(Deserialize)]
struct BatchedEvent {
    #[serde(flatten)]
    event: EventParts,
    channel: String,
}

#[derive(Deserialize)]
struct EventParts {
    name: String,
    data: String,
    socket_id: Option<String>,
    info: Option<String>,
}

/// An event on up to [`CHANNELS_MAX`] channels.
pub(super) fn one(
    context: &Arc<PusherContext>,
    app: &Arc<App>,
    body: Vec<u8>,
    now: Now,
) -> Result<Action, Response> {
    let EventBody {
        event,
        channel,
        channels,
    } = parse(&body)?;
    let mut names = channels.unwrap_or_default();
    names.extend(channel);
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if names.is_empty() || names.len() > CHANNELS_MAX {
        let why = format!("an event is for 1 to {CHANNELS_MAX} channels, in channel or channels");
        return Err(bad_request(&why));
    }
    let info = WantedInfo::parse(event.info.as_deref())?;
    let record = event.record(app)?;
    let mut told = json!({});
    let mut events = Vec::with_capacity(names.len());
    for name in &names {
        if user_of_channel(name).is_some() {
            events.push(ChannelEvent::new(app, name, &record));
            continue;
        }
        let channel = parse_channel(name)?;
        if channel.is_encrypted() && names.len() > 1 {
            return Err(bad_request(
                "an event of an encrypted channel is for that channel only, because each has its own key",
            ));
        }
        if event.info.is_some() {
            told["channels"][name] = info.of((context, app), channel).into();
        }
        events.push(ChannelEvent::new(app, name, &record));
    }
    publish(context, app, events, (told, body), now)
}

/// Up to [`BATCH_MAX`] events, each on one channel.
pub(super) fn batch(
    context: &Arc<PusherContext>,
    app: &Arc<App>,
    body: Vec<u8>,
    now: Now,
) -> Result<Action, Response> {
    let BatchBody { batch } = parse(&body)?;
    if batch.is_empty() || batch.len() > BATCH_MAX {
        return Err(bad_request(&format!("a batch has 1 to {BATCH_MAX} events")));
    }
    let mut events = Vec::with_capacity(batch.len());
    let mut told = Vec::with_capacity(batch.len());
    for BatchedEvent { event, channel } in &batch {
        if user_of_channel(channel).is_some() {
            told.push(json!({}));
            events.push(ChannelEvent::new(app, channel, &event.record(app)?));
            continue;
        }
        let channel = parse_channel(channel)?;
        let info = WantedInfo::parse(event.info.as_deref())?;
        told.push(Value::from(info.of((context, app), channel)));
        events.push(ChannelEvent::new(
            app,
            channel.as_str(),
            &event.record(app)?,
        ));
    }
    let asks = batch.iter().any(|one| one.event.info.is_some());
    let told = match asks {
        true => json!({ "batch": told }),
        false => json!({}),
    };
    publish(context, app, events, (told, body), now)
}

impl EventParts {
    /// The bytes of the record.
    fn record(&self, app: &App) -> Result<Vec<u8>, Response> {
        if !(1..=NAME_BYTES_MAX).contains(&self.name.len()) {
            let why = format!("the name of an event has 1 to {NAME_BYTES_MAX} bytes");
            return Err(bad_request(&why));
        }
        let max = app.settings.event_bytes_max;
        if self.data.len() > max {
            let why = format!(
                "the data of the event has {} bytes, at most {max} are allowed",
                self.data.len()
            );
            return Err(error(413, "too_large", why));
        }
        let socket = self.socket_id.as_deref().map(str::parse::<SocketId>);
        let socket = socket
            .transpose()
            .map_err(|why| bad_request(&why.to_string()))?;
        let event = NewEvent {
            name: &self.name,
            data: Some(NewData::Text(&self.data)),
            socket,
            user: None,
        };
        Ok(event.record().bytes)
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Response> {
    serde_json::from_slice(body).map_err(|why| error(400, "bad_json", why.to_string()))
}

/// Channels of an event, as Pusher allows.
const CHANNELS_MAX: usize = 100;

/// Events of a batch, as Pusher allows.
const BATCH_MAX: usize = 10;
