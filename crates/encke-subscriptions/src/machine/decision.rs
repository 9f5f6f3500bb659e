//! A decision about a subscription on its way to the log.

use std::sync::Arc;

use encke_stream::{AckLevel, Append, Data, StreamNo, Target};
use serde_json::json;

use crate::entry::{StoredLink, SubscriptionEntry};
use crate::record::SubscriptionRecord;
use crate::request::RequestNo;
use crate::response::SubscriptionResponse;

/// A decision about a subscription. It takes effect when it is in the log.
#[derive(Debug)]
pub(super) struct Decision {
    /// The subscription.
    pub(super) no: u64,
    /// What commits have changed of its links, and the links that are gone: memory has that already.
    pub(super) observed: (Vec<StoredLink>, Vec<u32>),
    /// What a request has asked to follow.
    pub(super) requested: Vec<StoredLink>,
    /// What changes with the decision.
    pub(super) entries: Vec<SubscriptionEntry>,
    /// The event of the wake that begins, if it is written with it.
    pub(super) event: Option<WakeEvent>,
    /// Who gets a response.
    pub(super) answers: Vec<(RequestNo, Answer)>,
}

/// A response to a request that a decision carries out.
#[derive(Debug)]
pub(super) enum Answer {
    /// This one.
    Response(SubscriptionResponse),
    /// The subscription, which was created.
    Created,
    /// The wake, which was claimed.
    Claimed,
}

/// The event of a wake.
#[derive(Clone, Debug)]
pub(super) struct WakeEvent {
    /// The stream for it.
    pub(super) stream: Arc<str>,
    /// Its number.
    pub(super) stream_no: StreamNo,
    /// The event, in JSON.
    pub(super) text: String,
}

impl Decision {
    pub(super) fn new(no: u64) -> Decision {
        Decision {
            no,
            observed: (Vec::new(), Vec::new()),
            requested: Vec::new(),
            entries: Vec::new(),
            event: None,
            answers: Vec::new(),
        }
    }

    /// All entries that it writes. Links that are gone come before links that may have their names.
    pub(super) fn all_entries(&self, record_bytes: usize) -> Vec<SubscriptionEntry> {
        let (changed, removed) = &self.observed;
        let mut entries = SubscriptionEntry::unlinked(self.no, removed, record_bytes);
        let created = |entry: &&SubscriptionEntry| is_created(entry);
        // The subscription before its links.
        entries.extend(self.entries.iter().filter(created).cloned());
        for links in [changed, &self.requested] {
            entries.extend(SubscriptionEntry::links(
                self.no,
                links.clone(),
                record_bytes,
            ));
        }
        entries.extend(
            self.entries
                .iter()
                .filter(|entry| !is_created(entry))
                .cloned(),
        );
        entries
    }

    /// All that it writes, as records.
    pub(super) fn records(&self, record_bytes: usize) -> Vec<Vec<u8>> {
        SubscriptionRecord::of_entries(self.all_entries(record_bytes), record_bytes)
    }

    /// The decision when the stream for its event takes none. A wake that a worker claims needs no event; any other does not begin.
    pub(super) fn without_event(mut self) -> Decision {
        self.event = None;
        let is_claimed = self
            .answers
            .iter()
            .any(|(_, answer)| matches!(answer, Answer::Claimed));
        if is_claimed {
            for entry in &mut self.entries {
                if let SubscriptionEntry::Woken { announced, .. } = entry {
                    *announced = None;
                }
            }
            return self;
        }
        self.entries
            .retain(|entry| !matches!(entry, SubscriptionEntry::Woken { .. }));
        for (_, answer) in &mut self.answers {
            if let Answer::Response(SubscriptionResponse::Reported { next_wake }) = answer {
                *next_wake = false;
            }
        }
        self
    }

    /// Whether it changes anything but what commits have changed.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.requested.is_empty()
    }
}

fn is_created(entry: &SubscriptionEntry) -> bool {
    matches!(entry, SubscriptionEntry::Created { .. })
}

impl WakeEvent {
    pub(super) fn new(
        stream: Arc<str>,
        stream_no: StreamNo,
        subscription: &str,
        cause: &str,
        generation: u64,
        at_ms: u64,
    ) -> WakeEvent {
        let text = json!({
            "type": "wake",
            "subscription_id": subscription,
            "stream": cause,
            "generation": generation,
            "ts": at_ms,
        });
        WakeEvent {
            stream,
            stream_no,
            text: text.to_string(),
        }
    }

    /// The append of the event. A stream of another type than JSON refuses it. It is acknowledged when it is synced, whatever the level
    /// of the stream: a wake whose event was lost would wait for ever.
    pub(super) fn append(&self) -> Append {
        Append {
            content_type: Some("application/json".into()),
            ack: Some(AckLevel::Synced),
            data: Data {
                bytes: self.text.clone().into_bytes(),
                units: 1,
            },
            ..Append::to(Target::Named((&*self.stream).into()))
        }
    }
}
