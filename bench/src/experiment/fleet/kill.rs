//! A node killed with its subscribers, which continue at the other nodes.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::nodes::FleetNodes;
use crate::experiment::lab::Lab;
use crate::load::clock::{MILLISECOND_NS, SECOND_NS, monotonic_ns};
use crate::load::event_source::{Audience, EventSourcePlan, EventSources};
use crate::load::socket::{Sources, check_descriptors, raise_descriptor_limit};
use crate::load::wire::sse::EventData;
use crate::load::{Latencies, Percentiles};
use crate::{BenchError, HttpClient};

/// What subscribers of a killed node have received.
#[derive(Debug, Clone, Serialize)]
pub(super) struct KillRound {
    pub(super) subscribers: u32,
    /// Records that were acknowledged, all of them for each subscriber.
    pub(super) records: u64,
    /// Records that subscribers have not received, or received again, over all of them.
    pub(super) missing: u64,
    pub(super) again: u64,
    /// Subscribers whose connection broke.
    pub(super) lost: u64,
    /// From the kill until a subscriber is connected elsewhere.
    pub(super) returned: Option<Percentiles>,
    /// From the kill until it is complete: it has a record that was published after its return, and all before.
    pub(super) complete: Option<Percentiles>,
}

/// Kills a node while records are published at another one.
pub(super) fn measure(
    lab: &Lab<'_>,
    fleet: &mut FleetNodes,
    round: u32,
) -> Result<KillRound, BenchError> {
    let subscribers = lab.scaled(SUBSCRIBERS, SUBSCRIBERS_MIN) as u32;
    check_descriptors(raise_descriptor_limit(), u64::from(subscribers))?;
    let servers = fleet.addresses();
    let stream = format!("news-{round}");
    let path = format!("/v1/stream/{stream}");
    let mut publisher = HttpClient::connect(servers[1])?;
    publisher.succeed("PUT", &path, b"")?;
    let mut clients = EventSources::new(EventSourcePlan {
        clients: subscribers,
        sources: Sources::new(servers[0], subscribers).resetting(),
        servers,
        opening_max: subscribers,
        later_clients: 0,
        away_ns: 0,
    })?;
    let mut followers = Followers {
        target: format!("/v1/events?stream={stream}"),
        killed_ns: None,
        all: vec![Follower::default(); subscribers as usize],
        again: 0,
        missing: 0,
    };
    while !clients.is_settled() {
        lab.check()?;
        clients.turn(monotonic_ns() + LOOK_NS, &mut followers)?;
    }
    let node = fleet.take(0);
    let (stop, published) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let appender = scope.spawn(|| {
            let appended = append(&mut publisher, &path, &published, &stop);
            stop.store(true, Ordering::Relaxed);
            appended
        });
        let watched = watch(lab, &mut clients, &mut followers, &stop, || {
            scope.spawn(|| drop(node));
        });
        stop.store(true, Ordering::Relaxed);
        let appended = appender.join();
        watched.and(appended.unwrap_or(Err(BenchError::Thread("appender"))))
    })?;
    let records = published.load(Ordering::Relaxed);
    let until_ns = monotonic_ns() + GIVE_UP_NS;
    while monotonic_ns() < until_ns && !followers.have(records) {
        lab.check()?;
        clients.turn(monotonic_ns() + LOOK_NS, &mut followers)?;
    }
    Ok(followers.round(records, clients.counts().lost))
}

/// Appends numbered records at a steady pace.
fn append(
    publisher: &mut HttpClient,
    path: &str,
    published: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let text = format!("{number} {}", monotonic_ns());
        publisher.succeed("POST", path, text.as_bytes())?;
        published.store(number + 1, Ordering::Relaxed);
        std::thread::sleep(PACE);
    }
    Ok(())
}

/// Receives for a while, has the node killed, and receives until all are complete.
fn watch(
    lab: &Lab<'_>,
    clients: &mut EventSources,
    followers: &mut Followers,
    stop: &AtomicBool,
    kill: impl FnOnce(),
) -> Result<(), BenchError> {
    let kill_ns = monotonic_ns() + BEFORE_KILL_NS;
    while monotonic_ns() < kill_ns {
        lab.check()?;
        clients.turn(monotonic_ns() + LOOK_NS, followers)?;
    }
    let killed_ns = monotonic_ns();
    followers.killed_ns = Some(killed_ns);
    kill();
    let until_ns = killed_ns + GIVE_UP_NS;
    // It ends early when the appender fails.
    while monotonic_ns() < until_ns && !followers.are_complete() && !stop.load(Ordering::Relaxed) {
        lab.check()?;
        clients.turn(monotonic_ns() + LOOK_NS, followers)?;
    }
    Ok(())
}

/// What the subscribers have received.
struct Followers {
    target: String,
    killed_ns: Option<u64>,
    all: Vec<Follower>,
    again: u64,
    missing: u64,
}

#[derive(Debug, Clone, Default)]
struct Follower {
    /// The number of the next record.
    next: u64,
    /// When it was connected elsewhere, and when it was complete.
    returned_ns: Option<u64>,
    complete_ns: Option<u64>,
}

/// The data of an event.
#[derive(Deserialize)]
struct NumberedRecord<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

impl Followers {
    fn are_complete(&self) -> bool {
        self.all.iter().all(|one| one.complete_ns.is_some())
    }

    fn have(&self, records: u64) -> bool {
        self.all.iter().all(|one| one.next >= records)
    }

    fn round(&self, records: u64, lost: u64) -> KillRound {
        let left = self.all.iter().map(|one| records.saturating_sub(one.next));
        let since_kill = |time: fn(&Follower) -> Option<u64>| {
            let mut latencies = Latencies::new();
            for ns in self.all.iter().filter_map(time) {
                latencies.record(ns - self.killed_ns.unwrap_or(ns));
            }
            latencies.percentiles()
        };
        KillRound {
            subscribers: self.all.len() as u32,
            records,
            missing: self.missing + left.sum::<u64>(),
            again: self.again,
            lost,
            returned: since_kill(|one| one.returned_ns),
            complete: since_kill(|one| one.complete_ns),
        }
    }
}

impl Audience for Followers {
    fn target(&self, _client: u32, _offset: Option<&[u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(self.target.as_bytes());
    }

    fn subscribed(&mut self, client: u32, _took_ns: u64, now_ns: u64) {
        if self.killed_ns.is_some() {
            self.all[client as usize].returned_ns = Some(now_ns);
        }
    }

    fn record(&mut self, client: u32, data: EventData<'_>, now_ns: u64) {
        let EventData::Line(line) = data else { return };
        let record = serde_json::from_slice::<NumberedRecord<'_>>(line).ok();
        let numbers = record
            .as_ref()
            .and_then(|record| record.text.split_once(' '));
        let parsed = numbers.map(|(number, sent)| (number.parse::<u64>(), sent.parse::<u64>()));
        let Some((Ok(number), Ok(sent_ns))) = parsed else {
            return;
        };
        let one = &mut self.all[client as usize];
        if number < one.next {
            self.again += 1;
            return;
        }
        self.missing += number - one.next;
        one.next = number + 1;
        if one
            .returned_ns
            .is_some_and(|returned_ns| sent_ns > returned_ns)
        {
            one.complete_ns.get_or_insert(now_ns);
        }
    }
}

const SUBSCRIBERS: u64 = 6_000;
const SUBSCRIBERS_MIN: u64 = 20;

/// The time between two appends. Each goes to all subscribers.
const PACE: Duration = Duration::from_millis(100);

/// How long records are published before the kill.
const BEFORE_KILL_NS: u64 = 2 * SECOND_NS;

/// How long subscribers may take before the rest counts as missing.
const GIVE_UP_NS: u64 = 30 * SECOND_NS;

const LOOK_NS: u64 = 20 * MILLISECOND_NS;
