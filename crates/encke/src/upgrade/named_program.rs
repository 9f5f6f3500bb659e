//! The program that the command of this process names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{Access, access};

/// Where this process has its program from, by the name that its command has. It may be a link, which leads to the next version later.
pub(super) fn named_program(name: &OsStr) -> anyhow::Result<PathBuf> {
    let name = Path::new(name);
    if name.components().count() > 1 {
        return Ok(std::path::absolute(name)?);
    }
    let program = std::env::current_exe().context("the program of this process is not known")?;
    match find_in_path(name) {
        // From now on this folder counts, whatever comes into others of PATH.
        Some(found) if found.canonicalize().ok().as_ref() == Some(&program) => {
            Ok(std::path::absolute(found)?)
        }
        // The process was started under a name that leads elsewhere.
        _ => Ok(program),
    }
}

/// The first program of that name in PATH.
fn find_in_path(name: &Path) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&folders).map(|folder| folder.join(name));
    found.find(|path| access(path, Access::EXEC_OK).is_ok() && path.is_file())
}
