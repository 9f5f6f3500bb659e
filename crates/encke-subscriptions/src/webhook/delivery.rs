//! A call of a webhook: what is sent, and what can come of it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::Value;

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
    /// Writes the body of the call, without a copy of it in between: there can be as many links as the limits allow.
    pub fn write_body(&self, bytes: &mut Vec<u8>) {
        let links = self.links.iter().map(|link| link.stream.len() + LINK_BYTES);
        bytes.reserve(links.sum::<usize>() + HEAD_BYTES);
        let body = NoticeBody {
            subscription_id: &self.subscription,
            wake_id: &self.wake_id,
            generation: self.generation,
            streams: LinkBodies(&self.links),
            callback_url: &self.callback_url,
            callback_token: &self.callback_token,
        };
        serde_json::to_writer(bytes, &body).expect(
            "a vector takes all that is written, and no key of the body is anything but a text",
        );
    }
}

/// The body of a call.
#[derive(Serialize)]
struct NoticeBody<'a> {
    subscription_id: &'a str,
    wake_id: &'a str,
    generation: u64,
    streams: LinkBodies<'a>,
    callback_url: &'a str,
    callback_token: &'a str,
}

/// The links in the body of a call.
struct LinkBodies<'a>(&'a [LinkStatus]);

impl Serialize for LinkBodies<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(LinkBody::of))
    }
}

/// A link as calls and claims show it.
#[derive(Serialize)]
struct LinkBody<'a> {
    path: &'a str,
    link_type: &'static str,
    acked_offset: String,
    tail_offset: String,
    has_pending: bool,
}

impl<'a> LinkBody<'a> {
    fn of(link: &'a LinkStatus) -> LinkBody<'a> {
        LinkBody {
            path: &link.stream,
            link_type: if link.explicit { "explicit" } else { "glob" },
            acked_offset: shown_offset(link.acked),
            tail_offset: shown_offset(link.tail),
            has_pending: link.has_pending,
        }
    }
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

/// At least as many bytes as a link takes in the body of a call, without its name.
const LINK_BYTES: usize = 160;

/// As many bytes as the rest of the body takes, unless its URL is very long.
const HEAD_BYTES: usize = 1_024;

#[cfg(test)]
mod tests {
    use encke_stream::Offset;
    use serde_json::json;

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
        let mut bytes = Vec::new();
        notice.write_body(&mut bytes);
        let body: Value = serde_json::from_slice(&bytes).unwrap();
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
    fn a_body_takes_one_buffer() {
        let mut prefix = vec![b'x'; 11];
        prefix.shrink_to_fit();
        let links = (0..10_000).map(|number| LinkStatus {
            stream: format!("{number:0128}").into(),
            explicit: true,
            acked: Offset::behind(number),
            tail: Offset::behind(u64::MAX - 1),
            has_pending: false,
        });
        let notice = WakeNotice {
            subscription: "s".into(),
            wake_id: "w_1".into(),
            generation: u64::MAX,
            links: links.collect(),
            callback_url: "http://h/cb".into(),
            callback_token: "t".into(),
        };
        notice.write_body(&mut prefix);
        // It was reserved at once, and little of it is left.
        let names_bytes = 10_000 * 128;
        let most = prefix.capacity();
        assert!(
            most <= 11 + names_bytes + 10_000 * LINK_BYTES + HEAD_BYTES,
            "{most}"
        );
        assert!(prefix.len() > most * 9 / 10, "{} of {most}", prefix.len());
        assert!(prefix.starts_with(b"xxxxxxxxxxx{"));
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
