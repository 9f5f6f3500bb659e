//! Suitable and unsuitable data directories.

use std::fs;
use std::time::Duration;

use super::*;

const AHEAD: Ahead = Ahead {
    segment_bytes: 1 << 20,
    waiting: 3,
};

fn verdicts(data: &Data) -> Vec<(String, Verdict)> {
    let checks = data.checks().into_iter();
    checks
        .map(|check| (check.name.into_owned(), check.verdict))
        .collect()
}

fn verdict(data: &Data, name: &str) -> Verdict {
    let found = verdicts(data)
        .into_iter()
        .find(|(check, _)| check.ends_with(name));
    found.expect("it is checked").1
}

#[test]
fn a_directory_that_is_there_or_can_be_made_is_good_and_stays_as_it_is() {
    let root = tempfile::tempdir().expect("a folder");
    for (path, count) in [
        (root.path().to_owned(), 1),
        (root.path().join("a/b"), 1),
        (root.path().join("a"), 3),
    ] {
        let data = Data::look(&path, count, AHEAD);
        assert_eq!(data.logs(), count);
        assert!(
            data.logs
                .iter()
                .all(|place| place.directory.unwritable.is_none())
        );
        assert!(data.logs.iter().all(|place| place.fdatasync.is_some()));
        let failing = verdicts(&data);
        let failing: Vec<_> = failing
            .iter()
            .filter(|(_, v)| *v == Verdict::Fails)
            .collect();
        assert!(failing.is_empty(), "{failing:?}");
        assert_eq!(fs::read_dir(root.path()).expect("it is there").count(), 0);
    }
}

#[test]
fn free_space_decides_whether_a_start_is_possible_and_whether_it_lasts() {
    let root = tempfile::tempdir().expect("a folder");
    let mut data = Data::look(root.path(), 1, AHEAD);
    let place = &mut data.logs[0];
    for (free, expected) in [
        ((1 << 20) - 1, Verdict::Fails),
        (1 << 20, Verdict::Advice),
        (5 << 20, Verdict::Fits),
    ] {
        place.directory.free_bytes = Some(free);
        assert_eq!(place.room(String::new()).verdict, expected);
    }
}

#[test]
fn what_is_in_the_way_is_named() {
    let root = tempfile::tempdir().expect("a folder");
    let file = root.path().join("file");
    fs::write(&file, b"").expect("it can be written");
    std::os::unix::fs::symlink(root.path().join("nowhere"), root.path().join("log-1"))
        .expect("it can be made");
    for (path, logs, named) in [
        (file.clone(), 1, "is not a directory"),
        (file.join("data"), 1, "is not a directory"),
        (root.path().to_owned(), 2, "is a dangling link"),
        ("/proc/self/data".into(), 1, "/proc/self/data: "),
    ] {
        let data = Data::look(&path, logs, AHEAD);
        let checks = data.checks();
        let failing: Vec<_> = checks
            .iter()
            .filter(|c| c.verdict == Verdict::Fails)
            .collect();
        assert!(!failing.is_empty(), "{path:?}");
        assert!(
            failing.iter().any(|check| check.value.contains(named)),
            "{failing:?}"
        );
    }
}

#[test]
fn as_many_logs_as_there_are_and_no_other_number() {
    let root = tempfile::tempdir().expect("a folder");
    let made = encke_log::arrange(root.path(), 2).expect("it can be made");
    let data = Data::look(root.path(), 2, AHEAD);
    assert_eq!(data.logs.len(), 2);
    assert_eq!(verdict(&data, "directory"), Verdict::Fits);
    let data = Data::look(root.path(), 3, AHEAD);
    assert!(
        data.refused
            .as_ref()
            .is_some_and(|why| why.contains("2 logs"))
    );
    assert_eq!(data.checks()[0].verdict, Verdict::Fails);
    // Its disk is not mounted.
    fs::remove_dir_all(&made[1]).expect("it is there");
    fs::create_dir(&made[1]).expect("it can be made");
    let data = Data::look(root.path(), 2, AHEAD);
    assert!(
        data.refused
            .as_ref()
            .is_some_and(|why| why.contains("does not say that this is log 1"))
    );
}

#[test]
fn memory_other_machines_and_layers_are_warned_of() {
    for (magic, name, kind) in [
        (0xef53, "ext4", Kind::Local),
        (0x0102_1994, "tmpfs", Kind::Memory),
        (0x6969, "nfs", Kind::Remote),
        (0x794c_7630, "overlay", Kind::Layer),
        (0x1234, "number 0x1234", Kind::Unknown),
    ] {
        assert_eq!(file_system(magic), (name.to_owned(), kind));
        let place = Place {
            directory: log_locations::examine(Path::new("/data"), 1, AHEAD).remove(0),
            file_system: Some(name.to_owned()),
            kind,
            fdatasync: Some(Syncs {
                median: Duration::from_millis(30),
                slowest: Duration::from_millis(40),
            }),
        };
        let warned = place.kind_of_disk(String::new()).verdict == Verdict::Advice;
        assert_eq!(
            warned,
            !matches!(kind, Kind::Local | Kind::Unknown),
            "{name}"
        );
        let syncs = place.syncs(String::new());
        assert_eq!(syncs.verdict, Verdict::Advice);
        assert_eq!(syncs.value, "30.00 ms, 40.00 ms at most");
    }
}
