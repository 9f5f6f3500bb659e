//! The names that show that a log is not complete, and the check that refuses such a log.

use crate::error::OpenError;
use std::path::Path;

/// Refuses a log that is not complete: a command fills its directory or the one of all logs, or a copy is being moved to its place.
///
/// # Errors
/// [`OpenError::Unfinished`].
pub(crate) fn refuse_unfinished(directory: &Path) -> Result<(), OpenError> {
    let unfinished = |what: String| OpenError::Unfinished {
        directory: directory.to_owned(),
        what,
    };
    let mut marked = vec![directory];
    if directory.join(LOG).exists() {
        marked.extend(directory.parent());
    }
    for place in marked {
        let text = std::fs::read_to_string(place.join(LOGS)).unwrap_or_default();
        if let Some(command) = command_of(&text) {
            return Err(unfinished(format!(
                "`encke {command}` was interrupted there, or still runs; run it again, or remove {}",
                place.display()
            )));
        }
    }
    let is_there = |name: &&str| directory.join(name).symlink_metadata().is_ok();
    match [COMPLETE, PLACED].iter().any(is_there) {
        true => Err(unfinished(
            "a copy of another log is being moved to its place, which the next start of the server finishes".to_owned(),
        )),
        false => Ok(()),
    }
}

/// The command that a marker names.
pub(crate) fn command_of(text: &str) -> Option<&str> {
    text.strip_suffix('\n')?.strip_prefix(UNFINISHED)
}

/// The file with the number of logs, or with the command that has not ended.
pub(crate) const LOGS: &str = "LOGS";
/// The file with the index of a log, in the directory of each of several.
pub(crate) const LOG: &str = "LOG";
/// The first part of the marker; the command follows.
pub(crate) const UNFINISHED: &str = "encke 1: unfinished ";
/// A whole copy of another log.
pub(crate) const COMPLETE: &str = "copy.complete";
/// The rest of a copy that is being moved to its place.
pub(crate) const PLACED: &str = "copy.placed";
