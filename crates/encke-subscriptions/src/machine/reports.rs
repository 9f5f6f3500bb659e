//! Claims and reports of workers.

use std::collections::BTreeMap;

use encke_clock::Now;

use super::decision::{Answer, Decision};
use super::state::SubscriptionMachine;
use super::subscription::Subscription;
use crate::entry::{LinkPosition, StoredTime, SubscriptionEntry};
use crate::error::SubscriptionError;
use crate::request::{ReportKind, RequestNo, WakeReport};
use crate::response::{ClaimedWake, SubscriptionResponse};
use crate::token::{SubscriptionSecrets, WakeName, WakeToken};

impl SubscriptionMachine {
    /// A worker claims the wake, or the next one if none is under way. False: no stream has new records, as far as the machine knows.
    pub(super) fn claim(
        &mut self,
        now: Now,
        from: RequestNo,
        no: u64,
        worker: &str,
        is_caught_up: bool,
    ) -> Result<bool, SubscriptionError> {
        let Some(subscription) = self.subscriptions.get(&no) else {
            return Err(SubscriptionError::NotFound);
        };
        if subscription.is_webhook() {
            return Err(SubscriptionError::WrongType);
        }
        let is_over = subscription.is_lease_over(now);
        let lease = subscription
            .wake
            .as_ref()
            .and_then(|wake| wake.lease.as_ref());
        if let Some(lease) = lease.filter(|_| !is_over) {
            return Err(SubscriptionError::AlreadyClaimed {
                holder: lease.worker.as_deref().unwrap_or_default().into(),
                generation: subscription.generation,
            });
        }
        if !subscription.links.has_pending() {
            return match is_caught_up {
                true => Err(SubscriptionError::NoPendingWork),
                false => Ok(false),
            };
        }
        let until = now.steady.after(subscription.lease_time());
        let is_idle = subscription.wake.is_none();
        let mut decision = Decision::new(no);
        if is_over {
            self.counts.leases_over += 1;
            decision.entries.push(SubscriptionEntry::Ended { no });
        }
        if is_over || is_idle {
            self.begin_wake(now, &mut decision, &[]);
        }
        decision.entries.push(SubscriptionEntry::Leased {
            no,
            worker: Some(worker.into()),
            until: StoredTime::of(now, until),
        });
        decision.answers.push((from, Answer::Claimed));
        self.decide(decision);
        Ok(true)
    }

    /// A receiver or a worker reports on a wake. False: an acknowledgement does not fit what the machine knows.
    pub(super) fn report(
        &mut self,
        now: Now,
        from: RequestNo,
        no: u64,
        report: &WakeReport,
        is_caught_up: bool,
    ) -> Result<bool, SubscriptionError> {
        let subscription = self.check_report(now, no, report)?;
        let cursors = match subscription.cursors(report) {
            Ok(cursors) => cursors,
            Err(_) if !is_caught_up => return Ok(false),
            Err(error) => return Err(error),
        };
        let until = now.steady.after(subscription.lease_time());
        let worker = subscription
            .wake
            .as_ref()
            .and_then(|wake| wake.lease.as_ref());
        let worker = worker.and_then(|lease| lease.worker.as_deref().map(Into::into));
        let has_failed = subscription.retry.failures > 0;
        let has_moved = subscription.moves(&cursors);
        let mut decision = Decision::new(no);
        decision.entries = SubscriptionEntry::cursors(no, &cursors, self.limits.record_bytes);
        if has_failed {
            // Whatever its response was, the receiver has got the call.
            self.forgive(now, &mut decision);
        }
        let mut next_wake = false;
        if report.done {
            self.pace(now, no, has_moved);
            next_wake = self.end_wake(now, &mut decision, &cursors);
        } else {
            decision.entries.push(SubscriptionEntry::Leased {
                no,
                worker,
                until: StoredTime::of(now, until),
            });
        }
        let response = SubscriptionResponse::Reported { next_wake };
        decision.answers.push((from, Answer::Response(response)));
        self.decide(decision);
        Ok(true)
    }

    /// A worker gives its wake back.
    pub(super) fn release(
        &mut self,
        now: Now,
        from: RequestNo,
        no: u64,
        report: &WakeReport,
    ) -> Result<(), SubscriptionError> {
        self.check_report(now, no, report)?;
        let mut decision = Decision::new(no);
        self.pace(now, no, false);
        self.end_wake(now, &mut decision, &[]);
        let response = SubscriptionResponse::Released;
        decision.answers.push((from, Answer::Response(response)));
        self.decide(decision);
        Ok(())
    }

    /// The secrets, if the journal has them: then they do not change.
    pub(crate) fn stored_secrets(&self) -> Option<SubscriptionSecrets> {
        let has_journal = self.segments.has_journal();
        has_journal.then(|| self.secrets.clone())
    }

    /// Whether the text is a token of this server, for any wake of any subscription.
    pub(super) fn has_made(&self, token: &str) -> bool {
        let token = token.parse::<WakeToken>();
        token.is_ok_and(|token| self.secrets.has_made(&token))
    }

    /// The subscription of a report on its current wake, with a token of this server.
    fn check_report(
        &self,
        now: Now,
        no: u64,
        report: &WakeReport,
    ) -> Result<&Subscription, SubscriptionError> {
        let Some(subscription) = self.subscriptions.get(&no) else {
            return Err(SubscriptionError::NotFound);
        };
        if subscription.is_webhook() && report.kind != ReportKind::Callback {
            return Err(SubscriptionError::WrongType);
        }
        let token: WakeToken = report
            .token
            .parse()
            .map_err(|_| SubscriptionError::TokenInvalid)?;
        if token.wake.subscription != no {
            return Err(SubscriptionError::TokenInvalid);
        }
        if subscription.wake.is_none() {
            return Err(SubscriptionError::Fenced);
        }
        let current = WakeName {
            subscription: no,
            generation: subscription.generation,
        };
        let is_current = token.wake == current
            && report.generation == Some(current.generation)
            && report.wake_id.as_deref() == Some(&*self.secrets.wake_id(current));
        match is_current && !subscription.is_lease_over(now) {
            true => Ok(subscription),
            false => Err(SubscriptionError::Fenced),
        }
    }

    /// The wake that a worker has claimed.
    pub(super) fn claimed(&self, no: u64) -> Option<Box<ClaimedWake>> {
        let subscription = self.subscriptions.get(&no)?;
        let wake = WakeName {
            subscription: no,
            generation: subscription.generation,
        };
        Some(Box::new(ClaimedWake {
            wake_id: self.secrets.wake_id(wake).into(),
            generation: wake.generation,
            token: self.secrets.token(wake).to_string().into(),
            links: subscription.links.status(),
            lease_ms: subscription.config.lease_ms,
        }))
    }
}

impl Subscription {
    /// The positions that a report acknowledges, one for each stream. All of them count or none.
    fn cursors(&self, report: &WakeReport) -> Result<Vec<LinkPosition>, SubscriptionError> {
        let mut cursors: BTreeMap<u32, LinkPosition> = BTreeMap::new();
        for ack in &report.acks {
            let stream = ack.stream.trim_matches('/');
            let offset = ack.offset.parse().ok();
            let position = offset.and_then(|offset| self.links.judge(stream, offset));
            let position =
                position.ok_or_else(|| SubscriptionError::InvalidOffset(ack.stream.clone()))?;
            let known = cursors.entry(position.link).or_insert(position);
            known.at = known.at.max(position.at);
        }
        Ok(cursors.into_values().collect())
    }

    /// Whether one of the cursors moves.
    fn moves(&self, cursors: &[LinkPosition]) -> bool {
        cursors.iter().any(|cursor| self.links.is_behind(cursor))
    }
}
