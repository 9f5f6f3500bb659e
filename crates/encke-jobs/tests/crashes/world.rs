//! A whole server without sockets and threads: the pools over the streams over a log on a simulated disk, with recorded
//! clients and workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_jobs::{
    AttemptAction, AttemptReport, DispatchClient, DispatchResponse, DispatchedJob, Effect, JobId,
    JobInfo, JobMachine, JobToken, NewJob, Payload, PoolLimits, PoolRequest, PoolSettings,
    PublishedStats, Registration, SettingsChange, WorkerCaller,
};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Log, Options};
use encke_stream::{
    Command, Fetch, LogJournal, Offset, Outcome, Piece, Refusal, Stream, View, restore_on,
};
use encke_subscriptions::KeySeed;

pub(crate) const POOL: &str = "p";

pub(crate) struct World {
    /// The steady clock.
    pub(crate) now_ms: u64,
    /// How far the time of day is ahead of it.
    pub(crate) wall_ahead_ms: i64,
    /// The content of jobs cannot be read.
    pub(crate) unreadable: bool,
    pub(crate) jobs: JobMachine,
    limits: PoolLimits,
    streams: encke_stream::Machine,
    view: Arc<View>,
    log: Log<SimulatedDisk>,
    disk: SimulatedDisk,
    /// Commands on their way to the log.
    pub(crate) queue: VecDeque<(u64, Command)>,
    next_client: u64,
    /// Responses that the test has not read.
    pub(crate) responses: BTreeMap<DispatchClient, Vec<DispatchResponse>>,
    /// Workers connected by a stream.
    pub(crate) workers: BTreeMap<String, DispatchClient>,
    /// Jobs that workers have, as the workers know it, including those of dead workers.
    pub(crate) held: Vec<(String, DispatchedJob)>,
    /// Every dispatched attempt.
    pub(crate) handed: BTreeSet<(JobId, u16)>,
    /// The token of every dispatched attempt.
    pub(crate) tokens: BTreeMap<(JobId, u16), JobToken>,
    /// Accepted jobs.
    pub(crate) accepted: BTreeSet<JobId>,
    /// Acknowledgements sent and answered, by job.
    pub(crate) acks: BTreeMap<JobId, u32>,
    pub(crate) answered: BTreeMap<JobId, u32>,
    /// The largest number of jobs that a worker was allowed at a time.
    pub(crate) in_flight_max: u32,
    asked: BTreeMap<DispatchClient, JobId>,
    posted: BTreeSet<DispatchClient>,
}

impl World {
    pub(crate) fn new(limits: PoolLimits, settings: &str) -> Self {
        let mut world = Self::empty(limits);
        let settings: PoolSettings = serde_json::from_str(settings).unwrap();
        let client = world.client();
        let pool = POOL.into();
        world.ask(client, PoolRequest::Create { pool, settings });
        world.settle();
        let responses = world.responses.remove(&client).unwrap();
        assert!(
            matches!(
                responses[..],
                [DispatchResponse::Created { existed: false, .. }]
            ),
            "{responses:?}"
        );
        world
    }

    /// A server without pools.
    pub(crate) fn empty(limits: PoolLimits) -> Self {
        Self::open(SimulatedDisk::new(3), limits, 1_000_000)
    }

    fn open(disk: SimulatedDisk, limits: PoolLimits, now_ms: u64) -> Self {
        let options = Options {
            segment_bytes: 32 << 10,
            history: false,
            ..Options::default()
        };
        let stream_limits = encke_stream::Limits::default();
        let (streams, view, log) = restore_on(
            disk.clone(),
            options,
            stream_limits,
            SteadyTime::from_ms(now_ms),
        )
        .unwrap();
        let reader = log.reader();
        let read = |fetch: &Fetch| Piece::read(&reader, fetch).map_err(|error| error.to_string());
        let published = Arc::new(PublishedStats::default());
        // Each run has another one.
        let seed = KeySeed::of([(now_ms % 251) as u8; 32]);
        let find = |name: &str| Ok(view.find(name));
        let jobs = JobMachine::replay(
            limits.clone(),
            published,
            seed,
            &find,
            &read,
            Now::from_ms(now_ms),
        )
        .unwrap();
        World {
            now_ms,
            wall_ahead_ms: 0,
            unreadable: false,
            jobs,
            limits,
            streams,
            view,
            log,
            disk,
            queue: VecDeque::new(),
            next_client: 0,
            responses: BTreeMap::new(),
            workers: BTreeMap::new(),
            held: Vec::new(),
            handed: BTreeSet::new(),
            tokens: BTreeMap::new(),
            accepted: BTreeSet::new(),
            acks: BTreeMap::new(),
            answered: BTreeMap::new(),
            in_flight_max: 0,
            asked: BTreeMap::new(),
            posted: BTreeSet::new(),
        }
    }

    /// The server crashes: of the commands on their way the first `kept` are in the log, and no client got a response.
    pub(crate) fn crash(mut self, kept: usize) -> Self {
        for _ in 0..kept {
            if let Some((_, command)) = self.queue.pop_front() {
                self.store(command);
            }
        }
        let World {
            disk,
            limits,
            now_ms,
            wall_ahead_ms,
            ..
        } = self;
        drop((self.streams, self.view, self.log));
        // The clocks of a new process begin with the time of day.
        let wall_ms = now_ms.saturating_add_signed(wall_ahead_ms);
        let mut world = Self::open(disk, limits, wall_ms + 10);
        world.next_client = self.next_client;
        world.held = self.held;
        world.handed = self.handed;
        world.tokens = self.tokens;
        world.accepted = self.accepted;
        world.acks = self.acks;
        world.answered = self.answered;
        world.in_flight_max = self.in_flight_max;
        world.flush();
        world
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            steady: SteadyTime::from_ms(self.now_ms),
            wall: WallTime::from_ms(self.now_ms.saturating_add_signed(self.wall_ahead_ms)),
        }
    }

    pub(crate) fn client(&mut self) -> DispatchClient {
        self.next_client += 1;
        DispatchClient {
            node: 0,
            shard: 0,
            token: self.next_client,
            request: 0,
        }
    }

    pub(crate) fn ask(&mut self, client: DispatchClient, ask: PoolRequest) {
        self.jobs.request(self.now(), client, ask);
        self.flush();
    }

    pub(crate) fn change(&mut self, change: SettingsChange) -> DispatchClient {
        let client = self.client();
        let pool = POOL.into();
        self.ask(client, PoolRequest::Change { pool, change });
        client
    }

    pub(crate) fn post(
        &mut self,
        body: &str,
        key: Option<&str>,
        slot: Option<u32>,
    ) -> DispatchClient {
        let client = self.client();
        self.posted.insert(client);
        let post = NewJob {
            pool: POOL.into(),
            payload: text(body, key),
            slot,
            wait_ms: None,
            if_connected: false,
        };
        self.ask(client, PoolRequest::Post(post));
        client
    }

    pub(crate) fn join(
        &mut self,
        worker: &str,
        slot: Option<u32>,
        poll_ms: Option<u64>,
    ) -> DispatchClient {
        let client = self.client();
        let work = Registration {
            pool: POOL.into(),
            worker: worker.into(),
            slot,
            poll_ms,
            caller: WorkerCaller::Anyone,
        };
        self.workers.insert(worker.to_owned(), client);
        self.ask(client, PoolRequest::Register(work));
        client
    }

    pub(crate) fn leave(&mut self, worker: &str) {
        if let Some(client) = self.workers.remove(worker) {
            self.jobs.disconnected(self.now(), client);
            self.flush();
        }
    }

    pub(crate) fn end(&mut self, id: JobId, attempt: u16, action: AttemptAction) -> DispatchClient {
        let token = self.tokens.get(&(id, attempt)).copied();
        self.report(id, attempt, token, action)
    }

    pub(crate) fn report(
        &mut self,
        id: JobId,
        attempt: u16,
        token: Option<JobToken>,
        action: AttemptAction,
    ) -> DispatchClient {
        let client = self.client();
        if matches!(action, AttemptAction::Ack { .. }) {
            *self.acks.entry(id).or_default() += 1;
            self.asked.insert(client, id);
        }
        let report = AttemptReport {
            pool: POOL.into(),
            id,
            attempt,
            token,
            action,
        };
        self.ask(client, PoolRequest::Report(report));
        client
    }

    pub(crate) fn ack(&mut self, id: JobId, attempt: u16) -> DispatchClient {
        let result = text(&format!("done {id}"), None);
        self.end(id, attempt, AttemptAction::Ack { result })
    }

    /// The responses to a client, if any.
    pub(crate) fn heard(&mut self, client: DispatchClient) -> Option<DispatchResponse> {
        let responses = self.responses.get_mut(&client)?;
        (!responses.is_empty()).then(|| responses.remove(0))
    }

    pub(crate) fn find(&mut self, id: JobId) -> Option<JobInfo> {
        let client = self.client();
        let pool = POOL.into();
        let token = None;
        self.ask(client, PoolRequest::DescribeJob { pool, id, token });
        match self.heard(client) {
            Some(DispatchResponse::Job(job)) => Some(job),
            _ => None,
        }
    }

    pub(crate) fn info(&mut self) -> encke_jobs::PoolStatus {
        let client = self.client();
        self.ask(client, PoolRequest::Describe { pool: POOL.into() });
        match self.heard(client) {
            Some(DispatchResponse::Described(info)) => *info,
            responses => panic!("{responses:?}"),
        }
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.jobs.tick(self.now());
        self.flush();
    }

    /// Commits the first commands on their way and reports them to the pools.
    pub(crate) fn commit(&mut self, count: usize) {
        for _ in 0..count {
            let Some((op, command)) = self.queue.pop_front() else {
                break;
            };
            let outcome = self.store(command);
            self.jobs.committed(self.now(), op, outcome);
        }
        self.flush();
    }

    /// The log refuses all commands on their way.
    pub(crate) fn refuse(&mut self) {
        for (op, _) in std::mem::take(&mut self.queue) {
            let outcome = Outcome::Refused(Refusal::NoSpace);
            self.jobs.committed(self.now(), op, outcome);
        }
        self.flush();
    }

    /// Commits until no command is on its way.
    pub(crate) fn settle(&mut self) {
        while !self.queue.is_empty() {
            self.commit(usize::MAX);
        }
    }

    /// Commits a command, be it of the pools or of a client.
    pub(crate) fn store(&mut self, command: Command) -> Outcome {
        let now = self.now();
        let mut journal = LogJournal {
            log: &mut self.log,
            now: now.wall,
        };
        let outcome = self.streams.apply(command, now, &mut journal);
        self.log.write().unwrap();
        self.log.sync().unwrap();
        self.log.publish();
        self.streams.publish(self.log.next_sequence() - 1);
        outcome
    }

    pub(crate) fn flush(&mut self) {
        self.jobs.flush(self.now());
        loop {
            let effects = self.jobs.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Commit { op, command } => {
                        for (name, bytes) in written(&command) {
                            assert!(
                                !name.starts_with('\u{1}') || bytes <= self.limits.record_bytes,
                                "a record of {name:?} has {bytes} bytes"
                            );
                        }
                        self.queue.push_back((op, command));
                    }
                    Effect::Load { pool, id, stream } => {
                        let stream = self.view.find(&stream).expect("a segment that is needed");
                        let from = Offset::behind(id - 1);
                        let piece = self.read(&Fetch::new(&stream, from, Offset::behind(id), 1));
                        let item = piece.items().next().expect("a job that is needed");
                        assert_eq!(item.end, Offset::behind(id));
                        let body = item.data.to_vec();
                        // The job follows the record's head.
                        let at = body.iter().position(|byte| *byte == b'#').unwrap();
                        let text = String::from_utf8(body[at..].to_vec()).unwrap();
                        let payload = match self.unreadable {
                            true => Err("the disk is broken".to_owned()),
                            false => Ok(self::text(&text, None)),
                        };
                        self.jobs.loaded(self.now(), pool, id, payload);
                        self.jobs.flush(self.now());
                    }
                    Effect::Respond { to, response } => self.deliver(to, response),
                }
            }
        }
    }

    fn deliver(&mut self, to: DispatchClient, responses: DispatchResponse) {
        match &responses {
            DispatchResponse::Posted { id, .. } => {
                assert!(self.accepted.insert(*id), "{id} was accepted twice");
            }
            DispatchResponse::Dispatched(handed) => {
                let attempt = (handed.id, handed.attempt);
                self.tokens.insert(attempt, handed.token);
                assert!(
                    self.handed.insert(attempt),
                    "{attempt:?} was dispatched twice"
                );
                let worker = self.workers.iter().find(|(_, client)| **client == to);
                match worker {
                    Some((worker, _)) => self.held.push((worker.clone(), handed.clone())),
                    // It disconnected at the same moment.
                    None => self.jobs.disconnected(self.now(), to),
                }
            }
            DispatchResponse::Reported { .. } => {
                if let Some(id) = self.asked.get(&to) {
                    *self.answered.entry(*id).or_default() += 1;
                }
            }
            _ => {}
        }
        self.responses.entry(to).or_default().push(responses);
    }

    fn read(&self, fetch: &Fetch) -> Piece {
        Piece::read(&self.log.reader(), fetch).unwrap()
    }

    /// The messages of a public stream.
    pub(crate) fn messages(&self, what: &str) -> Vec<serde_json::Value> {
        let stream = self.view.find(&format!("pool/{POOL}/{what}")).unwrap();
        let tail = stream.facts().tail;
        let mut messages = Vec::new();
        let mut from = Offset::START;
        loop {
            let piece = self.read(&Fetch::new(&stream, from, tail, 1 << 20));
            for item in piece.items() {
                let text = [b"[", item.data, b"]"].concat();
                let part: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
                messages.extend(part);
            }
            if !piece.more {
                return messages;
            }
            from = piece.end;
        }
    }

    /// The streams of the pool's journal.
    pub(crate) fn segments(&self) -> usize {
        let mut count = 0;
        self.view.for_each(&mut |stream: &Arc<Stream>| {
            count += usize::from(stream.name.starts_with("\u{1}pool/"));
        });
        count
    }
}

/// The streams that a command writes to, and the number of bytes of each.
fn written(command: &Command) -> Vec<(&str, usize)> {
    match command {
        Command::Create(create) => vec![(&create.name, create.data.bytes.len())],
        Command::Append(append) => vec![(append.target.name(), append.data.bytes.len())],
        Command::Series(appends) => appends
            .iter()
            .map(|append| (append.target.name(), append.data.bytes.len()))
            .collect(),
        Command::Truncate { .. } | Command::Delete { .. } | Command::Fleet(_) => Vec::new(),
    }
}

pub(crate) fn text(body: &str, key: Option<&str>) -> Payload {
    Payload {
        content_type: "text/plain".into(),
        key: key.map(Into::into),
        body: body.as_bytes().into(),
    }
}
