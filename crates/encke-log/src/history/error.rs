//! Errors of history.

use crate::disk::is_shortage;
use crate::error::OpenError;
use std::path::Path;

/// Why history failed.
#[derive(Debug)]
pub(crate) struct HistoryError {
    pub(crate) reason: String,
    /// Whether it may work when there is room again.
    pub(crate) shortage: bool,
    /// Whether the tree only reports an earlier failure of its own background work, without the cause. Opening it again
    /// and retrying shows the cause.
    pub(crate) earlier: bool,
    /// Whether the disk could not be read or written, or history is closed; otherwise something is damaged.
    pub(crate) io: bool,
}

impl HistoryError {
    /// Converts it to an error of opening a log.
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
        let io = match &error {
            fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) => Some(e),
            _ => None,
        };
        HistoryError {
            reason: error.to_string(),
            shortage: io.is_some_and(is_shortage),
            io: io.is_some(),
            earlier: matches!(error, fjall::Error::Poisoned),
        }
    }
}

impl From<std::io::Error> for HistoryError {
    fn from(error: std::io::Error) -> Self {
        HistoryError {
            shortage: is_shortage(&error),
            reason: error.to_string(),
            earlier: false,
            io: true,
        }
    }
}

impl From<String> for HistoryError {
    fn from(reason: String) -> Self {
        HistoryError {
            reason,
            shortage: false,
            earlier: false,
            io: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_failure_is_marked_as_earlier() {
        let full = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let full = HistoryError::from(fjall::Error::Io(full));
        assert_eq!((full.shortage, full.earlier), (true, false));
        let repeated = HistoryError::from(fjall::Error::Poisoned);
        assert_eq!((repeated.shortage, repeated.earlier), (false, true));
    }
}
