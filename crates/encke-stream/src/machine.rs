//! The rules: what a command does to a stream, whoever asks and wherever it runs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use encke_log::Sequence;

use crate::command::{Append, Command, Create, Data, ForkOf, Outcome, ProducerId, Refusal, Target};
use crate::record::{Change, Fork, Lifetime, Producer};
use crate::stream::{Facts, Life, Media, ProducerState, Source, Stream};
use crate::{Offset, View};

/// The streams and the rules by which they change: commands and the time in, records out.
///
/// A command is judged against what all commands before it made of the streams, committed or not.
/// What it changes goes to a [`Journal`] first. [`Machine::publish`] lets readers see the changes
/// since the last call; [`Machine::abandon`] takes them back.
#[derive(Debug)]
pub struct Machine {
    view: Arc<View>,
    limits: Limits,
    media: HashMap<Box<str>, Arc<Media>>,
    /// Names that the batch gave (`Some`) or took (`None`).
    names: HashMap<Box<str>, Option<Arc<Stream>>>,
    /// What the batch changed, in order, as it was before.
    undo: Vec<Undo>,
    deadlines: BinaryHeap<Reverse<Deadline>>,
    /// Changed since the last checkpoint.
    dirty: HashMap<u64, Arc<Stream>>,
}

/// Bounds of what is remembered for a stream.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Producers that a stream remembers; over it, the one idle longest is forgotten.
    pub producers_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            producers_max: 10_000,
        }
    }
}

/// Where changes are written down, in the order in which they are decided.
pub trait Journal {
    /// The sequence that the next record gets.
    fn next_sequence(&self) -> Sequence;

    /// Adds a record. `stream` is the stream as it will be once the change is made.
    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal>;
}

impl Machine {
    /// A machine over the streams that `view` holds.
    pub(crate) fn new(view: Arc<View>, limits: Limits) -> Self {
        let mut machine = Machine {
            limits,
            media: HashMap::new(),
            names: HashMap::new(),
            undo: Vec::new(),
            deadlines: BinaryHeap::new(),
            dirty: HashMap::new(),
            view: Arc::clone(&view),
        };
        view.for_each(&mut |stream| {
            machine
                .media
                .entry(stream.media.name.clone())
                .or_insert_with(|| Arc::clone(&stream.media));
            machine.watch(stream);
        });
        machine
    }

    /// Judges a command and, if it changes something, records and applies it.
    pub fn apply(&mut self, command: Command, now_ms: u64, journal: &mut dyn Journal) -> Outcome {
        let outcome = match command {
            Command::Create(create) => self.create(create, now_ms, journal),
            Command::Append(append) => self.append(append, now_ms, journal),
            Command::Delete { target } => self.delete(&target, now_ms, journal),
        };
        outcome.unwrap_or_else(Outcome::Refused)
    }

    /// Ends the streams whose lifetime is over.
    pub fn expire(&mut self, now_ms: u64, journal: &mut dyn Journal) -> Result<(), Refusal> {
        while let Some(Reverse(deadline)) = self.deadlines.peek()
            && deadline.at_ms <= now_ms
        {
            let Some(Reverse(deadline)) = self.deadlines.pop() else {
                break;
            };
            let Some(stream) = deadline.stream.upgrade() else {
                continue;
            };
            if stream.state().next.life != Life::Live {
                continue;
            }
            if stream.expired(now_ms) {
                self.end(&stream, journal)?;
            } else {
                self.watch(&stream);
            }
        }
        Ok(())
    }

    /// When [`Machine::expire`] has something to do next, in milliseconds since 1970.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines
            .peek()
            .map(|Reverse(deadline)| deadline.at_ms)
    }

    /// Lets readers see what changed since the last call: all records up to `committed`.
    pub fn publish(&mut self, committed: Sequence) {
        for undo in self.undo.drain(..) {
            if let Undo::Facts(stream, _) = undo {
                let mut state = stream.state();
                state.committed = state.next;
                drop(state);
                self.dirty.insert(stream.no, stream);
            }
        }
        for (name, stream) in self.names.drain() {
            match stream {
                Some(stream) => self.view.insert(stream),
                None => self.view.remove(&name),
            }
        }
        self.view.set_committed(committed);
    }

    /// Takes back what changed since the last [`Machine::publish`].
    pub fn abandon(&mut self) {
        for undo in self.undo.drain(..).rev() {
            undo.take_back();
        }
        self.names.clear();
    }

    /// The streams that changed since the last call, for a checkpoint. An ended one is among them.
    pub(crate) fn take_dirty(&mut self) -> HashMap<u64, Arc<Stream>> {
        std::mem::take(&mut self.dirty)
    }

    fn create(
        &mut self,
        create: Create,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        match self.find(&create.name, now_ms, journal)? {
            Found::Live(stream) => self.confirm(&stream, &create, now_ms),
            Found::Kept => Err(Refusal::NameKept),
            Found::Nothing => self.make(create, now_ms, journal),
        }
    }

    /// A creation that finds its stream: the same settings, or a conflict.
    fn confirm(
        &self,
        stream: &Arc<Stream>,
        create: &Create,
        now_ms: u64,
    ) -> Result<Outcome, Refusal> {
        let facts = stream.state().next;
        let differs = |what, has: &dyn ToString, asked: &dyn ToString| {
            Err(Refusal::Differs {
                what,
                has: has.to_string(),
                asked: asked.to_string(),
            })
        };
        match &create.content_type {
            Some(asked) if !stream.media.matches(asked) => {
                return differs("content type", &stream.media.name, asked);
            }
            // A fork that names no type takes its source's; any other stream has the default.
            None if create.fork.is_none() && !stream.media.matches(DEFAULT_TYPE) => {
                return differs("content type", &stream.media.name, &DEFAULT_TYPE);
            }
            _ => {}
        }
        let inherits = create.fork.is_some() && create.lifetime.is_none();
        if !inherits && create.lifetime.unwrap_or_default() != stream.lifetime {
            return differs(
                "lifetime",
                &words(stream.lifetime),
                &words(create.lifetime.unwrap_or_default()),
            );
        }
        if create.closed != facts.closed {
            let word = |closed| if closed { "closed" } else { "open" };
            return differs("state", &word(facts.closed), &word(create.closed));
        }
        match (&create.fork, &stream.source) {
            (None, None) => {}
            (Some(fork), Some(source)) if *source.stream.name == *fork.source => {
                if let Some(at) = fork.at
                    && at != source.at
                {
                    return differs("fork offset", &source.at, &at);
                }
            }
            (fork, source) => {
                let name = |source: Option<&str>| source.unwrap_or("no source").to_owned();
                return differs(
                    "source",
                    &name(source.as_ref().map(|source| &*source.stream.name)),
                    &name(fork.as_ref().map(|fork| &*fork.source)),
                );
            }
        }
        stream.touch(now_ms);
        Ok(Outcome::Created {
            tail: facts.tail,
            content_type: stream.media.name.clone(),
            closed: facts.closed,
            existed: true,
        })
    }

    fn make(
        &mut self,
        create: Create,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let source = match &create.fork {
            Some(fork) => Some(self.source(fork, now_ms, journal)?),
            None => None,
        };
        let media = match (&create.content_type, &source) {
            (Some(asked), Some(source)) if !source.stream.media.matches(asked) => {
                return Err(Refusal::TypeDiffers {
                    has: source.stream.media.name.clone(),
                    asked: asked.clone(),
                });
            }
            (_, Some(source)) => Arc::clone(&source.stream.media),
            (Some(asked), None) => self.media(asked),
            (None, None) => self.media(DEFAULT_TYPE),
        };
        let lifetime = match (create.lifetime, &source) {
            (Some(lifetime), _) => lifetime,
            (None, Some(source)) => source.stream.lifetime,
            (None, None) => Lifetime::Unbounded,
        };
        let no = journal.next_sequence();
        let tail = match &source {
            Some(source) if create.data.units == 0 => source.at,
            _ => Offset::behind(no),
        };
        let fork = source.as_ref().map(|source| Fork {
            source: source.stream.no,
            at: source.at,
        });
        let facts = Facts {
            tail,
            forks: 0,
            closed: create.closed,
            life: Life::Live,
        };
        let forked = source.as_ref().map(|source| Arc::clone(&source.stream));
        let stream = Arc::new(Stream::new(
            no,
            &create.name,
            Arc::clone(&media),
            lifetime,
            source,
            facts,
            now_ms,
        ));
        let change = Change::Create {
            name: &create.name,
            content_type: &media.name,
            lifetime,
            fork,
            closed: create.closed,
            units: create.data.units,
        };
        journal.record(&stream, &change, create.data.bytes)?;
        if let Some(source) = forked {
            self.change(&source, |facts| facts.forks += 1);
        }
        self.change(&stream, |_| {});
        self.watch(&stream);
        self.names.insert(create.name, Some(stream));
        Ok(Outcome::Created {
            tail,
            content_type: media.name.clone(),
            closed: create.closed,
            existed: false,
        })
    }

    fn source(
        &mut self,
        fork: &ForkOf,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Box<Source>, Refusal> {
        let stream = match self.find(&fork.source, now_ms, journal)? {
            Found::Live(stream) => stream,
            Found::Kept => return Err(Refusal::SourceGone),
            Found::Nothing => return Err(Refusal::SourceNotFound),
        };
        let tail = stream.state().next.tail;
        let at = fork.at.unwrap_or(tail);
        if at > tail {
            return Err(Refusal::BeyondTail { tail, asked: at });
        }
        Ok(Box::new(Source { stream, at }))
    }

    fn append(
        &mut self,
        append: Append,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(&append.target, now_ms, journal)?;
        let facts = stream.state().next;
        if let Some(producer) = &append.producer
            && let Some(known) = self.repeated(&stream, producer)?
        {
            stream.touch(now_ms);
            return Ok(Outcome::Appended {
                tail: facts.tail,
                closed: facts.closed,
                producer: Some((known.epoch, known.seq)),
                duplicate: true,
            });
        }
        let empty = append.data.bytes.is_empty();
        if facts.closed {
            if append.closes && empty && append.producer.is_none() {
                stream.touch(now_ms);
                return Ok(Outcome::Appended {
                    tail: facts.tail,
                    closed: true,
                    producer: None,
                    duplicate: true,
                });
            }
            return Err(Refusal::Closed { tail: facts.tail });
        }
        if let Some(asked) = &append.content_type
            && !empty
            && !stream.media.matches(asked)
        {
            return Err(Refusal::TypeDiffers {
                has: stream.media.name.clone(),
                asked: asked.clone(),
            });
        }
        if let Some(producer) = &append.producer {
            check_order(&stream, producer)?;
        }
        if let Some(asked) = &append.writer_seq {
            check_writer_seq(&stream, asked)?;
        }
        self.add(&stream, append, now_ms, journal)
    }

    /// An append that may be made.
    fn add(
        &mut self,
        stream: &Arc<Stream>,
        append: Append,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let Append {
            producer,
            writer_seq,
            closes,
            data: Data { bytes, units },
            ..
        } = append;
        let change = Change::Append {
            producer: producer.as_ref().map(|producer| Producer {
                id: &producer.id,
                epoch: producer.epoch,
                seq: producer.seq,
            }),
            writer_seq: writer_seq.as_deref(),
            closes,
            units,
        };
        let sequence = journal.record(stream, &change, bytes)?;
        let accepted = producer
            .as_ref()
            .map(|producer| (producer.epoch, producer.seq));
        self.remember(stream, producer, writer_seq, closes, sequence);
        let facts = self.change(stream, |facts| {
            if units > 0 {
                facts.tail = Offset::behind(sequence);
            }
            facts.closed |= closes;
        });
        stream.touch(now_ms);
        Ok(Outcome::Appended {
            tail: facts.tail,
            closed: facts.closed,
            producer: accepted,
            duplicate: false,
        })
    }

    /// What of the writers must be known to judge their next request.
    fn remember(
        &mut self,
        stream: &Arc<Stream>,
        producer: Option<ProducerId>,
        writer_seq: Option<Box<str>>,
        closes: bool,
        sequence: Sequence,
    ) {
        if producer.is_none() && writer_seq.is_none() {
            return;
        }
        let mut state = stream.state();
        let writers = state.writers_mut();
        if let Some(seq) = writer_seq {
            let before = writers.seq.replace(seq);
            self.undo.push(Undo::WriterSeq(Arc::clone(stream), before));
        }
        let Some(ProducerId { id, epoch, seq }) = producer else {
            return;
        };
        let now = ProducerState {
            epoch,
            seq,
            last: sequence,
        };
        if closes {
            let before = writers.closer.replace((id.clone(), now));
            self.undo.push(Undo::Closer(Arc::clone(stream), before));
        }
        if writers.producers.len() >= self.limits.producers_max
            && !writers.producers.contains_key(&id)
            && let Some(idle) = writers
                .producers
                .iter()
                .min_by_key(|(_, producer)| producer.last)
                .map(|(id, _)| id.clone())
        {
            let before = writers.producers.remove(&idle);
            self.undo
                .push(Undo::Producer(Arc::clone(stream), idle, before));
        }
        let before = writers.producers.insert(id.clone(), now);
        self.undo
            .push(Undo::Producer(Arc::clone(stream), id, before));
    }

    /// Whether a producer's request is one that was done already.
    fn repeated(
        &self,
        stream: &Arc<Stream>,
        producer: &ProducerId,
    ) -> Result<Option<ProducerState>, Refusal> {
        let state = stream.state();
        let Some(writers) = &state.writers else {
            return Ok(None);
        };
        let Some(known) = writers.producers.get(&producer.id) else {
            return Ok(None);
        };
        if producer.epoch < known.epoch {
            return Err(Refusal::StaleEpoch {
                current: known.epoch,
            });
        }
        if producer.epoch > known.epoch || producer.seq > known.seq {
            return Ok(None);
        }
        // On a closed stream only the request that closed it counts as done (section 5.2.1).
        if state.next.closed {
            let closed_it = writers.closer.as_ref().is_some_and(|(id, closer)| {
                *id == producer.id && closer.epoch == producer.epoch && closer.seq == producer.seq
            });
            if !closed_it {
                return Err(Refusal::Closed {
                    tail: state.next.tail,
                });
            }
        }
        Ok(Some(*known))
    }

    fn delete(
        &mut self,
        target: &Target,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Outcome, Refusal> {
        let stream = self.live(target, now_ms, journal)?;
        self.end(&stream, journal)?;
        Ok(Outcome::Deleted)
    }

    /// Deletes a stream, and the sources that were kept for it alone.
    fn end(&mut self, stream: &Arc<Stream>, journal: &mut dyn Journal) -> Result<(), Refusal> {
        journal.record(stream, &Change::Delete, Vec::new())?;
        let facts = self.change(stream, |facts| {
            facts.closed = true;
            facts.life = if facts.forks == 0 {
                Life::Ended
            } else {
                Life::Kept
            };
        });
        if facts.life == Life::Ended {
            self.release(stream);
        }
        Ok(())
    }

    /// Frees an ended stream's name and lets go of its source.
    fn release(&mut self, ended: &Arc<Stream>) {
        let mut ended = Arc::clone(ended);
        loop {
            self.names.insert(ended.name.clone(), None);
            let Some(source) = &ended.source else { return };
            let source = Arc::clone(&source.stream);
            let facts = self.change(&source, |facts| {
                facts.forks -= 1;
                if facts.forks == 0 && facts.life == Life::Kept {
                    facts.life = Life::Ended;
                }
            });
            if facts.life != Life::Ended {
                return;
            }
            ended = source;
        }
    }

    fn live(
        &mut self,
        target: &Target,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Arc<Stream>, Refusal> {
        let found = match target {
            Target::Known(stream)
                if stream.state().next.life == Life::Live && !stream.expired(now_ms) =>
            {
                return Ok(Arc::clone(stream));
            }
            Target::Known(stream) => self.find(&stream.name, now_ms, journal)?,
            Target::Named(name) => self.find(name, now_ms, journal)?,
        };
        match found {
            Found::Live(stream) => Ok(stream),
            Found::Kept => Err(Refusal::Gone),
            Found::Nothing => Err(Refusal::NotFound),
        }
    }

    /// The stream that has the name now. One whose lifetime is over ends here.
    fn find(
        &mut self,
        name: &str,
        now_ms: u64,
        journal: &mut dyn Journal,
    ) -> Result<Found, Refusal> {
        let stream = match self.names.get(name) {
            Some(given) => given.clone(),
            None => self.view.find(name),
        };
        let Some(stream) = stream else {
            return Ok(Found::Nothing);
        };
        if stream.state().next.life == Life::Live && stream.expired(now_ms) {
            self.end(&stream, journal)?;
        }
        let life = stream.state().next.life;
        Ok(match life {
            Life::Live => Found::Live(stream),
            Life::Kept => Found::Kept,
            Life::Ended => Found::Nothing,
        })
    }

    fn change(&mut self, stream: &Arc<Stream>, change: impl FnOnce(&mut Facts)) -> Facts {
        let mut state = stream.state();
        self.undo.push(Undo::Facts(Arc::clone(stream), state.next));
        change(&mut state.next);
        state.next
    }

    fn watch(&mut self, stream: &Arc<Stream>) {
        if let Some(at_ms) = stream.ends_ms() {
            self.deadlines.push(Reverse(Deadline {
                at_ms,
                stream: Arc::downgrade(stream),
            }));
        }
    }

    fn media(&mut self, name: &str) -> Arc<Media> {
        if let Some(media) = self.media.get(name) {
            return Arc::clone(media);
        }
        let media = Arc::new(Media::new(name));
        if self.media.len() < MEDIA_SHARED_MAX {
            self.media.insert(name.into(), Arc::clone(&media));
        }
        media
    }
}

/// The order in which a producer's requests must come.
fn check_order(stream: &Stream, producer: &ProducerId) -> Result<(), Refusal> {
    let state = stream.state();
    let known = state
        .writers
        .as_ref()
        .and_then(|writers| writers.producers.get(&producer.id));
    match known {
        Some(known) if producer.epoch == known.epoch => {
            let expected = known.seq + 1;
            if producer.seq == expected {
                Ok(())
            } else {
                Err(Refusal::SeqGap {
                    expected,
                    received: producer.seq,
                })
            }
        }
        Some(_) if producer.seq != 0 => Err(Refusal::EpochStart {
            received: producer.seq,
        }),
        None if producer.seq != 0 => Err(Refusal::SeqGap {
            expected: 0,
            received: producer.seq,
        }),
        _ => Ok(()),
    }
}

fn check_writer_seq(stream: &Stream, asked: &str) -> Result<(), Refusal> {
    let state = stream.state();
    match state
        .writers
        .as_ref()
        .and_then(|writers| writers.seq.as_deref())
    {
        Some(last) if asked.as_bytes() <= last.as_bytes() => Err(Refusal::WriterSeq {
            last: last.into(),
            asked: asked.into(),
        }),
        _ => Ok(()),
    }
}

fn words(lifetime: Lifetime) -> String {
    match lifetime {
        Lifetime::Unbounded => "no end".into(),
        Lifetime::Sliding { ttl_s } => format!("{ttl_s} s"),
        Lifetime::Until { at_ms } => format!("an end at {at_ms} ms"),
    }
}

enum Found {
    Live(Arc<Stream>),
    Kept,
    Nothing,
}

/// A value as it was before the batch changed it.
#[derive(Debug)]
enum Undo {
    Facts(Arc<Stream>, Facts),
    WriterSeq(Arc<Stream>, Option<Box<str>>),
    Closer(Arc<Stream>, Option<(Box<str>, ProducerState)>),
    Producer(Arc<Stream>, Box<str>, Option<ProducerState>),
}

impl Undo {
    fn take_back(self) {
        match self {
            Undo::Facts(stream, before) => stream.state().next = before,
            Undo::WriterSeq(stream, before) => stream.state().writers_mut().seq = before,
            Undo::Closer(stream, before) => stream.state().writers_mut().closer = before,
            Undo::Producer(stream, id, before) => {
                let mut state = stream.state();
                let producers = &mut state.writers_mut().producers;
                match before {
                    Some(before) => producers.insert(id, before),
                    None => producers.remove(&id),
                };
            }
        }
    }
}

#[derive(Debug)]
struct Deadline {
    at_ms: u64,
    stream: std::sync::Weak<Stream>,
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.at_ms == other.at_ms
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at_ms.cmp(&other.at_ms)
    }
}

/// What a stream holds when its creator does not say (RFC 9110, section 8.3).
pub const DEFAULT_TYPE: &str = "application/octet-stream";

/// Types that streams share; more are legal, but each stream then holds its own.
const MEDIA_SHARED_MAX: usize = 1000;
