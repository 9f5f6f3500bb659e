//! The streams of a server without threads: machines over logs on simulated disks, whose records are reported as a sequencer reports
//! them.

use std::ops::ControlFlow;
use std::sync::Arc;

use encke_clock::{Now, SteadyTime};
use encke_log::simulated::SimulatedDisk;
use encke_log::{Log, Options};
use encke_stream::{
    AckLevel, Append, Change, Command, Create, Data, Facts, Fetch, ForkOf, Journal, Life,
    LogJournal, Logs, Machine, Offset, OrderKind, Outcome, Piece, Record, Refusal, Sequence,
    Stream, StreamChange, StreamState, Target, Views, log_of, restore_all_on,
};
use encke_subscriptions::SubscribedStreams;

pub(crate) struct Streams {
    disks: Vec<SimulatedDisk>,
    pub(crate) views: Arc<Views>,
    logs: Vec<(Machine, Log<SimulatedDisk>)>,
}

/// Takes records for the log, and keeps what readers get of them.
struct Recorder<'a> {
    journal: LogJournal<'a, SimulatedDisk>,
    records: Vec<(Arc<Stream>, Record)>,
}

impl Journal for Recorder<'_> {
    fn next_sequence(&self) -> Sequence {
        self.journal.next_sequence()
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let sequence = self.journal.record(stream, change, data)?;
        let record = Record {
            sequence,
            time: encke_clock::WallTime::default(),
            stream: stream.no,
            data: Vec::new(),
            tail: Offset::behind(sequence),
            units: change.units(),
            closes: change.closes(),
            end: None,
            asks_stop: false,
            deletes: matches!(change, Change::Delete),
        };
        self.records.push((Arc::clone(stream), record));
        Ok(sequence)
    }
}

impl Streams {
    /// What a power cut leaves of the disks follows from the seed.
    pub(crate) fn new(logs: usize, seed: u64, now: Now) -> Streams {
        let disks = (0..logs as u64)
            .map(|log| SimulatedDisk::new(seed + log))
            .collect();
        Streams::open(disks, now)
    }

    fn open(disks: Vec<SimulatedDisk>, now: Now) -> Streams {
        let options = Options {
            segment_bytes: 64 << 10,
            history: false,
            ..Options::default()
        };
        let Logs { logs, views } = restore_all_on(
            disks.clone(),
            OrderKind::Local,
            &options,
            encke_stream::Limits::default(),
            now.steady,
        )
        .unwrap();
        Streams { disks, views, logs }
    }

    /// The process ends; with `cut_power` what is not synced may be lost.
    pub(crate) fn crash(self, now: SteadyTime, cut_power: bool) -> Streams {
        let Streams { disks, views, logs } = self;
        drop((views, logs));
        if cut_power {
            disks.iter().for_each(SimulatedDisk::cut_power);
        }
        let now = Now::from_ms(now.as_ms());
        Streams::open(disks, now)
    }

    /// Commits a command. Returns its outcome and the changes that subscriptions may learn of. It is synced if it asks for that.
    pub(crate) fn commit(&mut self, command: Command, now: Now) -> (Outcome, Vec<StreamChange>) {
        let index = self.views.log_for(&command);
        let is_synced = self.is_synced(&command);
        let (machine, log) = &mut self.logs[index];
        let mut recorder = Recorder {
            journal: LogJournal { log, now: now.wall },
            records: Vec::new(),
        };
        let outcome = machine.apply(command, now, &mut recorder);
        let mut records = recorder.records;
        log.write().unwrap();
        if is_synced {
            log.sync().unwrap();
        }
        log.publish();
        machine.publish(log.next_sequence() - 1);
        let changes = records.iter_mut().map(|(stream, record)| {
            if record.units == 0 {
                record.tail = stream.facts().tail;
            }
            record.change(stream)
        });
        (outcome, changes.collect())
    }

    /// Whether a command changes a stream of the strictest level. Ends of streams are always synced.
    fn is_synced(&self, command: &Command) -> bool {
        let is_journal = |name: &str| name.starts_with('\u{1}');
        match command {
            Command::Create(create) => create.ack == Some(AckLevel::Synced),
            Command::Series(appends) => appends
                .iter()
                .any(|append| is_journal(append.target.name())),
            Command::Delete { .. } => true,
            command => command.ack() == Some(AckLevel::Synced) || is_journal(command.name()),
        }
    }

    pub(crate) fn facts(&self, name: &str) -> Option<(u64, Facts)> {
        let stream = self.views.find(name)?;
        let facts = stream.facts();
        (facts.life == Life::Live).then_some((stream.no, facts))
    }

    /// The state of a stream as a look-up reports it.
    pub(crate) fn state(&self, name: &str) -> Option<StreamState> {
        let stream = self.views.find(name)?;
        let read = |fetch: &Fetch| self.read(fetch);
        StreamState::of(&stream, &read).unwrap()
    }

    /// The names of all streams that clients can see.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for log in 0..self.views.logs() {
            self.views.log(log).for_each(&mut |stream| {
                if !stream.name.starts_with('\u{1}') {
                    names.push(stream.name.to_string());
                }
            });
        }
        names.sort();
        names
    }

    /// How many segments the journal has.
    pub(crate) fn segments(&self) -> usize {
        let mut count = 0;
        self.views.log(0).for_each(&mut |stream| {
            count += usize::from(stream.name.starts_with("\u{1}subscriptions/"));
        });
        count
    }

    /// The last segment of the journal.
    pub(crate) fn segment(&self) -> String {
        let mut segments = Vec::new();
        self.views.log(0).for_each(&mut |stream| {
            if stream.name.starts_with("\u{1}subscriptions/") {
                segments.push(stream.name.to_string());
            }
        });
        segments.sort_by_key(|name| (name.len(), name.clone()));
        segments.pop().unwrap_or_default()
    }

    /// The messages of a JSON stream.
    pub(crate) fn messages(&self, name: &str) -> Vec<serde_json::Value> {
        let stream = self.views.find(name).unwrap();
        let piece = self
            .read(&Fetch::new(
                &stream,
                Offset::START,
                stream.facts().tail,
                1 << 20,
            ))
            .unwrap();
        let mut messages = Vec::new();
        for item in piece.items() {
            let text = [b"[", item.data, b"]"].concat();
            let part: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
            messages.extend(part);
        }
        assert!(!piece.more);
        messages
    }
}

impl SubscribedStreams for Streams {
    fn find(&self, name: &str) -> Result<Option<Arc<Stream>>, String> {
        Ok(self.views.find(name))
    }

    fn read(&self, fetch: &Fetch) -> Result<Piece, String> {
        let log = fetch.spans.first().map_or(0, |span| log_of(span.stream));
        let reader = self.logs[log].1.reader();
        Piece::read(&reader, fetch).map_err(|error| error.to_string())
    }

    fn each(
        &self,
        prefix: &str,
        wanted: &dyn Fn(&str) -> bool,
        each: &mut dyn FnMut(&Stream) -> ControlFlow<()>,
    ) -> Result<(), String> {
        for name in self.names() {
            if name.starts_with(prefix)
                && wanted(&name)
                && let Some(stream) = self.views.find(&name)
                && each(&stream).is_break()
            {
                break;
            }
        }
        Ok(())
    }
}

/// Creates an empty JSON stream at a level that does not sync.
pub(crate) fn create(name: &str) -> Command {
    create_with(name, 0)
}

/// Creates a JSON stream with so many messages.
pub(crate) fn create_with(name: &str, messages: u32) -> Command {
    Command::Create(Create {
        content_type: Some("application/json".into()),
        data: data(messages),
        ack: Some(AckLevel::Written),
        ..Create::new(name)
    })
}

/// Forks a stream.
pub(crate) fn fork(name: &str, source: &str, messages: u32) -> Command {
    Command::Create(Create {
        data: data(messages),
        ack: Some(AckLevel::Written),
        fork: Some(ForkOf {
            source: source.into(),
            at: None,
        }),
        ..Create::new(name)
    })
}

pub(crate) fn append(name: &str) -> Command {
    Command::Append(Append {
        data: data(1),
        ..Append::to(Target::Named(name.into()))
    })
}

pub(crate) fn close(name: &str) -> Command {
    Command::Append(Append {
        closes: true,
        ..Append::to(Target::Named(name.into()))
    })
}

pub(crate) fn delete(name: &str) -> Command {
    Command::Delete {
        target: Target::Named(name.into()),
        ack: None,
    }
}

fn data(messages: u32) -> Data {
    Data {
        bytes: vec!["1"; messages as usize].join(",").into_bytes(),
        units: messages,
    }
}
