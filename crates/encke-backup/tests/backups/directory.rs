//! Backups in a directory whose pieces are removed, cut or changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use encke_backup::{BackupError, BackupName};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::source::{How, Source, check_restored, hashes, in_directory, piece_files};

fn flip(path: &Path) {
    let mut content = std::fs::read(path).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(path, content).unwrap();
}

fn largest(files: Vec<PathBuf>) -> PathBuf {
    let bytes = |file: &PathBuf| file.metadata().unwrap().len();
    files.into_iter().max_by_key(bytes).unwrap()
}

#[test]
fn a_piece_that_is_missing_or_damaged_is_stored_again() {
    let (source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let repository = in_directory(place.path());
    let first = source.back_up(&repository, How::default()).unwrap();
    assert_eq!(first.unsound, 0);
    let damages: [fn(&Path); 4] = [
        |path| std::fs::remove_file(path).unwrap(),
        |path| std::fs::write(path, "").unwrap(),
        |path| {
            let file = File::options().write(true).open(path).unwrap();
            let bytes = file.metadata().unwrap().len();
            file.set_len(bytes / 2).unwrap();
        },
        flip,
    ];
    for damage in damages {
        damage(&largest(piece_files(place.path(), &repository)));
        let made = source.back_up(&repository, How::default()).unwrap();
        assert_eq!(made.unsound, 1, "{made:?}");
        assert_eq!(check_restored(&repository, made.report.name), 300);
        // The backups before it have the piece again.
        assert_eq!(check_restored(&repository, first.report.name), 300);
        let again = source.back_up(&repository, How::default()).unwrap();
        assert_eq!((again.unsound, again.read_bytes), (0, 0));
    }
    // Everything is lost.
    std::fs::remove_dir_all(place.path().join("pieces")).unwrap();
    let made = source.back_up(&repository, How::default()).unwrap();
    assert!(made.unsound > 1, "{made:?}");
    assert_eq!(check_restored(&repository, made.report.name), 300);
}

#[test]
fn a_piece_that_rots_is_found_when_it_is_read_again() {
    let (source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let repository = in_directory(place.path());
    source.back_up(&repository, How::default()).unwrap();
    let rotten = largest(piece_files(place.path(), &repository));
    let written = rotten.metadata().unwrap().modified().unwrap();
    flip(&rotten);
    let file = File::options().write(true).open(&rotten).unwrap();
    file.set_modified(written).unwrap();
    let often = How {
        verify_within: Duration::ZERO,
        ..How::default()
    };
    let made = source.back_up(&repository, often).unwrap();
    assert_eq!(made.unsound, 1, "{made:?}");
    assert_eq!(check_restored(&repository, made.report.name), 300);
    // Without a catalog all is read, and nothing is stored again.
    std::fs::remove_file(place.path().join("catalog.json")).unwrap();
    let made = source.back_up(&repository, How::default()).unwrap();
    assert_eq!((made.unsound, made.report.bytes_stored), (0, 0));
    // Some files have the same content.
    assert!(made.read_bytes > made.report.bytes * 9 / 10, "{made:?}");
}

#[test]
fn only_whole_backups_are_counted_and_kept() {
    let (mut source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let repository = in_directory(place.path());
    let mut back_up = |how| {
        source.append(10);
        source.back_up(&repository, how).unwrap()
    };
    let [good, damaged, third] = [(); 3].map(|()| back_up(How::default()).report.name);
    let pieces = |name| hashes(place.path(), name);
    let others: BTreeSet<String> = [good, third].into_iter().flat_map(pieces).collect();
    let only_there = pieces(damaged)
        .into_iter()
        .find(|hash| !others.contains(hash));
    let lost = only_there.unwrap();
    let folder = place.path().join("pieces").join(&lost[..2]);
    std::fs::remove_file(folder.join(&lost)).unwrap();
    let fourth = back_up(How::keeping(3));
    assert_eq!((fourth.removed.backups, fourth.removed.damaged), (0, 1));
    for (name, upto) in [(good, 310), (third, 330), (fourth.report.name, 340)] {
        assert_eq!(check_restored(&repository, name), upto);
    }
    let fifth = back_up(How::keeping(2));
    assert_eq!((fifth.removed.backups, fifth.removed.damaged), (3, 0));
    assert!(fifth.removed.pieces > 0);
    let names = [fourth.report.name, fifth.report.name];
    assert_eq!(repository.backups().unwrap(), names);
    assert_eq!(check_restored(&repository, names[0]), 340);
    assert_eq!(check_restored(&repository, names[1]), 350);
}

/// Gives a backup another name, as if the clock had been wrong when it was made.
fn rename(place: &Path, from: BackupName, to: &str) -> BackupName {
    let path = |name: &str| place.join(format!("backups/{name}.json"));
    std::fs::rename(path(&from.to_string()), path(to)).unwrap();
    let catalog = place.join("catalog.json");
    let text = std::fs::read_to_string(&catalog).unwrap();
    std::fs::write(&catalog, text.replace(&from.to_string(), to)).unwrap();
    to.parse().unwrap()
}

#[test]
fn the_last_backup_is_the_one_that_was_made_last_whatever_the_clock_was() {
    let (mut source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let repository = in_directory(place.path());
    let first = source.back_up(&repository, How::default()).unwrap();
    let first = rename(place.path(), first.report.name, "2026-01-02T00:00:00.000Z");
    source.append(10);
    let behind = source.back_up(&repository, How::default()).unwrap();
    let behind = rename(place.path(), behind.report.name, "2026-01-01T00:00:00.000Z");
    assert_eq!(repository.backups().unwrap(), [first, behind]);
    assert_eq!(repository.backup_at(None).unwrap(), behind);
    let third = source.back_up(&repository, How::keeping(2)).unwrap();
    let names = [behind, third.report.name];
    assert_eq!(repository.backups().unwrap(), names);
    assert_eq!(check_restored(&repository, behind), 310);
}

#[test]
fn a_backup_beside_those_of_another_server_is_refused() {
    let (source, other) = (Source::new(), Source::new());
    let place = tempfile::tempdir().unwrap();
    let repository = in_directory(place.path());
    let made = source.back_up(&repository, How::default()).unwrap();
    let refused = other.back_up(&repository, How::keeping(1)).unwrap_err();
    let BackupError::Place(reason) = refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("of another server"), "{reason}");
    assert_eq!(repository.backups().unwrap(), [made.report.name]);
    assert_eq!(check_restored(&repository, made.report.name), 300);
    source.back_up(&repository, How::keeping(1)).unwrap();
}

#[test]
fn backups_of_another_server_that_are_there_already_are_not_removed() {
    let (mut source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let repository = in_directory(place.path());
    let name = source.back_up(&repository, How::default()).unwrap();
    let list = |name: BackupName| place.path().join(format!("backups/{name}.json"));
    // As if another server had made it.
    let text = std::fs::read(list(name.report.name)).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
    manifest["logs"][0]["log_id"] = 7.into();
    let theirs: BackupName = "2026-01-01T00:00:00.000Z".parse().unwrap();
    std::fs::write(list(theirs), manifest.to_string()).unwrap();
    let catalog = place.path().join("catalog.json");
    let mut known: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&catalog).unwrap()).unwrap();
    known["backups"] = vec![theirs.to_string(), name.report.name.to_string()].into();
    std::fs::write(&catalog, known.to_string()).unwrap();
    source.append(10);
    let made = source.back_up(&repository, How::keeping(1)).unwrap();
    assert_eq!(made.removed.backups, 1);
    assert_eq!(repository.backups().unwrap(), [theirs, made.report.name]);
    let manifest = repository.manifest(theirs).unwrap();
    repository.verify(&manifest).unwrap();
}

#[test]
fn what_a_list_does_not_allow_is_refused_without_being_read() {
    let (source, place) = (Source::new(), tempfile::tempdir().unwrap());
    let repository = in_directory(place.path());
    let name = source.back_up(&repository, How::default()).unwrap();
    let name = name.report.name;
    let manifest = repository.manifest(name).unwrap();
    let piece = largest(piece_files(place.path(), &repository));
    // No memory has room for it.
    let file = File::options().write(true).open(&piece).unwrap();
    file.set_len(1 << 42).unwrap();
    let error = repository.verify(&manifest).unwrap_err().to_string();
    assert!(error.contains("has other content"), "{error}");
    std::fs::remove_file(&piece).unwrap();
    mknodat(CWD, &piece, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let error = repository.verify(&manifest).unwrap_err().to_string();
    assert!(
        error.contains("no process has written all of it"),
        "{error}"
    );
    let list = place.path().join(format!("backups/{name}.json"));
    let text = std::fs::read(&list).unwrap();
    let mut many: serde_json::Value = serde_json::from_slice(&text).unwrap();
    many["logs"] = vec![many["logs"][0].clone(); 64].into();
    std::fs::write(&list, many.to_string()).unwrap();
    let error = repository.manifest(name).unwrap_err().to_string();
    assert!(error.contains("64 logs, a server has 1 to 63"), "{error}");
}
