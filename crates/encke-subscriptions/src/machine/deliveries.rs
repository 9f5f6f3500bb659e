//! Calls of webhooks, and what comes of them.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;

use super::decision::Decision;
use super::live::Call;
use super::op::DeliveryUnderWay;
use super::state::{SubscriptionEffect, SubscriptionMachine};
use super::subscription::Subscription;
use crate::entry::{StoredTime, SubscriptionEntry};
use crate::glob::RESERVED_SEGMENT;
use crate::response::LinkStatus;
use crate::token::WakeName;
use crate::webhook::delivery::{DeliveryResult, WakeNotice, WebhookDelivery};

impl SubscriptionMachine {
    /// Has the webhook of a subscription be called when its turn comes.
    pub(super) fn queue_call(&mut self, no: u64) {
        if let Some(subscription) = self.subscriptions.get_mut(&no)
            && !std::mem::replace(&mut subscription.live.is_queued, true)
        {
            let is_retry = subscription.retry.failures > 0;
            self.calls.add(&subscription.receiver, no, is_retry);
        }
    }

    /// Begins the calls for which there is room.
    pub(super) fn begin_calls(&mut self, now: Now) {
        while !self.is_stopping
            && let Some((no, is_doubtful)) = self.calls.next()
        {
            let Some(subscription) = self.subscriptions.get_mut(&no) else {
                continue;
            };
            subscription.live.is_queued = false;
            let is_due = subscription.needs_call()
                && subscription.has_news()
                && !subscription.live.is_busy
                && subscription.retry.at <= now.steady;
            if !is_due {
                // What has changed since may need a call again.
                self.touched.insert(no);
                continue;
            }
            let until = now.steady.after(subscription.lease_time());
            subscription.live.call = Some(Call {
                generation: subscription.generation,
                until,
            });
            subscription.live.failed_until = Some(until);
            let receiver = Arc::clone(&subscription.receiver);
            let under_way = DeliveryUnderWay {
                no,
                generation: subscription.generation,
                receiver: Arc::clone(&receiver),
                is_doubtful,
                began: now.steady,
            };
            let timeout = self.limits.delivery_timeout.min(subscription.lease_time());
            let number = self.next_delivery;
            self.next_delivery += 1;
            self.calls.begin(&receiver, is_doubtful);
            self.deliveries.insert(number, under_way);
            let subscription = &self.subscriptions[&no];
            let delivery = WebhookDelivery {
                number,
                url: subscription.config.url().unwrap_or_default().into(),
                timeout,
                key: Arc::clone(&self.key),
                notice: self.notice(subscription),
            };
            self.effects
                .push(SubscriptionEffect::Deliver(Box::new(delivery)));
        }
    }

    /// Handles the result of a call.
    pub fn delivered(&mut self, now: Now, number: u64, result: DeliveryResult) {
        let Some(delivery) = self.deliveries.remove(&number) else {
            return;
        };
        let took = now.steady.since(delivery.began);
        let is_quick = took < QUICK && !matches!(result, DeliveryResult::Failed(_));
        self.calls
            .end(&delivery.receiver, delivery.is_doubtful, is_quick);
        match &result {
            DeliveryResult::Done | DeliveryResult::Accepted => self.counts.calls_accepted += 1,
            DeliveryResult::Failed(reason) => {
                self.counts.calls_failed += 1;
                tracing::debug!(receiver = &*delivery.receiver, %reason, "a webhook has failed");
            }
        }
        // A subscription that was deleted meanwhile has another number than a new one of its id.
        if let Some(subscription) = self.subscriptions.get_mut(&delivery.no) {
            subscription.live.result = Some((delivery.generation, result));
            self.touched.insert(delivery.no);
        }
    }

    /// Decides what follows from the result of a call.
    pub(super) fn judge_delivery(
        &mut self,
        now: Now,
        no: u64,
        generation: u64,
        result: DeliveryResult,
    ) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let until = subscription.live.call.take().map(|call| call.until);
        // A late response of a wake that is over says nothing of the present one.
        let wake = subscription.wake.as_ref();
        let Some(wake) = wake.filter(|_| subscription.generation == generation) else {
            return;
        };
        let has_failed = subscription.retry.failures > 0;
        let mut decision = Decision::new(no);
        match result {
            DeliveryResult::Done => {
                let cursors = wake.snapshot.tails.clone();
                decision.entries =
                    SubscriptionEntry::cursors(no, &cursors, self.limits.record_bytes);
                if has_failed {
                    self.forgive(now, &mut decision);
                }
                self.pace(now, no, true);
                self.end_wake(now, &mut decision, &cursors);
            }
            DeliveryResult::Accepted => {
                let leased = wake.lease.as_ref().map(|lease| lease.until);
                let until = until.max(leased).unwrap_or(now.steady);
                if has_failed {
                    self.forgive(now, &mut decision);
                }
                decision.entries.push(SubscriptionEntry::Leased {
                    no,
                    worker: None,
                    until: StoredTime::of(now, until),
                });
            }
            // It has reported on the wake, so that it has got the call.
            DeliveryResult::Failed(_) if wake.lease.is_some() => return,
            DeliveryResult::Failed(_) => {
                let failures = subscription.retry.failures.saturating_add(1);
                let at = now.steady.after(self.pause(no, failures));
                decision.entries.push(SubscriptionEntry::Retry {
                    no,
                    failures,
                    at: StoredTime::of(now, at),
                });
            }
        }
        self.decide(decision);
    }

    /// Forgets failed calls: the receiver responds again.
    pub(super) fn forgive(&mut self, now: Now, decision: &mut Decision) {
        let no = decision.no;
        decision.entries.push(SubscriptionEntry::Retry {
            no,
            failures: 0,
            at: StoredTime::of(now, now.steady),
        });
    }

    /// What a webhook is told.
    fn notice(&self, subscription: &Subscription) -> WakeNotice {
        let wake = WakeName {
            subscription: subscription.no,
            generation: subscription.generation,
        };
        let root = self.root(subscription);
        let id = encoded(&subscription.id);
        WakeNotice {
            subscription: Arc::clone(&subscription.id),
            wake_id: self.secrets.wake_id(wake).into(),
            generation: wake.generation,
            links: subscription.snapshot(),
            callback_url: format!("{root}/{RESERVED_SEGMENT}/subscriptions/{id}/callback").into(),
            callback_token: self.secrets.token(wake).to_string().into(),
        }
    }
}

impl Subscription {
    /// The links as the current wake has found them.
    fn snapshot(&self) -> Vec<LinkStatus> {
        let mut links = self.links.status();
        links.retain_mut(|link| {
            let number = self.links.number(&link.stream);
            let tail = number.and_then(|number| self.snapshot_tail(number));
            if let Some(tail) = tail {
                link.tail = tail;
                link.has_pending = tail > link.acked;
            }
            tail.is_some()
        });
        links
    }
}

/// A segment of a path, percent-encoded.
fn encoded(segment: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(byte.into());
            }
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// A receiver whose last call was accepted within this time delays no other.
const QUICK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_is_encoded_as_one_segment() {
        assert_eq!(super::encoded("sub-1._~"), "sub-1._~");
        assert_eq!(super::encoded("a b?ä%"), "a%20b%3F%C3%A4%25");
    }
}
