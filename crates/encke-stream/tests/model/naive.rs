//! A naive model of the protocol: a stream is a list of units, a fork is a copy, and each rule is written as in the
//! protocol's text.

use std::collections::BTreeMap;
use std::time::Duration;

use encke_clock::{Now, SteadyTime};
use encke_stream::{
    AckLevel, Append, ByteCount, Command, Create, Data, EndReason, Facts, Life, Lifetime, Limits,
    MediaKind, MessageCount, Offset, Outcome, ProducerId, Refusal, Retention, Target, Viewer,
};

/// All streams, by number, and the owners of names.
#[derive(Clone, Debug)]
pub struct Naive {
    pub streams: BTreeMap<u64, Stream>,
    pub names: BTreeMap<String, u64>,
    /// The sequence of the next record.
    pub next: u64,
    pub now: Now,
    /// How often a producer was forgotten.
    pub forgotten: u32,
    /// How many producers have been silent for too long.
    pub abandoned: u32,
    limits: Limits,
}

#[derive(Clone, Debug)]
pub struct Stream {
    pub name: String,
    pub content_type: String,
    pub lifetime: Lifetime,
    pub touched: SteadyTime,
    /// It has live readers.
    pub is_read: bool,
    pub source: Option<(u64, Offset)>,
    pub depth: u32,
    /// Everything a reader sees from the beginning, including a fork's inherited units.
    pub units: Vec<Unit>,
    /// Messages that were ever in it, if that is known.
    pub messages: MessageCount,
    /// Bytes that were appended to it, without those of its source.
    pub appended: ByteCount,
    pub tail: Offset,
    /// The records up to this one are removed.
    pub floor: u64,
    pub closed: bool,
    pub end: Option<EndReason>,
    pub stop_asked: bool,
    pub owner: Option<String>,
    pub metadata: Option<String>,
    pub producer_timeout_s: Option<u32>,
    pub last_append: SteadyTime,
    pub life: Life,
    /// Forks that have not ended.
    pub forks: u32,
    /// The last writer is last.
    producers: Vec<ProducerId>,
    writer_seq: Option<String>,
    closer: Option<ProducerId>,
}

impl Stream {
    fn count(&mut self, data: &Data) {
        let kind = match is_json(&self.content_type) {
            true => MediaKind::Json,
            false => MediaKind::Binary,
        };
        self.messages = self.messages.with(data.units, kind);
        self.appended = self.appended.and(ByteCount::of(&data.bytes));
    }
}

/// A byte, or a JSON message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The record that it came with, and its position there.
    pub record: u64,
    pub index: u32,
    pub bytes: Vec<u8>,
}

impl Unit {
    /// Whether a reader at `offset` has it already.
    pub fn is_before(&self, offset: Offset) -> bool {
        self.record <= offset.sequence
            || (self.record == offset.sequence + 1 && self.index < offset.units)
    }
}

/// Data as it goes into a command, and as units.
pub fn units(kind_is_json: bool, bytes: &[u8], record: u64) -> Vec<Unit> {
    let parts: Vec<&[u8]> = if kind_is_json {
        bytes.split(|byte| *byte == b',').collect()
    } else {
        bytes.chunks(1).collect()
    };
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .zip(0..)
        .map(|(part, index)| Unit {
            record,
            index,
            bytes: part.to_vec(),
        })
        .collect()
}

pub fn is_json(content_type: &str) -> bool {
    content_type
        .to_ascii_lowercase()
        .starts_with("application/json")
}

fn same_type(a: &str, b: &str) -> bool {
    let essence = |name: &str| {
        let essence = name.split(';').next().unwrap_or_default();
        essence.trim().to_ascii_lowercase()
    };
    essence(a) == essence(b)
}

impl Naive {
    pub fn new(now: Now, limits: Limits) -> Self {
        Naive {
            streams: BTreeMap::new(),
            names: BTreeMap::new(),
            next: 1,
            now,
            forgotten: 0,
            abandoned: 0,
            limits,
        }
    }

    /// The expected outcome. `frame_max` is about how many bytes a record may have.
    pub fn apply(&mut self, command: &Command, frame_max: usize) -> Outcome {
        let outcome = match command {
            Command::Create(create) => self.create(create, frame_max),
            Command::Append(append) => self.append(append, frame_max),
            Command::Truncate { target, before, .. } => self.truncate(target, *before),
            Command::Delete { target, .. } => self.delete(target),
            Command::Fleet(_) => panic!("nodes of a fleet are tested elsewhere"),
            Command::Series(_) => panic!("series are tested with the pools"),
        };
        outcome.unwrap_or_else(Outcome::Refused)
    }

    pub fn facts(&self, no: u64) -> Facts {
        let stream = &self.streams[&no];
        Facts {
            tail: stream.tail,
            counted: stream.messages,
            appended: stream.appended,
            forks: stream.forks,
            floor: stream.floor,
            closed: stream.closed,
            end: stream.end,
            stop_asked: stream.stop_asked,
            life: stream.life,
        }
    }

    /// The progress of a producer, if it is remembered.
    pub fn producer(&self, no: u64, id: &str) -> Option<(u64, u64)> {
        let mut producers = self.streams.get(&no)?.producers.iter();
        let known = producers.find(|known| *known.id == *id)?;
        Some((known.epoch, known.seq))
    }

    /// Ends all streams whose lifetime is over.
    pub fn expire(&mut self) {
        let due: Vec<u64> = self.streams.keys().copied().collect();
        for no in due {
            let is_live = self.streams[&no].life == Life::Live;
            if is_live && self.is_expired(no) && self.is_kept(no) {
                self.touch(no);
            }
            self.check_expiry(no);
            self.check_producer(no);
        }
    }

    /// Closes a stream whose producer has been silent for too long.
    fn check_producer(&mut self, no: u64) {
        let stream = &self.streams[&no];
        let Some(timeout_s) = stream.producer_timeout_s else {
            return;
        };
        let silent_until = stream
            .last_append
            .after(Duration::from_secs(timeout_s.into()));
        if stream.life != Life::Live || stream.closed || silent_until > self.now.steady {
            return;
        }
        self.record();
        let now = self.now.steady;
        let stream = self.streams.get_mut(&no).unwrap();
        stream.closed = true;
        stream.end = Some(match stream.stop_asked {
            true => EndReason::Stopped,
            false => EndReason::Abandoned,
        });
        stream.last_append = now;
        stream.touched = now;
        self.abandoned += 1;
    }

    pub fn is_expired(&self, no: u64) -> bool {
        let stream = &self.streams[&no];
        match stream.lifetime {
            Lifetime::Unbounded => false,
            Lifetime::Sliding { ttl_s } => {
                stream.touched.after(Duration::from_secs(ttl_s)) <= self.now.steady
            }
            Lifetime::Until { at } => at <= self.now.wall,
        }
    }

    pub fn touch(&mut self, no: u64) {
        self.streams.get_mut(&no).unwrap().touched = self.now.steady;
    }

    /// Whether live readers keep a stream whose lifetime would be over.
    pub fn is_kept(&self, no: u64) -> bool {
        let stream = &self.streams[&no];
        stream.is_read && matches!(stream.lifetime, Lifetime::Sliding { .. })
    }

    fn check_expiry(&mut self, no: u64) {
        if self.streams[&no].life == Life::Live && self.is_expired(no) && !self.is_kept(no) {
            self.end(no);
        }
    }

    fn find(&mut self, name: &str) -> Option<u64> {
        let no = *self.names.get(name)?;
        self.check_expiry(no);
        self.names.get(name).copied()
    }

    fn target(&mut self, target: &Target) -> Result<u64, Refusal> {
        let no = match target {
            Target::Named(name) | Target::Read { name, .. } | Target::Owned { name, .. } => {
                let no = self.find(name).ok_or(Refusal::NotFound)?;
                let stream = &self.streams[&no];
                // By its name alone only a stream is meant that belongs to nobody.
                if stream.owner.is_some() {
                    return Err(Refusal::NotFound);
                }
                no
            }
            Target::Known(stream) => {
                self.check_expiry(stream.no);
                stream.no
            }
        };
        match self.streams[&no].life {
            Life::Live => Ok(no),
            Life::Kept => Err(Refusal::Gone),
            Life::Ended => Err(Refusal::NotFound),
        }
    }

    fn create(&mut self, create: &Create, frame_max: usize) -> Result<Outcome, Refusal> {
        let hides = |stream: &Stream, viewer: &Viewer| match (viewer, &stream.owner) {
            (Viewer::Of(own), Some(owner)) => own.as_deref() != Some(owner),
            _ => false,
        };
        if let Some(no) = self.find(&create.name) {
            if hides(&self.streams[&no], &create.extras.viewer) {
                return Err(Refusal::NotOwner);
            }
            return match self.streams[&no].life {
                Life::Live => self.confirm(no, create),
                _ => Err(Refusal::NameKept),
            };
        }
        let source = match &create.fork {
            None => None,
            Some(fork) => {
                let no = self.find(&fork.source).ok_or(Refusal::SourceNotFound)?;
                let source = &self.streams[&no];
                if hides(source, &create.extras.source_viewer) {
                    return Err(Refusal::SourceNotFound);
                }
                if source.life != Life::Live {
                    return Err(Refusal::SourceGone);
                }
                let tail = source.tail;
                let at = fork.at.unwrap_or(tail);
                if at > tail {
                    return Err(Refusal::BeyondTail { tail, asked: at });
                }
                let first = self.first(no);
                if at != Offset::START && at.sequence + 1 < first {
                    return Err(Refusal::BeforeStart { asked: at });
                }
                let begins = at == Offset::START || at == Offset::behind(first - 1);
                if at.sequence < source.floor && !begins {
                    let floor = Offset::behind(source.floor);
                    return Err(Refusal::NoLongerKept { asked: at, floor });
                }
                if source.depth >= self.limits.fork_depth_max {
                    return Err(Refusal::TooDeep {
                        depth_max: self.limits.fork_depth_max,
                    });
                }
                Some((no, at))
            }
        };
        let inherited = source.map(|(no, at)| (&self.streams[&no], at));
        let content_type = match (&create.content_type, &inherited) {
            (None, None) => "application/octet-stream".to_owned(),
            (Some(asked), None) => asked.to_string(),
            (None, Some((source, _))) => source.content_type.clone(),
            (Some(asked), Some((source, _))) => {
                if !same_type(asked, &source.content_type) {
                    return Err(Refusal::TypeDiffers {
                        has: source.content_type.clone().into(),
                        asked: asked.clone(),
                    });
                }
                source.content_type.clone()
            }
        };
        let owner = inherited
            .as_ref()
            .and_then(|(source, _)| source.owner.as_deref());
        let hidden = |owner: &str| !create.extras.viewer.sees(Some(owner));
        if create.extras.owner.is_none() && owner.is_some_and(hidden) {
            return Err(Refusal::NotOwner);
        }
        let lifetime = create
            .lifetime
            .or(inherited.as_ref().map(|(source, _)| source.lifetime))
            .unwrap_or(Lifetime::Unbounded);
        if create.data.bytes.len() > frame_max {
            return Err(Refusal::TooLarge {
                bytes: 0,
                bytes_max: 0,
            });
        }
        let no = self.record();
        let mut stream = Stream {
            name: create.name.to_string(),
            lifetime,
            touched: self.now.steady,
            is_read: false,
            source,
            depth: 0,
            units: Vec::new(),
            messages: MessageCount::default(),
            appended: ByteCount::default(),
            tail: Offset::behind(no),
            floor: 0,
            closed: create.closed,
            end: None,
            stop_asked: false,
            owner: create.extras.owner.as_ref().map(ToString::to_string),
            metadata: create.extras.metadata.as_ref().map(ToString::to_string),
            producer_timeout_s: create.extras.producer_timeout_s,
            last_append: self.now.steady,
            life: Life::Live,
            forks: 0,
            producers: Vec::new(),
            writer_seq: None,
            closer: None,
            content_type,
        };
        if let Some((source, at)) = source {
            let source = self.streams.get_mut(&source).unwrap();
            source.forks += 1;
            stream.owner = stream.owner.or_else(|| source.owner.clone());
            stream.depth = source.depth + 1;
            stream.floor = source.floor.min(at.sequence);
            let before = source.units.iter().filter(|unit| unit.is_before(at));
            stream.units = before.cloned().collect();
            stream.messages = match at {
                Offset::START => MessageCount::default(),
                at if at == source.tail => source.messages,
                _ => MessageCount::UNKNOWN,
            };
            if create.data.units == 0 {
                stream.tail = at;
            }
        }
        let json = is_json(&stream.content_type);
        stream.units.extend(units(json, &create.data.bytes, no));
        stream.count(&create.data);
        let outcome = Outcome::Created {
            tail: stream.tail,
            content_type: stream.content_type.clone().into(),
            closed: stream.closed,
            ack: AckLevel::Synced,
            retention: Retention::default(),
            existed: false,
            no,
        };
        self.names.insert(stream.name.clone(), no);
        self.streams.insert(no, stream);
        Ok(outcome)
    }

    fn confirm(&mut self, no: u64, create: &Create) -> Result<Outcome, Refusal> {
        let stream = &self.streams[&no];
        let asked_type = match (&create.content_type, &create.fork) {
            (Some(asked), _) => asked.to_string(),
            (None, Some(_)) => stream.content_type.clone(),
            (None, None) => "application/octet-stream".to_owned(),
        };
        let source = stream.source.map(|(source, _)| &self.streams[&source]);
        let asked_source = create.fork.as_ref().map(|fork| &*fork.source);
        let asked_at = create.fork.as_ref().and_then(|fork| fork.at);
        let asked_lifetime = create
            .lifetime
            .or(source.map(|source| source.lifetime))
            .unwrap_or(Lifetime::Unbounded);
        let what = if !same_type(&asked_type, &stream.content_type) {
            "content type"
        } else if asked_source != source.map(|source| &*source.name) {
            "source"
        } else if asked_at.is_some() && asked_at != stream.source.map(|(_, at)| at) {
            "fork offset"
        } else if asked_lifetime != stream.lifetime {
            "lifetime"
        } else if create.extras.owner.is_some()
            && create.extras.owner.as_deref() != stream.owner.as_deref()
        {
            "owner (Encke-Owner)"
        } else if create.extras.producer_timeout_s != stream.producer_timeout_s {
            "producer timeout (Encke-Producer-Timeout)"
        } else if create.closed != stream.closed {
            "state"
        } else {
            let outcome = Outcome::Created {
                tail: stream.tail,
                content_type: stream.content_type.clone().into(),
                closed: stream.closed,
                ack: AckLevel::Synced,
                retention: Retention::default(),
                existed: true,
                no,
            };
            self.touch(no);
            return Ok(outcome);
        };
        Err(Refusal::Differs {
            what: what.into(),
            has: String::new(),
            asked: String::new(),
        })
    }

    fn append(&mut self, append: &Append, frame_max: usize) -> Result<Outcome, Refusal> {
        let no = self.target(&append.target)?;
        let stream = &self.streams[&no];
        let tail = stream.tail;
        let closed = Refusal::Closed {
            tail,
            end: stream.end,
        };
        let known = append
            .producer
            .as_ref()
            .and_then(|asked| stream.producers.iter().find(|known| known.id == asked.id))
            .cloned();
        if let (Some(asked), Some(known)) = (&append.producer, &known) {
            if asked.epoch < known.epoch {
                return Err(Refusal::StaleEpoch {
                    current: known.epoch,
                });
            }
            if asked.epoch == known.epoch && asked.seq <= known.seq {
                if stream.closed && stream.closer.as_ref() != Some(asked) {
                    return Err(closed);
                }
                let (is_closed, stop_asked) = (stream.closed, stream.stop_asked);
                self.touch(no);
                return Ok(Outcome::Appended {
                    tail,
                    closed: is_closed,
                    stop_asked,
                    producer: Some((known.epoch, known.seq)),
                    duplicate: true,
                });
            }
        }
        if stream.closed {
            if append.closes && append.data.bytes.is_empty() && append.producer.is_none() {
                let stop_asked = stream.stop_asked;
                self.touch(no);
                return Ok(Outcome::Appended {
                    tail,
                    closed: true,
                    stop_asked,
                    producer: None,
                    duplicate: true,
                });
            }
            return Err(closed);
        }
        let extras = &append.extras;
        let is_empty = append.data.bytes.is_empty();
        if extras.asks_stop && stream.stop_asked && is_empty && !append.closes {
            self.touch(no);
            return Ok(Outcome::Appended {
                tail,
                closed: false,
                stop_asked: true,
                producer: None,
                duplicate: true,
            });
        }
        if let Some(asked) = extras.if_tail
            && asked != tail
        {
            return Err(Refusal::TailDiffers { asked, tail });
        }
        if let Some(asked) = &append.content_type
            && !append.data.bytes.is_empty()
            && !same_type(asked, &stream.content_type)
        {
            return Err(Refusal::TypeDiffers {
                has: stream.content_type.clone().into(),
                asked: asked.clone(),
            });
        }
        if let Some(asked) = &append.producer {
            let received = asked.seq;
            let session = known.as_ref().filter(|known| known.epoch == asked.epoch);
            let expected = session.map_or(0, |known| known.seq + 1);
            if received != expected {
                return Err(match (&known, session) {
                    (Some(_), None) => Refusal::EpochStart { received },
                    _ => Refusal::SeqGap { expected, received },
                });
            }
        }
        if let (Some(asked), Some(last)) = (&append.writer_seq, &stream.writer_seq)
            && asked.as_bytes() <= last.as_bytes()
        {
            return Err(Refusal::WriterSeq {
                last: last.clone().into(),
                asked: asked.clone(),
            });
        }
        if append.data.bytes.len() > frame_max {
            return Err(Refusal::TooLarge {
                bytes: 0,
                bytes_max: 0,
            });
        }
        let record = self.record();
        let producers_max = self.limits.producers_max;
        let now = self.now.steady;
        let stream = self.streams.get_mut(&no).unwrap();
        let json = is_json(&stream.content_type);
        let new = units(json, &append.data.bytes, record);
        if !new.is_empty() {
            stream.tail = Offset::behind(record);
        }
        stream.units.extend(new);
        stream.count(&append.data);
        stream.closed = append.closes;
        stream.end = append.extras.end.filter(|_| append.closes);
        if let Some(metadata) = &append.extras.metadata {
            stream.metadata = Some(metadata.to_string());
        }
        // A reader that asks for the first time is no producer.
        if !append.extras.asks_stop || stream.stop_asked {
            stream.last_append = now;
        }
        stream.stop_asked |= append.extras.asks_stop;
        if let Some(seq) = &append.writer_seq {
            stream.writer_seq = Some(seq.to_string());
        }
        if let Some(producer) = &append.producer {
            stream.producers.retain(|known| known.id != producer.id);
            stream.producers.push(producer.clone());
            if stream.producers.len() > producers_max {
                stream.producers.remove(0);
                self.forgotten += 1;
            }
            if append.closes {
                stream.closer = Some(producer.clone());
            }
        }
        let outcome = Outcome::Appended {
            tail: stream.tail,
            closed: stream.closed,
            stop_asked: stream.stop_asked,
            producer: append
                .producer
                .as_ref()
                .map(|asked| (asked.epoch, asked.seq)),
            duplicate: false,
        };
        self.touch(no);
        Ok(outcome)
    }

    fn truncate(&mut self, target: &Target, before: Option<Offset>) -> Result<Outcome, Refusal> {
        let no = self.target(target)?;
        let first = self.first(no);
        let stream = &self.streams[&no];
        let tail = stream.tail;
        let asked = before.unwrap_or(tail);
        if asked > tail {
            return Err(Refusal::TruncateBeyondTail { tail, asked });
        }
        if asked.sequence > stream.floor && asked.sequence >= first {
            self.record();
            let stream = self.streams.get_mut(&no).unwrap();
            stream.floor = asked.sequence;
            stream.units.retain(|unit| unit.record > asked.sequence);
        }
        self.touch(no);
        Ok(Outcome::Truncated {
            floor: Offset::behind(self.streams[&no].floor),
            tail,
        })
    }

    /// The first stream of a chain of forks has its number from its first record.
    fn first(&self, no: u64) -> u64 {
        let mut first = no;
        while let Some((older, _)) = self.streams[&first].source {
            first = older;
        }
        first
    }

    fn delete(&mut self, target: &Target) -> Result<Outcome, Refusal> {
        let no = self.target(target)?;
        self.end(no);
        Ok(Outcome::Deleted)
    }

    fn end(&mut self, no: u64) {
        self.record();
        let stream = self.streams.get_mut(&no).unwrap();
        stream.closed = true;
        stream.life = Life::Kept;
        self.release(no);
    }

    /// A deleted stream without forks is gone and releases its source.
    fn release(&mut self, no: u64) {
        let stream = self.streams.get_mut(&no).unwrap();
        if stream.life != Life::Kept || stream.forks > 0 {
            return;
        }
        stream.life = Life::Ended;
        self.names.remove(&stream.name);
        if let Some((source, _)) = stream.source {
            self.streams.get_mut(&source).unwrap().forks -= 1;
            self.release(source);
        }
    }

    fn record(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}
