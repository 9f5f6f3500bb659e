//! Events of webhooks, in the form in which the log has them and servers get them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::kind::WebhookKind;

/// An event.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WebhookEvent<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) channel: Cow<'a, str>,
    /// Of a client's event: its name.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    event: Option<Cow<'a, str>>,
    /// Of a client's event: its data, as a text.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    data: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    socket_id: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub(super) user_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) subscription_count: Option<usize>,
    /// It was told before, and stands in the log again because the log forgets. No server is told of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) again: bool,
}

impl<'a> WebhookEvent<'a> {
    /// An event of a channel.
    pub(crate) fn of_channel(kind: WebhookKind, channel: &'a str) -> Self {
        WebhookEvent {
            name: kind.name().into(),
            channel: channel.into(),
            event: None,
            data: None,
            socket_id: None,
            user_id: None,
            subscription_count: None,
            again: false,
        }
    }

    /// Says of what is in the log again where it begins, and that it is complete.
    pub(super) fn mark(name: &'a str) -> Self {
        WebhookEvent {
            name: name.into(),
            again: true,
            ..WebhookEvent::of_channel(WebhookKind::ChannelOccupied, "")
        }
    }

    /// The same, as something that was told before.
    pub(super) fn again(self) -> Self {
        WebhookEvent {
            again: true,
            ..self
        }
    }

    /// A member has come or gone.
    pub(super) fn of_member(kind: WebhookKind, channel: &'a str, user: &'a str) -> Self {
        WebhookEvent {
            user_id: Some(user.into()),
            ..WebhookEvent::of_channel(kind, channel)
        }
    }

    /// A channel has so many subscriptions.
    pub(super) fn of_count(channel: &'a str, count: usize) -> Self {
        WebhookEvent {
            subscription_count: Some(count),
            ..WebhookEvent::of_channel(WebhookKind::SubscriptionCount, channel)
        }
    }

    /// A client has sent an event. `data` is a text.
    pub(crate) fn of_client(
        channel: &'a str,
        (name, data): (&'a str, Option<&'a str>),
        socket: &'a str,
        user: Option<&'a str>,
    ) -> Self {
        WebhookEvent {
            event: Some(name.into()),
            data: data.map(Cow::from),
            socket_id: Some(socket.into()),
            user_id: user.map(Cow::from),
            ..WebhookEvent::of_channel(WebhookKind::ClientEvent, channel)
        }
    }

    /// Reads a record. `None`: it is no event.
    pub(super) fn parse(record: &'a RawValue) -> Option<Self> {
        serde_json::from_str(record.get()).ok()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// What it tells of. `None`: something that this version does not know.
    pub(crate) fn kind(&self) -> Option<WebhookKind> {
        self.name.parse().ok()
    }

    /// Its record.
    pub(crate) fn record(&self) -> Vec<u8> {
        // Strings and numbers have a form in JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_forms_of_the_protocol() {
        let client =
            |data| WebhookEvent::of_client("private-a", ("client-x", data), "1.2", Some("ann"));
        for (event, expected) in [
            (
                WebhookEvent::of_channel(WebhookKind::ChannelOccupied, "a"),
                r#"{"name":"channel_occupied","channel":"a"}"#,
            ),
            (
                WebhookEvent::of_member(WebhookKind::MemberAdded, "presence-a", "7"),
                r#"{"name":"member_added","channel":"presence-a","user_id":"7"}"#,
            ),
            (
                WebhookEvent::of_channel(WebhookKind::ChannelOccupied, "a").again(),
                r#"{"name":"channel_occupied","channel":"a","again":true}"#,
            ),
            (
                WebhookEvent::of_count("a", 3),
                r#"{"name":"subscription_count","channel":"a","subscription_count":3}"#,
            ),
            (
                client(Some(r#"{"x":"é"}"#)),
                r#"{"name":"client_event","channel":"private-a","event":"client-x","data":"{\"x\":\"é\"}","socket_id":"1.2","user_id":"ann"}"#,
            ),
            (
                client(Some("text")),
                r#"{"name":"client_event","channel":"private-a","event":"client-x","data":"text","socket_id":"1.2","user_id":"ann"}"#,
            ),
        ] {
            let record = String::from_utf8(event.record()).unwrap();
            assert_eq!(record, expected);
            let raw: &RawValue = serde_json::from_str(&record).unwrap();
            let read = WebhookEvent::parse(raw).unwrap();
            assert_eq!((read.kind(), read.record()), (event.kind(), event.record()));
        }
        let other: &RawValue = serde_json::from_str(r#"{"event":"a"}"#).unwrap();
        assert!(WebhookEvent::parse(other).is_none());
        let later: &RawValue = serde_json::from_str(r#"{"name":"x","channel":"a","y":1}"#).unwrap();
        assert_eq!(WebhookEvent::parse(later).unwrap().kind(), None);
    }
}
