//! What one call of a webhook says.

use std::ops::ControlFlow;

use encke_stream::{Item, Offset};
use serde_json::value::RawValue;

use super::event::WebhookEvent;
use crate::json;
use crate::pusher::settings::PusherWebhook;

/// Events of one call.
#[derive(Debug)]
pub struct WebhookBatch<'a> {
    webhook: &'a PusherWebhook,
    /// The events, with commas between.
    events: Vec<u8>,
    count: usize,
}

impl<'a> WebhookBatch<'a> {
    pub(crate) fn new(webhook: &'a PusherWebhook) -> Self {
        WebhookBatch {
            webhook,
            events: Vec::new(),
            count: 0,
        }
    }

    /// Adds those of a record's events that the webhook asks for. Breaks with the position up to where it has, if the batch is full before
    /// the record's end.
    pub fn add(&mut self, item: &Item<'_>) -> ControlFlow<Offset> {
        let (mut taken, mut is_full) = (item.skip, false);
        json::each(item.data, item.skip, item.take, |units, message| {
            is_full = is_full || (self.is_wanted(message) && !self.push(message));
            if !is_full {
                taken = units;
            }
        });
        match is_full {
            true => ControlFlow::Break(item.position(taken)),
            false => ControlFlow::Continue(()),
        }
    }

    fn is_wanted(&self, message: &[u8]) -> bool {
        let record: Option<&RawValue> = serde_json::from_slice(message).ok();
        record.and_then(WebhookEvent::parse).is_some_and(|event| {
            let kind = event.kind().filter(|_| !event.again);
            kind.is_some_and(|kind| self.webhook.wants(kind, &event.channel))
        })
    }

    /// Adds an event. False: there is no room for it.
    fn push(&mut self, event: &[u8]) -> bool {
        let has_room = self.count < EVENTS_MAX && self.events.len() + event.len() < BYTES_MAX;
        if self.count > 0 && !has_room {
            return false;
        }
        if self.count > 0 {
            self.events.push(b',');
        }
        self.events.extend_from_slice(event);
        self.count += 1;
        true
    }

    /// How many events it has.
    pub fn events(&self) -> usize {
        self.count
    }

    /// The body of the call, at a time of day.
    pub fn body(&self, time_ms: u64) -> Vec<u8> {
        let mut body = format!("{{\"time_ms\":{time_ms},\"events\":[").into_bytes();
        body.extend_from_slice(&self.events);
        body.extend_from_slice(b"]}");
        body
    }
}

/// Events of a call.
const EVENTS_MAX: usize = 100;

/// Bytes of the events of a call, unless one event alone has more.
const BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use encke_clock::WallTime;
    use encke_stream::Offset;

    use super::*;
    use crate::pusher::webhook::WebhookKind;

    #[test]
    fn a_batch_has_what_its_webhook_asks_for() {
        let webhook = PusherWebhook {
            url: "http://h/".into(),
            kinds: vec![WebhookKind::ChannelOccupied, WebhookKind::MemberAdded],
            channels: "presence-".into(),
        };
        let data = [
            r#"{"name":"channel_occupied","channel":"presence-a"}"#,
            r#"{"name":"channel_occupied","channel":"a"}"#,
            r#"{"name":"channel_vacated","channel":"presence-a"}"#,
            "7",
            r#"{"name":"member_added","channel":"presence-a","user_id":"1"}"#,
        ];
        let joined = data.join(",");
        let item = Item {
            data: joined.as_bytes(),
            skip: 0,
            take: data.len() as u32,
            end: Offset::behind(5),
            time: WallTime::default(),
        };
        let mut batch = WebhookBatch::new(&webhook);
        assert_eq!(batch.add(&item), ControlFlow::Continue(()));
        assert_eq!(batch.events(), 2);
        let body = format!("{{\"time_ms\":9,\"events\":[{},{}]}}", data[0], data[4]);
        assert_eq!(String::from_utf8(batch.body(9)).unwrap(), body);
    }

    #[test]
    fn a_batch_ends_within_a_record_and_the_next_one_goes_on_there() {
        let webhook = PusherWebhook {
            url: "http://h/".into(),
            kinds: vec![WebhookKind::ChannelOccupied, WebhookKind::ClientEvent],
            channels: "".into(),
        };
        let small = r#"{"name":"channel_occupied","channel":"a"}"#.to_owned();
        let large = |bytes| {
            let data = "x".repeat(bytes);
            format!(r#"{{"name":"client_event","channel":"private-a","data":"{data}"}}"#)
        };
        let again = r#"{"name":"channel_occupied","channel":"a","again":true}"#.to_owned();
        let half = large(BYTES_MAX / 2);
        for (events, sizes) in [
            (vec![small.clone(); 250], vec![100, 100, 50]),
            (vec![half.clone(), half, small.clone()], vec![1, 2]),
            // One that no call has room for is a call of its own.
            (vec![small.clone(), large(BYTES_MAX), small], vec![1, 1, 1]),
            (vec![again; 150], vec![0]),
        ] {
            let joined = events.join(",");
            let mut item = Item {
                data: joined.as_bytes(),
                skip: 0,
                take: events.len() as u32,
                end: Offset::behind(5),
                time: WallTime::default(),
            };
            let mut counts = Vec::new();
            loop {
                let mut batch = WebhookBatch::new(&webhook);
                let added = batch.add(&item);
                counts.push(batch.events());
                let ControlFlow::Break(at) = added else {
                    break;
                };
                assert_eq!(at.sequence, 4);
                item.skip = at.units;
            }
            assert_eq!(counts, sizes);
        }
    }
}
