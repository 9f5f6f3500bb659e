//! The records of a channel as messages, shared by all its subscribers.

use std::sync::Arc;

use encke_clock::WallTime;
use encke_stream::{EphemeralMessage, Item, MediaKind, Offset};

use super::app::App;
use super::event::StoredEvent;
use super::position::SignedPosition;
use super::server_message::write_event;
use super::stream_names::channel_of;
use crate::encoded_run::{EncodedRun, Omission};
use crate::encoder::{Encoder, Farewell, LINE_OVERHEAD, RecordHead, Variant};
use crate::json;
use crate::long_record::RecordForm;
use crate::run::Run;

/// Encodes events as messages. What is no event in a stream of an app is left out.
#[derive(Debug)]
pub(super) struct PusherRecords {
    pub(super) apps: Vec<Arc<App>>,
}

impl PusherRecords {
    /// The app of a stream.
    fn app_of(&self, stream: &str) -> Option<&App> {
        let app = self.apps.iter().find(|app| app.has_stream(stream));
        app.map(|app| &**app)
    }
}

impl Encoder for PusherRecords {
    fn encode(&self, variant: Variant<'_>, run: &Run<'_>, _now: WallTime, out: &mut EncodedRun) {
        if variant.kind != MediaKind::Json {
            return;
        }
        for item in run.items {
            json::each(item.data, item.skip, item.take, |units, message| {
                self.message(variant, message, item.position(units), out);
            });
        }
    }

    fn overhead(&self, variant: Variant<'_>, item: &Item<'_>) -> usize {
        let message = LINE_OVERHEAD + 2 * variant.name.len();
        // An object is written as a string.
        let escaped = |byte: &&u8| matches!(byte, b'"' | b'\\');
        let quotes = item.data.iter().filter(escaped).count();
        message * item.take as usize + 2 * quotes
    }

    fn form(&self, _: Variant<'_>, _: &RecordHead<'_>, _: WallTime) -> RecordForm {
        let apps = self.apps.iter();
        let bytes_max = apps.map(|app| app.settings.event_bytes_max).max();
        RecordForm::each_message(stored_bytes_max(bytes_max.unwrap_or_default()))
    }

    fn message(&self, variant: Variant<'_>, message: &[u8], at: Offset, out: &mut EncodedRun) {
        let Some(event) = StoredEvent::parse(message) else {
            return;
        };
        let channel = channel_of(variant.name);
        let app = match variant.option {
            WITH_OFFSETS => self.app_of(variant.name),
            _ => None,
        };
        let position = app.map(|app| SignedPosition::new(app, channel, at));
        write_event(&event, channel, position.as_ref(), &mut out.bytes);
        if let Some(socket) = event.socket() {
            out.omissions.push(Omission {
                mark: out.marks.len(),
                number: socket.number(),
            });
        }
        out.mark(at);
    }

    /// A message of WebSocket has one event.
    fn ephemeral(&self, message: &EphemeralMessage, out: &mut Vec<u8>) {
        if message.data.units == 1
            && let Some(event) = StoredEvent::parse(&message.data.bytes)
        {
            write_event(&event, channel_of(&message.label.name), None, out);
        }
    }

    fn has_ephemeral(&self) -> bool {
        true
    }

    /// The connection is closed, and the close code says what the client does then.
    fn farewell(&self, _: Variant<'_>, _: &Farewell, _: WallTime, _: &mut Vec<u8>) {}

    /// The wire pings.
    fn heartbeat(&self) -> &'static [u8] {
        b""
    }

    fn names_streams(&self) -> bool {
        true
    }
}

/// Bytes of a stored event, at most: each byte of its data can be escaped, and the name and the channel are short.
fn stored_bytes_max(event_bytes_max: usize) -> usize {
    event_bytes_max.saturating_mul(6).saturating_add(4 << 10)
}

/// The option of subscribers that are told the position behind each event.
pub(super) const WITH_OFFSETS: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pusher::settings::PusherApp;

    fn app() -> App {
        let settings = PusherApp::new("1", "k", "0123456789abcdef".into());
        App::new(settings, Arc::default())
    }

    fn encoded(items: &[Item<'_>]) -> EncodedRun {
        encoded_with(0, items)
    }

    fn encoded_with(option: u64, items: &[Item<'_>]) -> EncodedRun {
        let variant = Variant {
            name: "app/1/private-a",
            kind: MediaKind::Json,
            option,
        };
        let run = Run::position(Offset::behind(9)).with(items);
        let mut out = EncodedRun::default();
        let records = PusherRecords {
            apps: vec![Arc::new(app())],
        };
        records.encode(variant, &run, WallTime::default(), &mut out);
        out
    }

    fn item(data: &str, units: u32, sequence: u64) -> Item<'_> {
        Item {
            data: data.as_bytes(),
            skip: 0,
            take: units,
            end: Offset::behind(sequence),
            time: WallTime::default(),
        }
    }

    #[test]
    fn each_event_is_a_message() {
        let items = [
            item(r#"{"event":"a","data":"x","socket_id":"1.2"}"#, 1, 5),
            item("7", 1, 6),
            item(r#"{"event":"b"},[],{"event":"c","data":{}}"#, 3, 9),
        ];
        let out = encoded(&items);
        let mut messages = Vec::new();
        let mut start = 0;
        for mark in &out.marks {
            messages.push(std::str::from_utf8(&out.bytes[start..mark.end]).unwrap());
            start = mark.end;
        }
        assert_eq!(start, out.bytes.len());
        assert_eq!(
            messages,
            [
                r#"{"event":"a","channel":"private-a","data":"x"}"#,
                r#"{"event":"b","channel":"private-a"}"#,
                r#"{"event":"c","channel":"private-a","data":"{}"}"#,
            ]
        );
        let at: Vec<_> = out.marks.iter().map(|mark| mark.at).collect();
        let inside = Offset {
            sequence: 8,
            units: 1,
        };
        assert_eq!(at, [Offset::behind(5), inside, Offset::behind(9)]);
        assert_eq!(
            out.omissions,
            [Omission {
                mark: 0,
                number: 1 << 32 | 2
            }]
        );
    }

    #[test]
    fn who_asks_gets_the_position_behind_each_event() {
        let items = [item(r#"{"event":"b"},{"event":"c","data":"x"}"#, 2, 9)];
        let out = encoded_with(WITH_OFFSETS, &items);
        let inside = Offset {
            sequence: 8,
            units: 1,
        };
        let signed = |at| SignedPosition::new(&app(), "private-a", at);
        let (inside, end) = (signed(inside), signed(Offset::behind(9)));
        let expected = format!(
            r#"{{"event":"b","channel":"private-a","offset":"{inside}"}}{{"event":"c","channel":"private-a","data":"x","offset":"{end}"}}"#
        );
        assert_eq!(String::from_utf8(out.bytes).unwrap(), expected);
    }

    #[test]
    fn a_reader_inside_a_record_gets_the_rest() {
        let mut rest = item(r#"{"event":"b"},{"event":"c"}"#, 2, 9);
        rest.skip = 1;
        let out = encoded(&[rest]);
        assert_eq!(out.bytes, br#"{"event":"c","channel":"private-a"}"#);
        assert!(out.omissions.is_empty());
    }
}
