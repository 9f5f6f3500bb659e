//! What can happen to a data directory from outside.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::base::Base;
use super::snapshot::{Snapshot, copy_any, copy_tree, names_below, remove_any};
use crate::rig::data_dir;

/// One file or directory of a data directory, and what happens to it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Relative to the data directory.
    pub(super) path: PathBuf,
    pub(super) damage: Damage,
}

#[derive(Clone, Debug)]
pub(super) enum Damage {
    /// Everything is as it was.
    Nothing,
    Removed,
    /// A file has no bytes, a directory nothing in it.
    Emptied,
    /// A file has only its first bytes.
    Truncated(u64),
    /// A file has zeros from there on.
    Zeroed(u64),
    /// By what was at this path in the older copy.
    ReplacedByOlder,
    /// By what is at another path of the same data directory.
    ReplacedBy(PathBuf),
    ReplacedByDirectory,
    /// By a symbolic link to itself.
    ReplacedByLoop,
}

impl Case {
    /// Any file or directory, and any damage that can happen to it.
    pub(super) fn random(base: &Base, random: &mut Random) -> Case {
        let all = names_below(base.data.path());
        let path = all[random.below(all.len())].clone();
        let all = possible(base, &all, &path, random);
        let damage = all[random.below(all.len())].clone();
        Case { path, damage }
    }

    /// No damage at all.
    pub(super) fn sound() -> Case {
        Case {
            path: PathBuf::from("nothing"),
            damage: Damage::Nothing,
        }
    }

    /// A copy of the data directory with this damage.
    pub(super) fn damaged_copy(&self, base: &Base) -> TempDir {
        let copy = data_dir();
        copy_tree(base.data.path(), copy.path());
        let path = copy.path().join(&self.path);
        let is_file = path.is_file();
        let open = || OpenOptions::new().write(true).open(&path).expect("a file");
        match &self.damage {
            Damage::Nothing => {}
            Damage::Removed => remove_any(&path),
            Damage::Emptied if is_file => open().set_len(0).expect("it can be cut"),
            Damage::Emptied => {
                remove_any(&path);
                fs::create_dir(&path).expect("it can be made");
            }
            Damage::Truncated(bytes) => open().set_len(*bytes).expect("it can be cut"),
            Damage::Zeroed(from) => {
                let file = open();
                let bytes = file.metadata().expect("a length").len() - from;
                let zeros = vec![0; bytes as usize];
                file.write_all_at(&zeros, *from).expect("it can be written");
            }
            Damage::ReplacedByOlder => {
                remove_any(&path);
                copy_any(&base.older.path().join(&self.path), &path);
            }
            Damage::ReplacedBy(other) => {
                remove_any(&path);
                copy_any(&base.data.path().join(other), &path);
            }
            Damage::ReplacedByDirectory => {
                remove_any(&path);
                fs::create_dir(&path).expect("it can be made");
            }
            Damage::ReplacedByLoop => {
                remove_any(&path);
                let name = path.file_name().expect("it has a name");
                symlink(name, &path).expect("it can be made");
            }
        }
        copy
    }

    /// Whether a text names what is damaged, or something below it.
    pub(super) fn is_named_in(&self, text: &str) -> bool {
        if text.contains(&*self.path.to_string_lossy()) {
            return true;
        }
        // A name that is only a number is no name without its directory.
        let name = self.path.file_name().expect("it has a name");
        let name = name.to_string_lossy();
        !name.bytes().all(|byte| byte.is_ascii_digit()) && text.contains(&*name)
    }
}

/// Everything that can happen to a path.
fn possible(base: &Base, all: &[PathBuf], path: &Path, random: &mut Random) -> Vec<Damage> {
    let data = base.data.path();
    let full = data.join(path);
    let mut possible = vec![Damage::Removed, Damage::ReplacedByLoop];
    if full.is_file() {
        possible.push(Damage::ReplacedByDirectory);
        let bytes = full.metadata().expect("it has a length").len();
        if bytes > 0 {
            possible.push(Damage::Emptied);
        }
        if bytes > 1 {
            // One byte is as bad as many; heads and ends are worth more than their share.
            let few = random.below(64.min(bytes as usize - 1)) as u64 + 1;
            let any = random.below(bytes as usize - 1) as u64 + 1;
            let lengths = [few, any, bytes - few];
            possible.push(Damage::Truncated(lengths[random.below(3)]));
        }
    } else if fs::read_dir(&full).expect("a directory").next().is_some() {
        possible.push(Damage::Emptied);
    }
    if has_older(base, path) {
        possible.push(Damage::ReplacedByOlder);
    }
    let same_kind = |other: &&PathBuf| {
        *other != path && kind(other) == kind(path) && data.join(other).is_dir() == full.is_dir()
    };
    let siblings: Vec<&PathBuf> = all.iter().filter(same_kind).collect();
    if !siblings.is_empty() {
        let sibling = siblings[random.below(siblings.len())].clone();
        if differ(&full, &data.join(&sibling)) {
            possible.push(Damage::ReplacedBy(sibling));
        }
    }
    possible
}

/// Whether the older copy has another thing of the same kind at this path. A whole older log does not count: an older copy of
/// everything is a sound log.
pub(super) fn has_older(base: &Base, path: &Path) -> bool {
    let (now, then) = (base.data.path().join(path), base.older.path().join(path));
    let is_log = kind(path).starts_with("/log-#");
    then.exists() && now.is_dir() == then.is_dir() && !is_log && differ(&now, &then)
}

fn differ(one: &Path, other: &Path) -> bool {
    if one.is_dir() {
        Snapshot::of(one) != Snapshot::of(other)
    } else {
        fs::read(one).expect("a file") != fs::read(other).expect("a file")
    }
}

/// The names of a path and of its directory, without their numbers: what has the same is of the same kind.
fn kind(path: &Path) -> String {
    let without_numbers = |name: Option<&std::ffi::OsStr>| {
        let name = name.map_or_else(Default::default, |name| name.to_string_lossy());
        let parts = name.split(|at: char| at.is_ascii_digit());
        let mut kind = String::new();
        for (i, part) in parts.enumerate() {
            if i > 0 && !kind.ends_with('#') {
                kind.push('#');
            }
            kind.push_str(part);
        }
        kind
    };
    let directory = path.parent().and_then(Path::file_name);
    format!(
        "{}/{}",
        without_numbers(directory),
        without_numbers(path.file_name())
    )
}

/// Random numbers that a seed repeats (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
