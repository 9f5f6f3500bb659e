//! Crashes between every two steps of the background work: ingestion, statements, checkpoints, removal.
//!
//! Segments are on the simulated disk, history is on a real one. A power cut does not change history, as its own syncs
//! promise. The test shows that the log relies on nothing more.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod counting;

use counting::{FORGET, RAISE, Record, User};
use encke_log::simulated::{Faults, Random, SimulatedDisk};
use encke_log::{CommitError, Log, LogRetention, OpenError, Options, Sequence};
use std::time::Duration;

struct Round {
    context: String,
    random: Random,
    disk: SimulatedDisk,
    limit: Limit,
    options: Options,
    written: Vec<Record>,
    acknowledged: usize,
    now: u64,
    /// The retention floor when it was last read, and the record up to which it cannot have sunk since.
    retention_floor: Sequence,
    lasting: Sequence,
    /// How often each stream was forgotten and replaced.
    lives: [[u64; 3]; 3],
}

/// The retention of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    None,
    Age,
    Size,
}

impl Limit {
    fn retention(self, bytes_max: u64) -> LogRetention {
        LogRetention {
            age_max: (self == Limit::Age).then_some(Duration::from_millis(AGE_MAX)),
            bytes_max: (self == Limit::Size).then_some(bytes_max),
        }
    }
}

const LIMITS: [Limit; 3] = [Limit::None, Limit::Age, Limit::Size];
const AGE_MAX: u64 = 150;

impl Round {
    /// Opens the log and checks that it has every acknowledged record, and no others than were written.
    fn open(&mut self) -> Result<User<SimulatedDisk>, OpenError> {
        let user = User::open(self.disk.clone(), self.options.clone())?;
        self.check_retention_floor(&user);
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

    /// Retention removes only records that exceed a limit, and removed records stay away.
    fn check_retention_floor(&mut self, user: &User<SimulatedDisk>) {
        let context = &self.context;
        let floor = user.reader.retention_floor();
        match self.limit {
            Limit::None => assert_eq!(floor, 0, "{context}"),
            Limit::Age => assert!(
                floor == 0 || floor + AGE_MAX <= self.now,
                "{context}: {floor}"
            ),
            Limit::Size => {}
        }
        // Only records that are not durable may come back.
        let lasting = self.retention_floor.min(self.lasting);
        assert!(
            floor >= lasting,
            "{context}: the floor sank to {floor} from {lasting}"
        );
        self.retention_floor = floor;
        self.lasting = self.written.len() as Sequence;
    }

    fn live(&mut self, user: &mut User<SimulatedDisk>) -> Result<(), CommitError> {
        for _ in 0..self.random.below(60) {
            for _ in 0..1 + self.random.below(10) {
                let (group, which) = (self.random.below(3), self.random.below(3));
                let lives = &mut self.lives[group as usize];
                let number = |which: u64| 1 + which + 10 * lives[which as usize] + 10_000 * group;
                let stream = number(which);
                let other = number((which + 1) % 3);
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
                // Often later than the newest record, so that records of the active segment expire.
                let idle = self.written.len() as u64 % 5 * 40;
                self.now = self.now.max(self.written.len() as u64 + idle);
                self.disk.set_now(self.now);
                user.log.retire();
            }
            if self.random.below(10) == 0 {
                self.check_retention_floor(user);
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
    let mut rounds_with_floor = [0; LIMITS.len()];
    let rounds = first..first + number("ENCKE_CRASH_ROUNDS").unwrap_or(ROUNDS);
    for seed in FOUND.into_iter().chain(rounds) {
        let directory = tempfile::tempdir().unwrap();
        let mut random = Random::new(seed);
        let disk = SimulatedDisk::new(random.next());
        disk.set_history(directory.path().join("history"));
        let limit = (seed % LIMITS.len() as u64) as usize;
        let mut round = Round {
            context: format!("seed {seed}"),
            limit: LIMITS[limit],
            options: Options {
                segment_bytes: 4096 + random.below(3) * 3000,
                done_bytes_max: random.below(60_000),
                waiting_segments_max: 1 + random.below(3) as usize,
                retention: LIMITS[limit].retention(random.below(60_000)),
                ..Options::default()
            },
            random,
            disk,
            written: Vec::new(),
            acknowledged: 0,
            now: 0,
            retention_floor: 0,
            lasting: 0,
            lives: [[0; 3]; 3],
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
                rounds_with_floor[limit] += usize::from(user.reader.retention_floor() > 0);
            }
            Err(error) => panic!("seed {seed}: refused after a mere crash: {error}"),
        }
    }
    let [without_limit, by_age, by_size] = rounds_with_floor;
    assert_eq!(without_limit, 0);
    assert!(
        by_age > 0 && by_size > 0,
        "no limit was ever exceeded: {rounds_with_floor:?}"
    );
}

const ROUNDS: u64 = 12;

/// Rounds that failed once. In the first one the removal of a segment was not durable, so a crash brought it back, and with
/// it forgotten records in the global order. In the second one readers saw a retention floor before it was durable.
const FOUND: [u64; 2] = [1_795_343_266_000_606, 20_261_124_000_505];

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
    // The next checkpoint fails before its first step, so all of it waits.
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
    // The next checkpoint also completes the waiting one.
    log.checkpoint(vec![]);
    assert_eq!(log.health().history_failed, None);
    check();
    drop(log);
    let log = Log::open_on(disk, Options::default(), &mut |_| {}).unwrap();
    assert_eq!(log.state(b"b").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(log.state(b"d").unwrap(), None);
}
