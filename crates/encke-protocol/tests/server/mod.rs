//! A whole server without sockets and threads: the router over the machine over a log on a simulated
//! disk. Each request is complete before the next one.

mod channel;
mod subscriptions;

use std::collections::HashMap;
use std::sync::Arc;

use encke_access::{Access, ClientCertificate};
use encke_clock::{Now, SteadyTime, WallTime};
use encke_jobs::{DispatchClient, Effect};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Log, Options};
use encke_protocol::{
    Action, Admin, Body, CallerInfo, CrossOriginFields, DispatchRequest, DispatchResponse,
    Dispatched, EncodedRun, Feed, Gate, Headers, Mark, OnDispatch, OnRead, OnWorkerEvent,
    OriginReader, Origins, Policy, Probes, ProtocolSettings, ReadyState, Request, Response, Router,
    Run, Subscription, Variant, Wait, WorkerOutput,
};
use encke_stream::{
    Command, EphemeralMessage, Fetch, Item, Limits, LogJournal, Machine, Offset, Outcome, Piece,
    Stream, View, Views, restore_on,
};

pub use channel::TestChannel;
pub use subscriptions::TestSubscriptions;

pub struct Server {
    pub router: Router,
    pub view: Arc<View>,
    /// The steady clock.
    pub now_ms: u64,
    /// How far the time of day is ahead of it.
    pub wall_ahead_ms: i64,
    /// Who sends all further requests.
    pub caller: CallerInfo<'static>,
    pub jobs: encke_jobs::JobMachine,
    pub subscriptions: TestSubscriptions,
    /// How often a request has waited for the order of a fleet.
    pub waited: usize,
    /// The ephemeral messages that were handed over.
    pub broadcasts: Vec<EphemeralMessage>,
    /// The next request asks for a channel.
    upgrades: bool,
    asked: HashMap<DispatchClient, (Waiting, Vec<Heard>)>,
    machine: Machine,
    log: Log<SimulatedDisk>,
}

/// 2025-01-01, 00:00 UTC; a whole number of cursor intervals after their epoch.
pub const NOW_MS: u64 = 1_735_689_600_000;
/// The number of its interval.
pub const NOW_CURSOR: u64 = (NOW_MS / 1000 - 1_728_432_000) / 20;

/// What the pools have sent to a client.
#[derive(Debug)]
pub enum Heard {
    Respond(Response),
    Open(Response),
    Send(Vec<u8>),
    End(Vec<u8>),
}

/// What a client of the pools waits with.
enum Waiting {
    First(Box<dyn OnDispatch>),
    Worker(Box<dyn OnWorkerEvent>),
    Nothing,
}

impl Waiting {
    fn event(&mut self, event: DispatchResponse) -> Heard {
        match std::mem::replace(self, Waiting::Nothing) {
            Waiting::First(then) => match then.dispatched(event) {
                Dispatched::Respond(response) => Heard::Respond(response),
                Dispatched::Open(response, events) => {
                    *self = Waiting::Worker(events);
                    Heard::Open(response)
                }
            },
            Waiting::Worker(events) => {
                let output = events.event(event);
                *self = Waiting::Worker(events);
                match output {
                    WorkerOutput::Send(bytes) => Heard::Send(bytes),
                    WorkerOutput::End(bytes) => Heard::End(bytes),
                }
            }
            Waiting::Nothing => panic!("{event:?} behind the response"),
        }
    }
}

/// What became of a request.
pub enum Reply {
    Said(Said),
    Subscribed(Said, Subscription),
    SubscribedAll(Said, Subscription),
    Polls(Wait),
    /// A channel is open.
    Opened(Said, TestChannel),
    /// The pools have not answered yet, or go on telling.
    Asks(DispatchClient),
}

/// A response, taken apart.
#[derive(Clone, Debug)]
pub struct Said {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// It ends with the connection.
    pub open: bool,
    /// In how many parts it came.
    pub parts: usize,
}

impl Default for Server {
    fn default() -> Self {
        Self::new(ProtocolSettings::default())
    }
}

impl Server {
    pub fn new(settings: ProtocolSettings) -> Self {
        let gate = Gate {
            origins: Origins::Any,
            ..Gate::default()
        };
        Self::behind(gate, settings)
    }

    /// A server with access control.
    pub fn controlled(access: Access) -> Self {
        let gate = Gate {
            access: Policy::Controlled(Arc::new(access)),
            ..Gate::default()
        };
        Self::behind(gate, ProtocolSettings::default())
    }

    /// A server with access control. The callers are the names of certificates, with the actions and paths that they are granted.
    pub fn guarded(grants: &[(&str, &str, &str)]) -> Self {
        let mut certificates: Vec<serde_json::Value> = Vec::new();
        for (name, actions, path) in grants {
            let actions: Vec<&str> = actions.split(',').collect();
            let grant = serde_json::json!({ "actions": actions, "paths": [path] });
            match certificates.iter_mut().find(|one| one["name"] == *name) {
                Some(one) => one["grants"].as_array_mut().unwrap().push(grant),
                None => {
                    certificates.push(serde_json::json!({ "name": name, "grants": [grant] }));
                }
            }
        }
        let config = serde_json::json!({ "certificates": certificates });
        let config = serde_json::from_value(config).unwrap();
        let access = encke_access::Access::from_config(&config, &|_| Ok(Vec::new())).unwrap();
        Self::controlled(access)
    }

    /// All further requests are of this caller.
    pub fn call_as(&mut self, name: &str) {
        let names = vec![name.to_owned()];
        let certificate = Box::leak(Box::new(ClientCertificate {
            names,
            ends_at: WallTime::from_ms(u64::MAX),
        }));
        self.caller.certificate = Some(certificate);
    }

    pub fn behind(gate: Gate, settings: ProtocolSettings) -> Self {
        let options = Options {
            segment_bytes: 1 << 20,
            history: false,
            ..Options::default()
        };
        let disk = SimulatedDisk::new(1);
        let limits = Limits {
            fork_depth_max: 4,
            ..Limits::default()
        };
        let (machine, view, log) =
            restore_on(disk, options, limits, SteadyTime::from_ms(NOW_MS)).unwrap();
        let probes = Probes {
            readiness: Arc::new(|| ReadyState::Ready),
            metrics: Arc::new(|| b"# none\n".to_vec()),
        };
        let published = Arc::clone(&settings.subscriptions);
        Server {
            router: Router::new(
                Views::one(Arc::clone(&view)),
                settings,
                gate,
                Admin::new(probes),
            ),
            view,
            now_ms: NOW_MS,
            wall_ahead_ms: 0,
            caller: CallerInfo::default(),
            jobs: encke_jobs::JobMachine::new(
                Default::default(),
                Default::default(),
                encke_subscriptions::KeySeed::of([7; 32]),
            ),
            subscriptions: TestSubscriptions::new(Default::default(), published),
            waited: 0,
            broadcasts: Vec::new(),
            upgrades: false,
            asked: HashMap::new(),
            machine,
            log,
        }
    }

    pub fn now(&self) -> Now {
        Now {
            steady: SteadyTime::from_ms(self.now_ms),
            wall: WallTime::from_ms(self.now_ms.saturating_add_signed(self.wall_ahead_ms)),
        }
    }

    /// A request that is answered at once, or must be.
    pub fn send(&mut self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Said {
        match self.reply(line, headers, body) {
            Reply::Said(said) => said,
            Reply::Subscribed(..) => panic!("{line} subscribes"),
            Reply::SubscribedAll(..) => panic!("{line} subscribes to several"),
            Reply::Polls(_) => panic!("{line} polls"),
            Reply::Opened(..) => panic!("{line} opens a channel"),
            Reply::Asks(_) => panic!("{line} waits for the pools"),
        }
    }

    /// `line` is the method and the target.
    pub fn reply(&mut self, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let length = body.len().to_string();
        let length = ("Content-Length", length.as_bytes());
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| (*name, value.as_bytes()));
        let headers: Vec<(&str, &[u8])> = headers
            .chain((!body.is_empty()).then_some(length))
            .collect();
        self.request(method, path, query, &headers, body)
    }

    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        query: Option<&str>,
        headers: &[(&str, &[u8])],
        body: &[u8],
    ) -> Reply {
        let now = self.now();
        let request = |body, barriers| Request {
            method,
            path,
            query,
            headers: Headers(headers),
            body,
            caller: self.caller,
            now,
            barriers,
            upgrade: self.upgrades,
        };
        let mut answer = self.router.request(request(body.to_vec(), 0)).action;
        let mut barriers = 0;
        while let Action::AwaitOrder(_, body) = answer {
            barriers += 1;
            answer = self.router.request(request(body, barriers)).action;
        }
        self.waited += barriers;
        loop {
            answer = match answer {
                Action::Respond(response) => return Reply::Said(said(response)),
                Action::Subscribe(mut subscription) => {
                    let opened = said(std::mem::take(&mut subscription.response));
                    return match subscription.feed {
                        Feed::Single { .. } | Feed::Awaited { .. } => {
                            Reply::Subscribed(opened, subscription)
                        }
                        Feed::Merged { .. } => Reply::SubscribedAll(opened, subscription),
                    };
                }
                Action::Wait(wait) => return Reply::Polls(wait),
                Action::Park(response, _) => return Reply::Said(said(response)),
                Action::AwaitOrder(..) => unreachable!("it has waited"),
                Action::Load(load) => panic!("{} is not in memory", load.name),
                Action::Open(opening) => return self.opened(opening),
                Action::Unsubscribe(..) | Action::Close(_) => panic!("no channel is open"),
                Action::Commit(command, then) => {
                    let outcome = self.apply(command);
                    self.commit();
                    Action::Respond(then.committed(outcome))
                }
                Action::Broadcast(broadcast) => {
                    self.broadcasts.push(broadcast.message);
                    Action::Respond(broadcast.then.handed_over())
                }
                Action::Change(command, then) => {
                    let outcome = self.apply(command);
                    self.commit();
                    then.changed(outcome, self.now())
                }
                Action::Read(fetch, then) => self.resume(&self.read(&fetch), then),
                Action::List(fetch, then) => {
                    let page = self.machine.loader(self.log.reader()).list(&fetch).unwrap();
                    return Reply::Said(said(then.listed(Ok(page))));
                }
                // The server answers it beside its shards: here the question itself is the answer.
                Action::Inspect(inspection) => {
                    let body = format!("{:?}", inspection.question);
                    let audit = inspection.note;
                    let response = Response::new(200).body(body);
                    return Reply::Said(said(Response { audit, ..response }));
                }
                Action::Dispatch(request, then) => return self.ask(request, then),
                Action::Stream(response, next) => {
                    let mut said = said(response);
                    let mut next = Some(next);
                    while let Some(part) = next {
                        let piece = self.read(&part.fetch);
                        let items: Vec<_> = piece.items().collect();
                        let part = part.then.part(&run(&piece, &items)).unwrap();
                        said.body.extend_from_slice(&part.bytes);
                        assert!(part.files.is_empty(), "nothing lies in a file here");
                        said.body.extend_from_slice(part.behind);
                        said.parts += 1;
                        next = part.next;
                    }
                    return Reply::Said(said);
                }
            };
        }
    }

    /// The first action of a request without fields and a body.
    pub fn act(&self, line: &str) -> Action {
        let (method, target) = line.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap();
        let request = Request {
            method,
            path,
            query: Some(query),
            headers: Headers(&[]),
            body: Vec::new(),
            caller: self.caller,
            now: self.now(),
            barriers: 0,
            upgrade: false,
        };
        self.router.request(request).action
    }

    /// The refusal of a request whose body is still to come, by its head alone.
    pub fn head(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Said> {
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        let request = Request {
            method,
            path,
            query: None,
            headers: Headers(&headers),
            body: Vec::new(),
            caller: self.caller,
            now: self.now(),
            barriers: 0,
            upgrade: false,
        };
        self.router
            .head(&request)
            .err()
            .map(|response| said(*response))
    }

    fn ask(&mut self, ask: DispatchRequest, then: Box<dyn OnDispatch>) -> Reply {
        let ask = match ask {
            DispatchRequest::Pool(ask) => ask,
            DispatchRequest::Subscription(ask) => return self.ask_subscriptions(*ask, then),
        };
        let client = DispatchClient {
            node: 0,
            shard: 0,
            token: self.asked.len() as u64,
            request: 1,
        };
        self.asked
            .insert(client, (Waiting::First(then), Vec::new()));
        self.jobs.request(self.now(), client, ask);
        self.work();
        let mut said = self.heard(client);
        match said.pop() {
            Some(Heard::Respond(response)) => Reply::Said(self::said(response)),
            Some(other) => {
                said.push(other);
                if let Some((_, heard)) = self.asked.get_mut(&client) {
                    heard.extend(said);
                }
                Reply::Asks(client)
            }
            None => Reply::Asks(client),
        }
    }

    /// Does for the pools what they want done.
    pub fn work(&mut self) {
        self.jobs.tick(self.now());
        self.jobs.flush(self.now());
        loop {
            let effects = self.jobs.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                match effect {
                    Effect::Commit { op, command } => {
                        let outcome = self.apply(command);
                        self.commit();
                        self.jobs.committed(self.now(), op, outcome);
                    }
                    Effect::Load { .. } => panic!("what is in memory is read"),
                    Effect::Respond { to, response: told } => {
                        let (then, heard) = self.asked.get_mut(&to).unwrap();
                        heard.push(then.event(told));
                    }
                }
            }
            self.jobs.flush(self.now());
        }
    }

    /// What the pools said to a client since somebody looked.
    pub fn heard(&mut self, client: DispatchClient) -> Vec<Heard> {
        let (_, heard) = self.asked.get_mut(&client).unwrap();
        std::mem::take(heard)
    }

    /// Puts back what nobody has looked at.
    pub fn unhear(&mut self, client: DispatchClient, said: Vec<Heard>) {
        let (_, heard) = self.asked.get_mut(&client).unwrap();
        heard.splice(0..0, said);
    }

    fn apply(&mut self, command: Command) -> Outcome {
        let now = self.now();
        let mut journal = LogJournal {
            log: &mut self.log,
            now: now.wall,
        };
        self.machine.apply(command, now, &mut journal)
    }

    /// Ends the streams whose lifetime is over, as the sequencer does it by itself.
    pub fn expire(&mut self) {
        let now = self.now();
        let mut journal = LogJournal {
            log: &mut self.log,
            now: now.wall,
        };
        let load = &mut |no| panic!("{no} is not in memory");
        self.machine.expire(now, &mut journal, load).unwrap();
        self.commit();
    }

    pub fn stream(&self, name: &str) -> Arc<Stream> {
        self.view.find(name).unwrap()
    }

    /// What follows from a piece that was read.
    pub fn resume(&self, piece: &Piece, then: Box<dyn OnRead>) -> Action {
        let items: Vec<_> = piece.items().collect();
        then.read(Ok(run(piece, &items)), self.now().wall)
    }

    /// What a subscriber is sent up to the tail.
    pub fn follow(&self, subscription: &Subscription) -> (Vec<u8>, Vec<Mark>) {
        let Feed::Single {
            stream,
            from,
            encoder,
            option,
        } = &subscription.feed
        else {
            panic!("a subscription to one stream");
        };
        let mut out = EncodedRun::default();
        let facts = stream.facts();
        let mut from = *from;
        let encoder = self.router.encoders().encoder(*encoder);
        let mut fetch_bytes = 64;
        while from < facts.tail {
            let fetch = Fetch::new(stream, from, facts.tail, fetch_bytes);
            let piece = self.read(&fetch);
            let items: Vec<_> = piece.items().collect();
            let run = match piece.more {
                true => run(&piece, &items),
                false => Run::at_tail(piece.end, facts).with(&items),
            };
            let variant = Variant {
                name: match encoder.names_streams() {
                    true => &stream.name,
                    false => "",
                },
                kind: stream.media.kind,
                option: *option,
            };
            encoder.encode(variant, &run, self.now().wall, &mut out);
            let reached = out.withheld_at.take().unwrap_or(piece.end);
            if reached == from {
                if !piece.more {
                    break;
                }
                // The rest of a cut character is in a later record.
                fetch_bytes *= 2;
            }
            from = reached;
        }
        (out.bytes, out.marks)
    }

    /// What a poll says once records have come.
    pub fn polled(&self, wait: Wait) -> Said {
        let facts = wait.stream.facts();
        let piece = self.read(&Fetch::new(&wait.stream, wait.from, facts.tail, 1 << 20));
        let items: Vec<_> = piece.items().collect();
        let run = match piece.more {
            true => run(&piece, &items),
            false => Run::at_tail(piece.end, facts).with(&items),
        };
        said(wait.then.arrived(run, self.now().wall))
    }

    pub fn read(&self, fetch: &Fetch) -> Piece {
        Piece::read(&self.log.reader(), fetch).unwrap()
    }

    fn commit(&mut self) {
        self.log.write().unwrap();
        self.log.sync().unwrap();
        self.log.publish();
        self.machine.publish(self.log.next_sequence() - 1);
        for (stream, floor) in self.machine.take_floors() {
            self.log.set_floor(stream, floor);
        }
    }
}

/// A piece as the shards hand it over.
fn run<'a>(piece: &'a Piece, items: &'a [Item<'a>]) -> Run<'a> {
    Run {
        at_tail: !piece.more,
        large: &piece.large,
        cut: piece.cut,
        ..Run::position(piece.end).with(items)
    }
}

/// Takes a response apart, and sees that it can be written to a socket as it is.
pub fn said(response: Response) -> Said {
    assert!(!response.fields.is_empty());
    fields_of(response)
}

fn fields_of(response: Response) -> Said {
    let mut fields = response.fields.clone();
    let named = CrossOriginFields {
        reader: &OriginReader::Any,
        any: true,
        vary: false,
    };
    response.cross_origin.write(named, &mut fields);
    let fields = std::str::from_utf8(&fields).unwrap_or_default();
    let mut parsed = Vec::new();
    for line in fields.split_inclusive("\r\n") {
        let line = line.strip_suffix("\r\n").expect("every field ends");
        let (name, value) = line.split_once(": ").expect("a name and a value");
        let is_token = |c: char| c.is_ascii_alphanumeric() || c == '-';
        assert!(!name.is_empty() && name.chars().all(is_token), "{name:?}");
        assert!(!value.contains(char::is_control), "{line:?}");
        parsed.push((name.to_owned(), value.to_owned()));
    }
    Said {
        status: response.status,
        fields: parsed,
        open: matches!(response.body, Body::Open(_)),
        parts: 1,
        body: response.body.as_ref().to_vec(),
    }
}

impl Said {
    /// The value of a field that may be there once at most.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found = self
            .fields
            .iter()
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value);
        let value = found.next();
        assert_eq!(found.next(), None, "{name} twice");
        value
    }

    /// Where the reader is now.
    pub fn next(&self) -> Offset {
        let next = self
            .field("Stream-Next-Offset")
            .expect("Stream-Next-Offset");
        next.parse().expect("an offset")
    }

    /// The token for that.
    pub fn token(&self) -> String {
        self.next().to_string()
    }

    /// The machine-readable word for what went wrong.
    pub fn code(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        body["error"]["code"].as_str().unwrap().to_owned()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}
