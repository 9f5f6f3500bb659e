//! What can go wrong with history, as those who use it need to know it.

use crate::disk::is_shortage;
use crate::error::OpenError;
use std::path::Path;

/// What history said when something failed.
#[derive(Debug)]
pub(crate) struct HistoryError {
    pub(crate) reason: String,
    /// Whether it may well work when there is room again.
    pub(crate) shortage: bool,
}

impl HistoryError {
    /// As an error of opening a log.
    pub(crate) fn on_open(self, path: &Path, action: &'static str) -> OpenError {
        OpenError::History {
            path: path.to_owned(),
            action,
            reason: self.reason,
        }
    }
}

impl From<fjall::Error> for HistoryError {
    fn from(error: fjall::Error) -> Self {
        let shortage = match &error {
            fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => is_shortage(e),
            _ => false,
        };
        HistoryError {
            reason: error.to_string(),
            shortage,
        }
    }
}

impl From<std::io::Error> for HistoryError {
    fn from(error: std::io::Error) -> Self {
        HistoryError {
            shortage: is_shortage(&error),
            reason: error.to_string(),
        }
    }
}

impl From<String> for HistoryError {
    fn from(reason: String) -> Self {
        HistoryError {
            reason,
            shortage: false,
        }
    }
}
