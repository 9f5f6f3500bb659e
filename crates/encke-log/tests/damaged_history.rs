//! Flipped bits in history: an open or a read fails, and no record is missing or wrong silently.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod directories;

use directories::{copy, files};
use encke_clock::WallTime;
use encke_log::simulated::Random;
use encke_log::{Frame, Log, LogRetention, OpenError, Options, Sequence};
use std::path::{Path, PathBuf};
use std::time::Duration;

const RECORDS: u64 = 2000;

fn options() -> Options {
    Options {
        segment_bytes: 16 << 10,
        ..Options::default()
    }
}

/// Writes all records, and keeps `done_bytes_max` bytes of segments that are in history.
fn fill(directory: &Path, done_bytes_max: u64) {
    let options = Options {
        done_bytes_max,
        ..options()
    };
    let mut log = Log::open(directory, options, &mut |_| {}).unwrap();
    for i in 1..=RECORDS {
        let frame = Frame {
            kind: 1,
            time: WallTime::from_ms(1),
            streams: &[i % 5 + 1],
            payload: &[&[i as u8; 100]],
        };
        log.append(&frame).unwrap();
        if i % 50 == 0 {
            log.write().unwrap();
            log.sync().unwrap();
            log.publish();
        }
        if log.wants_checkpoint() {
            log.checkpoint(vec![(i.to_be_bytes().to_vec(), Some(vec![1; 50]))]);
        }
    }
    log.close().unwrap();
}

/// How many records can be read; `None` when a read fails.
fn readable(log: &Log) -> Option<u64> {
    let mut count = 0;
    for stream in 1..=5 {
        let mut each = |view: encke_log::FrameView<'_>| {
            assert_eq!(view.payload, [view.sequence as u8; 100]);
            count += 1;
        };
        log.reader()
            .read(stream, 0, Sequence::MAX, 1 << 30, &mut each)
            .ok()?;
    }
    Some(count)
}

#[test]
fn damage_in_history_is_an_error_and_never_absence() {
    let directory = tempfile::tempdir().unwrap();
    let (sound, damaged) = (
        directory.path().join("sound"),
        directory.path().join("damaged"),
    );
    fill(&sound, u64::MAX);
    let found = files(&sound.join("history"));
    let mut random = Random::new(5);
    let mut refused = 0;
    for round in 0..30 {
        copy(&sound, &damaged);
        let file = &found[random.below(found.len() as u64) as usize];
        let path = damaged.join(file.strip_prefix(&sound).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(1, |last| last + 1);
        let position = random.below(used as u64) as usize;
        bytes[position] ^= 1 << random.below(8);
        std::fs::write(&path, bytes).unwrap();
        match Log::open(&damaged, options(), &mut |_| {}) {
            Ok(log) => {
                let count = readable(&log);
                assert!(
                    count.is_none_or(|count| count == RECORDS),
                    "round {round}: {count:?} after {position} in {path:?}"
                );
                refused += u32::from(count.is_none());
            }
            Err(error) => {
                assert!(
                    matches!(error, OpenError::History { .. } | OpenError::Missing { .. }),
                    "round {round}: {error}"
                );
                refused += 1;
            }
        }
        std::fs::remove_dir_all(&damaged).unwrap();
    }
    assert!(refused > 0, "no flipped bit was ever found");
}

#[test]
fn every_damaged_byte_of_a_list_of_files_is_found_before_the_list_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), u64::MAX);
    let mut found = files(&directory.path().join("history"));
    // Each keyspace names its newest list; older ones are not used.
    found.retain(|file| file.ends_with("current"));
    for current in found.clone() {
        let number = std::fs::read(&current).unwrap()[..8].try_into().unwrap();
        found.push(current.with_file_name(format!("v{}", u64::from_le_bytes(number))));
    }
    assert!(found.len() >= 8, "{found:?}");
    let mut refused = 0;
    for file in &found {
        let sound = std::fs::read(file).unwrap();
        for position in (0..sound.len()).step_by(1 + sound.len() / 20) {
            let mut bytes = sound.clone();
            bytes[position] ^= 0x80;
            std::fs::write(file, &bytes).unwrap();
            match Log::open(directory.path(), options(), &mut |_| {}) {
                Ok(_) => panic!("byte {position} of {file:?} was not examined"),
                Err(OpenError::History { reason, .. }) => {
                    let named = reason.contains("is damaged") || reason.contains("is missing");
                    assert!(named, "{reason}");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
            std::fs::write(file, &sound).unwrap();
        }
    }
    assert!(refused >= 4 * 20, "{refused}");
    let log = Log::open(directory.path(), options(), &mut |_| {}).unwrap();
    assert_eq!(readable(&log), Some(RECORDS));
}

/// Damages a block in the middle of the largest file of history, which is a table of records.
fn damage_a_table(directory: &Path) {
    let mut found = files(&directory.join("history"));
    let bytes = |path: &PathBuf| path.metadata().unwrap().len();
    found.retain(|file| file.parent().unwrap().ends_with("tables"));
    let table = found.iter().max_by_key(|file| bytes(file)).unwrap();
    let mut content = std::fs::read(table).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(table, content).unwrap();
}

/// The sequences that can be read of each stream.
fn all(log: &Log) -> Vec<Sequence> {
    let mut all = Vec::new();
    for stream in 1..=5 {
        let mut each = |view: encke_log::FrameView<'_>| {
            assert_eq!(view.payload, [view.sequence as u8; 100]);
            all.push(view.sequence);
        };
        let reader = log.reader();
        let read = reader.read(stream, 0, Sequence::MAX, 1 << 30, &mut each);
        read.unwrap();
    }
    all.sort_unstable();
    all
}

#[test]
fn what_a_damaged_table_had_is_taken_from_the_segments() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), u64::MAX);
    damage_a_table(directory.path());
    let report = encke_log::check(directory.path(), &mut |_| {}).unwrap();
    assert!(!report.problems.is_empty());
    let planned = encke_log::repair(directory.path(), &mut |_| false).unwrap();
    assert!(planned.needed && !planned.done, "{planned:?}");
    assert_eq!(planned.losses, []);
    let mut notes = planned.notes.iter();
    assert!(notes.any(|note| note.contains("stream")), "{planned:?}");
    assert!(
        encke_log::repair(directory.path(), &mut |_| true)
            .unwrap()
            .done
    );
    let report = encke_log::check(directory.path(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    let log = Log::open(directory.path(), options(), &mut |_| {}).unwrap();
    assert!(all(&log).into_iter().eq(1..=RECORDS));
    let states = |log: &Log| {
        let mut states = 0;
        log.states(b"", &mut |_, _| states += 1).unwrap();
        states
    };
    assert!(states(&log) > 5);
}

#[test]
fn kept_records_of_exempt_streams_are_taken_from_the_segments() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), u64::MAX);
    let open = || {
        let age_max = Some(Duration::from_secs(3_600));
        let retention = LogRetention {
            age_max,
            ..LogRetention::default()
        };
        let limited = Options {
            retention,
            done_bytes_max: u64::MAX,
            ..options()
        };
        let log = Log::open(directory.path(), limited, &mut |_| {}).unwrap();
        log.start_retention([2]);
        log.retire();
        log
    };
    let due: Vec<_> = (1..=RECORDS).filter(|i| i % 5 + 1 == 2).collect();
    let log = open();
    assert_eq!(all(&log), due);
    log.close().unwrap();
    damage_a_table(directory.path());
    let repaired = encke_log::repair(directory.path(), &mut |_| true).unwrap();
    assert!(repaired.done, "{repaired:?}");
    let report = encke_log::check(directory.path(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(all(&open()), due);
}

#[test]
fn what_neither_history_nor_a_segment_has_is_named_and_nothing_else_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), 64 << 10);
    damage_a_table(directory.path());
    let planned = encke_log::repair(directory.path(), &mut |plan| {
        assert!(!plan.losses.is_empty(), "{plan:?}");
        true
    })
    .unwrap();
    assert!(planned.done, "{planned:?}");
    assert!(
        planned.notes.iter().any(|note| note.contains("stream")),
        "{planned:?}"
    );
    let report = encke_log::check(directory.path(), &mut |_| {}).unwrap();
    assert_eq!(report.problems, []);
    let log = Log::open(directory.path(), options(), &mut |_| {}).unwrap();
    let left = all(&log);
    // A block has some 16 KiB, which is some 150 records and, packed, a few times as many.
    let lost = RECORDS as usize - left.len();
    assert!((1..1200).contains(&lost), "{lost} lost");
    let missing = (1..=RECORDS).filter(|i| left.binary_search(i).is_err());
    let named = planned.losses.iter().flat_map(|loss| loss.from..=loss.upto);
    assert!(missing.eq(named), "{planned:?}");
}

#[test]
fn a_history_that_cannot_be_opened_is_rebuilt_from_the_segments() {
    for kept_bytes in [u64::MAX, 64 << 10] {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), kept_bytes);
        let keyspaces = directory.path().join("history/keyspaces");
        for keyspace in std::fs::read_dir(keyspaces).unwrap() {
            let current = keyspace.unwrap().path().join("current");
            let mut bytes = std::fs::read(&current).unwrap();
            bytes[10] ^= 1;
            std::fs::write(&current, bytes).unwrap();
        }
        let open = || Log::open(directory.path(), options(), &mut |_| {});
        assert!(matches!(open(), Err(OpenError::History { .. })));
        // The superblock names the newest list, so nothing is lost.
        let repaired = encke_log::repair(directory.path(), &mut |plan| {
            assert_eq!(plan.losses, []);
            true
        });
        assert!(repaired.unwrap().done);
        let log = open().unwrap();
        assert!(all(&log).into_iter().eq(1..=RECORDS));
    }
}

/// Without a list of the states there is no state. It is rebuilt from all records, or not at all.
#[test]
fn a_lost_state_store_is_rebuilt_when_all_records_are_there() {
    for lost in ["states", "floors"] {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), 64 << 10);
        let history = directory.path().join("history");
        let keyspaces = std::fs::read_dir(history.join("keyspaces")).unwrap();
        // Keyspaces are numbered in this order: the names, then records, floors, states and marks.
        let count = keyspaces.count();
        assert!(count >= 4, "{count}");
        let id = if lost == "states" { "1" } else { "2" };
        std::fs::remove_dir_all(history.join("keyspaces").join(id)).unwrap();
        let _ = std::fs::remove_file(history.join("fingerprints"));
        let open =
            |replayed: &mut u64| Log::open(directory.path(), options(), &mut |_| *replayed += 1);
        let refused = open(&mut 0).unwrap_err().to_string();
        assert!(refused.contains(&format!("keyspaces/{id}")), "{refused}");
        let report = encke_log::repair(directory.path(), &mut |plan| {
            assert_eq!(plan.losses, []);
            true
        });
        assert!(report.unwrap().done);
        let mut replayed = 0;
        let log = open(&mut replayed).unwrap();
        assert_eq!(replayed, RECORDS);
        assert!(all(&log).into_iter().eq(1..=RECORDS));
    }
}

/// The engine makes missing files again and deletes unknown ones. So history that is damaged while the log is open
/// stays closed.
#[test]
fn a_list_that_is_removed_under_an_open_log_closes_history_and_deletes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), u64::MAX);
    let mut log = Log::open(directory.path(), options(), &mut |_| {}).unwrap();
    let names = directory.path().join("history/keyspaces/0");
    let away = directory.path().join("away");
    std::fs::rename(names.join("current"), &away).unwrap();
    let mut wait = |is_so: &dyn Fn(Option<&str>) -> bool| {
        while !is_so(log.health().history_failed.as_deref()) {
            // Each checkpoint is a job that states what history holds.
            if log.checkpoints_waiting() == 0 {
                log.checkpoint(vec![(b"more".to_vec(), Some(b"x".to_vec()))]);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    wait(&|failed| failed.is_some_and(|reason| reason.contains("keyspaces/0/current")));
    for keyspace in 1..=4 {
        let list = directory
            .path()
            .join(format!("history/keyspaces/{keyspace}/current"));
        assert!(list.exists(), "{list:?}");
    }
    std::fs::rename(&away, names.join("current")).unwrap();
    wait(&|failed| failed.is_none());
    assert!(all(&log).into_iter().eq(1..=RECORDS));
    log.close().unwrap();
    let log = Log::open(directory.path(), options(), &mut |_| {}).unwrap();
    assert!(all(&log).into_iter().eq(1..=RECORDS));
}
