//! A small server of the protocol whose faults a seed decides: it answers 503 and 429, closes connections before and in the middle of
//! responses, sends slowly, and forgets to say that it has done what it was asked for.
//!
//! Its offsets are opaque, as the protocol allows, and its pages are small. It keeps streams in memory.

#![allow(dead_code, reason = "each suite of tests uses a part")]

mod held;
mod wire;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use held::Held;
use held::{index, messages, offset};
use wire::{Answer, Asked, Dice, FAULTS, Fault, read_request, send};

/// A server that runs until it is dropped.
pub(crate) struct FaultyServer {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

/// How a server treats its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Decides what goes wrong.
    pub(crate) seed: u64,
    /// So many of 100 requests have a fault.
    pub(crate) faults_of_100: u64,
    /// Records of a page, at most.
    pub(crate) page_records: usize,
}

#[derive(Default)]
struct State {
    streams: Mutex<BTreeMap<String, Held>>,
    changed: Condvar,
    manners: Mutex<Option<Manners>>,
    requests: AtomicU64,
    /// Requests that are still answered, counted down.
    left: AtomicU64,
    token: Mutex<Option<String>>,
    says_up_to_date: AtomicBool,
    stands_still: AtomicBool,
    lists: AtomicBool,
    over: AtomicBool,
}

impl FaultyServer {
    pub(crate) fn start(manners: Manners) -> FaultyServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let state = Arc::new(State {
            manners: Mutex::new(Some(manners)),
            left: AtomicU64::new(u64::MAX),
            ..State::default()
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let state = Arc::clone(&shared);
                if state.over.load(Ordering::SeqCst) {
                    return;
                }
                let socket = socket.expect("a connection");
                std::thread::spawn(move || state.serve(&socket));
            }
        });
        FaultyServer { address, state }
    }

    /// Where its streams are.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/stream", self.address)
    }

    /// Makes a stream.
    pub(crate) fn create(&self, name: &str, content_type: &str) {
        let held = Held {
            content_type: content_type.to_owned(),
            ..Held::default()
        };
        self.state.streams().insert(name.to_owned(), held);
    }

    /// Appends a record: messages of a JSON stream, or one piece of another.
    pub(crate) fn append(&self, name: &str, record: Vec<Vec<u8>>) {
        self.change(name, |held| held.records.push(record));
    }

    /// Changes a stream.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Held)) {
        change(self.state.streams().get_mut(name).expect("it was made"));
        self.state.changed.notify_all();
    }

    /// Lets a producer of a stream have an epoch.
    pub(crate) fn fence(&self, name: &str, producer: &str, epoch: u64) {
        self.change(name, |held| {
            held.producers.insert(producer.to_owned(), (epoch, 7));
        });
    }

    /// Deletes a stream.
    pub(crate) fn delete(&self, name: &str) {
        self.state.streams().remove(name);
        self.state.changed.notify_all();
    }

    /// From now on each page says that nothing is behind it, as one from a cache may.
    pub(crate) fn say_up_to_date(&self) {
        self.state.says_up_to_date.store(true, Ordering::SeqCst);
    }

    /// From now on each page ends at the offset at which it began, and says that there is more.
    pub(crate) fn stand_still(&self) {
        self.state.stands_still.store(true, Ordering::SeqCst);
    }

    /// From now on there is a list of streams, as Encke has one.
    pub(crate) fn list_streams(&self) {
        self.state.lists.store(true, Ordering::SeqCst);
    }

    /// What a stream is.
    pub(crate) fn held(&self, name: &str) -> Option<Held> {
        self.state.streams().get(name).cloned()
    }

    /// From now on so many requests are answered, and then none.
    pub(crate) fn answer_only(&self, requests: u64) {
        self.state.left.store(requests, Ordering::SeqCst);
    }

    /// Requests are answered again, in this way.
    pub(crate) fn answer_all(&self, manners: Manners) {
        *lock(&self.state.manners) = Some(manners);
        self.state.left.store(u64::MAX, Ordering::SeqCst);
    }

    /// Only requests with this token are answered.
    pub(crate) fn ask_for_token(&self, token: &str) {
        *lock(&self.state.token) = Some(token.to_owned());
    }

    /// How many requests came.
    pub(crate) fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

impl State {
    fn streams(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        lock(&self.streams)
    }

    /// Answers requests until the client or a fault ends the connection.
    fn serve(&self, socket: &TcpStream) {
        let mut input = BufReader::new(socket);
        while let Some(asked) = read_request(&mut input) {
            let number = self.requests.fetch_add(1, Ordering::SeqCst);
            let counted = self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(u64::from(left != u64::MAX))
                });
            if counted.is_err() || self.over.load(Ordering::SeqCst) {
                return;
            }
            let manners = lock(&self.manners).expect("it was started");
            let mut dice = Dice(manners.seed.wrapping_add(number.wrapping_mul(0x9E37_79B9)));
            let fault = match dice.roll(100) < manners.faults_of_100 {
                true => FAULTS[dice.roll(FAULTS.len() as u64) as usize],
                false => Fault::None,
            };
            let answer = match fault {
                Fault::CloseBefore => return,
                Fault::Unavailable => Answer::error(503).field("Retry-After", "0".into()),
                Fault::TooMany => Answer::error(429),
                _ => self.answer(&asked, manners, &mut dice),
            };
            if fault == Fault::CloseBehind
                || send(socket, &asked, &answer, fault, &mut dice).is_err()
            {
                return;
            }
        }
    }

    fn answer(&self, asked: &Asked, manners: Manners, dice: &mut Dice) -> Answer {
        if let Some(token) = &*lock(&self.token)
            && asked.fields.get("authorization") != Some(&format!("Bearer {token}"))
        {
            return Answer::error(401);
        }
        if asked.path == "/v1/stream" && self.lists.load(Ordering::SeqCst) {
            return self.list(asked, manners);
        }
        let Some(name) = asked.path.strip_prefix("/v1/stream/") else {
            return Answer::error(404);
        };
        match &*asked.method {
            "HEAD" => match self.streams().get(name) {
                Some(held) => Answer::of(200, held).field("Stream-Next-Offset", held.tail()),
                None => Answer::error(404),
            },
            "GET" => self.get(name, asked, manners, dice),
            "PUT" => self.put(name, asked),
            "POST" => self.post(name, asked),
            _ => Answer::error(405),
        }
    }

    /// A page of the list of streams. Names of tests need no escapes but that of the slash.
    fn list(&self, asked: &Asked, manners: Manners) -> Answer {
        let parameter = |name: &str| asked.query.get(name).map(|value| value.replace("%2F", "/"));
        let (prefix, after) = (parameter("prefix").unwrap_or_default(), parameter("after"));
        let streams = self.streams();
        let mut names = streams.keys().filter(|name| {
            name.starts_with(&prefix) && after.as_ref().is_none_or(|after| *name > after)
        });
        let page: Vec<&String> = names.by_ref().take(manners.page_records).collect();
        let listed: Vec<_> = page
            .iter()
            .map(|name| serde_json::json!({ "name": name }))
            .collect();
        let mut list = serde_json::json!({ "streams": listed });
        if names.next().is_some() {
            list["next"] = page.last().map(|name| name.as_str()).into();
        }
        Answer {
            body: list.to_string().into_bytes(),
            ..Answer::error(200)
        }
    }

    fn get(&self, name: &str, asked: &Asked, manners: Manners, dice: &mut Dice) -> Answer {
        let Some(from) = asked.query.get("offset").and_then(|offset| index(offset)) else {
            return Answer::error(400);
        };
        let mut streams = self.streams();
        if asked.query.contains_key("live") {
            let waits = |streams: &mut BTreeMap<String, Held>| {
                let held = streams.get(name);
                held.is_some_and(|held| held.records.len() == from && !held.closed)
            };
            let waited = self.changed.wait_timeout_while(streams, POLL, waits);
            streams = waited.expect("no thread panics").0;
        }
        let Some(held) = streams.get(name) else {
            return Answer::error(404);
        };
        if from > held.records.len() {
            return Answer::error(400);
        }
        let most = 1 + dice.roll(manners.page_records as u64) as usize;
        let upto = held.records.len().min(from + most);
        let is_end = upto == held.records.len();
        let is_empty_poll = asked.query.contains_key("live") && from == upto;
        let mut answer = Answer::of(if is_empty_poll { 204 } else { 200 }, held);
        if !is_empty_poll {
            answer.body = held.part(from, upto);
        }
        answer
            .fields
            .retain(|(name, _)| *name != "Stream-Closed" || is_end);
        if self.stands_still.load(Ordering::SeqCst) {
            return answer.field("Stream-Next-Offset", offset(from));
        }
        let answer = answer.field("Stream-Next-Offset", offset(upto));
        match is_end || self.says_up_to_date.load(Ordering::SeqCst) {
            true => answer.field("Stream-Up-To-Date", "true".into()),
            false => answer,
        }
    }

    fn put(&self, name: &str, asked: &Asked) -> Answer {
        let mut streams = self.streams();
        let wanted = Held {
            content_type: asked
                .fields
                .get("content-type")
                .cloned()
                .unwrap_or_default(),
            ttl: asked.fields.get("stream-ttl").cloned(),
            closed: asked.fields.contains_key("stream-closed"),
            ..Held::default()
        };
        let is_new = !streams.contains_key(name);
        let held = streams
            .entry(name.to_owned())
            .or_insert_with(|| wanted.clone());
        let same = held.content_type == wanted.content_type
            && held.ttl == wanted.ttl
            && held.closed == wanted.closed;
        if !same {
            return Answer::error(409);
        }
        Answer::of(if is_new { 201 } else { 200 }, held).field("Stream-Next-Offset", held.tail())
    }

    fn post(&self, name: &str, asked: &Asked) -> Answer {
        let mut streams = self.streams();
        let Some(held) = streams.get_mut(name) else {
            return Answer::error(404);
        };
        let number = |name: &str| {
            asked
                .fields
                .get(name)
                .and_then(|text| text.parse::<u64>().ok())
        };
        let producer = asked.fields.get("producer-id").cloned();
        let (epoch, seq) = (number("producer-epoch"), number("producer-seq"));
        let known = producer
            .as_ref()
            .and_then(|id| held.producers.get(id))
            .copied();
        if let (Some((has_epoch, has_seq)), Some(epoch), Some(seq)) = (known, epoch, seq) {
            if epoch < has_epoch {
                return Answer::error(403).field("Producer-Epoch", has_epoch.to_string());
            }
            if epoch == has_epoch && seq <= has_seq {
                return Answer::of(204, held).field("Stream-Next-Offset", held.tail());
            }
        }
        let closes = asked.fields.contains_key("stream-closed");
        if held.closed {
            let status = if closes && asked.body.is_empty() {
                204
            } else {
                409
            };
            return Answer::of(status, held).field("Stream-Next-Offset", held.tail());
        }
        if asked
            .fields
            .get("if-match")
            .is_some_and(|tail| *tail != held.tail())
        {
            return Answer::error(412).field("Stream-Next-Offset", held.tail());
        }
        if let (Some(id), Some(epoch), Some(seq)) = (producer, epoch, seq) {
            let next = match known {
                Some((has_epoch, has_seq)) if has_epoch == epoch => has_seq + 1,
                _ => 0,
            };
            if seq != next {
                return Answer::error(409);
            }
            held.producers.insert(id, (epoch, seq));
        }
        if !asked.body.is_empty() {
            let record = match held.is_json() {
                true => messages(&asked.body),
                false => vec![asked.body.clone()],
            };
            held.records.push(record);
        }
        held.closed |= closes;
        self.changed.notify_all();
        Answer::of(if asked.body.is_empty() { 204 } else { 200 }, held)
            .field("Stream-Next-Offset", held.tail())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics")
}

/// How long a long poll waits.
const POLL: Duration = Duration::from_millis(200);
