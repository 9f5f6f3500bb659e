//! What can happen to a data directory from outside.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::base::Base;
use crate::rig::{Snapshot, copy_any, copy_tree, data_dir, names_below, remove_any};

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
    /// By what is at this path of the data directory of another server.
    ReplacedByForeign(PathBuf),
    ReplacedByDirectory,
    /// By a symbolic link to itself.
    ReplacedByLoop,
}

/// The kinds of damage that are drawn at random, without their details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Removed,
    Emptied,
    Truncated,
    Zeroed,
    ReplacedByOlder,
    ReplacedBy,
    ReplacedByForeign,
    ReplacedByDirectory,
    ReplacedByLoop,
}

const KINDS: [Kind; 9] = [
    Kind::Removed,
    Kind::Emptied,
    Kind::Truncated,
    Kind::Zeroed,
    Kind::ReplacedByOlder,
    Kind::ReplacedBy,
    Kind::ReplacedByForeign,
    Kind::ReplacedByDirectory,
    Kind::ReplacedByLoop,
];

/// Every damage that can happen to the files and directories of a base.
pub(super) struct Cases<'a> {
    base: &'a Base,
    all: Vec<PathBuf>,
    foreign: Vec<PathBuf>,
    /// The paths that each kind can happen to.
    paths: BTreeMap<Kind, Vec<PathBuf>>,
}

impl<'a> Cases<'a> {
    pub(super) fn of(base: &'a Base) -> Cases<'a> {
        let mut cases = Cases {
            base,
            all: names_below(base.data.path()),
            foreign: names_below(base.foreign.path()),
            paths: BTreeMap::new(),
        };
        let mut paths: BTreeMap<Kind, Vec<PathBuf>> = BTreeMap::new();
        for kind in KINDS {
            for path in &cases.all {
                if cases.damage(path, kind, &mut Random::new(0)).is_some() {
                    paths.entry(kind).or_default().push(path.clone());
                }
            }
        }
        let all: usize = paths.values().map(Vec::len).sum();
        for paths in paths.values_mut() {
            // Rare kinds are repeated, so that few cases have each of them.
            let once = paths.clone();
            paths.extend(
                once.iter()
                    .cycle()
                    .take((all / SHARE).saturating_sub(once.len()))
                    .cloned(),
            );
        }
        cases.paths = paths;
        cases
    }

    /// How many cases have every path with every kind that can happen to it.
    pub(super) fn len(&self) -> u64 {
        self.paths.values().map(Vec::len).sum::<usize>() as u64
    }

    /// The case of a seed, and its kind. Seeds in a row go through all cases, in an order that mixes the kinds.
    pub(super) fn case(&self, seed: u64) -> (Kind, Case) {
        let order = &mut Random::new(seed / self.len());
        let mut mixed: Vec<(u64, Kind, &PathBuf)> = Vec::new();
        for (kind, paths) in &self.paths {
            let mut paths: Vec<&PathBuf> = paths.iter().collect();
            order.shuffle(&mut paths);
            let step = u64::MAX / paths.len() as u64;
            let places = (0..).map(|nth| nth * step + step / 2);
            mixed.extend(places.zip(paths).map(|(place, path)| (place, *kind, path)));
        }
        mixed.sort();
        let (_, kind, path) = mixed[(seed % self.len()) as usize];
        let damage = self.damage(path, kind, &mut Random::new(seed));
        let case = Case {
            path: path.clone(),
            damage: damage.expect("it was possible before"),
        };
        (kind, case)
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.paths.keys().copied()
    }

    /// A damage of this kind; nothing if it can't happen to the path, or would change nothing.
    fn damage(&self, path: &Path, kind: Kind, random: &mut Random) -> Option<Damage> {
        let data = self.base.data.path();
        let full = data.join(path);
        let is_file = full.is_file();
        let content = if is_file {
            fs::read(&full).expect("it can be read")
        } else {
            Vec::new()
        };
        let bytes = content.len();
        match kind {
            Kind::Removed => Some(Damage::Removed),
            Kind::ReplacedByLoop => Some(Damage::ReplacedByLoop),
            Kind::ReplacedByDirectory => is_file.then_some(Damage::ReplacedByDirectory),
            Kind::Emptied => {
                let holds = || fs::read_dir(&full).is_ok_and(|mut all| all.next().is_some());
                (bytes > 0 || !is_file && holds()).then_some(Damage::Emptied)
            }
            Kind::Truncated => (bytes > 1).then(|| Damage::Truncated(random.place(bytes))),
            Kind::Zeroed => {
                let last = content.iter().rposition(|byte| *byte != 0)? as u64;
                let from = if bytes > 1 { random.place(bytes) } else { 0 };
                Some(Damage::Zeroed(from.min(last)))
            }
            Kind::ReplacedByOlder => has_older(self.base, path).then_some(Damage::ReplacedByOlder),
            Kind::ReplacedBy => {
                let is_like = |other: &&PathBuf| {
                    other.as_path() != path
                        && likeness(other) == likeness(path)
                        && differ(&full, &data.join(other))
                };
                let siblings: Vec<_> = self.all.iter().filter(is_like).collect();
                random.pick(&siblings).map(Damage::ReplacedBy)
            }
            Kind::ReplacedByForeign => {
                let within = within_log(path);
                let is_like = |other: &&PathBuf| {
                    likeness(other) == likeness(&within)
                        && differ(&full, &self.base.foreign.path().join(other))
                };
                let foreign: Vec<_> = self.foreign.iter().filter(is_like).collect();
                random.pick(&foreign).map(Damage::ReplacedByForeign)
            }
        }
    }
}

impl Case {
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
        self.damage(base, copy.path());
        copy
    }

    /// Does this damage to a copy of the data directory.
    pub(super) fn damage(&self, base: &Base, copy: &Path) {
        let path = copy.join(&self.path);
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
            Damage::ReplacedByForeign(other) => {
                remove_any(&path);
                copy_any(&base.foreign.path().join(other), &path);
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
    }

    /// Whether a text names what is damaged, or something below it.
    pub(super) fn is_named_in(&self, text: &str) -> bool {
        if holds_name(text, &self.path.to_string_lossy()) {
            return true;
        }
        // A name that is only a number or only a word is no name without its directory.
        let name = self.path.file_name().expect("it has a name");
        let name = name.to_string_lossy();
        let digits = name.bytes().filter(u8::is_ascii_digit).count();
        (1..name.len()).contains(&digits) && holds_name(text, &name)
    }
}

/// Whether a text has a name that is not a part of a longer one.
fn holds_name(text: &str, name: &str) -> bool {
    let continues = |at: char| at.is_alphanumeric() || matches!(at, '-' | '_');
    text.match_indices(name).any(|(at, _)| {
        let mut before = text[..at].chars().rev();
        let mut behind = text[at + name.len()..].chars();
        let is_begun = before.next().is_some_and(|at| continues(at) || at == '.');
        let goes_on = match behind.next() {
            Some('.') => behind.next().is_some_and(continues),
            other => other.is_some_and(continues),
        };
        !is_begun && !goes_on
    })
}

/// A path without the directory of its log, if there are several.
fn within_log(path: &Path) -> PathBuf {
    let mut parts = path.components();
    let first = parts.clone().next();
    let first = first.map(|first| first.as_os_str().to_string_lossy().into_owned());
    if first.is_some_and(|first| first.starts_with("log-")) {
        parts.next();
    }
    parts.as_path().to_owned()
}

/// Whether the older copy has another thing of the same kind at this path. A whole older log does not count: an older copy of
/// everything is a sound log.
pub(super) fn has_older(base: &Base, path: &Path) -> bool {
    let (now, then) = (base.data.path().join(path), base.older.path().join(path));
    let is_log = likeness(path).starts_with("/log-#");
    then.exists() && now.is_dir() == then.is_dir() && !is_log && differ(&now, &then)
}

fn differ(one: &Path, other: &Path) -> bool {
    if one.is_dir() != other.is_dir() {
        false
    } else if one.is_dir() {
        Snapshot::of(one) != Snapshot::of(other)
    } else {
        fs::read(one).expect("a file") != fs::read(other).expect("a file")
    }
}

/// The names of a path and of its directory, without their numbers: what has the same is of the same sort.
fn likeness(path: &Path) -> String {
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

    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }

    /// One of the paths; nothing if there are none.
    fn pick(&mut self, all: &[&PathBuf]) -> Option<PathBuf> {
        let picked = (!all.is_empty()).then(|| self.below(all.len()));
        picked.map(|at| all[at].clone())
    }

    /// A place within a file of more than one byte. One byte is as bad as many; heads and ends are worth more than their
    /// share.
    fn place(&mut self, bytes: usize) -> u64 {
        let few = self.below(64.min(bytes - 1)) + 1;
        let any = self.below(bytes - 1) + 1;
        [few, any, bytes - few][self.below(3)] as u64
    }
}

/// Each kind has at least one of so many cases.
const SHARE: usize = 20;
