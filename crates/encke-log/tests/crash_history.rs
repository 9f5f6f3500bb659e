//! Crashes between every two steps of the work in the background: ingesting, marking, checkpointing, removing.
//!
//! The segments are on the simulated disk, history is on a real one. A power cut leaves history as it is, which is what its
//! own syncs promise; what is tested is that the log relies on nothing more.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod counting;

use counting::{FORGET, RAISE, Record, User};
use encke_log::simulated::{Faults, Random, SimulatedDisk};
use encke_log::{Class, ClassRetention, CommitError, Log, OpenError, Options, Sequence, stream_no};
use std::time::Duration;

struct Round {
    context: String,
    random: Random,
    disk: SimulatedDisk,
    options: Options,
    written: Vec<Record>,
    acknowledged: usize,
    now: u64,
    /// The floors of the classes when they were last looked at, and up to which record none can have sunk since.
    class_floors: [Sequence; CLASSES as usize],
    lasting: Sequence,
    /// How often each stream was forgotten and another took its place.
    lives: [[u64; 3]; CLASSES as usize],
}

/// The classes: one is kept for ever, one for a time, one up to a size.
const CLASSES: Class = 3;
const UNLIMITED: Class = 0;
const AGED: Class = 1;
const SIZED: Class = 2;
const AGE_MAX: u64 = 150;

impl Round {
    /// Opens the log and checks that all is there that must be, and nothing that must not.
    fn open(&mut self) -> Result<User<SimulatedDisk>, OpenError> {
        let user = User::open(self.disk.clone(), self.options.clone())?;
        self.check_class_floors(&user);
        let found = user.log.next_sequence() as usize - 1;
        assert!(
            found >= self.acknowledged,
            "{}: {found} records where {} are due",
            self.context,
            self.acknowledged
        );
        assert!(
            found <= self.written.len(),
            "{}: records out of nowhere",
            self.context
        );
        self.written.truncate(found);
        self.acknowledged = found;
        user.check(
            &self.written,
            self.random.below(5000) as usize,
            &self.context,
        );
        Ok(user)
    }

    /// What retention takes must be too old, or too much, and what it has taken stays away.
    fn check_class_floors(&mut self, user: &User<SimulatedDisk>) {
        let context = &self.context;
        for class in 0..CLASSES {
            let floor = user.reader.class_floor(class);
            let known = &mut self.class_floors[usize::from(class)];
            if class == UNLIMITED {
                assert_eq!(floor, 0, "{context}");
            } else if class == AGED {
                assert!(
                    floor == 0 || floor + AGE_MAX <= self.now,
                    "{context}: {floor}"
                );
            }
            // Only what may be lost itself may come back.
            let lasting = (*known).min(self.lasting);
            assert!(
                floor >= lasting,
                "{context}: class {class} sank to {floor} from {lasting}"
            );
            *known = floor;
        }
        self.lasting = self.written.len() as Sequence;
    }

    fn live(&mut self, user: &mut User<SimulatedDisk>) -> Result<(), CommitError> {
        for _ in 0..self.random.below(60) {
            for _ in 0..1 + self.random.below(10) {
                let class = self.random.below(CLASSES.into()) as Class;
                let which = self.random.below(3);
                let lives = &mut self.lives[usize::from(class)];
                let number = |which: u64| 1 + which + 10 * lives[which as usize];
                let stream = stream_no(class, number(which));
                let other = stream_no(class, number((which + 1) % 3));
                let next = user.log.next_sequence();
                let record = match self.random.below(30) {
                    0 => user.append(
                        RAISE,
                        vec![stream],
                        self.random.below(next).to_le_bytes().to_vec(),
                    ),
                    1 => user.append(1, vec![], vec![1]),
                    4 => {
                        // Its number is not used again.
                        lives[which as usize] += 1;
                        user.append(FORGET, vec![stream], vec![])
                    }
                    2 => user.append(2, vec![stream, other], vec![2; 30]),
                    _ => {
                        let bytes = self.random.below(150);
                        user.append(
                            3,
                            vec![stream],
                            (0..bytes).map(|_| self.random.next() as u8).collect(),
                        )
                    }
                };
                self.written.push(record);
            }
            user.write()?;
            let early = self.random.below(5) == 0;
            if early {
                user.publish();
            }
            user.log.sync()?;
            self.acknowledged = self.written.len();
            user.publish();
            if self.random.below(4) == 0 {
                self.now = self.written.len() as u64;
                self.disk.set_now(self.now);
                user.log.retire();
            }
            if self.random.below(10) == 0 {
                self.check_class_floors(user);
                user.check(&self.written, 1000, &self.context);
            }
        }
        Ok(())
    }
}

#[test]
fn a_crash_between_any_two_steps_changes_nothing() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|value| value.parse::<u64>().unwrap())
    };
    let first = number("ENCKE_CRASH_SEED").unwrap_or(1);
    let mut went = [false; CLASSES as usize];
    let rounds = first..first + number("ENCKE_CRASH_ROUNDS").unwrap_or(ROUNDS);
    for seed in FOUND.into_iter().chain(rounds) {
        let directory = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::new(random.next());
        disk.set_history(directory.path().join("history"));
        let mut round = Round {
            context: format!("seed {seed}"),
            options: Options {
                segment_bytes: 4096 + random.below(3) * 3000,
                done_bytes_max: random.below(60_000),
                waiting_segments_max: 1 + random.below(3) as usize,
                retention: vec![
                    ClassRetention {
                        class: AGED,
                        age_max: Some(Duration::from_millis(AGE_MAX)),
                        bytes_max: None,
                    },
                    ClassRetention {
                        class: SIZED,
                        age_max: None,
                        bytes_max: Some(random.below(60_000)),
                    },
                ],
                ..Options::default()
            },
            random,
            disk,
            written: Vec::new(),
            acknowledged: 0,
            now: 0,
            class_floors: [0; CLASSES as usize],
            lasting: 0,
            lives: [[0; 3]; CLASSES as usize],
        };
        for _ in 0..4 {
            let failing_operation =
                Some(1 + round.random.below(120)).filter(|_| round.random.below(4) > 0);
            round.disk.set_faults(Faults {
                failing_operation,
                ..Faults::default()
            });
            match round.open() {
                Ok(mut user) => {
                    let ended = round.live(&mut user);
                    let ended = ended.and_then(|()| {
                        if round.random.below(3) == 0 {
                            user.log.close()
                        } else {
                            Ok(())
                        }
                    });
                    if let Err(CommitError::NoSpace { .. }) = ended {
                        panic!("{}: there was room", round.context);
                    }
                }
                Err(error) => assert!(
                    matches!(error, OpenError::Io { .. }),
                    "{}: {error}",
                    round.context
                ),
            }
            round.disk.set_faults(Faults::default());
            if round.random.below(2) == 0 {
                round.disk.cut_power();
            }
        }
        match round.open() {
            Ok(user) => {
                for (class, went) in went.iter_mut().enumerate() {
                    *went |= user.reader.class_floor(class as Class) > 0;
                }
            }
            Err(error) => panic!("seed {seed}: refused after a mere crash: {error}"),
        }
    }
    assert_eq!(
        went,
        [false, true, true],
        "nothing was ever past its retention"
    );
}

const ROUNDS: u64 = 12;

/// Rounds that once went wrong. In this one a segment that was removed came back, because that was not durable, and with it
/// in the global order what had been forgotten.
const FOUND: [u64; 1] = [1_795_343_266_000_606];

#[test]
fn a_checkpoint_that_history_does_not_take_can_be_read_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new(1);
    disk.set_history(directory.path().join("history"));
    let mut log = Log::open_on(disk.clone(), Options::default(), &mut |_| {}).unwrap();
    let entry = |key: &str, value: Option<&str>| {
        (
            key.as_bytes().to_vec(),
            value.map(|value| value.as_bytes().to_vec()),
        )
    };
    log.checkpoint(vec![
        entry("a", Some("old")),
        entry("b", Some("old")),
        entry("d", Some("old")),
    ]);
    assert_eq!(log.health().history_failed, None);
    // The next checkpoint is stopped before its first step, so all of it waits.
    disk.set_faults(Faults {
        failing_operation: Some(1),
        ..Faults::default()
    });
    log.checkpoint(vec![
        entry("b", Some("older")),
        entry("b", Some("new")),
        entry("c", Some("new")),
        entry("d", None),
    ]);
    log.set_floor(7, 70);
    assert!(log.health().history_failed.is_some());
    let reader = log.reader();
    let state = |key: &str| {
        reader
            .state(key.as_bytes())
            .unwrap()
            .map(|value| String::from_utf8(value).unwrap())
    };
    let check = || {
        assert_eq!(state("a").as_deref(), Some("old"));
        assert_eq!(state("b").as_deref(), Some("new"));
        assert_eq!(state("c").as_deref(), Some("new"));
        assert_eq!(state("d"), None);
        let mut all = String::new();
        reader
            .states(b"", &mut |key, value| {
                all += &String::from_utf8([key, b"=", value, b" "].concat()).unwrap();
            })
            .unwrap();
        assert_eq!(all, "a=old b=new c=new ");
    };
    check();
    // The next one takes the one that waits along.
    log.checkpoint(vec![]);
    assert_eq!(log.health().history_failed, None);
    check();
    drop(log);
    let log = Log::open_on(disk, Options::default(), &mut |_| {}).unwrap();
    assert_eq!(log.state(b"b").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(log.state(b"d").unwrap(), None);
}
