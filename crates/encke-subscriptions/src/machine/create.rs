//! Creation and deletion of subscriptions, and what they follow by request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::Now;

use super::decision::{Answer, Decision};
use super::op::LookUpPurpose;
use super::state::SubscriptionMachine;
use super::subscription::{Subscription, SubscriptionOrigin};
use crate::bounds::link_weight;
use crate::config::{SubscriptionConfig, SubscriptionKind};
use crate::entry::{StoredLink, SubscriptionEntry};
use crate::error::SubscriptionError;
use crate::request::RequestNo;
use crate::response::SubscriptionResponse;
use crate::webhook::url::WebhookUrl;

impl SubscriptionMachine {
    /// Begins to create a subscription: from here on the commits of its streams are observed, and its streams are looked up.
    pub(super) fn create(
        &mut self,
        now: Now,
        from: RequestNo,
        id: Box<str>,
        config: SubscriptionConfig,
        root: Box<str>,
    ) -> Result<(), SubscriptionError> {
        let limits = &self.limits;
        if self.subscriptions.len() >= limits.subscriptions_max {
            return Err(SubscriptionError::TooManySubscriptions(
                limits.subscriptions_max,
            ));
        }
        let mut receiver: Arc<str> = Arc::default();
        if let SubscriptionKind::Webhook { url } = &config.kind {
            if limits.deliveries_max == 0 {
                return Err(SubscriptionError::NoWebhooks);
            }
            let url = WebhookUrl::parse(url, &limits.allowed_addresses)?;
            receiver = url.receiver().into();
        }
        let weight = config.streams.iter().map(|stream| link_weight(stream));
        self.check_room(0, weight.sum())?;
        let no = self.next_no;
        self.next_no += 1;
        let id: Arc<str> = id.into();
        let digest = config.digest();
        let streams = config.streams.clone();
        let origin = SubscriptionOrigin {
            no,
            id: Arc::clone(&id),
            config,
            digest,
            created: now.wall,
            root: root.into(),
            receiver,
        };
        let mut subscription = Subscription::new(origin, self.registry.clone());
        for stream in &streams {
            subscription.links.propose(stream);
        }
        let mut streams: Vec<Arc<str>> = streams.into_iter().map(Into::into).collect();
        streams.extend(subscription.config.own_wake_stream().map(Into::into));
        subscription.live.is_creating = true;
        let pattern = subscription.config.pattern.clone();
        self.ids.insert(id, no);
        self.observe_names(&subscription);
        self.subscriptions.insert(no, subscription);
        self.look_up(
            LookUpPurpose {
                from,
                no,
                added: None,
                unverified: Vec::new(),
            },
            streams,
            pattern,
        );
        Ok(())
    }

    /// Confirms that a subscription exists, if it is the same.
    pub(super) fn confirm(
        &mut self,
        from: RequestNo,
        no: u64,
        config: &SubscriptionConfig,
    ) -> Result<(), SubscriptionError> {
        let existing = self.subscriptions.get(&no);
        let is_same = existing.is_some_and(|existing| existing.digest == config.digest());
        let subscription = self.status(no).filter(|_| is_same);
        let subscription = subscription.ok_or(SubscriptionError::Exists)?;
        self.respond(
            from,
            SubscriptionResponse::Created {
                existed: true,
                subscription,
            },
        );
        Ok(())
    }

    /// Begins to follow more streams.
    pub(super) fn link(
        &mut self,
        from: RequestNo,
        no: u64,
        streams: Vec<Box<str>>,
    ) -> Result<(), SubscriptionError> {
        let Some(subscription) = self.subscriptions.get(&no) else {
            return Err(SubscriptionError::NotFound);
        };
        let own = subscription.config.own_wake_stream();
        if let Some(own) = streams.iter().find(|stream| Some(&***stream) == own) {
            return Err(SubscriptionError::OwnWakeStream(own.clone()));
        }
        let links = &subscription.links;
        let new: BTreeSet<Arc<str>> = streams
            .iter()
            .filter(|stream| links.get(stream).is_none())
            .map(|stream| (&**stream).into())
            .collect();
        let weight = new.iter().map(|stream| link_weight(stream));
        self.check_room(links.weight(), weight.sum())?;
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return Err(SubscriptionError::NotFound);
        };
        let mut has_changes = false;
        for stream in &streams {
            has_changes |= subscription.links.propose(stream);
        }
        if !has_changes {
            self.respond(from, SubscriptionResponse::LinksChanged);
            return Ok(());
        }
        let new: Vec<Arc<str>> = new.into_iter().collect();
        let purpose = LookUpPurpose {
            from,
            no,
            added: Some(new.clone()),
            unverified: Vec::new(),
        };
        self.look_up(purpose, new, None);
        Ok(())
    }

    /// Ends to follow a stream by its name.
    pub(super) fn unlink(&mut self, from: RequestNo, no: u64, stream: &str) {
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        let link = subscription.links.stored(stream);
        let Some(link) = link.filter(|link| link.explicit) else {
            return self.respond(from, SubscriptionResponse::LinksChanged);
        };
        let mut decision = Decision::new(no);
        // Whose it is was checked when it was linked.
        let glob = subscription.config.pattern.as_ref();
        let stays = link.stream.is_some() && glob.is_some_and(|glob| glob.matches(stream));
        match stays {
            true => decision.requested.push(StoredLink {
                explicit: false,
                ..link
            }),
            false => decision.entries.push(SubscriptionEntry::Unlinked {
                no,
                links: vec![link.link],
            }),
        }
        let response = SubscriptionResponse::LinksChanged;
        decision.answers.push((from, Answer::Response(response)));
        self.decide(decision);
    }

    /// Deletes a subscription.
    pub(super) fn delete(&mut self, from: RequestNo, no: u64) {
        let mut decision = Decision::new(no);
        decision.entries.push(SubscriptionEntry::Deleted { no });
        let response = SubscriptionResponse::Deleted;
        decision.answers.push((from, Answer::Response(response)));
        self.decide(decision);
    }

    /// Undoes what a request has proposed for a subscription: its creation, or more streams.
    pub(super) fn withdraw(
        &mut self,
        now: Now,
        no: u64,
        from: Vec<RequestNo>,
        error: &SubscriptionError,
    ) {
        for from in from {
            self.refuse(from, error.clone());
        }
        let Some(subscription) = self.subscriptions.get_mut(&no) else {
            return;
        };
        if subscription.live.is_creating {
            return self.remove(now, no);
        }
        subscription.live.is_busy = false;
        let glob = subscription.config.pattern.clone();
        let is_matched = |path: &str| glob.as_ref().is_some_and(|glob| glob.matches(path));
        subscription.links.withdraw(is_matched);
        self.touched.insert(no);
    }

    /// Removes a subscription. Requests that have waited for it are handled again.
    pub(super) fn remove(&mut self, now: Now, no: u64) {
        let Some(mut subscription) = self.subscriptions.remove(&no) else {
            return;
        };
        self.ids.remove(&subscription.id);
        subscription.links.close();
        let index = Arc::clone(&self.registry.index);
        let own = subscription.config.own_wake_stream();
        if let Some(pattern) = &subscription.config.pattern {
            index.remove_pattern(pattern, own, no);
        }
        if let Some(stream) = own
            && self.event_streams.remove(stream, no)
        {
            index.remove_event_stream(stream);
        }
        if let Some(at) = subscription.live.timer {
            self.timers.remove(&(at, no));
        }
        for (from, request) in subscription.live.held {
            self.request(now, from, request);
        }
    }

    /// Has commits of the streams of a subscription be reported. Its links do that for their names.
    pub(super) fn observe_names(&mut self, subscription: &Subscription) {
        let index = &self.registry.index;
        let own = subscription.config.own_wake_stream();
        if let Some(pattern) = &subscription.config.pattern {
            index.add_pattern(pattern, own, subscription.no);
        }
        if let Some(stream) = own
            && self.event_streams.add(stream, subscription.no)
        {
            index.add_event_stream(stream);
        }
    }

    /// Refuses what would be too many links of a subscription, or in all, by what its links count and what more would.
    fn check_room(&self, links: usize, more: usize) -> Result<(), SubscriptionError> {
        let limits = &self.limits;
        if links + more > limits.links_max {
            return Err(SubscriptionError::TooManyLinks(limits.links_max));
        }
        let in_all = self.registry.weight.load(Ordering::Relaxed);
        if in_all + more > limits.links_in_all_max {
            return Err(SubscriptionError::TooManyLinksInAll(
                limits.links_in_all_max,
            ));
        }
        Ok(())
    }
}
