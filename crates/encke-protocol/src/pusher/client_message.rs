//! Messages of clients.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientMessage<'a> {
    Ping,
    /// Any message proves that the client is there; this one says nothing else.
    Pong,
    Subscribe(SubscribeData<'a>),
    Unsubscribe {
        channel: Cow<'a, str>,
    },
    /// An event for the other subscribers of a channel.
    ClientEvent(ClientEvent<'a>),
    /// The client says who its user is.
    Signin(SigninData<'a>),
    /// A part of the protocol that this server does not have.
    NotEnabled(Cow<'a, str>),
}

/// Who the user of a client is, as its app has signed it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct SigninData<'a> {
    #[serde(borrow)]
    pub(super) auth: Cow<'a, str>,
    /// As it was signed.
    #[serde(borrow)]
    pub(super) user_data: Cow<'a, str>,
}

/// An event of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientEvent<'a> {
    pub(super) name: Cow<'a, str>,
    /// `None`: the message names none, or something that is no text.
    pub(super) channel: Option<Cow<'a, str>>,
    /// JSON.
    pub(super) data: Option<&'a str>,
}

impl ClientEvent<'_> {
    /// The data as other clients receive it: a text without quotes and escapes, and other JSON as it was sent.
    pub(super) fn text(&self) -> Option<Cow<'_, str>> {
        let data = self.data?;
        Some(serde_json::from_str(data).map_or(data.into(), |Text(text)| text))
    }
}

/// The data of a subscription.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct SubscribeData<'a> {
    #[serde(borrow)]
    pub(super) channel: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) auth: Option<Cow<'a, str>>,
    /// As it was signed.
    #[serde(borrow)]
    pub(super) channel_data: Option<Cow<'a, str>>,
    /// Where the client has got to. It wants what it has missed since, and the offsets of events. No client of Pusher sends it.
    #[serde(borrow)]
    pub(super) encke_after: Option<Cow<'a, str>>,
}

/// A message that means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadMessage {
    #[error("the message is no JSON object with an event of type string")]
    NoEvent,
    #[error("the data of {0} must be an object with a channel of type string")]
    Data(&'static str),
    #[error("the data of pusher:signin must be an object with auth and user_data of type string")]
    Signin,
    #[error("the server knows no such event")]
    UnknownEvent,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    channel: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct UnsubscribeData<'a> {
    #[serde(borrow)]
    channel: Cow<'a, str>,
}

impl<'a> ClientMessage<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, BadMessage> {
        let envelope: Envelope<'a> = serde_json::from_str(text).map_err(|_| BadMessage::NoEvent)?;
        let data = envelope.data.map_or("null", RawValue::get);
        Ok(match &*envelope.event {
            "pusher:ping" => ClientMessage::Ping,
            "pusher:pong" => ClientMessage::Pong,
            SUBSCRIBE => ClientMessage::Subscribe(
                serde_json::from_str(data).map_err(|_| BadMessage::Data(SUBSCRIBE))?,
            ),
            SIGNIN => {
                ClientMessage::Signin(serde_json::from_str(data).map_err(|_| BadMessage::Signin)?)
            }
            UNSUBSCRIBE => {
                let data: UnsubscribeData<'a> =
                    serde_json::from_str(data).map_err(|_| BadMessage::Data(UNSUBSCRIBE))?;
                ClientMessage::Unsubscribe {
                    channel: data.channel,
                }
            }
            event if event.starts_with("client-") => ClientMessage::ClientEvent(ClientEvent {
                channel: envelope
                    .channel
                    .and_then(|channel| serde_json::from_str::<Text<'a>>(channel.get()).ok())
                    .map(|Text(channel)| channel),
                data: envelope.data.map(RawValue::get),
                name: envelope.event,
            }),
            event if event.starts_with("pusher:") => ClientMessage::NotEnabled(envelope.event),
            _ => return Err(BadMessage::UnknownEvent),
        })
    }
}

const SUBSCRIBE: &str = "pusher:subscribe";
const UNSUBSCRIBE: &str = "pusher:unsubscribe";
const SIGNIN: &str = "pusher:signin";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_those_of_clients() {
        let subscribe = |auth: Option<&'static str>, data: Option<&'static str>| {
            Ok(ClientMessage::Subscribe(SubscribeData {
                channel: "a".into(),
                auth: auth.map(Cow::from),
                channel_data: data.map(Cow::from),
                encke_after: None,
            }))
        };
        for (text, expected) in [
            (
                r#"{"event":"pusher:ping","data":{}}"#,
                Ok(ClientMessage::Ping),
            ),
            (r#"{"event":"pusher:ping"}"#, Ok(ClientMessage::Ping)),
            (
                r#"{"event":"pusher:pong","data":"{}"}"#,
                Ok(ClientMessage::Pong),
            ),
            (
                r#"{"event":"pusher:subscribe","data":{"channel":"a"}}"#,
                subscribe(None, None),
            ),
            (
                r#"{"event":"pusher:subscribe","data":{"auth":"","channel":"\u0061"},"channel":"b"}"#,
                subscribe(Some(""), None),
            ),
            (
                r#"{"event":"pusher:subscribe","data":{"channel":"a","auth":"k:1","channel_data":"{\"u\":1}"}}"#,
                subscribe(Some("k:1"), Some("{\"u\":1}")),
            ),
            (
                r#"{"event":"pusher:unsubscribe","data":{"channel":"a"}}"#,
                Ok(ClientMessage::Unsubscribe {
                    channel: "a".into(),
                }),
            ),
            (
                r#"{"event":"client-x","channel":"a","data":1}"#,
                Ok(ClientMessage::ClientEvent(ClientEvent {
                    name: "client-x".into(),
                    channel: Some("a".into()),
                    data: Some("1"),
                })),
            ),
            (
                r#"{"event":"client-x","channel":1}"#,
                Ok(ClientMessage::ClientEvent(ClientEvent {
                    name: "client-x".into(),
                    channel: None,
                    data: None,
                })),
            ),
            (
                r#"{"event":"pusher:signin","data":{"auth":"k:1","user_data":"{}"}}"#,
                Ok(ClientMessage::Signin(SigninData {
                    auth: "k:1".into(),
                    user_data: "{}".into(),
                })),
            ),
            (
                r#"{"event":"pusher:signin","data":{}}"#,
                Err(BadMessage::Signin),
            ),
            (
                r#"{"event":"pusher:other","data":{}}"#,
                Ok(ClientMessage::NotEnabled("pusher:other".into())),
            ),
            (r#"{"event":"x"}"#, Err(BadMessage::UnknownEvent)),
            (
                r#"{"event":"pusher_internal:subscription_succeeded"}"#,
                Err(BadMessage::UnknownEvent),
            ),
            (
                r#"{"event":"pusher:subscribe"}"#,
                Err(BadMessage::Data(SUBSCRIBE)),
            ),
            (
                r#"{"event":"pusher:subscribe","data":"a"}"#,
                Err(BadMessage::Data(SUBSCRIBE)),
            ),
            (
                r#"{"event":"pusher:subscribe","data":{"channel":1}}"#,
                Err(BadMessage::Data(SUBSCRIBE)),
            ),
            // Two channels are not one.
            (
                r#"{"event":"pusher:subscribe","data":{"channel":"a","channel":"b"}}"#,
                Err(BadMessage::Data(SUBSCRIBE)),
            ),
            (
                r#"{"event":"pusher:unsubscribe","data":{}}"#,
                Err(BadMessage::Data(UNSUBSCRIBE)),
            ),
            (r#"{"event":1}"#, Err(BadMessage::NoEvent)),
            (
                r#"{"event":"pusher:ping","event":"pusher:pong"}"#,
                Err(BadMessage::NoEvent),
            ),
            ("{}", Err(BadMessage::NoEvent)),
            ("[]", Err(BadMessage::NoEvent)),
            ("", Err(BadMessage::NoEvent)),
            ("{\"event\":\"pusher:ping\"} x", Err(BadMessage::NoEvent)),
        ] {
            assert_eq!(ClientMessage::parse(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(text in "\\PC{0,200}") {
            let _ = ClientMessage::parse(&text);
        }

        #[test]
        fn a_subscription_reads_back(channel in "\\PC{0,20}", auth in "\\PC{0,20}") {
            let message = serde_json::json!({
                "event": "pusher:subscribe",
                "data": { "channel": channel, "auth": auth },
            });
            let text = message.to_string();
            let Ok(ClientMessage::Subscribe(data)) = ClientMessage::parse(&text) else {
                return Err(TestCaseError::fail("no subscription"));
            };
            prop_assert_eq!(&*data.channel, &*channel);
            prop_assert_eq!(data.auth.as_deref(), Some(&*auth));
        }
    }
}
