//! Crashes at every point, on a disk that loses, tears, reorders, refuses and flips.
//!
//! The oracle: synced records are there, once and in order, or the start is refused with the place; records that a
//! start has returned stay; and no record appears that was never appended. `ENCKE_CRASH_ROUNDS` is the number of
//! rounds, `ENCKE_CRASH_SEED` the first seed.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

use encke_clock::WallTime;
use encke_log::simulated::{Faults, Random, SimulatedDisk};
use encke_log::{
    CommitError, Frame, FrameView, Log, OpenError, Options, Reader, Sequence, StreamNo,
};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    sequence: Sequence,
    time: WallTime,
    kind: u8,
    streams: Vec<StreamNo>,
    payload: Vec<u8>,
}

impl Record {
    fn of(view: FrameView<'_>) -> Record {
        Record {
            sequence: view.sequence,
            time: view.time,
            kind: view.kind,
            streams: view.streams.iter().map(|(stream, _)| stream).collect(),
            payload: view.payload.to_vec(),
        }
    }

    fn random(sequence: Sequence, random: &mut Random) -> Record {
        let streams = match random.below(20) {
            0 => vec![],
            1 => vec![1 + random.below(4), 5 + random.below(4)],
            _ => vec![1 + random.below(8)],
        };
        let bytes = match random.below(10) {
            0 => random.below(2000),
            _ => random.below(100),
        };
        Record {
            sequence,
            time: WallTime::from_ms(random.next()),
            kind: random.next() as u8,
            streams,
            // Zeros look like unwritten bytes.
            payload: if random.below(4) == 0 {
                vec![0; bytes as usize]
            } else {
                (0..bytes).map(|_| random.next() as u8).collect()
            },
        }
    }
}

/// The records that must be in the log, and those that may be.
#[derive(Debug, Default)]
struct Model {
    /// Everything that was written, in order.
    written: Vec<Record>,
    /// How many of these are acknowledged.
    acknowledged: usize,
    /// How many of these a later frame states to be durable, so that damage to them is found.
    confirmed: usize,
}

struct Round {
    seed: u64,
    random: Random,
    disk: SimulatedDisk,
    options: Options,
    model: Model,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
    PowerCut,
}

impl Round {
    fn new(seed: u64) -> Round {
        let mut random = Random::new(seed);
        Round {
            seed,
            disk: SimulatedDisk::new(random.next()),
            options: Options {
                segment_bytes: 4096 + random.below(3) * 3000,
                history: false,
                ..Options::default()
            },
            random,
            model: Model::default(),
        }
    }

    fn open(&self) -> (Result<Log<SimulatedDisk>, OpenError>, Vec<Record>) {
        let mut replayed = Vec::new();
        let log = Log::open_on(self.disk.clone(), self.options.clone(), &mut |view| {
            replayed.push(Record::of(view));
        });
        (log, replayed)
    }

    /// The records must be those that were written, and at least `least` of them.
    fn check_found(&mut self, log: &Log<SimulatedDisk>, found: Vec<Record>, least: usize) {
        let (seed, found_len) = (self.seed, found.len());
        assert!(
            found_len >= least,
            "seed {seed}: {found_len} records where {least} are due"
        );
        assert!(
            found_len <= self.model.written.len(),
            "seed {seed}: records out of nowhere"
        );
        assert!(
            found == self.model.written[..found_len],
            "seed {seed}: other records than were written"
        );
        assert_eq!(
            log.next_sequence(),
            found_len as Sequence + 1,
            "seed {seed}"
        );
        // Readers see all of these now, so they must stay.
        self.model.written = found;
        self.model.acknowledged = found_len;
        self.check_reads(&log.reader(), found_len);
    }

    /// Readers must see the first `published` records.
    fn check_reads(&mut self, reader: &Reader<SimulatedDisk>, published: usize) {
        let seed = self.seed;
        assert_eq!(reader.published(), published as Sequence, "seed {seed}");
        let expected = &self.model.written[..published];
        let bytes_max = self.random.below(3000) as usize;
        let mut all = Vec::new();
        let mut after = self.random.below(published as u64 + 1);
        let skipped = after as usize;
        loop {
            let end = reader
                .read_all(
                    after,
                    Sequence::MAX,
                    bytes_max,
                    &mut |_, _| {},
                    &mut |view| {
                        all.push(Record::of(view));
                    },
                )
                .unwrap();
            after = end.last;
            if !end.more {
                break;
            }
        }
        assert!(
            all == expected[skipped..],
            "seed {seed}: the global order differs"
        );
        for stream in 1..=8 {
            let (mut read, mut after) = (Vec::new(), 0);
            loop {
                let mut each = |view: FrameView<'_>| {
                    assert_eq!(view.stream, stream);
                    read.push(Record::of(view));
                };
                let end = reader
                    .read(stream, after, Sequence::MAX, bytes_max, &mut each)
                    .unwrap();
                after = end.last;
                if !end.more {
                    break;
                }
            }
            let expected = expected
                .iter()
                .filter(|record| record.streams.contains(&stream));
            assert!(
                read.iter().eq(expected),
                "seed {seed}: stream {stream} differs"
            );
        }
    }

    /// Runs a process: writes batches until it ends.
    fn live(&mut self, mut log: Log<SimulatedDisk>, batches: u64) -> End {
        let reader = log.reader();
        let early = self.random.below(4) == 0;
        let mut published = self.model.written.len();
        for _ in 0..batches {
            let mut batch = Vec::new();
            for _ in 0..1 + self.random.below(12) {
                let record = Record::random(log.next_sequence(), &mut self.random);
                let frame = Frame {
                    kind: record.kind,
                    time: record.time,
                    streams: &record.streams,
                    payload: &[
                        &record.payload[..record.payload.len() / 2],
                        &record.payload[record.payload.len() / 2..],
                    ],
                };
                assert_eq!(
                    log.append(&frame),
                    Ok(record.sequence),
                    "seed {}",
                    self.seed
                );
                batch.push(record);
            }
            if self.random.below(8) == 0 {
                log.abandon();
                continue;
            }
            // These may be found in any case, unless there was no room: then not a byte of them is written.
            let durable = self.model.acknowledged;
            self.model.written.append(&mut batch.clone());
            match log.write() {
                Ok(()) => {}
                Err(CommitError::NoSpace { .. }) => {
                    let before = self.model.written.len() - batch.len();
                    if self.random.below(2) == 0 {
                        self.disk.set_capacity(u64::MAX);
                        log.write().unwrap();
                    } else {
                        self.model.written.truncate(before);
                        log.abandon();
                        assert_eq!(log.next_sequence(), before as Sequence + 1);
                        continue;
                    }
                }
                Err(error) => return self.poisoned(log, &reader, published, &error),
            }
            if early {
                log.publish();
                published = self.model.written.len();
            }
            if self.random.below(4) > 0 {
                if let Err(error) = log.sync() {
                    return self.poisoned(log, &reader, published, &error);
                }
                self.model.acknowledged = self.model.written.len();
                // The batch with the confirmation is durable now.
                self.model.confirmed = durable;
                log.publish();
                published = self.model.written.len();
                if self.random.below(6) == 0 {
                    match log.mark_durable() {
                        Ok(()) => {}
                        Err(error) => return self.poisoned(log, &reader, published, &error),
                    }
                }
            }
            if self.random.below(4) == 0 {
                self.check_reads(&reader, published);
            }
        }
        match self.random.below(3) {
            0 => match log.close() {
                Ok(()) => {
                    self.model.acknowledged = self.model.written.len();
                    End::Closed
                }
                Err(_) => End::Killed,
            },
            1 => End::Killed,
            _ => End::PowerCut,
        }
    }

    /// A poisoned log keeps failing, acknowledges and publishes nothing, and can be read.
    fn poisoned(
        &mut self,
        mut log: Log<SimulatedDisk>,
        reader: &Reader<SimulatedDisk>,
        published: usize,
        error: &CommitError,
    ) -> End {
        assert!(
            matches!(error, CommitError::Poisoned { .. }),
            "seed {}: {error}",
            self.seed
        );
        assert!(matches!(log.sync(), Err(CommitError::Poisoned { .. })));
        assert!(matches!(log.write(), Err(CommitError::Poisoned { .. })));
        log.publish();
        assert!(log.health().poisoned.is_some());
        self.check_reads(reader, published);
        if self.random.below(2) == 0 {
            End::Killed
        } else {
            End::PowerCut
        }
    }

    /// Interrupts repairs at a random write, sync or rename: by an error, or by a power cut. Whether one was interrupted.
    fn interrupt_repairs(&mut self, powerless: bool) -> bool {
        let mut interrupted = false;
        for _ in 0..self.random.below(4) {
            self.disk.set_faults(Faults {
                failing_operation: Some(1 + self.random.below(30)),
                ..Faults::default()
            });
            let repaired = encke_log::repair_on(&self.disk, &mut |_| true);
            self.disk.set_faults(Faults::default());
            interrupted = true;
            match repaired {
                Ok(_) => break,
                Err(OpenError::Io { .. }) => {}
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
            if powerless {
                self.disk.cut_power();
            }
        }
        interrupted
    }

    /// Checks and repairs a refused log, which then has everything before the damage. `powerless`: everything on the disk is
    /// durable, so that the power may be cut.
    fn repair(&mut self, refusal: &str, powerless: bool) {
        let context = format!("seed {}: {refusal}", self.seed);
        let check = encke_log::check_on(&self.disk, &mut |_| {}).unwrap();
        assert!(!check.problems.is_empty(), "{context}: nothing found");
        let plan = encke_log::repair_on(&self.disk, &mut |_| false).unwrap();
        assert!(!plan.losses.is_empty() && !plan.done, "{context}: {plan:?}");
        assert!(self.open().0.is_err(), "{context}: repaired without leave");
        let interrupted = self.interrupt_repairs(powerless);
        let repaired = encke_log::repair_on(&self.disk, &mut |_| true);
        let repaired = repaired.unwrap_or_else(|error| panic!("{context}: then {error}"));
        if interrupted {
            let is_planned = |sequence: Sequence| {
                let mut planned = plan.losses.iter();
                planned.any(|loss| (loss.from..=loss.upto).contains(&sequence))
            };
            let mut named = repaired.losses.iter().map(|loss| loss.from..=loss.upto);
            let no_more = named.all(|mut range| range.all(is_planned));
            assert!(no_more, "{context}: {repaired:?} after {plan:?}");
        } else {
            let as_planned = repaired.done && repaired.losses == plan.losses;
            assert!(as_planned, "{context}: {repaired:?}");
        }
        let lost_from = plan.losses.iter().map(|loss| loss.from).min().unwrap() as usize;
        let lost_upto = plan.losses.iter().map(|loss| loss.upto).max().unwrap() as usize;
        let traceless = plan
            .losses
            .iter()
            .any(|loss| loss.what.contains("the number of its records is unknown"));
        let due = self.model.acknowledged.min(self.model.confirmed);
        assert!(traceless || lost_upto >= due, "{context}: {plan:?}");
        let (log, found) = self.open();
        let mut log = log.unwrap_or_else(|error| panic!("{context}: then {error}"));
        self.check_found(&log, found, lost_from - 1);
        assert_eq!(
            self.model.written.len(),
            lost_from - 1,
            "{context}: {plan:?}"
        );
        let frame = Frame {
            kind: 1,
            time: WallTime::from_ms(1),
            streams: &[1],
            payload: &[],
        };
        assert_eq!(log.append(&frame), Ok(lost_from as Sequence));
        log.close().unwrap();
        assert_eq!(
            self.open().0.unwrap().next_sequence(),
            lost_from as Sequence + 1
        );
        assert!(
            encke_log::check_on(&self.disk, &mut |_| {})
                .unwrap()
                .problems
                .is_empty()
        );
    }

    fn end(&mut self, end: End) {
        self.disk.set_faults(Faults::default());
        if end == End::PowerCut {
            self.disk.cut_power();
        }
    }
}

fn rounds() -> impl Iterator<Item = u64> {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    let first = number("ENCKE_CRASH_SEED").unwrap_or(1);
    first..first + number("ENCKE_CRASH_ROUNDS").unwrap_or(ROUNDS)
}

const ROUNDS: u64 = 30;

#[test]
fn what_was_synced_survives_every_crash() {
    for seed in rounds() {
        let mut round = Round::new(seed);
        for _ in 0..1 + round.random.below(6) {
            let least = round.model.acknowledged;
            let (log, found) = round.open();
            let log = log
                .unwrap_or_else(|error| panic!("seed {seed}: refused after a mere crash: {error}"));
            round.check_found(&log, found, least);
            let batches = round.random.below(40);
            let end = round.live(log, batches);
            round.end(end);
        }
    }
}

#[test]
fn a_failed_write_or_sync_loses_nothing_that_was_acknowledged() {
    for seed in rounds() {
        let mut round = Round::new(seed ^ 0xF00D << 32);
        for _ in 0..2 + round.random.below(5) {
            let least = round.model.acknowledged;
            let failing_operation = Some(1 + round.random.below(60));
            round.disk.set_faults(Faults {
                failing_operation,
                ..Faults::default()
            });
            let (log, found) = round.open();
            let end = match log {
                Ok(log) => {
                    round.check_found(&log, found, least);
                    round.live(log, 40)
                }
                Err(error) => {
                    assert!(
                        matches!(error, OpenError::Io { .. }),
                        "seed {seed}: {error}"
                    );
                    if round.random.below(2) == 0 {
                        End::Killed
                    } else {
                        End::PowerCut
                    }
                }
            };
            round.end(end);
        }
        let least = round.model.acknowledged;
        let (log, found) = round.open();
        let log =
            log.unwrap_or_else(|error| panic!("seed {seed}: refused after a mere crash: {error}"));
        round.check_found(&log, found, least);
    }
}

#[test]
fn a_full_disk_refuses_whole_batches_and_recovers() {
    for seed in rounds() {
        let mut round = Round::new(seed ^ 0xF111 << 32);
        for _ in 0..1 + round.random.below(4) {
            round.disk.set_capacity(u64::MAX);
            let least = round.model.acknowledged;
            let (log, found) = round.open();
            let log = log.unwrap();
            round.check_found(&log, found, least);
            let capacity = round.disk.used_bytes() + round.random.below(20_000);
            round.disk.set_capacity(capacity);
            let end = round.live(log, 60);
            round.end(end);
        }
        round.disk.set_capacity(u64::MAX);
        let least = round.model.acknowledged;
        let (log, found) = round.open();
        round.check_found(&log.unwrap(), found, least);
    }
}

#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let mut refused = 0;
    for seed in rounds() {
        let mut round = Round::new(seed ^ 0xF11B << 32);
        for _ in 0..1 + round.random.below(3) {
            let least = round.model.acknowledged;
            let (log, found) = round.open();
            round.check_found(&log.unwrap(), found, least);
            let (log, _) = round.open();
            let end = round.live(log.unwrap(), 30);
            round.end(end);
            if end == End::Closed {
                round.model.confirmed = round.model.acknowledged;
            }
        }
        let powerless = round.random.below(2) == 0;
        if powerless {
            round.end(End::PowerCut);
        }
        let Some((name, _)) = round.disk.flip_bit() else {
            continue;
        };
        let (log, found) = round.open();
        match log {
            // The bit was in unused bytes, or in a batch that can't be distinguished from a torn one.
            Ok(log) => {
                let least = round.model.confirmed;
                round.check_found(&log, found, least);
            }
            Err(error) => {
                refused += 1;
                let text = error.to_string();
                let named = text.contains(&name) || matches!(error, OpenError::Missing { .. });
                assert!(named, "seed {seed}: {text} does not name {name}");
                round.repair(&text, powerless);
            }
        }
    }
    assert!(refused > 0, "no flipped bit was ever found");
}

#[test]
fn a_read_that_fails_is_an_error_and_never_absence() {
    for seed in rounds() {
        let mut round = Round::new(seed ^ 0xEAD << 32);
        let mut log = round.open().0.unwrap();
        for _ in 0..30 {
            let record = Record::random(log.next_sequence(), &mut round.random);
            let payload = [&record.payload[..]];
            let frame = Frame {
                kind: record.kind,
                time: record.time,
                streams: &[3],
                payload: &payload,
            };
            log.append(&frame).unwrap();
            log.write().unwrap();
        }
        log.sync().unwrap();
        log.publish();
        for failing_read in 1..20 {
            round.disk.set_faults(Faults {
                failing_read: Some(failing_read),
                ..Faults::default()
            });
            let mut seen = Vec::new();
            match log
                .reader()
                .read(3, 0, 30, 1 << 20, &mut |view| seen.push(view.sequence))
            {
                Ok(end) => assert!(end.last == 30 && seen.len() == 30, "seed {seed}"),
                Err(_) => assert!(
                    seen.iter().copied().eq(1..=seen.len() as u64) && seen.len() < 30,
                    "seed {seed}"
                ),
            }
            round.disk.set_faults(Faults {
                failing_read: Some(failing_read),
                ..Faults::default()
            });
            let mut all = Vec::new();
            match log
                .reader()
                .read_all(0, 30, 1 << 20, &mut |_, _| {}, &mut |view| {
                    all.push(view.sequence);
                }) {
                Ok(end) => assert!(end.last == 30 && all.len() == 30, "seed {seed}"),
                Err(_) => assert!(
                    all.iter().copied().eq(1..=all.len() as u64) && all.len() < 30,
                    "seed {seed}"
                ),
            }
        }
        drop(log);
        round.disk.set_faults(Faults {
            failing_read: Some(1 + round.random.below(6)),
            ..Faults::default()
        });
        if let (Err(error), _) = round.open() {
            assert!(
                matches!(error, OpenError::Io { .. }),
                "seed {seed}: {error}"
            );
        }
        round.disk.set_faults(Faults::default());
        assert_eq!(round.open().0.unwrap().next_sequence(), 31, "seed {seed}");
    }
}
