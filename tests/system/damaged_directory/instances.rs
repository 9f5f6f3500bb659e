//! Single damages that earlier versions served as if nothing were missing.

use std::path::{Path, PathBuf};

use super::base::{Base, Ending};
use super::damage::{Case, Damage, has_older};
use super::judge::judge;
use crate::rig::{
    Ended, Snapshot, command, copy_tree, data_dir, names_below, newest_segment, remove_any, serve,
};

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

/// A directory with this damage is refused by `serve`, and `check` and a dry `repair` find it; all of them name one of the damaged
/// places and change nothing.
fn is_refused(base: &Base, cases: &[Case]) {
    let copy = data_dir();
    copy_tree(base.data.path(), copy.path());
    cases.iter().for_each(|case| case.damage(base, copy.path()));
    let before = Snapshot::of(copy.path());
    let flags = base.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let log = |arguments: &[&str]| {
        let mut log = command(&["log"]);
        log.args(arguments).arg(copy.path());
        log
    };
    let tried = [
        ("check", log(&["check", "--quiet"]), [1, 3]),
        ("a dry repair", log(&["repair"]), [1, 3]),
        ("serve", serve(copy.path(), &flags), [3, 3]),
    ];
    for (name, mut command, codes) in tried {
        let ended = Ended::of(&mut command);
        let is_due = ended.code.is_some_and(|code| codes.contains(&code));
        assert!(is_due, "{cases:?}: {name} ends with {ended:?}");
        assert!(!ended.stderr.contains("panicked"), "{name}: {ended:?}");
        let data = copy.path().display().to_string();
        let text = format!("{}\n{}", ended.stdout, ended.stderr).replace(&data, "DATA");
        let mut all = cases.iter();
        let is_named = all.any(|case| case.is_named_in(&text));
        assert!(is_named, "{cases:?} is not named by {name}: {ended:?}");
        let changes = before.changes(&Snapshot::of(copy.path()));
        assert!(changes.is_empty(), "{cases:?}: {name} changes {changes:?}");
    }
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
#[ignore = "long: make test-all"]
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

#[test]
#[ignore = "long: make test-all"]
fn a_last_segment_that_is_not_there() {
    for ending in [Ending::Clean, Ending::Killed] {
        let base = Base::make(1, ending);
        let segment = newest_segment(base.data.path());
        let path = segment.strip_prefix(base.data.path());
        let path = path.expect("it is in the directory").to_owned();
        is_refused(
            &base,
            &[Case {
                path: path.clone(),
                damage: Damage::Removed,
            }],
        );
        none_fails(&base, &[path], &Damage::Removed);
    }
}

/// The storage engine would end the process.
#[test]
fn a_directory_in_the_place_of_a_table() {
    let base = base();
    let mut tables = names_below(base.data.path());
    tables.retain(|path| path.parent().is_some_and(|at| at.ends_with("tables")));
    assert!(tables.len() >= 3, "{tables:?}");
    for path in tables {
        let damage = Damage::ReplacedByDirectory;
        is_refused(&base, &[Case { path, damage }]);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn files_of_another_log_of_the_same_server() {
    let base = Base::make(3, Ending::Clean);
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(base.data.path());
        path.expect("it is in the directory").to_owned()
    };
    let newest = |log: &str| relative(newest_segment(&base.data.path().join(log)));
    let case = |path, by| Case {
        path,
        damage: Damage::ReplacedBy(by),
    };
    let superblock = |number: usize| {
        let of = |log: &str| PathBuf::from(format!("{log}/superblock-{number}"));
        case(of("log-0"), of("log-1"))
    };
    is_refused(&base, &[case(newest("log-0"), newest("log-1"))]);
    is_refused(&base, &[superblock(0), superblock(1)]);
    // The other copy is sound.
    let of_other = superblock(0);
    none_fails(&base, &[of_other.path], &of_other.damage);
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
