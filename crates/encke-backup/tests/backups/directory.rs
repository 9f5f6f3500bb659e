//! Backups in a directory whose pieces are removed, cut or changed.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
