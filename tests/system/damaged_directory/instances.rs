//! Single damages that earlier versions served as if nothing were missing.

use std::path::{Path, PathBuf};

use super::base::{Base, Ending};
use super::damage::{Case, Damage, has_older};
use super::judge::judge;
use super::snapshot::{Snapshot, copy_tree, remove_any};
use crate::rig::{Ended, command, data_dir, newest_segment};

/// Judges the same damage to each of these paths.
fn none_fails(base: &Base, paths: &[PathBuf], damage: &Damage) {
    assert!(!paths.is_empty(), "nothing to damage");
    let mut failures = Vec::new();
    for path in paths {
        let case = Case {
            path: path.clone(),
            damage: damage.clone(),
        };
        for what in judge(base, &case) {
            failures.push(format!("FAILED {} {damage:?}: {what}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The directories of history's keyspaces.
pub(super) fn keyspaces(base: &Base) -> Vec<PathBuf> {
    let all = Path::new("history/keyspaces");
    let entries = std::fs::read_dir(base.data.path().join(all)).expect("it is there");
    let names = entries.map(|entry| all.join(entry.expect("it can be read").file_name()));
    let mut keyspaces: Vec<PathBuf> = names.collect();
    keyspaces.sort();
    keyspaces
}

fn base() -> Base {
    Base::make(1, Ending::Clean)
}

#[test]
fn a_keyspace_without_its_list_of_tables() {
    let base = base();
    let lists: Vec<_> = keyspaces(&base)
        .iter()
        .map(|at| at.join("current"))
        .collect();
    assert!(lists.contains(&PathBuf::from("history/keyspaces/0/current")));
    none_fails(&base, &lists, &Damage::Removed);
}

#[test]
fn a_keyspace_that_is_not_there() {
    let base = base();
    none_fails(&base, &keyspaces(&base), &Damage::Removed);
}

#[test]
fn a_keyspace_that_is_older_than_the_rest() {
    let base = base();
    let mut older = keyspaces(&base);
    older.retain(|path| has_older(&base, path));
    none_fails(&base, &older, &Damage::ReplacedByOlder);
}

#[test]
fn a_last_segment_that_lacks_its_end() {
    let base = base();
    let segment = newest_segment(base.data.path());
    let bytes = std::fs::read(&segment).expect("it can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("a head") as u64 + 1;
    let name = segment.strip_prefix(base.data.path());
    let name = [name.expect("it is in the directory").to_owned()];
    let head = 64;
    for from in [end - 1, end - 100, end - 1_000, end / 2, head] {
        none_fails(&base, &name, &Damage::Truncated(from));
        none_fails(&base, &name, &Damage::Zeroed(from));
    }
    // The records are all there, and room for more is not.
    none_fails(&base, &name, &Damage::Truncated(end));
}

/// Without segments and statements, nothing tells how far the log reached. Repair changes nothing then.
#[test]
fn a_log_without_segments_and_superblocks() {
    let base = base();
    let copy = data_dir();
    copy_tree(base.data.path(), copy.path());
    for entry in std::fs::read_dir(copy.path()).expect("it is there") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().expect("it has a name").to_string_lossy();
        if name.ends_with(".segment") || name.starts_with("superblock") {
            remove_any(&path);
        }
    }
    let before = Snapshot::of(copy.path());
    for arguments in [
        &["check", "--quiet"][..],
        &["repair"],
        &["repair", "--accept-loss"],
    ] {
        let ended = Ended::of(command(&["log"]).args(arguments).arg(copy.path()));
        assert!(
            matches!(ended.code, Some(1 | 3)),
            "{arguments:?}: {ended:?}"
        );
        let output = format!("{}{}", ended.stdout, ended.stderr);
        assert!(output.contains("superblock"), "{arguments:?}: {ended:?}");
        let changes = before.changes(&Snapshot::of(copy.path()));
        assert!(changes.is_empty(), "{arguments:?} changes {changes:?}");
    }
}

/// The commands that look at a private copy say which directory they cannot write to.
#[test]
fn a_directory_for_temporary_files_that_is_not_there() {
    let base = base();
    let absent = base.data.path().join("absent");
    let before = Snapshot::of(base.data.path());
    for arguments in [&["check", "--quiet"][..], &["repair"]] {
        let mut log = command(&["log"]);
        let log = log.args(arguments).arg(base.data.path());
        let ended = Ended::of(log.env("TMPDIR", &absent));
        assert_eq!(ended.code, Some(3), "{arguments:?}: {ended:?}");
        assert!(ended.stderr.contains("absent"), "{arguments:?}: {ended:?}");
        let changes = before.changes(&Snapshot::of(base.data.path()));
        assert!(changes.is_empty(), "{arguments:?} changes {changes:?}");
    }
}
