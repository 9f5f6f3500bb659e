//! The state of the machine, what it wants done, and what it counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use encke_clock::SteadyTime;
use encke_stream::Command;

use super::calls::CallQueue;
use super::decision::Decision;
use super::event_streams::EventStreams;
use super::links::LinkRegistry;
use super::op::{DeliveryUnderWay, LookUpPurpose, Op, SegmentState};
use super::subscription::Subscription;
use crate::bounds::SubscriptionLimits;
use crate::error::SubscriptionError;
use crate::glob::Glob;
use crate::index::SubscriptionIndex;
use crate::key::KeySeed;
use crate::request::{RequestNo, SubscriptionRequest};
use crate::response::{SubscriptionResponse, SubscriptionStatus};
use crate::token::SubscriptionSecrets;
use crate::webhook::delivery::WebhookDelivery;
use crate::webhook::signature::WebhookKey;

/// The subscriptions: requests, commits of streams, outcomes of commands, results of calls and the time go in; commands, calls and
/// responses come out.
///
/// A decision takes effect, and is answered, when [`SubscriptionMachine::committed`] reports that it is in the log. Until then
/// everything else about its subscription waits.
#[derive(Debug)]
pub struct SubscriptionMachine {
    pub(super) limits: SubscriptionLimits,
    pub(super) secrets: SubscriptionSecrets,
    pub(super) key: Arc<WebhookKey>,
    pub(super) registry: LinkRegistry,
    /// By their numbers, which are in the order of their creation.
    pub(super) subscriptions: BTreeMap<u64, Subscription>,
    pub(super) ids: HashMap<Arc<str>, u64>,
    /// The number of the next subscription.
    pub(super) next_no: u64,
    pub(super) segments: SegmentState,
    /// Decisions that are not on their way to the log yet.
    pub(super) decisions: Vec<Decision>,
    /// Commands on their way to the log, by their numbers.
    pub(super) ops: HashMap<u64, Op>,
    pub(super) next_op: u64,
    /// Look-ups under way.
    pub(super) look_ups: HashMap<u64, LookUpPurpose>,
    pub(super) next_look_up: u64,
    /// Requests that wait until the machine knows what was acknowledged before them.
    pub(super) catch_ups: HashMap<u64, (RequestNo, SubscriptionRequest)>,
    pub(super) next_catch_up: u64,
    pub(super) calls: CallQueue,
    pub(super) deliveries: HashMap<u64, DeliveryUnderWay>,
    pub(super) next_delivery: u64,
    pub(super) event_streams: EventStreams,
    pub(super) timers: BTreeSet<(SteadyTime, u64)>,
    /// Subscriptions that something has happened to since the last flush.
    pub(super) touched: BTreeSet<u64>,
    /// The log has refused: no decision without a request before this time.
    pub(super) paused_until: SteadyTime,
    pub(super) counts: SubscriptionCounts,
    pub(super) effects: Vec<SubscriptionEffect>,
    pub(super) is_stopping: bool,
}

/// Work for the driver of the machine.
#[derive(Debug)]
pub enum SubscriptionEffect {
    /// Commit this command, then report its outcome under this number, in the order of the commits.
    Commit {
        /// The number.
        op: u64,
        /// The command.
        command: Box<Command>,
    },
    /// Look up the streams of these names and those that the pattern matches, with what was acknowledged before this effect, then
    /// report them under this number with [`SubscriptionMachine::found`].
    LookUp {
        /// The number.
        look_up: u64,
        /// The names. Most of them may be free.
        streams: Vec<Arc<str>>,
        /// The pattern.
        pattern: Option<Glob>,
        /// With more streams than this that the pattern matches, the look-up fails.
        matches_max: usize,
    },
    /// Report every commit of streams that was acknowledged before this effect, then this number with
    /// [`SubscriptionMachine::caught_up`].
    CatchUp {
        /// The number.
        catch_up: u64,
    },
    /// Call a webhook, then report the result with [`SubscriptionMachine::delivered`].
    Deliver(Box<WebhookDelivery>),
    /// Send a response.
    Respond {
        /// The request.
        to: RequestNo,
        /// The response.
        response: SubscriptionResponse,
    },
}

/// What the machine has done since it began, and what it has now, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// Subscriptions that there are.
    pub subscriptions: usize,
    /// Streams that they follow, counted as against [`SubscriptionLimits::links_in_all_max`].
    pub links: usize,
    /// Calls that are under way.
    pub calling: usize,
    /// Subscriptions whose last attempt to wake has failed.
    pub failing: usize,
    /// Wakes that have begun.
    pub wakes: u64,
    /// Wakes that have ended because their leases were over.
    pub leases_over: u64,
    /// Calls that were accepted.
    pub calls_accepted: u64,
    /// Calls that failed.
    pub calls_failed: u64,
    /// Events that their streams have refused.
    pub events_refused: u64,
    /// Commits of streams that a pattern matches and that are not followed, because the subscription follows as many as it may.
    pub links_refused: u64,
}

impl SubscriptionMachine {
    /// A machine without subscriptions and without a journal.
    pub fn new(
        limits: SubscriptionLimits,
        seed: &KeySeed,
        index: Arc<SubscriptionIndex>,
    ) -> SubscriptionMachine {
        let secrets = SubscriptionSecrets::new(seed);
        SubscriptionMachine {
            key: Arc::new(WebhookKey::of(&secrets.webhook_key)),
            secrets,
            registry: LinkRegistry {
                index,
                weight: Arc::default(),
            },
            subscriptions: BTreeMap::new(),
            ids: HashMap::new(),
            next_no: 1,
            segments: SegmentState::default(),
            decisions: Vec::new(),
            ops: HashMap::new(),
            next_op: 0,
            look_ups: HashMap::new(),
            next_look_up: 0,
            catch_ups: HashMap::new(),
            next_catch_up: 0,
            calls: CallQueue::new(&limits),
            deliveries: HashMap::new(),
            next_delivery: 0,
            event_streams: EventStreams::default(),
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            paused_until: SteadyTime::default(),
            counts: SubscriptionCounts::default(),
            effects: Vec::new(),
            is_stopping: false,
            limits,
        }
    }

    /// Numbers the commands from here on: outcomes of commands of another term of a fleet's dispatcher have other numbers. To be called
    /// before the first flush.
    pub fn number_from(&mut self, first_op: u64) {
        debug_assert!(self.ops.is_empty(), "no command is under way");
        self.next_op = first_op;
    }

    /// Which streams concern its subscriptions.
    pub(crate) fn index(&self) -> &Arc<SubscriptionIndex> {
        &self.registry.index
    }

    /// What the machine has done, and what it has.
    pub fn counts(&self) -> SubscriptionCounts {
        let failing = |subscription: &&Subscription| subscription.has_failed();
        SubscriptionCounts {
            subscriptions: self.subscriptions.len(),
            links: self.registry.weight.load(Ordering::Relaxed),
            calling: self.calls.running(),
            failing: self.subscriptions.values().filter(failing).count(),
            ..self.counts
        }
    }

    /// A subscription as clients see it.
    pub(super) fn status(&self, no: u64) -> Option<Box<SubscriptionStatus>> {
        let subscription = self.subscriptions.get(&no)?;
        Some(Box::new(SubscriptionStatus {
            id: Arc::clone(&subscription.id),
            config: (*subscription.config).clone(),
            links: subscription.links.status(),
            created: subscription.created,
            failed: subscription.has_failed(),
            root: self.root(subscription),
            kid: self.key.public().kid.clone(),
        }))
    }

    /// Where clients of a subscription reach the root of the streams.
    pub(super) fn root(&self, subscription: &Subscription) -> Arc<str> {
        match &self.limits.public_root {
            Some(root) => (&**root).into(),
            None => Arc::clone(&subscription.root),
        }
    }

    pub(super) fn respond(&mut self, to: RequestNo, response: SubscriptionResponse) {
        self.effects
            .push(SubscriptionEffect::Respond { to, response });
    }

    pub(super) fn refuse(&mut self, to: RequestNo, error: SubscriptionError) {
        self.respond(to, SubscriptionResponse::Refused(error));
    }
}
