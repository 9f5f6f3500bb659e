//! A call of a webhook: what is sent, and what can come of it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::signature::WebhookKey;
use crate::response::{LinkStatus, shown_offset};

/// A call of a webhook.
#[derive(Clone, Debug)]
pub struct WebhookDelivery {
    /// Its number, with which its result is reported.
    pub number: u64,
    /// The URL.
    pub url: Arc<str>,
    /// How long it may take.
    pub timeout: Duration,
    /// The key that signs it.
    pub key: Arc<WebhookKey>,
    /// What is sent.
    pub notice: WakeNotice,
}

/// What a webhook is told of a wake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeNotice {
    /// The id of the subscription.
    pub subscription: Arc<str>,
    /// The name of the wake.
    pub wake_id: Box<str>,
    /// The number of the wake.
    pub generation: u64,
    /// The streams that the subscription follows, and where they ended when the wake began.
    pub links: Vec<LinkStatus>,
    /// Where the receiver reports on the wake.
    pub callback_url: Box<str>,
    /// The credential for that.
    pub callback_token: Box<str>,
}

/// What has come of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// The receiver has done everything.
    Done,
    /// The receiver has accepted it, and reports later.
    Accepted,
    /// The receiver has not accepted it, for this reason.
    Failed(String),
}

impl WakeNotice {
    /// The body of the call.
    pub fn body(&self) -> Vec<u8> {
        let streams: Vec<Value> = self.links.iter().map(link).collect();
        let body = json!({
            "subscription_id": &*self.subscription,
            "wake_id": self.wake_id,
            "generation": self.generation,
            "streams": streams,
            "callback_url": self.callback_url,
            "callback_token": self.callback_token,
        });
        body.to_string().into_bytes()
    }
}

/// A link as calls and claims show it.
fn link(link: &LinkStatus) -> Value {
    json!({
        "path": &*link.stream,
        "link_type": if link.explicit { "explicit" } else { "glob" },
        "acked_offset": shown_offset(link.acked),
        "tail_offset": shown_offset(link.tail),
        "has_pending": link.has_pending,
    })
}

impl DeliveryResult {
    /// The result that a response of status 2xx with this body says.
    pub fn of_body(body: &[u8]) -> DeliveryResult {
        match serde_json::from_slice::<Value>(body) {
            Ok(Value::Object(members)) if members.get("done") == Some(&Value::Bool(true)) => {
                DeliveryResult::Done
            }
            _ => DeliveryResult::Accepted,
        }
    }
}

#[cfg(test)]
mod tests {
    use encke_stream::Offset;

    use super::*;

    #[test]
    fn a_body_has_all_members() {
        let notice = WakeNotice {
            subscription: "s".into(),
            wake_id: "w_1".into(),
            generation: 2,
            links: vec![LinkStatus {
                stream: "events/a".into(),
                explicit: false,
                acked: Offset::START,
                tail: Offset::behind(7),
                has_pending: true,
            }],
            callback_url: "http://h/cb".into(),
            callback_token: "t".into(),
        };
        let body: Value = serde_json::from_slice(&notice.body()).unwrap();
        let expected = json!({
            "subscription_id": "s",
            "wake_id": "w_1",
            "generation": 2,
            "streams": [{
                "path": "events/a",
                "link_type": "glob",
                "acked_offset": "-1",
                "tail_offset": "0000000000000007_0000000000000000",
                "has_pending": true,
            }],
            "callback_url": "http://h/cb",
            "callback_token": "t",
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn only_the_word_done_is_done() {
        for (body, result) in [
            (&br#"{"done":true,"x":1}"#[..], DeliveryResult::Done),
            (br#"{"done":false}"#, DeliveryResult::Accepted),
            (br#"{"done":"true"}"#, DeliveryResult::Accepted),
            (br#"{"done":1}"#, DeliveryResult::Accepted),
            (br#"[{"done":true}]"#, DeliveryResult::Accepted),
            (br#"{"done":true"#, DeliveryResult::Accepted),
            (b"{}", DeliveryResult::Accepted),
            (b"", DeliveryResult::Accepted),
            (b"\xff", DeliveryResult::Accepted),
        ] {
            assert_eq!(DeliveryResult::of_body(body), result, "{body:?}");
        }
    }
}
