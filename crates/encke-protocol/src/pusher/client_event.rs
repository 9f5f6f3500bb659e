//! Events of clients: for the others that are subscribed to a channel now, and never stored.

use std::borrow::Cow;
use std::sync::Arc;

use encke_clock::{Now, WallTime};
use encke_stream::{Data, EphemeralMessage, Outcome, Stream};

use super::app::App;
use super::channel_name::ChannelName;
use super::channel_stream::{check_created, check_stream};
use super::client_message::ClientEvent;
use super::context::PusherContext;
use super::event::{NewData, NewEvent};
use super::server_message::{PusherCode, error};
use super::settings::PusherApp;
use super::socket_id::SocketId;
use super::webhook::WebhookEvent;
use crate::action::{Action, Broadcast, OnBroadcast, OnChange};
use crate::problem;
use crate::response::Response;

/// How many events a connection has sent within a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClientEventRate {
    second: u32,
    sent: u32,
}

/// An event that is to be handed over. The first one of a channel waits until its stream is created.
#[derive(Debug)]
pub(super) struct NewClientEvent {
    context: Arc<PusherContext>,
    record: Data,
    sent: ClientEventSent,
}

/// Waits until an event is handed over: then webhooks are told of it.
#[derive(Debug)]
struct ClientEventSent {
    app: Arc<App>,
    channel: Box<str>,
    event: Box<str>,
    data: Option<Box<str>>,
    socket: SocketId,
    /// The member of a presence channel who sends it.
    user: Option<Box<str>>,
}

impl ClientEventRate {
    /// Counts an event. False: it is one too many within this second.
    pub(super) fn count(&mut self, second: u64, max: u32) -> bool {
        let second = second as u32;
        if self.second != second {
            *self = ClientEventRate { second, sent: 0 };
        }
        if self.sent >= max {
            return false;
        }
        self.sent += 1;
        true
    }
}

/// Judges an event by itself. Returns its channel.
///
/// # Errors
/// Why the app takes no such event.
pub(super) fn check<'a>(
    event: &'a ClientEvent<'_>,
    app: &PusherApp,
) -> Result<ChannelName<'a>, Cow<'static, str>> {
    if !app.client_events {
        return Err("client events are not enabled for this app (client-events)".into());
    }
    if event.name.len() > NAME_BYTES_MAX {
        let why = format!("the name of an event has at most {NAME_BYTES_MAX} bytes");
        return Err(why.into());
    }
    let bytes = event.text().map_or(0, |text| text.len());
    if bytes > app.event_bytes_max {
        let max = app.event_bytes_max;
        return Err(format!("the data has {bytes} bytes, at most {max} are allowed").into());
    }
    let channel = event.channel.as_deref().unwrap_or_default();
    let channel = ChannelName::parse(channel).map_err(|why| why.to_string())?;
    if !channel.is_private() || channel.is_encrypted() {
        return Err("client events go to private and presence channels only".into());
    }
    Ok(channel)
}

/// The data of an event, which has the form of a record. `user`: the member who sends it.
fn record(event: &ClientEvent<'_>, user: Option<&str>) -> Data {
    let data = event.data.and_then(|data| serde_json::from_str(data).ok());
    let event = NewEvent {
        name: &event.name,
        data: data.map(NewData::Json),
        socket: None,
        user,
    };
    event.record()
}

impl NewClientEvent {
    /// An event of a connection. `user`: the member of a presence channel who sends it.
    pub(super) fn new(
        (context, app): (&Arc<PusherContext>, &Arc<App>),
        event: &ClientEvent<'_>,
        (socket, user): (SocketId, Option<&str>),
    ) -> Self {
        NewClientEvent {
            context: Arc::clone(context),
            record: record(event, user),
            sent: ClientEventSent {
                app: Arc::clone(app),
                channel: event.channel.as_deref().unwrap_or_default().into(),
                event: (*event.name).into(),
                data: event.text().map(Box::from),
                socket,
                user: user.map(Box::from),
            },
        }
    }

    /// Hands the event to all subscribers except its sender.
    pub(super) fn broadcast(self, stream: &Stream, now: WallTime) -> Result<Action, Response> {
        let message = EphemeralMessage::new(stream, None, self.record, now);
        Ok(Action::Broadcast(Box::new(Broadcast {
            message: message.map_err(|why| problem::refused(&why))?,
            echoes: false,
            then: Box::new(self.sent),
        })))
    }
}

impl OnChange for NewClientEvent {
    fn changed(self: Box<Self>, outcome: Outcome, now: Now) -> Action {
        let name = self.sent.app.stream(&self.sent.channel);
        let broadcast = check_created(&outcome)
            .and_then(|()| self.context.streams.find(&name, now))
            .and_then(|stream| check_stream(&stream).map(|()| stream))
            .and_then(|stream| self.broadcast(&stream, now.wall));
        broadcast.unwrap_or_else(|refused| Action::Respond(not_sent(&refused)))
    }

    fn not_submitted(self: Box<Self>, refused: Response) -> Response {
        not_sent(&refused)
    }
}

impl OnBroadcast for ClientEventSent {
    fn handed_over(self: Box<Self>) -> Response {
        let sent = (&*self.event, self.data.as_deref());
        let socket = self.socket.to_string();
        let report = WebhookEvent::of_client(&self.channel, sent, &socket, self.user.as_deref());
        self.app.report(&report);
        // The protocol confirms no events.
        Response::new(200)
    }

    fn not_handed_over(self: Box<Self>, refused: Response) -> Response {
        not_sent(&refused)
    }
}

/// The response to an event that was not handed over. The connection stays: a client that comes back does not repeat its events.
fn not_sent(refused: &Response) -> Response {
    let why = problem::message(refused);
    Response::new(UNSENT).body(error(Some(PusherCode::NOT_SERVED), &why))
}

/// The status of events that could not be handed over, in the access log.
const UNSENT: u16 = 429;

/// Bytes of the name of an event, of clients and of servers, as Pusher allows.
pub(super) const NAME_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_bounded_number_of_events() {
        let mut rate = ClientEventRate::default();
        let taken =
            |rate: &mut ClientEventRate, second| (0..5).filter(|_| rate.count(second, 3)).count();
        assert_eq!(taken(&mut rate, 0), 3);
        assert_eq!(taken(&mut rate, 1), 3);
        assert_eq!(taken(&mut rate, 1), 0);
        assert_eq!(taken(&mut rate, 7), 3);
    }

    #[test]
    fn an_app_says_which_events_it_takes() {
        let mut app = PusherApp::new("1", "k", "0123456789abcdef".into());
        let event = |channel: &'static str, data: Option<&'static str>| ClientEvent {
            name: "client-x".into(),
            channel: Some(channel.into()),
            data,
        };
        let refused = |app: &PusherApp, event: &ClientEvent<'_>| {
            check(event, app).map(|_| ()).unwrap_err().into_owned()
        };
        let fine = event("private-a", Some("1"));
        assert!(refused(&app, &fine).contains("client-events"));
        app.client_events = true;
        app.event_bytes_max = 3;
        assert_eq!(check(&fine, &app).map(ChannelName::as_str), Ok("private-a"));
        assert!(check(&event("presence-a", None), &app).is_ok());
        assert!(check(&event("private-a", Some("\"\\n\\u0061c\"")), &app).is_ok());
        for (event, word) in [
            (event("a", None), "private and presence"),
            (event("private-encrypted-a", None), "private and presence"),
            (event("private-ä", None), "characters"),
            (event("private-a", Some("1234")), "4 bytes, at most 3"),
            (event("private-a", Some("\"1234\"")), "4 bytes, at most 3"),
        ] {
            assert!(refused(&app, &event).contains(word), "{event:?}");
        }
        let long = ClientEvent {
            name: format!("client-{}", "x".repeat(NAME_BYTES_MAX)).into(),
            ..fine
        };
        assert!(refused(&app, &long).contains("at most 200 bytes"));
    }
}
