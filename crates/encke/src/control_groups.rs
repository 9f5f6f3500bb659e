//! The control groups of this process, which limit its memory and its threads.

use std::fs;
use std::path::{Path, PathBuf};

/// The control groups of this process, which have its limits: version 2, and version 1 by controller.
pub(crate) struct ControlGroups {
    /// Of each group: its controllers, the folder of the hierarchy's root, and the group's path below it.
    found: Vec<(Vec<String>, PathBuf, PathBuf)>,
}

impl ControlGroups {
    /// Reads the groups below `root`, which is `/` but in tests.
    pub(crate) fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let top = root.join("sys/fs/cgroup");
        let found = text.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let path = PathBuf::from(path.trim_start_matches('/'));
            let names: Vec<_> = controllers.split(',').map(str::to_owned).collect();
            let base = match controllers {
                "" => top.clone(),
                _ => top.join(controllers),
            };
            Some((names, base, path))
        });
        ControlGroups {
            found: found.collect(),
        }
    }

    /// The folders with limits of a controller, from the group itself to the root.
    fn folders(&self, controller: &str) -> impl Iterator<Item = PathBuf> {
        let concerned = self
            .found
            .iter()
            .filter(move |(names, ..)| names.iter().any(|n| n == controller || n.is_empty()));
        concerned.flat_map(|(_, base, path)| path.ancestors().map(|part| base.join(part)))
    }

    /// The lowest limit on the memory of this process, in bytes. None: there is no limit.
    pub(crate) fn memory_max(&self) -> Option<u64> {
        self.tightest("memory", &["memory.max", "memory.limit_in_bytes"])
    }

    /// The lowest limit of a controller, which one of these files of a group has.
    pub(crate) fn tightest(&self, controller: &str, files: &[&str]) -> Option<u64> {
        let folders = self.folders(controller);
        folders
            .filter_map(|folder| first_number(&folder, files))
            // Version 1 shows a huge number if there is no limit.
            .filter(|limit| *limit < u64::MAX >> 2)
            .min()
    }

    /// The number in one of these files of the group itself.
    pub(crate) fn own(&self, controller: &str, files: &[&str]) -> Option<u64> {
        let mut folders = self.folders(controller);
        folders.find_map(|folder| first_number(&folder, files))
    }
}

fn first_number(folder: &Path, files: &[&str]) -> Option<u64> {
    files.iter().find_map(|file| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse().ok()
    })
}
