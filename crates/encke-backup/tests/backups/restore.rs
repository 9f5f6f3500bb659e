//! A restore that is killed leaves a directory that nothing takes for a log, and a second one finishes it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use encke_backup::{BackupError, BackupName, restore};
use encke_log::{LayoutError, OpenError, logs_in};

use crate::source::{How, Source, check_log, in_directory};

/// The child: runs only when the parent names the places.
#[test]
fn child() {
    let Ok(from) = std::env::var("ENCKE_RESTORE_FROM") else {
        return;
    };
    let to = std::env::var("ENCKE_RESTORE_TO").unwrap();
    let name = std::env::var("ENCKE_RESTORE_NAME").unwrap();
    let name = name.parse().unwrap();
    let pieces = std::env::var("ENCKE_RESTORE_PIECES").map(|pieces| pieces.parse().unwrap());
    restore_with(Path::new(&from), name, Path::new(&to), |written| {
        if pieces == Ok(written) {
            std::process::abort();
        }
    })
    .unwrap();
}

fn restore_into(from: &Path, name: BackupName, to: &Path) -> Result<(), BackupError> {
    restore_with(from, name, to, |_| {}).map(drop)
}

/// Restores a backup. Calls `wrote` after each piece with the number of pieces so far, and returns their number.
fn restore_with(
    from: &Path,
    name: BackupName,
    to: &Path,
    wrote: impl Fn(usize),
) -> Result<usize, BackupError> {
    let repository = in_directory(from);
    let manifest = repository.manifest(name)?;
    let mut written = 0;
    restore(&repository, &manifest, to, &mut |_, _| {
        written += 1;
        wrote(written);
    })?;
    Ok(written)
}

/// A backup of 300 records.
struct Backup {
    place: tempfile::TempDir,
    name: BackupName,
    /// Pieces that a restore of it writes.
    pieces: usize,
    _source: Source,
}

impl Backup {
    fn new() -> Self {
        let (source, place) = (Source::new(), tempfile::tempdir().unwrap());
        let made = source.back_up(&in_directory(place.path()), How::default());
        let name = made.unwrap().report.name;
        let whole = tempfile::tempdir().unwrap();
        let pieces = restore_with(place.path(), name, whole.path(), |_| {}).unwrap();
        assert!(pieces > 1);
        Self {
            place,
            name,
            pieces,
            _source: source,
        }
    }

    /// The command of another process that restores the backup.
    fn restore_in_child(&self, to: &Path) -> Command {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "restore::child"])
            .env("ENCKE_RESTORE_FROM", self.place.path())
            .env("ENCKE_RESTORE_TO", to)
            .env("ENCKE_RESTORE_NAME", self.name.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        child
    }

    fn restore_again(&self, to: &Path) {
        restore_into(self.place.path(), self.name, to).unwrap();
        assert_eq!(check_log(to), 300);
    }
}

/// Checks that the error of a directory names the command that finishes it, and that nothing takes it for a log.
fn check_refusal(directory: &Path, error: &LayoutError) {
    let LayoutError::Unfinished { command, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(*command, "log restore");
    let error = encke_log::check(directory, &mut |_| {}).unwrap_err();
    assert!(
        matches!(
            error,
            OpenError::Unfinished { .. } | OpenError::NoLog { .. }
        ),
        "{error}"
    );
}

#[test]
fn a_restore_that_dies_after_any_piece_is_refused_and_can_be_repeated() {
    let backup = Backup::new();
    for pieces in 1..=backup.pieces {
        let root = tempfile::tempdir().unwrap();
        let to = root.path().join("data");
        let mut child = backup.restore_in_child(&to);
        child.env("ENCKE_RESTORE_PIECES", pieces.to_string());
        assert!(!child.status().unwrap().success());
        check_refusal(&to, &logs_in(&to).unwrap_err());
        backup.restore_again(&to);
    }
}

#[test]
fn a_restore_that_is_killed_at_any_time_can_be_repeated() {
    let rounds = std::env::var("ENCKE_CRASH_ROUNDS").map_or(12, |rounds| rounds.parse().unwrap());
    let backup = Backup::new();
    let mut random = encke_log::simulated::Random::new(u64::from(std::process::id()));
    for round in 0..rounds {
        let root = tempfile::tempdir().unwrap();
        let to = root.path().join("data");
        let mut child = backup.restore_in_child(&to).spawn().unwrap();
        // From the marker on; before it there is nothing.
        while !to.join("LOGS").exists() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        match logs_in(&to) {
            Err(error @ LayoutError::Unfinished { .. }) => {
                check_refusal(&to, &error);
                backup.restore_again(&to);
            }
            // The marker has no content yet.
            Err(LayoutError::Damaged { .. }) => backup.restore_again(&to),
            Ok(_) => assert_eq!(check_log(&to), 300, "round {round}"),
            Err(error) => panic!("round {round}: {error}"),
        }
    }
}

#[test]
fn a_directory_that_is_not_complete_is_refused_by_all_commands() {
    let (source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let made = source.back_up(&in_directory(place.path()), How::default());
    let name = made.unwrap().report.name;
    let root = tempfile::tempdir().unwrap();
    let to = root.path().join("new/data");
    // A piece is missing, so that the restore ends in the middle.
    let piece = crate::source::piece_files(place.path(), &in_directory(place.path()))
        .pop()
        .unwrap();
    let aside = root.path().join("piece");
    std::fs::rename(&piece, &aside).unwrap();
    restore_into(place.path(), name, &to).unwrap_err();
    let text = |error: &dyn std::error::Error| {
        let text = error.to_string();
        assert!(
            text.contains("is not complete") && text.contains("log restore"),
            "{text}"
        );
    };
    text(&logs_in(&to).unwrap_err());
    text(&encke_log::arrange(&to, 1).unwrap_err());
    let repository = in_directory(&root.path().join("other"));
    let mut pieces =
        encke_backup::StoredPieces::examine(&repository, Duration::from_secs(1)).unwrap();
    text(&encke_backup::back_up(&to, &mut pieces, &mut |_, _| {}).unwrap_err());
    let options = encke_log::Options::default();
    text(&encke_log::Log::open(&to, options, &mut |_| {}).unwrap_err());
    // Another process still writes.
    let marker = std::fs::File::open(to.join("LOGS")).unwrap();
    marker.lock().unwrap();
    let error = restore_into(place.path(), name, &to).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    drop(marker);
    std::fs::rename(&aside, &piece).unwrap();
    restore_into(place.path(), name, &to).unwrap();
    assert_eq!(check_log(&to), 300);
    // It is a log like any other now.
    let error = restore_into(place.path(), name, &to).unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");
    assert_eq!(check_log(&to), 300);
}
