//! What happens, and what must hold afterwards.

use std::time::Duration;

use encke_clock::Now;
use encke_log::simulated::{Random, SimulatedDisk};
use serde_json::Value;

use super::client::{Answered, Client, POOL, Purpose, Spoken};
use super::node::{Node, Remains};
use crate::settings::NetSettings;

/// A server and its clients.
pub(super) struct World {
    random: Random,
    disk: SimulatedDisk,
    settings: NetSettings,
    commands_max: usize,
    node: Node,
    clients: Vec<Client>,
    met: Met,
    /// The number of the next message, or of the next job.
    next: u32,
    /// Jobs of which a client knows that they were taken, or refused.
    taken: Vec<u32>,
    refused: Vec<u32>,
    crashes: u64,
}

/// What rounds have led to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    acknowledged: u64,
    refused: u64,
    followed: u64,
    read: u64,
    crashes: u64,
    caught_up: u64,
    channels: u64,
    jobs: u64,
}

impl Met {
    fn note(&mut self, client: &Client) {
        for answer in client.answers() {
            let count = messages(&answer.body).len() as u64;
            if client.spoken() == Spoken::WebSocket {
                self.channels += count;
            }
            match answer.purpose {
                Purpose::Append { .. } => {
                    self.acknowledged += u64::from(answer.status == Some(204));
                    self.refused += u64::from(answer.status == Some(503));
                }
                Purpose::Follow { .. } | Purpose::FollowAll => self.followed += count,
                Purpose::Read { .. } => self.read += count,
                _ => {}
            }
        }
    }

    /// Whether there was some of everything.
    pub(super) fn is_everything(&self) -> bool {
        let Met {
            acknowledged,
            refused,
            followed,
            read,
            crashes,
            caught_up,
            channels,
            jobs,
        } = *self;
        let all = [
            acknowledged,
            refused,
            followed,
            read,
            crashes,
            caught_up,
            channels,
            jobs,
        ];
        all.iter().all(|count| *count > 0)
    }

    pub(super) fn add(&mut self, other: Met) {
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.followed += other.followed;
        self.read += other.read;
        self.crashes += other.crashes;
        self.caught_up += other.caught_up;
        self.channels += other.channels;
        self.jobs += other.jobs;
    }
}

const STREAMS: [&str; 3] = ["s/a", "s/b", "s/c"];

/// 2025-01-01, 00:00 UTC.
const NOW: Now = Now::from_ms(1_735_689_600_000);

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let settings = NetSettings {
            shards: 1,
            ring_bytes: 4096 << random.below(5),
            // All deferred work of a turn, or one piece of each kind.
            deferred_time: Duration::from_secs(random.below(2) * 3600),
            sends_per_turn: 1 + random.below(20) as usize,
            pipeline_bytes_max: 500,
            compressions_max: 1,
            // The end waits for silence.
            heartbeat: Duration::from_secs(3600),
            requests_per_connection: [0, 0, 0, 5][random.below(4) as usize],
            ..NetSettings::default()
        };
        let disk = SimulatedDisk::new(random.next());
        // So few that some are refused, or more than a channel may have.
        let commands_max = [4, 4, 1000][random.below(3) as usize];
        let node = Node::start(&disk, &settings, commands_max, NOW);
        World {
            random,
            disk,
            settings,
            commands_max,
            node,
            clients: Vec::new(),
            next: 0,
            taken: Vec::new(),
            refused: Vec::new(),
            crashes: 0,
            met: Met::default(),
        }
    }

    /// Lets things happen, then checks what came of them.
    pub(super) fn run(mut self) -> Met {
        self.create_streams();
        let steps = 200 + self.random.below(800);
        for _ in 0..steps {
            self.step();
        }
        self.end()
    }

    fn create_streams(&mut self) {
        let mut client = self.connect(Spoken::Http1);
        for name in STREAMS {
            let target = format!("/v1/stream/{name}");
            client.ask(Purpose::Create, "PUT", &target, "", 0);
        }
        let target = format!("/v1/pool/{POOL}");
        let settings = r#"{"type":"claim","attempts":100,"retry_ms":10}"#;
        client.ask(Purpose::Create, "PUT", &target, settings, 0);
        self.exchange_all(std::slice::from_mut(&mut client));
        let answers = client.answers();
        assert!(
            answers.iter().all(|one| one.status == Some(201)),
            "{answers:?}"
        );
        client.hang_up();
        self.node.settle();
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0..=9 => self.node.turn_shard(),
            10..=14 => self.node.turn_sequencer(),
            15..=17 => {
                self.node.turn_reader();
            }
            18 => self.node.turn_dispatcher(),
            19..=34 => self.act(),
            35..=36 => {
                let ms = 1 << self.random.below(11);
                self.node.pass(Duration::from_millis(ms));
            }
            37 if self.random.below(20) == 0 => {
                let s = self.random.below(100);
                self.node.pass(Duration::from_secs(s));
            }
            38 if self.random.below(5) == 0 => {
                let ms = self.random.below(100_000) as i64 - 50_000;
                self.node.step(ms);
            }
            39 if self.random.below(8) == 0 => self.crash(),
            _ => {}
        }
    }

    /// A client does something.
    fn act(&mut self) {
        let open: Vec<usize> = (0..self.clients.len())
            .filter(|number| self.clients[*number].is_open())
            .collect();
        if open.len() < CLIENTS_MAX && self.random.below(1 + open.len() as u64 * 4) == 0 {
            let spoken = [Spoken::Http1, Spoken::Http2, Spoken::WebSocket];
            let spoken = spoken[self.random.below(3) as usize];
            let client = self.connect(spoken);
            return self.clients.push(client);
        }
        if open.is_empty() {
            return;
        }
        let number = open[self.random.below(open.len() as u64) as usize];
        let count = 1 << self.random.below(14);
        match self.random.below(25) {
            24 => drop(self.clients[number].finish_job()),
            0..=8 => drop(self.clients[number].send(count)),
            9..=16 => drop(self.clients[number].receive(count)),
            17..=21 => self.ask(number),
            22 => {
                let (which, takes) = (self.random.next(), self.random.below(2) == 0);
                self.clients[number].take_exchange(which, takes);
            }
            _ => match self.random.below(8) {
                0 => self.clients[number].hang_up(),
                1 => self.clients[number].half_close(),
                2 => {
                    let which = self.random.next();
                    self.clients[number].reset(which);
                }
                3 => self.clients[number].ask_nonsense(b"nonsense\r\n\r\n"),
                _ => {}
            },
        }
    }

    /// A client asks for something.
    fn ask(&mut self, number: usize) {
        if self.clients[number].follows() || self.clients[number].is_wrong {
            return;
        }
        let stream = self.random.below(STREAMS.len() as u64) as usize;
        let target = format!("/v1/stream/{}", STREAMS[stream]);
        let split = self.random.next();
        let client = &mut self.clients[number];
        match self.random.below(18) {
            14..=17 if client.spoken() == Spoken::WebSocket => {}
            14..=15 => {
                let job = self.next;
                self.next += 1;
                let waits = split.is_multiple_of(3);
                let target = match waits {
                    true => format!("/v1/pool/{POOL}?wait=20"),
                    false => format!("/v1/pool/{POOL}"),
                };
                let purpose = Purpose::Post { job, waits };
                client.ask(purpose, "POST", &target, &format!("j{job};"), split);
            }
            16..=17 => {
                let target = format!("/v1/pool/{POOL}/work?worker=w{}&wait=20", split % 4);
                client.ask(Purpose::Work, "POST", &target, "", split);
            }
            0..=6 => {
                let bursts = client.spoken() == Spoken::WebSocket && self.random.below(20) == 0;
                let (count, bits) = if bursts { (300, 5) } else { (1, 13) };
                for _ in 0..count {
                    let message = self.next;
                    self.next += 1;
                    let filler = "x".repeat(1 << self.random.below(bits));
                    let body = format!("m{message}{filler};");
                    let purpose = Purpose::Append { stream, message };
                    client.ask(purpose, "POST", &target, &body, split);
                }
            }
            7..=8 if client.spoken() == Spoken::WebSocket => {
                client.ask(Purpose::Unsubscribe, "GET", &target, "", split);
            }
            7..=8 => {
                let target = format!("{target}?offset=-1");
                client.ask(Purpose::Read { stream }, "GET", &target, "", split);
            }
            choice @ 9..=10 => {
                let from_now = choice == 10;
                let offset = if from_now { "now" } else { "-1" };
                let target = format!("{target}?offset={offset}&live=sse");
                let purpose = Purpose::Follow { stream, from_now };
                client.ask(purpose, "GET", &target, "", split);
            }
            11 => {
                let target = match self.random.below(2) {
                    0 => "/v1/events?stream=s/**@-1",
                    _ => "/v1/events?stream=s/a@-1&stream=s/b@-1&stream=s/c@-1",
                };
                client.ask(Purpose::FollowAll, "GET", target, "", split);
            }
            12 => {
                let target = format!("{target}?offset=now&live=long-poll");
                client.ask(Purpose::Poll, "GET", &target, "", split);
            }
            _ => client.ask(Purpose::Other, "GET", "/v1/stream/none", "", split),
        }
    }

    fn connect(&mut self, spoken: Spoken) -> Client {
        let buffer_bytes = 4096 << self.random.below(5);
        let (client, socket) = Client::connect(spoken, buffer_bytes);
        self.node.accept(socket);
        client
    }

    /// The power is cut: what was not synced may be lost. The server starts again.
    fn crash(&mut self) {
        // The clocks of a new process begin with the time of day.
        let now = Now::at(self.node.wall());
        self.crashes += 1;
        // The clients get what was sent before.
        self.replace_node(now);
        for client in &mut self.clients {
            while client.is_open() && client.receive(1 << 16) {}
        }
    }

    fn replace_node(&mut self, now: Now) {
        // No log may be open when the power is cut.
        let spare = Node::start(&SimulatedDisk::new(0), &self.settings, 4, now);
        drop(std::mem::replace(&mut self.node, spare));
        self.disk.cut_power();
        self.node = Node::start(&self.disk, &self.settings, self.commands_max, now);
    }

    /// Clients exchange everything with the server.
    fn exchange_all(&mut self, clients: &mut [Client]) {
        let mut quiet = 0;
        for _ in 0..EXCHANGES {
            self.node.settle();
            let mut is_busy = false;
            for client in clients.iter_mut().filter(|client| client.is_open()) {
                client.take_all();
                while client.receive(1 << 16) {
                    is_busy = true;
                    self.node.turn_shard();
                }
                while client.send(1 << 16) {
                    is_busy = true;
                    self.node.turn_shard();
                }
            }
            quiet = if is_busy { 0 } else { quiet + 1 };
            if quiet == QUIET_EXCHANGES {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Lets all clients get what they wait for, checks it, and lets them go.
    fn end(mut self) -> Met {
        let mut clients = std::mem::take(&mut self.clients);
        let mut streams = Vec::new();
        loop {
            self.exchange_all(&mut clients);
            let before = std::mem::replace(&mut streams, self.contents());
            // A long poll may have timed out meanwhile, behind which there was an append.
            if before == streams {
                break;
            }
        }
        for client in &clients {
            check(client, &streams);
            self.met.note(client);
            self.note_jobs(client);
        }
        self.check_jobs();
        self.met.crashes = self.crashes;
        if self.random.below(4) == 0 {
            self.node.stop();
            self.node.settle();
        }
        for client in &mut clients {
            client.hang_up();
        }
        self.node.settle();
        // Those that were refused have a moment to read that.
        self.node.pass(Duration::from_secs(10));
        self.node.settle();
        assert_eq!(self.node.remains(), Remains::NOTHING);
        self.met.caught_up = self.node.pieces();
        self.met
    }

    /// Notes what a client knows of its jobs.
    fn note_jobs(&mut self, client: &Client) {
        for answer in client.answers() {
            let Purpose::Post { job, .. } = answer.purpose else {
                continue;
            };
            match answer.status {
                Some(202) => self.taken.push(job),
                Some(200) => {
                    self.taken.push(job);
                    assert!(!answer.is_complete || answer.body == format!("r{job};"));
                }
                Some(503) => self.refused.push(job),
                _ => {}
            }
        }
    }

    /// Lets workers do all jobs, and checks that each that was taken has its result.
    fn check_jobs(&mut self) {
        // Workers that are gone have their jobs for a while.
        for round in 0.. {
            assert!(round < JOB_ROUNDS, "the jobs never end");
            let mut clients = Vec::new();
            for worker in 0..LAST_WORKERS {
                let mut client = self.connect(Spoken::Http1);
                let target = format!("/v1/pool/{POOL}/work?worker=last{worker}&wait=1");
                client.ask(Purpose::Work, "POST", &target, "", 0);
                clients.push(client);
            }
            self.exchange_all(&mut clients);
            for client in &mut clients {
                client.finish_job();
            }
            self.exchange_all(&mut clients);
            drop(clients);
            let state = self.ask_once(&format!("/v1/pool/{POOL}"));
            let state: Value = serde_json::from_str(&state).unwrap();
            assert_eq!(state["dead"], 0);
            if state["waiting"] == 0 && state["running"] == 0 {
                break;
            }
            self.node.pass(Duration::from_secs(20));
        }
        let results = self.ask_once(&format!("/v1/stream/pool/{POOL}/results?offset=-1"));
        let results: Vec<Value> = serde_json::from_str(&results).unwrap();
        let count = |job: &u32| {
            let wanted = format!("r{job};");
            let of_job = results.iter().filter(|result| result["data"] == *wanted);
            of_job.count()
        };
        for job in &self.taken {
            assert!(count(job) > 0, "job {job} has no result: {results:?}");
            // An interrupted acknowledgement may be repeated.
            assert!(
                count(job) == 1 || self.crashes > 0,
                "job {job}: {results:?}"
            );
        }
        for job in &self.refused {
            assert_eq!(count(job), 0, "job {job} was refused");
        }
        self.met.jobs += results.len() as u64;
    }

    /// The messages of all streams.
    fn contents(&mut self) -> Vec<Vec<u32>> {
        let streams = 0..STREAMS.len();
        streams.map(|stream| self.content(stream)).collect()
    }

    /// The messages of a stream.
    fn content(&mut self, stream: usize) -> Vec<u32> {
        messages(&self.ask_once(&format!("/v1/stream/{}?offset=-1", STREAMS[stream])))
    }

    /// The body of the response to a request.
    fn ask_once(&mut self, target: &str) -> String {
        let mut client = self.connect(Spoken::Http1);
        client.ask(Purpose::Other, "GET", target, "", 0);
        self.exchange_all(std::slice::from_mut(&mut client));
        let answer = client.answers().remove(0);
        assert!(
            answer.status == Some(200) && answer.is_complete,
            "{answer:?}"
        );
        answer.body
    }
}

/// Checks what a client has got against what the streams hold in the end.
fn check(client: &Client, streams: &[Vec<u32>]) {
    let answers = client.answers();
    let is_gone = !client.is_open() || client.is_half_closed || client.is_wrong;
    for (number, answer) in answers.iter().enumerate() {
        let is_answered = match answer.purpose {
            // A poll is over when something comes, or later.
            Purpose::Poll | Purpose::Work | Purpose::Post { waits: true, .. } => true,
            Purpose::Follow { .. } | Purpose::FollowAll => answer.status.is_some(),
            _ => answer.is_complete,
        };
        let is_behind_poll = answers[..number].iter().any(|one| {
            matches!(
                one.purpose,
                Purpose::Poll | Purpose::Work | Purpose::Post { waits: true, .. }
            )
        });
        assert!(
            is_answered
                || is_gone
                || is_behind_poll
                || client.has_reset()
                || !client.has_sent_all(),
            "no response: {number} of {:?}",
            answers
                .iter()
                .map(|one| (&one.purpose, one.status, one.is_complete))
                .collect::<Vec<_>>()
        );
        check_answer(
            answer,
            streams,
            client.is_open() && !is_gone && !client.has_reset() && !answer.is_given_up,
        );
    }
}

fn check_answer(answer: &Answered, streams: &[Vec<u32>], is_whole: bool) {
    let got = messages(&answer.body);
    match answer.purpose {
        Purpose::Append { stream, message } => {
            let count = streams[stream]
                .iter()
                .filter(|one| **one == message)
                .count();
            match answer.status {
                Some(204) => assert_eq!(count, 1, "message {message} was acknowledged"),
                Some(503) => assert_eq!(count, 0, "message {message} was refused"),
                _ => assert!(count <= 1, "message {message} is there {count} times"),
            }
        }
        Purpose::Read { stream } if answer.status == Some(200) => {
            assert!(
                streams[stream].starts_with(&got),
                "{got:?} of {:?}",
                streams[stream]
            );
        }
        Purpose::Follow { stream, from_now } if answer.status == Some(200) => {
            check_followed(&got, &streams[stream], from_now, is_whole);
        }
        Purpose::FollowAll if answer.status == Some(200) => {
            for stream in streams {
                let of_stream: Vec<u32> = got
                    .iter()
                    .copied()
                    .filter(|one| stream.contains(one))
                    .collect();
                check_followed(&of_stream, stream, false, is_whole);
            }
            let known = got
                .iter()
                .all(|one| streams.iter().any(|stream| stream.contains(one)));
            assert!(known, "{got:?}");
        }
        _ => {}
    }
}

/// A subscriber has each record once and in order, and in the end all of them.
fn check_followed(got: &[u32], all: &[u32], from_now: bool, is_whole: bool) {
    let begin = match (from_now, got.first()) {
        (true, Some(first)) => all.iter().position(|one| one == first),
        _ => Some(0),
    };
    let begin = begin.unwrap_or_else(|| panic!("{got:?} of {all:?}"));
    assert!(all[begin..].starts_with(got), "{got:?} of {all:?}");
    if is_whole && (!from_now || !got.is_empty()) {
        assert_eq!(begin + got.len(), all.len(), "{got:?} of {all:?}");
    }
}

/// The messages in a text, in order.
fn messages(text: &str) -> Vec<u32> {
    let parts = text.split('m').skip(1);
    parts
        .filter_map(|part| {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = part.split_at(digits);
            let rest = rest.trim_start_matches('x');
            rest.starts_with(';').then(|| number.parse().ok()).flatten()
        })
        .collect()
}

/// Workers that do the jobs that are left, each one job in a round.
const LAST_WORKERS: u32 = 4;

/// Rounds of workers in which all jobs are done.
const JOB_ROUNDS: u32 = 100;

/// Clients at a time.
const CLIENTS_MAX: usize = 12;

/// Exchanges in which everything was said.
const EXCHANGES: u32 = 10_000;

/// Exchanges in which nothing is said before nothing more is expected.
const QUIET_EXCHANGES: u32 = 30;
