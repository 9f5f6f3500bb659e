//! The whole content of a directory: to copy it, and to compare it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Every name below a directory, and what it stands for.
#[derive(PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<PathBuf, Content>);

#[derive(PartialEq, Eq)]
enum Content {
    Directory,
    /// All of its bytes, which is better than their hash.
    File(Vec<u8>),
    Link(PathBuf),
}

impl Snapshot {
    pub(crate) fn of(root: &Path) -> Snapshot {
        let mut all = BTreeMap::new();
        for path in names_below(root) {
            let full = root.join(&path);
            let kind = fs::symlink_metadata(&full).expect("it is there");
            let content = if kind.is_dir() {
                Content::Directory
            } else if kind.is_file() {
                Content::File(fs::read(&full).expect("it can be read"))
            } else {
                Content::Link(fs::read_link(&full).expect("it is a link"))
            };
            all.insert(path, content);
        }
        Snapshot(all)
    }

    /// What differs in a later snapshot: each path, and in which way.
    pub(crate) fn changes(&self, later: &Snapshot) -> Vec<(PathBuf, &'static str)> {
        let (before, later) = (&self.0, &later.0);
        let gone = before.iter().filter_map(|(path, content)| {
            let how = match later.get(path) {
                None => "vanished",
                Some(now) if now != content => "changed",
                Some(_) => return None,
            };
            Some((path.clone(), how))
        });
        let new = later.keys().filter(|path| !before.contains_key(*path));
        gone.chain(new.map(|path| (path.clone(), "appeared")))
            .collect()
    }
}

/// The paths of everything below a directory, relative to it, in order; directories before what they hold.
pub(crate) fn names_below(root: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(root.join(&directory)).expect("it can be read") {
            let entry = entry.expect("it can be read");
            let path = directory.join(entry.file_name());
            let kind = entry.file_type().expect("it has one");
            if kind.is_dir() {
                open.push(path.clone());
            }
            // The sockets of a server, which a kill leaves, are no data.
            if !kind.is_socket() {
                names.push(path);
            }
        }
    }
    names.sort();
    names
}

/// Copies everything below a directory into another one, which is made if it is not there.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("it can be made");
    for path in names_below(from) {
        let (from, to) = (from.join(&path), to.join(&path));
        let kind = fs::symlink_metadata(&from).expect("it is there");
        if kind.is_dir() {
            fs::create_dir(&to).expect("it can be made");
        } else if kind.is_file() {
            fs::copy(&from, &to).expect("it can be copied");
        } else if kind.is_symlink() {
            let target = fs::read_link(&from).expect("it is a link");
            std::os::unix::fs::symlink(target, &to).expect("it can be made");
        }
    }
}

/// Copies a file, or a directory with everything below it.
pub(crate) fn copy_any(from: &Path, to: &Path) {
    if from.is_dir() {
        copy_tree(from, to);
    } else {
        fs::copy(from, to).expect("it can be copied");
    }
}

/// Removes a file, or a directory with everything below it.
pub(crate) fn remove_any(path: &Path) {
    let kind = fs::symlink_metadata(path).expect("it is there");
    let removed = if kind.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    removed.expect("it can be removed");
}
