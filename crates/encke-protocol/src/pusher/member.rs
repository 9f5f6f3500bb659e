//! Members of presence channels: who a subscription says it is, and what clients are told of the others.

use encke_clock::{SteadyTime, WallTime};
use encke_presence::{
    ID_BYTES_MAX, NewMember, PresenceHold, PresencePlace, PresenceRefusal, PresenceRules,
};
use encke_stream::{Item, Offset};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::app::App;
use super::context::PusherContext;
use super::server_message::{member_added, member_removed, subscribed_with};
use super::stream_names::channel_of;
use crate::encoded_run::EncodedRun;
use crate::encoder::{Encoder, Farewell, LINE_OVERHEAD, RecordHead, Variant};
use crate::long_record::RecordForm;
use crate::presence::wire::{MembersRecord, RecordKind};
use crate::run::Run;

/// Who a subscription to a presence channel says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChannelMember {
    pub(super) id: Box<str>,
    /// JSON.
    pub(super) info: Option<Box<str>>,
}

/// A subscription's part in the members of its channel.
#[derive(Debug)]
pub(super) struct Membership {
    pub(super) member: ChannelMember,
    /// The key of the feed that tells of the members.
    pub(super) key: u32,
}

/// The data of a subscription names no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadMember {
    #[error(
        "a presence channel needs channel_data, a text that holds an object with user_id, or a client that has signed in with a user_info of at most {USER_INFO_BYTES_MAX} bytes"
    )]
    NoUser,
    #[error("user_id has more than {ID_BYTES_MAX} bytes")]
    IdTooLong,
    #[error("user_info has more than {USER_INFO_BYTES_MAX} bytes")]
    InfoTooLong,
    #[error("user_info is nested deeper than 127 levels")]
    InfoTooDeep,
}

impl ChannelMember {
    /// Reads the data of a subscription, which its app has signed.
    pub(super) fn parse(channel_data: &str) -> Result<Self, BadMember> {
        #[derive(Deserialize)]
        struct ChannelData<'a> {
            #[serde(borrow)]
            user_id: &'a RawValue,
            #[serde(borrow)]
            user_info: Option<&'a RawValue>,
        }
        let data = serde_json::from_str(channel_data);
        let data: ChannelData<'_> = data.map_err(|_| BadMember::NoUser)?;
        // A number stays as it is written: what is larger than others can count is not another one's.
        let id = data.user_id.get();
        let is_number = id.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        let id = match is_number {
            true => id.to_owned(),
            false => serde_json::from_str(id).map_err(|_| BadMember::NoUser)?,
        };
        ChannelMember::new(id, data.user_info)
    }

    /// A member of that id and with that public data.
    pub(super) fn new(id: String, info: Option<&RawValue>) -> Result<Self, BadMember> {
        if id.is_empty() {
            return Err(BadMember::NoUser);
        }
        if id.len() > ID_BYTES_MAX {
            return Err(BadMember::IdTooLong);
        }
        let info = info.map(RawValue::get);
        if let Some(info) = info {
            if info.len() > USER_INFO_BYTES_MAX {
                return Err(BadMember::InfoTooLong);
            }
            // A raw value may be nested as deep as it likes.
            let read = serde_json::from_str::<Value>(info);
            drop(read.map_err(|_| BadMember::InfoTooDeep)?);
        }
        Ok(ChannelMember {
            id: id.into(),
            info: info.map(Into::into),
        })
    }
}

/// Counts a subscription to the channel whose stream has that name. With a member it becomes one of the channel.
pub(super) fn enter(
    (context, app): (&PusherContext, &App),
    stream: &str,
    member: Option<&ChannelMember>,
    now: SteadyTime,
) -> Result<PresenceHold, PresenceRefusal> {
    let settings = &app.settings;
    let members_max = settings.presence_members_max;
    let rules = PresenceRules {
        grace: settings.presence_grace,
        members_max,
        bytes_max: members_max.saturating_mul(BYTES_OF_MEMBER),
    };
    let place = PresencePlace { stream, rules };
    match member {
        None => context.registry().enter_anonymous(&place),
        Some(ChannelMember { id, info }) => {
            let member = NewMember {
                key: id.clone(),
                id: id.clone(),
                data: info.clone(),
            };
            context.registry().enter(&place, member, now)
        }
    }
}

/// The same for a subscription that another process had: one for which there is no member's place is counted.
pub(super) fn arrive(
    (context, app): (&PusherContext, &App),
    stream: &str,
    member: Option<&ChannelMember>,
) -> Result<PresenceHold, PresenceRefusal> {
    // The time only says which data of a member is the latest, and there is none before.
    let at = SteadyTime::from_ms(0);
    enter((context, app), stream, member, at).or_else(|_| enter((context, app), stream, None, at))
}

/// Encodes what happens to the members of a channel as messages.
#[derive(Debug)]
pub(super) struct PusherMembers;

impl Encoder for PusherMembers {
    fn encode(&self, variant: Variant<'_>, run: &Run<'_>, _now: WallTime, out: &mut EncodedRun) {
        for item in run.items {
            self.message(variant, item.data, item.end, out);
        }
    }

    /// Each member is in two lists, and escaped.
    fn overhead(&self, variant: Variant<'_>, item: &Item<'_>) -> usize {
        LINE_OVERHEAD + variant.name.len() + 3 * item.data.len()
    }

    /// The list of the members is one message, which `presence-members-max` bounds.
    fn form(&self, _: Variant<'_>, _: &RecordHead<'_>, _: WallTime) -> RecordForm {
        RecordForm::each_message(usize::MAX)
    }

    fn message(&self, variant: Variant<'_>, record: &[u8], at: Offset, out: &mut EncodedRun) {
        if let Some(message) = message(channel_of(variant.name), record) {
            out.bytes.extend_from_slice(&message);
        }
        out.mark(at);
    }

    fn farewell(&self, _: Variant<'_>, _: &Farewell, _: WallTime, _: &mut Vec<u8>) {}

    fn heartbeat(&self) -> &'static [u8] {
        b""
    }

    fn names_streams(&self) -> bool {
        true
    }
}

/// What a client is told of a record about the members of a channel. Nothing of other data: clients of the protocol know no such message.
pub(super) fn message(channel: &str, record: &[u8]) -> Option<Vec<u8>> {
    let record = MembersRecord::parse(record)?;
    let id = record.id.map(RawValue::get);
    Some(match record.kind {
        RecordKind::Members => subscribed_with(channel, &record),
        RecordKind::Join => member_added(channel, id?, record.data.map(RawValue::get)),
        RecordKind::Leave => member_removed(channel, id?),
        RecordKind::Update => return None,
    })
}

/// Bytes of `user_info`, as Pusher allows.
const USER_INFO_BYTES_MAX: usize = 1024;

/// Bytes of a member, on average, before the members of a channel take too much memory.
const BYTES_OF_MEMBER: usize = USER_INFO_BYTES_MAX + 256;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_data_of_a_subscription_names_a_member() {
        let parse = ChannelMember::parse;
        let member = parse(r#"{"user_id":"ann","user_info":{"name":"Ann"}}"#).unwrap();
        assert_eq!(&*member.id, "ann");
        assert_eq!(member.info.as_deref(), Some(r#"{"name":"Ann"}"#));
        for number in ["7", "-0", "1e2", "123456789012345678901234567890"] {
            let id = parse(&format!(r#"{{"user_id":{number}}}"#)).unwrap().id;
            assert_eq!(&*id, number);
        }
        for data in ["", "{}", "[]", r#"{"user_id":""}"#, r#"{"user_id":null}"#] {
            assert_eq!(parse(data), Err(BadMember::NoUser), "{data}");
        }
        let long = json!({ "user_id": "a", "user_info": "x".repeat(USER_INFO_BYTES_MAX) });
        assert_eq!(parse(&long.to_string()), Err(BadMember::InfoTooLong));
        let long = json!({ "user_id": "x".repeat(ID_BYTES_MAX + 1) });
        assert_eq!(parse(&long.to_string()), Err(BadMember::IdTooLong));
        let deep = format!(
            r#"{{"user_id":"a","user_info":{}{}}}"#,
            "[".repeat(300),
            "]".repeat(300)
        );
        assert_eq!(parse(&deep), Err(BadMember::InfoTooDeep));
    }

    #[test]
    fn records_are_messages_of_the_protocol() {
        let told = |record: &str| {
            let message = message("presence-a", record.as_bytes())?;
            let message: Value = serde_json::from_slice(&message).unwrap();
            let data = message["data"].as_str().unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(message["channel"], "presence-a");
            Some((message["event"].as_str().unwrap().to_owned(), data))
        };
        let list = r#"{"type":"members","count":2,"connections":2,"members":[{"id":"7","data":{"a":1}},{"id":"b"}]}"#;
        let presence = json!({ "presence": { "count": 2, "ids": ["7", "b"], "hash": { "7": { "a": 1 }, "b": null } } });
        for (record, event, data) in [
            (list, "pusher_internal:subscription_succeeded", presence),
            (
                r#"{"type":"join","id":"c","data":[1],"count":3}"#,
                "pusher_internal:member_added",
                json!({ "user_id": "c", "user_info": [1] }),
            ),
            (
                r#"{"type":"join","id":"c","count":3}"#,
                "pusher_internal:member_added",
                json!({ "user_id": "c" }),
            ),
            (
                r#"{"type":"leave","id":"c","count":2}"#,
                "pusher_internal:member_removed",
                json!({ "user_id": "c" }),
            ),
        ] {
            assert_eq!(told(record), Some((event.to_owned(), data)), "{record}");
        }
        assert_eq!(told(r#"{"type":"update","id":"c","count":2}"#), None);
    }
}
