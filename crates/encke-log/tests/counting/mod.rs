//! A user of the log that acts as a server does: it keeps a state for each stream, checkpoints changes, raises floors
//! by records, and restores its state after a crash from the store and the replay.

use encke_clock::WallTime;
use encke_log::{
    CommitError, Disk, FORGOTTEN, Frame, FrameView, Log, OpenError, Options, ReadError, Reader,
    Sequence, StreamNo,
};
use std::collections::{BTreeMap, BTreeSet};

/// A record of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) sequence: Sequence,
    pub(crate) kind: u8,
    pub(crate) streams: Vec<StreamNo>,
    pub(crate) payload: Vec<u8>,
}

/// The kind of a record that raises the floor of its stream to the sequence in its payload.
pub(crate) const RAISE: u8 = 200;
/// The kind of a record after which its stream is forgotten.
pub(crate) const FORGET: u8 = 201;

impl Record {
    fn of(view: FrameView<'_>) -> Record {
        Record {
            sequence: view.sequence,
            kind: view.kind,
            streams: view.streams.iter().map(|(stream, _)| stream).collect(),
            payload: view.payload.to_vec(),
        }
    }

    fn raises(&self) -> Option<(StreamNo, Sequence)> {
        let stream = *self.streams.first()?;
        match (self.kind, self.payload.first_chunk()) {
            (RAISE, Some(floor)) => Some((stream, u64::from_le_bytes(*floor))),
            (FORGET, _) => Some((stream, FORGOTTEN)),
            _ => None,
        }
    }
}

/// Whether the user exempts a stream from retention.
fn is_exempt(stream: StreamNo) -> bool {
    stream % 10 == 2
}

/// The number of records of a stream, the last one, and a sum over all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    count: u64,
    last: Sequence,
    sum: u64,
}

impl State {
    fn apply(&mut self, record: &Record) {
        self.count += 1;
        self.last = record.sequence;
        let bytes = record
            .payload
            .iter()
            .fold(u64::from(record.kind), |sum, byte| {
                sum.wrapping_mul(31) + u64::from(*byte)
            });
        self.sum = self.sum.wrapping_mul(1_000_003) ^ bytes ^ record.sequence;
    }

    fn encode(self) -> Vec<u8> {
        [self.count, self.last, self.sum]
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect()
    }

    fn decode(bytes: &[u8]) -> State {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        State {
            count: number(0),
            last: number(8),
            sum: number(16),
        }
    }
}

/// The user, over any disk.
pub(crate) struct User<D: Disk> {
    pub(crate) log: Log<D>,
    pub(crate) reader: Reader<D>,
    states: BTreeMap<StreamNo, State>,
    changed: BTreeSet<StreamNo>,
    batch: Vec<Record>,
    written: Vec<Record>,
}

impl<D: Disk> User<D> {
    pub(crate) fn open(disk: D, options: Options) -> Result<User<D>, OpenError> {
        let mut replayed = Vec::new();
        let mut log = Log::open_on(disk, options, &mut |view| replayed.push(Record::of(view)))?;
        let mut states = BTreeMap::new();
        log.states(b"s", &mut |key, value| {
            let stream = u64::from_be_bytes(key[1..].try_into().unwrap());
            states.insert(stream, State::decode(value));
        })
        .unwrap();
        let mut user = User {
            reader: log.reader(),
            states,
            changed: BTreeSet::new(),
            batch: Vec::new(),
            written: Vec::new(),
            log: {
                for (stream, floor) in replayed.iter().filter_map(Record::raises) {
                    log.set_floor(stream, floor);
                }
                log
            },
        };
        for record in &replayed {
            user.apply(record);
        }
        let exempt = user.states.keys().copied().filter(|no| is_exempt(*no));
        user.log.start_retention(exempt);
        Ok(user)
    }

    fn apply(&mut self, record: &Record) {
        for stream in &record.streams {
            let state = self.states.entry(*stream).or_default();
            if state.last < record.sequence {
                state.apply(record);
                self.changed.insert(*stream);
            }
        }
    }

    pub(crate) fn append(&mut self, kind: u8, streams: Vec<StreamNo>, payload: Vec<u8>) -> Record {
        let frame = Frame {
            kind,
            // The clock advances by one with each record.
            time: WallTime::from_ms(self.log.next_sequence()),
            streams: &streams,
            payload: &[&payload],
        };
        let sequence = self.log.append(&frame).unwrap();
        let record = Record {
            sequence,
            kind,
            streams,
            payload,
        };
        self.batch.push(record.clone());
        record
    }

    pub(crate) fn write(&mut self) -> Result<(), CommitError> {
        self.log.write()?;
        self.written.append(&mut self.batch);
        Ok(())
    }

    /// Publishes and applies what was written; makes a checkpoint when the log needs one.
    pub(crate) fn publish(&mut self) {
        let streams = self.written.iter().flat_map(|record| &record.streams);
        for stream in streams.filter(|stream| is_exempt(**stream)) {
            self.log.exempt(*stream);
        }
        self.log.publish();
        for record in std::mem::take(&mut self.written) {
            self.apply(&record);
            if let Some((stream, floor)) = record.raises() {
                self.log.set_floor(stream, floor);
            }
        }
        if self.log.wants_checkpoint() {
            let changed = std::mem::take(&mut self.changed).into_iter();
            let entry = |stream: StreamNo| {
                let key = [b"s", &stream.to_be_bytes()[..]].concat();
                (key, Some(self.states[&stream].encode()))
            };
            self.log.checkpoint(changed.map(entry).collect());
        }
    }

    /// Panics unless the state and all reads follow from `records`, which are all records.
    pub(crate) fn check(&self, records: &[Record], bytes_max: usize, context: &str) {
        assert_eq!(self.reader.published(), records.len() as u64, "{context}");
        let (mut states, mut floors) = (BTreeMap::<_, State>::new(), BTreeMap::new());
        for record in records {
            for stream in &record.streams {
                states.entry(*stream).or_default().apply(record);
            }
            if let Some((stream, floor)) = record.raises() {
                let known = floors.entry(stream).or_insert(floor);
                *known = floor.max(*known);
            }
        }
        assert_eq!(self.states, states, "{context}: other states");
        let floor = |stream: StreamNo| {
            let raised = floors.get(&stream).copied().unwrap_or(0);
            match is_exempt(stream) {
                true => raised,
                false => raised.max(self.reader.retention_floor()),
            }
        };
        for stream in states.keys() {
            let (mut read, mut after) = (Vec::new(), 0);
            loop {
                let mut each = |view: FrameView<'_>| read.push(Record::of(view));
                let end = self
                    .reader
                    .read(*stream, after, Sequence::MAX, bytes_max, &mut each)
                    .unwrap();
                // The floor of a forgotten stream without records may be dropped.
                let due = floor(*stream);
                let of_log = [0, self.reader.retention_floor()];
                let swept = due == FORGOTTEN && of_log.contains(&end.floor);
                assert!(
                    end.floor == due || swept,
                    "{context}: the floor of {stream} is {}, not {due}",
                    end.floor
                );
                after = end.last;
                if !end.more {
                    break;
                }
            }
            let due = records
                .iter()
                .filter(|r| r.streams.contains(stream) && r.sequence > floor(*stream));
            assert!(read.iter().eq(due), "{context}: stream {stream} differs");
        }
        // The global order may begin late, and later still when the background removes a segment meanwhile. From its
        // beginning it is complete.
        let (mut all, mut from, mut after) = (Vec::new(), 0, 0);
        while after < records.len() as u64 {
            let mut each = |view: FrameView<'_>| all.push(Record::of(view));
            match self
                .reader
                .read_all(after, Sequence::MAX, bytes_max, &mut |_, _| {}, &mut each)
            {
                Ok(end) => after = end.last,
                Err(ReadError::NoLongerKept { oldest, .. }) => {
                    assert!(oldest > after + 1, "{context}: {oldest} is kept");
                    all.clear();
                    (from, after) = (oldest - 1, oldest - 1);
                }
                Err(error) => panic!("{context}: {error}"),
            }
        }
        let removed = |record: &Record| {
            !record.streams.is_empty()
                && record.streams.iter().all(|s| record.sequence <= floor(*s))
        };
        let due = records[from as usize..]
            .iter()
            .filter(|record| !removed(record));
        assert!(all.iter().eq(due), "{context}: the global order differs");
    }
}
