//! What one call of a webhook says.

use encke_stream::Item;
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

    /// Adds those of a record's events that the webhook asks for. False: the batch has enough, and the record is for the next one.
    pub fn add(&mut self, item: &Item<'_>) -> bool {
        if self.count >= EVENTS_MAX || self.events.len() >= BYTES_MAX {
            return false;
        }
        json::each(item.data, item.skip, item.take, |_, message| {
            let record: Option<&RawValue> = serde_json::from_slice(message).ok();
            let event = record.and_then(WebhookEvent::parse);
            let wants = |event: &WebhookEvent<'_>| {
                let kind = event.kind();
                kind.is_some_and(|kind| self.webhook.wants(kind, &event.channel))
            };
            if !event.as_ref().is_some_and(wants) {
                return;
            }
            if self.count > 0 {
                self.events.push(b',');
            }
            self.events.extend_from_slice(message);
            self.count += 1;
        });
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

/// Events of a call, beside those of the record with the last one.
const EVENTS_MAX: usize = 100;

/// Bytes of the events of a call, beside those of the record with the last one.
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
        assert!(batch.add(&item));
        assert_eq!(batch.events(), 2);
        let body = format!("{{\"time_ms\":9,\"events\":[{},{}]}}", data[0], data[4]);
        assert_eq!(String::from_utf8(batch.body(9)).unwrap(), body);
        while batch.add(&item) {}
        assert_eq!(batch.events(), EVENTS_MAX);
    }
}
