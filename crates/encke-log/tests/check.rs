//! Checking, dumping and repairing logs with history.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod directories;

use directories::{copy, files};
use encke_clock::WallTime;
use encke_log::simulated::Random;
use encke_log::{
    CheckReport, DumpFilter, DumpReport, Frame, FrameView, Log, OpenError, Options, ReadError,
    RepairReport, Sequence,
};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn check(directory: &Path) -> Result<CheckReport, OpenError> {
    encke_log::check(directory, &mut |_| {})
}

fn repair(directory: &Path, accept_loss: bool) -> Result<RepairReport, OpenError> {
    encke_log::repair(directory, &mut |plan| {
        assert!(plan.needed && !plan.done);
        accept_loss
    })
}

fn dump(
    directory: &Path,
    filter: DumpFilter,
    each: &mut dyn FnMut(FrameView<'_>),
) -> Result<DumpReport, OpenError> {
    encke_log::dump(directory, filter, &mut |view| {
        each(view);
        ControlFlow::Continue(())
    })
}

fn options() -> Options {
    Options {
        segment_bytes: 8 << 10,
        ..Options::default()
    }
}

fn open(directory: &Path) -> Log {
    Log::open(directory, options(), &mut |_| {}).unwrap()
}

/// Makes a log of 500 records in the streams 1 to 3, about twelve segments, all but the last in history. `checkpoint`:
/// with a checkpoint after record 250.
fn fill(directory: &Path, checkpoint: bool) {
    let mut log = open(directory);
    for i in 1..=500_u64 {
        let frame = Frame {
            kind: 1,
            time: WallTime::from_ms(i),
            streams: &[i % 3 + 1],
            payload: &[&[i as u8; 120]],
        };
        log.append(&frame).unwrap();
        if i % 10 == 0 {
            log.write().unwrap();
            log.sync().unwrap();
            log.publish();
        }
        if checkpoint && i == 250 {
            log.checkpoint(vec![(b"state".to_vec(), Some(b"of 250".to_vec()))]);
        }
    }
    log.close().unwrap();
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|e| e == "segment"))
        .collect();
    paths.sort();
    paths
}

/// The first sequence of a segment, from its name.
fn first_of(path: &Path) -> Sequence {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

fn damage(path: &Path, position: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0xAA; 8], position).unwrap();
}

/// The remaining records of the three streams, in the order of sequences.
fn left(log: &Log) -> Vec<Sequence> {
    let mut left = Vec::new();
    for stream in 1..=3 {
        let mut each = |view: FrameView<'_>| {
            assert_eq!(view.payload, [view.sequence as u8; 120]);
            left.push(view.sequence);
        };
        log.reader()
            .read(stream, 0, Sequence::MAX, 1 << 30, &mut each)
            .unwrap();
    }
    left.sort_unstable();
    left
}

#[test]
fn a_sound_log_has_no_problems_and_is_dumped_whole() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), true);
    let report = check(directory.path()).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!((report.records, report.sequences), (500, Some((1, 500))));
    assert!(report.segments > 10 && report.history_records > 400 && !report.torn);
    let mut dumped = Vec::new();
    dump(directory.path(), DumpFilter::default(), &mut |view| {
        dumped.push((view.sequence, view.time));
    })
    .unwrap();
    assert!(
        dumped
            .into_iter()
            .eq((1..=500).map(|i| (i, WallTime::from_ms(i))))
    );
    let report = repair(directory.path(), true).unwrap();
    assert!(report.losses.is_empty() && !report.done);
    assert_eq!(left(&open(directory.path())).len(), 500);
}

#[test]
fn a_log_that_is_open_or_not_there_is_not_checked() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    assert!(matches!(
        check(directory.path()),
        Err(OpenError::Locked { .. })
    ));
    drop(log);
    let nowhere = directory.path().join("nowhere");
    assert!(matches!(check(&nowhere), Err(OpenError::Io { .. })));
    assert!(!nowhere.exists());
}

#[test]
fn damage_to_a_settled_segment_costs_the_global_order_only() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), true);
    let paths = segments(directory.path());
    damage(&paths[2], 3000);
    let report = check(directory.path()).unwrap();
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].file, paths[2]);
    assert!(matches!(
        dump(directory.path(), DumpFilter::default(), &mut |_| {}),
        Err(OpenError::Damaged { .. })
    ));
    let report = repair(directory.path(), true).unwrap();
    assert!(report.done && report.set_aside.len() == 3, "{report:?}");
    let log = open(directory.path());
    assert!(left(&log).into_iter().eq(1..=500));
    assert_eq!(
        log.state(b"state").unwrap().as_deref(),
        Some(&b"of 250"[..])
    );
    let error = log
        .reader()
        .read_all(0, 500, 1, &mut |_, _| {}, &mut |_| {})
        .unwrap_err();
    assert!(matches!(error, ReadError::NoLongerKept { .. }), "{error}");
    drop(log);
    assert_eq!(check(directory.path()).unwrap().problems, []);
}

#[test]
fn a_second_repair_overwrites_nothing_that_the_first_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), true);
    let path = segments(directory.path()).swap_remove(2);
    let aside = |suffix: &str| {
        let mut name = path.clone().into_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    let set_aside = |suffix: &str, position: u64| {
        damage(&path, position);
        let content = std::fs::read(&path).unwrap();
        let report = repair(directory.path(), true).unwrap();
        assert!(report.set_aside.contains(&aside(suffix)), "{report:?}");
        assert!(std::fs::read(aside(suffix)).unwrap() == content);
        content
    };
    let first = set_aside(".dropped", 3000);
    // The operator puts it back, and it is damaged again.
    std::fs::copy(aside(".dropped"), &path).unwrap();
    let second = set_aside(".dropped-2", 2000);
    assert!(first != second);
    assert!(std::fs::read(aside(".dropped")).unwrap() == first);
    assert!(left(&open(directory.path())).into_iter().eq(1..=500));
}

#[test]
fn damage_to_what_is_in_history_and_still_to_be_replayed_leaves_history_as_it_is() {
    for behind in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), true);
        let paths = segments(directory.path());
        // After the checkpoint of record 250, and in history.
        damage(&paths[paths.len() - 3], 3000);
        if behind {
            // And in the last segment, which is not in history.
            damage(&paths[paths.len() - 1], 400);
        }
        let error = Log::open(directory.path(), options(), &mut |_| {}).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        let last_first = first_of(paths.last().unwrap());
        let plan = repair(directory.path(), false).unwrap();
        // History has the records of the first segment, so only records of the last one are lost, from the damage on.
        let lost_from = plan.losses.first().map_or(501, |loss| loss.from);
        assert!(!plan.done && (lost_from > 500 || behind), "{plan:?}");
        assert!(
            !behind || (last_first..=500).contains(&lost_from),
            "{plan:?}"
        );
        assert!(Log::open(directory.path(), options(), &mut |_| {}).is_err());
        assert!(repair(directory.path(), true).unwrap().done);
        let mut replayed = Vec::new();
        let mut log = Log::open(directory.path(), options(), &mut |view| {
            replayed.push(view.sequence);
        })
        .unwrap();
        let last = lost_from - 1;
        assert!(left(&log).into_iter().eq(1..=last));
        assert!(replayed.into_iter().eq(251..=last));
        assert_eq!(log.next_sequence(), last + 1);
        log.append(&Frame {
            kind: 1,
            time: WallTime::from_ms(0),
            streams: &[1],
            payload: &[],
        })
        .unwrap();
        log.close().unwrap();
        assert_eq!(open(directory.path()).next_sequence(), last + 2);
        assert_eq!(check(directory.path()).unwrap().problems, []);
    }
}

#[test]
fn missing_segments_are_reported_and_repaired() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), false);
    for path in segments(directory.path()) {
        std::fs::remove_file(path).unwrap();
    }
    let report = check(directory.path()).unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(repair(directory.path(), true).unwrap().done);
    let log = open(directory.path());
    let left = left(&log);
    assert!(left.len() > 400 && left.iter().copied().eq(1..=left.len() as u64));
    assert_eq!(log.next_sequence(), left.len() as u64 + 1);
}

#[test]
fn history_that_lacks_a_record_is_found() {
    let directory = tempfile::tempdir().unwrap();
    fill(directory.path(), true);
    // Another log's history: it has the same marks and other records.
    let other = tempfile::tempdir().unwrap();
    let mut log = open(other.path());
    for i in 1..=500_u64 {
        log.append(&Frame {
            kind: 1,
            time: WallTime::from_ms(i),
            streams: &[9],
            payload: &[&[0; 120]],
        })
        .unwrap();
    }
    log.write().unwrap();
    log.sync().unwrap();
    log.publish();
    while log.health().segments_waiting > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    log.checkpoint(vec![]);
    log.close().unwrap();
    let history = directory.path().join("history");
    std::fs::remove_dir_all(&history).unwrap();
    std::fs::rename(other.path().join("history"), &history).unwrap();
    let report = check(directory.path()).unwrap();
    assert!(
        report
            .problems
            .iter()
            .any(|problem| problem.file == history && problem.what.contains("identity")),
        "{report:?}"
    );
}

/// Bytes of the table that the storage engine reads when it opens, and one of each other file of history: a check says sound only of
/// what opens, and a repair sees the same.
#[test]
fn what_a_check_calls_sound_opens() {
    let root = tempfile::tempdir().unwrap();
    let (sound, damaged) = (root.path().join("sound"), root.path().join("damaged"));
    fill(&sound, true);
    assert_eq!(check(&sound).unwrap().problems, []);
    let mut flips = Vec::new();
    let mut random = Random::new(1);
    for path in files(&sound.join("history")) {
        let bytes = path.metadata().unwrap().len();
        let names = "history/keyspaces/0/tables";
        let of_names = path.parent().is_some_and(|parent| parent.ends_with(names));
        let positions: Vec<u64> = match of_names {
            true => (0..bytes).step_by(97).collect(),
            false => vec![random.below(bytes)],
        };
        flips.extend(positions.into_iter().map(|at| (path.clone(), at)));
    }
    let mut refused = 0;
    for (path, at) in flips {
        let _ = std::fs::remove_dir_all(&damaged);
        copy(&sound, &damaged);
        let name = path.strip_prefix(&sound).unwrap();
        let copied = damaged.join(name);
        flip(&copied, at);
        let checked = check(&damaged);
        let is_sound = checked
            .as_ref()
            .is_ok_and(|report| report.problems.is_empty());
        let planned = repair(&damaged, false);
        match Log::open(&damaged, options(), &mut |_| {}) {
            Ok(log) => log.close().unwrap(),
            Err(error) => {
                refused += 1;
                let name = name.display();
                assert!(!is_sound, "byte {at} of {name}: {error}: {checked:?}");
                let needed = planned.as_ref().map_or(true, |report| report.needed);
                assert!(needed, "byte {at} of {name}: {error}: {planned:?}");
            }
        }
    }
    assert!(refused > 10, "only {refused} starts were refused");
}

fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}
