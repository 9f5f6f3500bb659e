//! Recovery of the subscriptions from their journal and from the streams that they follow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use encke_clock::Now;
use encke_stream::{Fetch, Offset, Stream, each_record};

use super::compare::find;
use super::replay_error::SubscriptionReplayError;
use super::state::SubscriptionMachine;
use super::subscription::{Subscription, SubscriptionOrigin};
use super::wakes::PAUSE_MAX;
use crate::bounds::SubscriptionLimits;
use crate::entry::SubscriptionEntry;
use crate::index::SubscriptionIndex;
use crate::key::KeySeed;
use crate::record::{
    BadSubscriptionRecord, SEGMENTS, SegmentsRecord, SubscriptionRecord, segment_name,
};
use crate::subscribed_streams::SubscribedStreams;
use crate::webhook::signature::WebhookKey;
use crate::webhook::url::receiver_of;

impl SubscriptionMachine {
    /// Recovers the subscriptions as of the last record of their journal, and compares them with their streams. The commits that are not
    /// visible to `streams` yet must be reported: the driver has the index in use before.
    ///
    /// # Errors
    /// A stream could not be read or decoded.
    pub fn replay(
        limits: SubscriptionLimits,
        seed: &KeySeed,
        index: Arc<SubscriptionIndex>,
        streams: &dyn SubscribedStreams,
        now: Now,
    ) -> Result<SubscriptionMachine, SubscriptionReplayError> {
        let mut machine = SubscriptionMachine::new(limits, seed, index);
        let Some(registry) = find(streams, SEGMENTS)? else {
            return Ok(machine);
        };
        machine.segments.has_registry = true;
        let mut current = None;
        each(streams, &registry, &mut |_, bytes| {
            let SegmentsRecord::Current { segment } = SegmentsRecord::decode(bytes)?;
            current = Some(segment);
            Ok(())
        })?;
        if let Some(segment) = current {
            machine.read_segment(streams, segment, now)?;
        }
        machine.find_old_segments(streams, current)?;
        machine.compare_streams(streams)?;
        machine.resume(now);
        Ok(machine)
    }

    fn read_segment(
        &mut self,
        streams: &dyn SubscribedStreams,
        segment: u32,
        now: Now,
    ) -> Result<(), SubscriptionReplayError> {
        let name = segment_name(segment);
        let stream = find(streams, &name)?;
        let stream = stream.ok_or(SubscriptionReplayError::Missing { stream: name })?;
        let mut replayed = ReplayedSegment {
            machine: self,
            incomplete: BTreeMap::new(),
            has_begun: false,
            now,
        };
        each(streams, &stream, &mut |_, bytes| replayed.record(bytes))?;
        let ReplayedSegment {
            incomplete,
            has_begun,
            ..
        } = replayed;
        if has_begun {
            self.segments.current = Some(segment);
        } else {
            // The server serves all other streams.
            tracing::error!(
                "lost all subscriptions: retention of an earlier version has removed the first record of their journal"
            );
        }
        for mut subscription in incomplete.into_values() {
            // Its creation was never acknowledged.
            subscription.links.close();
        }
        Ok(())
    }

    /// Finds segments that were not deleted or not completed before a crash.
    fn find_old_segments(
        &mut self,
        streams: &dyn SubscribedStreams,
        current: Option<u32>,
    ) -> Result<(), SubscriptionReplayError> {
        let from = current.unwrap_or_default();
        self.segments.next = current.map_or(0, |segment| segment + 1);
        for segment in from.saturating_sub(SEGMENTS_NEAR)..from + SEGMENTS_NEAR {
            if Some(segment) != current && find(streams, &segment_name(segment))?.is_some() {
                self.segments.old.push(segment);
                // The nearest free number, so that this search finds what repeated crashes leave behind.
                if segment == self.segments.next {
                    self.segments.next += 1;
                }
            }
        }
        Ok(())
    }

    /// Continues what was under way. What is due at a time of day is due in the time that it was given at most, because the time of day may
    /// be an earlier one now.
    fn resume(&mut self, now: Now) {
        for subscription in self.subscriptions.values_mut() {
            subscription.trim_snapshot();
            let lease_time = subscription.lease_time();
            // Workers could not report while the server was down.
            let grace = now.steady.after(GRACE.min(lease_time));
            let wake = subscription.wake.as_mut();
            if let Some(lease) = wake.and_then(|wake| wake.lease.as_mut()) {
                let latest = now.steady.after(lease_time);
                lease.until = lease.until.clamp(grace, latest);
            }
            let latest = now.steady.after(PAUSE_MAX);
            subscription.retry.at = subscription.retry.at.min(latest);
        }
        // Changes while the server was down are written at once, because streams that were lost with the
        // power can leave their numbers to others.
        for subscription in self.subscriptions.values_mut() {
            subscription.live.has_lost_links = subscription.links.has_unwritten();
        }
        self.touched.extend(self.subscriptions.keys());
    }
}

/// A segment that is being read.
struct ReplayedSegment<'a> {
    machine: &'a mut SubscriptionMachine,
    /// Subscriptions whose creation is not complete.
    incomplete: BTreeMap<u64, Subscription>,
    has_begun: bool,
    now: Now,
}

impl ReplayedSegment<'_> {
    fn record(&mut self, bytes: &[u8]) -> Result<(), BadSubscriptionRecord> {
        self.machine.segments.bytes += bytes.len() as u64;
        match SubscriptionRecord::decode(bytes)? {
            SubscriptionRecord::Begin { secrets, next_no } => {
                self.machine.key = Arc::new(WebhookKey::of(&secrets.webhook_key));
                self.machine.secrets = secrets;
                self.machine.next_no = next_no;
                self.has_begun = true;
            }
            SubscriptionRecord::Entries(entries) if self.has_begun => {
                entries.into_iter().for_each(|entry| self.entry(entry));
            }
            SubscriptionRecord::Entries(_) => {}
        }
        Ok(())
    }

    fn entry(&mut self, entry: SubscriptionEntry) {
        let no = entry.no();
        match entry {
            SubscriptionEntry::Created {
                no,
                id,
                config,
                digest,
                created,
                root,
            } => {
                let origin = SubscriptionOrigin {
                    no,
                    id: id.into(),
                    receiver: config.url().map(receiver_of).unwrap_or_default().into(),
                    config: *config,
                    digest,
                    created,
                    root: root.into(),
                };
                let registry = self.machine.registry.clone();
                let subscription = Subscription::new(origin, registry);
                self.machine.next_no = self.machine.next_no.max(no + 1);
                self.incomplete.insert(no, subscription);
            }
            SubscriptionEntry::Deleted { no } => self.machine.remove(self.now, no),
            SubscriptionEntry::Opened { .. } => {
                if let Some(mut subscription) = self.incomplete.remove(&no) {
                    subscription.apply(self.now, &entry);
                    let id = Arc::clone(&subscription.id);
                    self.machine.observe_names(&subscription);
                    self.machine.ids.insert(id, no);
                    self.machine.subscriptions.insert(no, subscription);
                }
            }
            entry => {
                let complete = self.machine.subscriptions.get_mut(&no);
                if let Some(subscription) = complete.or(self.incomplete.get_mut(&no)) {
                    subscription.apply(self.now, &entry);
                }
            }
        }
    }
}

type OnBytes<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), BadSubscriptionRecord>;

/// Calls `each` for all records of a stream that hold data.
fn each(
    streams: &dyn SubscribedStreams,
    stream: &Stream,
    each: OnBytes<'_>,
) -> Result<(), SubscriptionReplayError> {
    let read = |fetch: &Fetch| {
        let piece = streams.read(fetch);
        piece.map_err(|reason| SubscriptionReplayError::Unreadable {
            stream: stream.name.to_string(),
            reason,
        })
    };
    each_record(stream, Offset::START, read, |sequence, data| {
        each(sequence, data).map_err(|source| SubscriptionReplayError::Record {
            stream: stream.name.to_string(),
            sequence,
            source,
        })
    })?;
    Ok(())
}

/// How far from the current segment the recovery looks for segments that were not deleted or not completed.
const SEGMENTS_NEAR: u32 = 8;

/// The minimum time that workers have after a start to report.
const GRACE: Duration = Duration::from_secs(5);
