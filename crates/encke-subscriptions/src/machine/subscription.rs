//! One subscription: what the journal says of it, and what is under way.

use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_stream::{Offset, StreamNo};

use super::current_wake::{CurrentWake, Lease, Retry, WakeSnapshot};
use super::links::{LinkRegistry, Links};
use super::live::{EventState, LiveState};
use crate::config::{ConfigDigest, SubscriptionConfig};
use crate::entry::{StoredTime, SubscriptionEntry};

/// A subscription. What the journal says of it changes by [`Subscription::apply`] alone, live and after a start.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) no: u64,
    pub(super) id: Arc<str>,
    /// Its list of streams is empty: the links have them.
    pub(super) config: Arc<SubscriptionConfig>,
    pub(super) digest: ConfigDigest,
    pub(super) created: WallTime,
    /// Where its creator has reached the root of the streams.
    pub(super) root: Arc<str>,
    /// The receiver of its webhook; empty for pull-wake.
    pub(super) receiver: Arc<str>,
    pub(super) links: Links,
    /// The number of its last wake.
    pub(super) generation: u64,
    pub(super) wake: Option<CurrentWake>,
    /// What the next wake has found, as far as the journal has said it.
    drafted: WakeSnapshot,
    pub(super) retry: Retry,
    /// What only memory has.
    pub(super) live: LiveState,
}

/// What a subscription has from its creation on.
pub(super) struct SubscriptionOrigin {
    pub(super) no: u64,
    pub(super) id: Arc<str>,
    pub(super) config: SubscriptionConfig,
    pub(super) digest: ConfigDigest,
    pub(super) created: WallTime,
    pub(super) root: Arc<str>,
    pub(super) receiver: Arc<str>,
}

impl Subscription {
    pub(super) fn new(origin: SubscriptionOrigin, registry: LinkRegistry) -> Subscription {
        let SubscriptionOrigin {
            no,
            id,
            config,
            digest,
            created,
            root,
            receiver,
        } = origin;
        Subscription {
            no,
            id,
            config: Arc::new(SubscriptionConfig {
                streams: Vec::new(),
                ..config
            }),
            digest,
            created,
            root,
            receiver,
            links: Links::new(no, registry),
            generation: 0,
            wake: None,
            drafted: WakeSnapshot::default(),
            retry: Retry::default(),
            live: LiveState::default(),
        }
    }

    /// A stream has ended.
    pub(super) fn stream_ended(&mut self, name: &str, stream: StreamNo) {
        if let Some(ended) = &mut self.live.ended {
            ended.insert(stream);
        }
        if self.live.wake_stream == Some(stream) {
            self.live.wake_stream = None;
        }
        self.links.ended(name, stream);
    }

    /// Handles an entry of the journal, which is in the log. Creation, deletion and what a request has asked to follow are handled
    /// elsewhere.
    pub(super) fn apply(&mut self, now: Now, entry: &SubscriptionEntry) {
        match entry {
            SubscriptionEntry::Opened { generation, .. } => self.generation = *generation,
            SubscriptionEntry::Links { links, .. } => {
                links.iter().for_each(|link| self.links.restore(link));
            }
            SubscriptionEntry::Unlinked { links, .. } => {
                links.iter().for_each(|link| self.links.remove(*link));
            }
            SubscriptionEntry::Cursors { cursors, .. } => {
                for cursor in cursors {
                    self.live.has_moved |= self.links.ack(*cursor);
                }
            }
            SubscriptionEntry::Snapshot {
                begins,
                links_below,
                tails,
                ..
            } => {
                if *begins {
                    // There may be parts of one that a crash has cut.
                    self.drafted = WakeSnapshot::default();
                }
                self.drafted.links_below = *links_below;
                self.drafted.tails.extend_from_slice(tails);
            }
            SubscriptionEntry::Woken {
                generation,
                announced,
                ..
            } => {
                self.generation = *generation;
                self.wake = Some(CurrentWake {
                    snapshot: std::mem::take(&mut self.drafted),
                    announced: *announced,
                    lease: None,
                });
                self.live.has_moved = false;
                self.live.failed_until = None;
                self.live.cause = None;
                self.live.event = EventState::default();
            }
            SubscriptionEntry::Announced { stream, .. } => {
                if let Some(wake) = &mut self.wake {
                    wake.announced = Some(*stream);
                }
            }
            SubscriptionEntry::Leased { worker, until, .. } => {
                if let Some(wake) = &mut self.wake {
                    wake.lease = Some(Lease {
                        worker: worker.as_deref().map(Into::into),
                        until: until.steady(now),
                    });
                }
            }
            SubscriptionEntry::Retry { failures, at, .. } => {
                self.retry = Retry {
                    failures: *failures,
                    at: at.steady(now),
                };
            }
            SubscriptionEntry::Ended { .. } => self.wake = None,
            SubscriptionEntry::Created { .. } | SubscriptionEntry::Deleted { .. } => {}
        }
    }

    /// Streams are not followed by their names any more. What has come to one meanwhile is work, if the pattern includes it.
    pub(super) fn unlink(&mut self, links: &[u32]) {
        for number in links {
            let glob = self.config.pattern.as_ref();
            let stays = self.links.numbered(*number).is_some_and(|link| {
                link.is_pending() && glob.is_some_and(|glob| glob.matches(&link.path))
            });
            match stays {
                true => self.links.set_implicit(*number),
                false => self.links.remove(*number),
            }
        }
    }

    /// The entry of its creation.
    pub(super) fn created(&self) -> SubscriptionEntry {
        SubscriptionEntry::Created {
            no: self.no,
            id: (&*self.id).into(),
            config: Box::new((*self.config).clone()),
            digest: self.digest,
            created: self.created,
            root: (&*self.root).into(),
        }
    }

    /// Its state, as the entries that begin a segment.
    pub(super) fn entries(&self, now: Now, record_bytes: usize) -> Vec<SubscriptionEntry> {
        let no = self.no;
        let mut entries = vec![self.created()];
        let links = self.links.all_stored();
        entries.extend(SubscriptionEntry::links(no, links, record_bytes));
        if let Some(wake) = &self.wake {
            let generation = self.generation;
            let WakeSnapshot {
                links_below, tails, ..
            } = &wake.snapshot;
            entries.extend(SubscriptionEntry::snapshot(
                no,
                *links_below,
                tails,
                record_bytes,
            ));
            entries.push(SubscriptionEntry::Woken {
                no,
                generation,
                announced: wake.announced,
            });
            if let Some(lease) = &wake.lease {
                entries.push(SubscriptionEntry::Leased {
                    no,
                    worker: lease.worker.as_deref().map(Into::into),
                    until: StoredTime::of(now, lease.until),
                });
            }
        }
        if self.retry.failures > 0 {
            entries.push(SubscriptionEntry::Retry {
                no,
                failures: self.retry.failures,
                at: StoredTime::of(now, self.retry.at),
            });
        }
        entries.push(SubscriptionEntry::Opened {
            no,
            generation: self.generation,
        });
        entries
    }

    /// Whether its last attempt to wake has failed, and the next one waits.
    pub(super) fn has_failed(&self) -> bool {
        let has_failed = self.retry.failures > 0 || self.live.event.failures > 0;
        has_failed && (self.wake.is_some() || self.links.has_pending())
    }

    pub(super) fn is_webhook(&self) -> bool {
        self.config.url().is_some()
    }

    pub(super) fn lease_time(&self) -> Duration {
        Duration::from_millis(self.config.lease_ms)
    }

    /// Whether a call for the current wake is under way.
    pub(super) fn is_called(&self) -> bool {
        let call = self.live.call;
        self.wake.is_some() && call.is_some_and(|call| call.generation == self.generation)
    }

    /// When the lease of the wake ends. That of a webhook does not while it is called: the call has a time limit of its own.
    pub(super) fn lease_ends(&self) -> Option<SteadyTime> {
        let wake = self.wake.as_ref()?;
        if self.is_called() {
            return None;
        }
        let lease = wake.lease.as_ref().map(|lease| lease.until);
        lease.or(self.live.failed_until)
    }

    pub(super) fn is_lease_over(&self, now: Now) -> bool {
        self.lease_ends().is_some_and(|until| until <= now.steady)
    }

    /// When the next wake may begin.
    pub(super) fn wakes_from(&self) -> SteadyTime {
        self.rests_until().max(self.retry.at)
    }

    /// When the next wake may begin, apart from failed calls.
    pub(super) fn rests_until(&self) -> SteadyTime {
        self.live.rest_until.max(self.live.event.at)
    }

    /// Whether something that the wake has found is not done yet.
    pub(super) fn has_news(&self) -> bool {
        let mut tails = self.wake.iter().flat_map(|wake| &wake.snapshot.tails);
        tails.any(|tail| self.links.is_behind(tail))
    }

    /// Whether its webhook is to be called for the wake.
    pub(super) fn needs_call(&self) -> bool {
        let wake = self.wake.as_ref();
        self.is_webhook()
            && self.live.call.is_none()
            && self.live.result.is_none()
            && wake.is_some_and(|wake| wake.lease.is_none())
    }

    /// Whether the event of the wake is to be written: it was not, or it is gone with its stream and no worker has the wake.
    pub(super) fn needs_event(&self) -> bool {
        let (Some(stream), Some(wake)) = (self.live.wake_stream, &self.wake) else {
            return false;
        };
        let is_missing = match wake.announced {
            None => true,
            Some(announced) => announced != stream && wake.lease.is_none(),
        };
        let event = &self.live.event;
        is_missing && !event.is_under_way && event.written != Some((self.generation, stream))
    }

    /// Where the links of the current wake ended when it began, by the numbers of the links: `None` for one that is followed since.
    pub(super) fn snapshot_tail(&self, link: u32) -> Option<Offset> {
        let snapshot = &self.wake.as_ref()?.snapshot;
        let known = self.links.numbered(link)?;
        if link >= snapshot.links_below {
            return None;
        }
        let tail = snapshot
            .tails
            .binary_search_by_key(&link, |tail| tail.link)
            .ok()
            .map(|at| snapshot.tails[at])
            .filter(|tail| Some(tail.stream) == known.stream);
        Some(tail.map_or(known.acked, |tail| tail.at.max(known.acked)))
    }

    /// Removes what a crash has lost from the snapshot of the wake: the ends of records, and whole streams. A new stream can get the number
    /// of a lost one, and a response to the wake would acknowledge records of it. To be called after a start, when the links have been
    /// compared with the streams.
    pub(super) fn trim_snapshot(&mut self) {
        if let Some(wake) = &mut self.wake {
            let tails = &mut wake.snapshot.tails;
            tails.retain_mut(|found| match self.links.of_position(found) {
                Some(link) => {
                    found.at = found.at.min(link.tail);
                    true
                }
                None => false,
            });
        }
    }
}
