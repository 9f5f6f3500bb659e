//! Events as streams hold them: records of JSON with the members `event`, `data` and, if a client has caused it, `socket_id`.

use std::borrow::Cow;

use encke_stream::Data;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::socket_id::SocketId;

/// An event that is to be stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewEvent<'a> {
    pub(super) name: &'a str,
    pub(super) data: Option<NewData<'a>>,
    /// The connection that does not get it.
    pub(super) socket: Option<SocketId>,
    /// The member of a presence channel that sends it.
    pub(super) user: Option<&'a str>,
}

/// The data of an event.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum NewData<'a> {
    /// A text, as servers send it.
    Text(&'a str),
    /// Any JSON, as clients send it.
    Json(&'a RawValue),
}

/// An event that was stored, by this protocol or as an append of any other.
#[derive(Debug, Deserialize)]
pub(super) struct StoredEvent<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    socket_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    user_id: Option<&'a RawValue>,
}

impl NewEvent<'_> {
    /// The record of it.
    pub(super) fn record(&self) -> Data {
        #[derive(Serialize)]
        struct Record<'a> {
            event: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            data: Option<NewData<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            socket_id: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            user_id: Option<&'a str>,
        }
        let record = Record {
            event: self.name,
            data: self.data,
            socket_id: self.socket.map(|socket| socket.to_string()),
            user_id: self.user,
        };
        Data {
            // Strings have a form in JSON.
            bytes: serde_json::to_vec(&record).unwrap_or_default(),
            units: 1,
        }
    }
}

impl<'a> StoredEvent<'a> {
    /// Reads a message of a stream. `None`: it is no event.
    pub(super) fn parse(message: &'a [u8]) -> Option<Self> {
        let event: StoredEvent<'a> = serde_json::from_slice(message).ok()?;
        is_text(event.event).then_some(event)
    }

    /// The name, in the form of JSON.
    pub(super) fn name(&self) -> &'a str {
        self.event.get()
    }

    /// The data as a string in the form of JSON: clients know no other. `None`: there is none.
    pub(super) fn data(&self) -> Option<Cow<'a, str>> {
        let data = self.data?;
        match is_text(data) {
            true => Some(data.get().into()),
            false => serde_json::to_string(data.get()).ok().map(Cow::Owned),
        }
    }

    /// Who has sent it, in the form of JSON.
    pub(super) fn user(&self) -> Option<&'a str> {
        let user = self.user_id.filter(|user| is_text(user))?;
        Some(user.get())
    }

    /// The connection that does not get it.
    pub(super) fn socket(&self) -> Option<SocketId> {
        self.socket_id.as_ref()?.parse().ok()
    }
}

fn is_text(value: &RawValue) -> bool {
    value.get().starts_with('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_back() {
        let event = NewEvent {
            name: "a \"b\"",
            data: Some(NewData::Text("{\"x\":1}")),
            socket: "1.2".parse().ok(),
            user: None,
        };
        let record = event.record();
        assert_eq!(record.units, 1);
        let text = r#"{"event":"a \"b\"","data":"{\"x\":1}","socket_id":"1.2"}"#;
        assert_eq!(record.bytes, text.as_bytes());
        let stored = StoredEvent::parse(&record.bytes).unwrap();
        assert_eq!(stored.name(), r#""a \"b\"""#);
        assert_eq!(stored.data().as_deref(), Some(r#""{\"x\":1}""#));
        assert_eq!(stored.socket(), "1.2".parse().ok());
    }

    #[test]
    fn other_messages_are_events_if_they_have_a_name() {
        for (message, data) in [
            (r#"{"event":"e"}"#, None),
            (
                r#"{"event":"e","data":{"a":[1]},"more":1}"#,
                Some(r#""{\"a\":[1]}""#),
            ),
            (r#"{"data":7,"event":"e"}"#, Some(r#""7""#)),
            (r#"{"event":"e","data":null}"#, None),
            (r#"{"event":"e","data":"\u00e4"}"#, Some(r#""\u00e4""#)),
            // A socket id of another form is nobody's.
            (r#"{"event":"e","socket_id":"x"}"#, None),
        ] {
            let event = StoredEvent::parse(message.as_bytes()).unwrap();
            assert_eq!(event.data().as_deref(), data, "{message}");
            assert_eq!(event.socket(), None);
        }
        for message in [
            "1",
            "\"e\"",
            "[]",
            "{}",
            r#"{"event":1}"#,
            r#"{"data":"x"}"#,
        ] {
            assert!(
                StoredEvent::parse(message.as_bytes()).is_none(),
                "{message}"
            );
        }
    }
}
