//! Requests: which rule each one goes to, and which ones wait.

use encke_clock::Now;

use super::state::{SubscriptionEffect, SubscriptionMachine};
use crate::bounds::{CATCH_UPS_MAX, HELD_REQUESTS_MAX, WORKER_BYTES_MAX};
use crate::error::SubscriptionError;
use crate::request::{ReportKind, RequestNo, SubscriptionRequest};
use crate::response::SubscriptionResponse;

impl SubscriptionMachine {
    /// Handles a request.
    pub fn request(&mut self, now: Now, from: RequestNo, request: SubscriptionRequest) {
        if let Err(error) = self.try_request(now, from, request, false) {
            self.refuse(from, error);
        }
    }

    /// Every commit that was acknowledged before the effect of this number is reported: the request that has waited for it goes on.
    pub fn caught_up(&mut self, now: Now, catch_up: u64) {
        let Some((from, request)) = self.catch_ups.remove(&catch_up) else {
            return;
        };
        if let Err(error) = self.try_request(now, from, request, true) {
            self.refuse(from, error);
        }
    }

    fn try_request(
        &mut self,
        now: Now,
        from: RequestNo,
        request: SubscriptionRequest,
        is_caught_up: bool,
    ) -> Result<(), SubscriptionError> {
        if let SubscriptionRequest::Claim { worker, .. } = &request
            && !(1..=WORKER_BYTES_MAX).contains(&worker.len())
        {
            return Err(SubscriptionError::BadWorker);
        }
        let no = request.id().and_then(|id| self.ids.get(id)).copied();
        let no = no.filter(|no| self.may_change(*no, &request));
        let reads = matches!(
            request,
            SubscriptionRequest::Describe { .. } | SubscriptionRequest::Keys
        );
        if self.is_stopping && !reads {
            return Err(SubscriptionError::Stopping);
        }
        // Anyone can send a report. A forged token must not show which ids exist, nor take the place of requests that wait.
        if let SubscriptionRequest::Report(report) = &request
            && !self.has_made(&report.token)
        {
            return Err(SubscriptionError::TokenInvalid);
        }
        if let Some(subscription) = no.and_then(|no| self.subscriptions.get_mut(&no))
            && subscription.live.is_busy
            && !self.is_stopping
        {
            let held = &mut subscription.live.held;
            if held.len() >= HELD_REQUESTS_MAX {
                return Err(SubscriptionError::Overloaded);
            }
            held.push_back((from, request));
            return Ok(());
        }
        self.touched.extend(no);
        match (request, no) {
            (SubscriptionRequest::Create { id, config, root }, None) => {
                self.create(now, from, id, config, root)
            }
            (SubscriptionRequest::Create { config, .. }, Some(no)) => {
                self.confirm(from, no, &config)
            }
            (SubscriptionRequest::Keys, _) => {
                let has_journal = self.segments.has_journal();
                let keys = has_journal.then(|| self.key.public().clone());
                self.respond(from, SubscriptionResponse::Keys(keys.into_iter().collect()));
                Ok(())
            }
            (SubscriptionRequest::Delete { .. }, None) => {
                self.respond(from, SubscriptionResponse::Deleted);
                Ok(())
            }
            (_, None) => Err(SubscriptionError::NotFound),
            (SubscriptionRequest::Describe { .. }, Some(no)) => {
                let status = self.status(no).ok_or(SubscriptionError::NotFound)?;
                self.respond(from, SubscriptionResponse::Described(status));
                Ok(())
            }
            (SubscriptionRequest::Delete { .. }, Some(no)) => {
                self.delete(from, no);
                Ok(())
            }
            (SubscriptionRequest::Link { streams, .. }, Some(no)) => self.link(from, no, streams),
            (SubscriptionRequest::Unlink { stream, .. }, Some(no)) => {
                self.unlink(from, no, &stream);
                Ok(())
            }
            (SubscriptionRequest::Claim { id, worker }, Some(no)) => {
                match self.claim(now, from, no, &worker, is_caught_up)? {
                    true => Ok(()),
                    false => self.catch_up(from, SubscriptionRequest::Claim { id, worker }),
                }
            }
            (SubscriptionRequest::Report(report), Some(no)) => {
                let judged = match report.kind {
                    ReportKind::Release => self.release(now, from, no, &report).map(|()| true),
                    ReportKind::Ack | ReportKind::Callback => {
                        self.report(now, from, no, &report, is_caught_up)
                    }
                };
                match judged? {
                    true => Ok(()),
                    false => self.catch_up(from, SubscriptionRequest::Report(report)),
                }
            }
        }
    }

    /// Whether the caller of a request that changes a subscription may do so. For others there is none.
    fn may_change(&self, no: u64, request: &SubscriptionRequest) -> bool {
        let subscription = self.subscriptions.get(&no);
        let viewer = request.viewer();
        subscription
            .zip(viewer)
            .is_none_or(|(subscription, viewer)| viewer.includes(&subscription.config.viewer))
    }

    /// Has a request wait until the machine knows what was acknowledged before it.
    fn catch_up(
        &mut self,
        from: RequestNo,
        request: SubscriptionRequest,
    ) -> Result<(), SubscriptionError> {
        if self.catch_ups.len() >= CATCH_UPS_MAX {
            return Err(SubscriptionError::Overloaded);
        }
        let catch_up = self.next_catch_up;
        self.next_catch_up += 1;
        self.catch_ups.insert(catch_up, (from, request));
        self.effects.push(SubscriptionEffect::CatchUp { catch_up });
        Ok(())
    }

    /// The server is stopping: requests that wait are refused, and no wake and no call begins. What is on its way to the log ends.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        let mut waiting: Vec<RequestNo> = Vec::new();
        for subscription in self.subscriptions.values_mut() {
            let held = subscription.live.held.drain(..);
            waiting.extend(held.map(|(from, _)| from));
        }
        waiting.extend(self.catch_ups.drain().map(|(_, (from, _))| from));
        waiting.extend(self.look_ups.drain().map(|(_, purpose)| purpose.from));
        waiting.sort_unstable();
        for from in waiting {
            self.refuse(from, SubscriptionError::Stopping);
        }
        self.timers.clear();
        self.touched.clear();
    }
}
