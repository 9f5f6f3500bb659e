//! A machine over a log on a simulated disk, driven by hand: what the sequencer does, step by step.

use std::collections::BTreeMap;
use std::sync::Arc;

use encke_log::simulated::SimulatedDisk;
use encke_log::{AppendError, Frame, Log, Options, Sequence};
use encke_stream::{
    Change, Command, Fetch, Journal, KIND_CHANGE, Limits, Machine, Offset, Outcome, Piece, Refusal,
    Stream, View, restore_on,
};

use crate::naive::{Unit, is_json, units};

pub struct Rig {
    pub machine: Machine,
    pub view: Arc<View>,
    pub log: Log<SimulatedDisk>,
    disk: SimulatedDisk,
    limits: Limits,
    /// All streams that records were written for since the log was opened, and those found then.
    pub seen: BTreeMap<u64, Arc<Stream>>,
}

/// Small enough that segments roll, and that a record can be too large.
pub const SEGMENT_BYTES: u64 = 4096;

impl Rig {
    pub fn new(limits: Limits, now_ms: u64) -> Self {
        Self::open(SimulatedDisk::new(7), limits, now_ms)
    }

    /// The same disk, opened again: what was not committed is gone.
    pub fn reopen(self, now_ms: u64) -> Self {
        let Rig { disk, limits, .. } = self;
        drop((self.machine, self.view, self.log, self.seen));
        Self::open(disk, limits, now_ms)
    }

    fn open(disk: SimulatedDisk, limits: Limits, now_ms: u64) -> Self {
        let options = Options {
            segment_bytes: SEGMENT_BYTES,
            history: false,
            ..Options::default()
        };
        let (machine, view, log) = restore_on(disk.clone(), options, limits, now_ms).unwrap();
        let mut seen = BTreeMap::new();
        view.for_each(&mut |stream| {
            seen.insert(stream.no, Arc::clone(stream));
        });
        Rig {
            machine,
            view,
            log,
            disk,
            limits,
            seen,
        }
    }

    pub fn apply(&mut self, command: Command, now_ms: u64) -> Outcome {
        let mut journal = Desk {
            log: &mut self.log,
            seen: &mut self.seen,
        };
        self.machine.apply(command, now_ms, &mut journal)
    }

    pub fn expire(&mut self, now_ms: u64) {
        let mut journal = Desk {
            log: &mut self.log,
            seen: &mut self.seen,
        };
        self.machine.expire(now_ms, &mut journal).unwrap();
    }

    pub fn commit(&mut self) {
        self.log.write().unwrap();
        self.log.sync().unwrap();
        self.log.publish();
        self.machine.publish(self.log.next_sequence() - 1);
    }

    pub fn abandon(&mut self) {
        self.machine.abandon();
        self.log.abandon();
        let next = self.log.next_sequence();
        self.seen.retain(|no, _| *no < next);
    }

    /// What a reader gets between `from` and the stream's tail, in pieces of about `bytes_max`.
    /// Wherever a reader may be left, the rest must follow from there.
    pub fn read(&self, stream: &Stream, from: Offset, bytes_max: usize) -> Vec<Unit> {
        let reader = self.log.reader();
        let tail = stream.facts().tail;
        let json = is_json(&stream.media.name);
        let mut read = Vec::new();
        let mut at = from;
        loop {
            let fetch = Fetch::new(stream, at, tail, bytes_max);
            let piece = Piece::read(&reader, &fetch).unwrap();
            let mut reached = at;
            for item in piece.items() {
                assert!(item.skip < item.take, "an item without data");
                assert!(reached < item.end, "{reached} is not before {}", item.end);
                assert!(item.end <= piece.end.max(tail));
                reached = item.end;
                // Of which record this is, its end tells.
                let record = item.end.sequence + u64::from(item.end.units > 0);
                let all = units(json, item.data, record);
                let (skip, take) = (item.skip as usize, item.take as usize);
                read.extend_from_slice(&all[skip..take]);
            }
            if !piece.more {
                assert_eq!(piece.end, tail);
                return read;
            }
            assert!(at < piece.end, "a piece that leads nowhere");
            at = piece.end;
        }
    }
}

struct Desk<'a> {
    log: &'a mut Log<SimulatedDisk>,
    seen: &'a mut BTreeMap<u64, Arc<Stream>>,
}

impl Journal for Desk<'_> {
    fn next_sequence(&self) -> Sequence {
        self.log.next_sequence()
    }

    fn record(
        &mut self,
        stream: &Arc<Stream>,
        change: &Change<'_>,
        data: Vec<u8>,
    ) -> Result<Sequence, Refusal> {
        let header = change.encode();
        let frame = Frame {
            kind: KIND_CHANGE,
            time_ms: 0,
            streams: &[stream.no],
            payload: &[&header, &data],
        };
        let sequence = self.log.append(&frame).map_err(|error| match error {
            AppendError::TooLarge { bytes, max } => Refusal::TooLarge {
                bytes,
                bytes_max: max,
            },
            other => panic!("{other}"),
        })?;
        self.seen.insert(stream.no, Arc::clone(stream));
        Ok(sequence)
    }
}
