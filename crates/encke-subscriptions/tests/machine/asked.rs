//! Requests and configurations, as tests need them.

use encke_stream::Offset;
use encke_subscriptions::{
    ClaimedWake, ReportKind, StreamAck, SubscriptionConfig, SubscriptionRequest, WakeReport,
};

pub(crate) const ROOT: &str = "http://127.0.0.1:4437/v1/stream";

/// What a worker or a receiver knows of its wake.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) id: String,
    pub(crate) wake_id: Box<str>,
    pub(crate) generation: u64,
    pub(crate) token: Box<str>,
}

pub(crate) fn create(id: &str, config: SubscriptionConfig) -> SubscriptionRequest {
    SubscriptionRequest::Create {
        id: id.into(),
        config: config.checked().unwrap(),
        root: ROOT.into(),
    }
}

pub(crate) fn claim(id: &str, worker: &str) -> SubscriptionRequest {
    SubscriptionRequest::Claim {
        id: id.into(),
        worker: worker.into(),
    }
}

pub(crate) fn report(
    kind: ReportKind,
    held: &Held,
    acks: &[(&str, Offset)],
    done: bool,
) -> SubscriptionRequest {
    let acks = acks.iter().map(|(stream, offset)| StreamAck {
        stream: (*stream).into(),
        offset: offset.to_string().into(),
    });
    SubscriptionRequest::Report(WakeReport {
        id: (&*held.id).into(),
        kind,
        token: held.token.clone(),
        wake_id: Some(held.wake_id.clone()),
        generation: Some(held.generation),
        acks: acks.collect(),
        done,
    })
}

pub(crate) fn held(id: &str, claimed: &ClaimedWake) -> Held {
    Held {
        id: id.to_owned(),
        wake_id: claimed.wake_id.clone(),
        generation: claimed.generation,
        token: claimed.token.clone(),
    }
}

/// A webhook that follows a pattern.
pub(crate) fn webhook(pattern: &str) -> SubscriptionConfig {
    SubscriptionConfig {
        pattern: Some(pattern.parse().unwrap()),
        lease_ms: 1_000,
        ..SubscriptionConfig::webhook("https://hook.example/a")
    }
}

/// Pull-wake that follows a pattern.
pub(crate) fn pull(pattern: &str) -> SubscriptionConfig {
    SubscriptionConfig {
        pattern: Some(pattern.parse().unwrap()),
        lease_ms: 1_000,
        ..SubscriptionConfig::pull_wake("wake/pool")
    }
}
