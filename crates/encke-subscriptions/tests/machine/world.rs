//! A server without sockets and threads: the subscriptions over streams, with clients, workers and receivers of webhooks that a test
//! plays.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_stream::{Command, Offset, Outcome, StreamChange, StreamState, born};
use encke_subscriptions::{
    ClaimedWake, DeliveryResult, Glob, KeySeed, LookUpError, ReportKind, RequestNo,
    SubscriptionConfig, SubscriptionError, SubscriptionIndex, SubscriptionLimits,
    SubscriptionMachine, SubscriptionRequest, SubscriptionResponse, SubscriptionStatus,
    WebhookDelivery,
};

use crate::asked::{Held, claim, create, held, report};
use crate::streams::Streams;

pub(crate) struct World {
    /// The steady clock.
    pub(crate) now_ms: u64,
    /// How far the time of day is ahead of it.
    pub(crate) wall_ahead_ms: i64,
    pub(crate) limits: SubscriptionLimits,
    pub(crate) streams: Streams,
    pub(crate) index: Arc<SubscriptionIndex>,
    pub(crate) machine: SubscriptionMachine,
    /// The machine's commands on their way to the log.
    pub(crate) queue: VecDeque<(u64, Command)>,
    /// Changes of streams and results of look-ups that were not reported yet.
    pub(crate) reports: VecDeque<Report>,
    pub(crate) look_ups: VecDeque<LookUp>,
    /// Calls under way.
    pub(crate) calls: Vec<WebhookDelivery>,
    pub(crate) responses: BTreeMap<RequestNo, SubscriptionResponse>,
    pub(crate) next_request: RequestNo,
    /// All wakes that anyone has learned of, by their names.
    wakes: HashMap<String, (String, u64)>,
    /// Streams that were created without a record.
    created_empty: HashSet<u64>,
    /// Clients have deleted streams.
    pub(crate) has_deletions: bool,
}

/// What the machine learns in the order in which it has happened.
pub(crate) enum Report {
    Changed(StreamChange),
    Found(u64, Result<Vec<StreamState>, LookUpError>),
}

pub(crate) struct LookUp {
    pub(crate) number: u64,
    pub(crate) streams: Vec<Arc<str>>,
    pub(crate) pattern: Option<Glob>,
    pub(crate) matches_max: usize,
}

impl World {
    pub(crate) fn new(limits: SubscriptionLimits) -> World {
        World::with_logs(limits, 1)
    }

    pub(crate) fn with_logs(limits: SubscriptionLimits, logs: usize) -> World {
        World::with_seed(limits, logs, 0)
    }

    pub(crate) fn with_seed(limits: SubscriptionLimits, logs: usize, seed: u64) -> World {
        let now_ms = 1_000_000;
        let streams = Streams::new(logs, seed, Now::from_ms(now_ms));
        World::start(limits, streams, now_ms)
    }

    fn start(limits: SubscriptionLimits, streams: Streams, now_ms: u64) -> World {
        let index = Arc::new(SubscriptionIndex::default());
        // Each run has another one.
        let seed = KeySeed::of([(now_ms % 251) as u8; 32]);
        let machine = SubscriptionMachine::replay(
            limits.clone(),
            &seed,
            Arc::clone(&index),
            &streams,
            Now::from_ms(now_ms),
        )
        .unwrap();
        let mut world = World {
            now_ms,
            wall_ahead_ms: 0,
            limits,
            streams,
            index,
            machine,
            queue: VecDeque::new(),
            reports: VecDeque::new(),
            look_ups: VecDeque::new(),
            calls: Vec::new(),
            responses: BTreeMap::new(),
            next_request: 0,
            wakes: HashMap::new(),
            created_empty: HashSet::new(),
            has_deletions: false,
        };
        world.flush();
        world
    }

    /// The server crashes: of the commands on their way the first `kept` are in the log, and nothing else has come back.
    pub(crate) fn crash(mut self, kept: usize, cut_power: bool) -> World {
        let now = self.now();
        for (_, command) in self.queue.drain(..).take(kept) {
            self.streams.commit(command, now);
        }
        // The clocks of a new process begin with the time of day.
        let now_ms = now.wall.as_ms() + 10;
        let streams = self.streams.crash(SteadyTime::from_ms(now_ms), cut_power);
        let mut world = World::start(self.limits, streams, now_ms);
        world.next_request = self.next_request;
        world.wakes = self.wakes;
        world.created_empty = self.created_empty;
        world
    }

    pub(crate) fn restart(mut self) -> World {
        self.settle();
        self.crash(0, false)
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            steady: SteadyTime::from_ms(self.now_ms),
            wall: WallTime::from_ms(self.now_ms.saturating_add_signed(self.wall_ahead_ms)),
        }
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, request: SubscriptionRequest) -> RequestNo {
        self.next_request += 1;
        let number = self.next_request;
        self.machine.request(self.now(), number, request);
        self.flush();
        number
    }

    /// Sends a request and lets everything happen that it needs.
    pub(crate) fn ask(&mut self, request: SubscriptionRequest) -> SubscriptionResponse {
        let number = self.send(request);
        self.settle();
        self.responses.remove(&number).expect("a response")
    }

    pub(crate) fn create(&mut self, id: &str, config: SubscriptionConfig) -> SubscriptionResponse {
        self.ask(create(id, config))
    }

    /// Creates a subscription that must be new.
    pub(crate) fn must_create(&mut self, id: &str, config: SubscriptionConfig) {
        let response = self.create(id, config);
        assert!(
            matches!(
                response,
                SubscriptionResponse::Created { existed: false, .. }
            ),
            "{response:?}"
        );
    }

    pub(crate) fn status(&mut self, id: &str) -> SubscriptionStatus {
        match self.ask(SubscriptionRequest::Describe { id: id.into() }) {
            SubscriptionResponse::Described(status) => *status,
            response => panic!("{response:?}"),
        }
    }

    /// The streams that a subscription follows, and whether by name, and the positions up to which they are done.
    pub(crate) fn links(&mut self, id: &str) -> Vec<(String, bool, Offset)> {
        let links = self.status(id).links.into_iter();
        links
            .map(|link| (link.stream.to_string(), link.explicit, link.acked))
            .collect()
    }

    pub(crate) fn acked(&mut self, id: &str, stream: &str) -> Offset {
        let links = self.links(id);
        let link = links.iter().find(|(name, ..)| name == stream);
        link.unwrap_or_else(|| panic!("no link of {stream}: {links:?}"))
            .2
    }

    pub(crate) fn claim(
        &mut self,
        id: &str,
        worker: &str,
    ) -> Result<ClaimedWake, SubscriptionError> {
        match self.ask(claim(id, worker)) {
            SubscriptionResponse::Claimed(claimed) => {
                self.note_wake(id, &claimed.wake_id, claimed.generation);
                Ok(*claimed)
            }
            SubscriptionResponse::Refused(error) => Err(error),
            response => panic!("{response:?}"),
        }
    }

    /// Claims a wake that must be there.
    pub(crate) fn must_claim(&mut self, id: &str, worker: &str) -> Held {
        let claimed = self.claim(id, worker).unwrap();
        held(id, &claimed)
    }

    /// Reports on a wake. Returns whether the next one has begun.
    pub(crate) fn report(
        &mut self,
        kind: ReportKind,
        held: &Held,
        acks: &[(&str, Offset)],
        done: bool,
    ) -> Result<bool, SubscriptionError> {
        match self.ask(report(kind, held, acks, done)) {
            SubscriptionResponse::Reported { next_wake } => Ok(next_wake),
            SubscriptionResponse::Released => Ok(false),
            SubscriptionResponse::Refused(error) => Err(error),
            response => panic!("{response:?}"),
        }
    }

    /// The tail of a stream.
    pub(crate) fn tail(&self, stream: &str) -> Offset {
        self.streams.facts(stream).expect("a stream").1.tail
    }

    /// Commits a command of a client, which subscriptions learn of later.
    pub(crate) fn store(&mut self, command: Command) -> Outcome {
        let is_empty = matches!(&command, Command::Create(create) if create.data.units == 0);
        self.has_deletions |= matches!(command, Command::Delete { .. });
        let (outcome, changes) = self.streams.commit(command, self.now());
        if let Outcome::Created {
            no, existed: false, ..
        } = &outcome
        {
            // Another stream may have had the number, and was lost with the power.
            match is_empty {
                true => self.created_empty.insert(*no),
                false => self.created_empty.remove(no),
            };
        }
        self.observe(changes);
        outcome
    }

    /// The position before the first record of a stream.
    pub(crate) fn begin(&self, state: &StreamState) -> Offset {
        match self.created_empty.contains(&state.no) {
            true => state.begin.max(Offset::behind(born(state.no))),
            false => state.begin,
        }
    }

    /// Commits a command of a client that must succeed, and lets everything happen that follows.
    pub(crate) fn write(&mut self, command: Command) {
        let outcome = self.store(command);
        assert!(!matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
        self.settle();
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.machine.tick(self.now());
        self.flush();
    }

    /// Lets time pass in steps, and everything happen in between.
    pub(crate) fn pass_and_settle(&mut self, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(50);
            self.pass(step);
            self.settle();
            left -= step;
        }
    }

    /// Everything happens that waits for neither time nor a receiver.
    pub(crate) fn settle(&mut self) {
        while !(self.queue.is_empty() && self.reports.is_empty() && self.look_ups.is_empty()) {
            self.report_changes(usize::MAX);
            self.look_up();
            self.commit(usize::MAX);
        }
    }

    /// The only call that is under way.
    pub(crate) fn call(&self) -> &WebhookDelivery {
        assert_eq!(self.calls.len(), 1, "{:?}", self.calls);
        &self.calls[0]
    }

    /// What the receiver of the only call knows.
    pub(crate) fn called(&self) -> Held {
        let notice = &self.call().notice;
        Held {
            id: notice.subscription.to_string(),
            wake_id: notice.wake_id.clone(),
            generation: notice.generation,
            token: notice.callback_token.clone(),
        }
    }

    /// A receiver responds to the call at that place of the list.
    pub(crate) fn respond(&mut self, at: usize, result: DeliveryResult) {
        let call = self.calls.remove(at);
        self.machine.delivered(self.now(), call.number, result);
        self.flush();
    }

    /// The receiver of the only call responds, and everything happens that follows.
    pub(crate) fn answer(&mut self, result: DeliveryResult) {
        self.call();
        self.respond(0, result);
        self.settle();
    }

    pub(crate) fn fail(&mut self) {
        self.answer(DeliveryResult::Failed("status 500".to_owned()));
    }

    /// Notes that somebody has learned of a wake. A name is of one wake, whatever crashes come.
    pub(crate) fn note_wake(&mut self, id: &str, wake_id: &str, generation: u64) {
        let wake = (id.to_owned(), generation);
        let known = self.wakes.entry(wake_id.to_owned()).or_insert(wake.clone());
        assert_eq!(*known, wake, "{wake_id} names two wakes");
    }
}
