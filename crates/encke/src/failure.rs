//! How a command fails: exit codes, and errors as text.

use std::process::ExitCode;

use crate::stderr_queue;

/// An error and its causes. A cause that the text before it contains already is left out.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Writes to standard error and ignores failures, such as a full disk; `eprintln!` would panic.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    stderr_queue::say(text.to_string().as_bytes());
}

/// An error and its exit code.
pub(crate) struct Failed {
    pub(crate) code: Code,
    pub(crate) error: anyhow::Error,
}

/// The documented exit codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    /// A failure while running.
    Running = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// The data directory can't be used.
    Data = 3,
    /// The address can't be listened on.
    Listen = 4,
    /// The machine or the data directory is unsuitable.
    Unfit = 5,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

impl Code {
    pub(crate) fn with(self, error: impl Into<anyhow::Error>) -> Failed {
        Failed {
            code: self,
            error: error.into(),
        }
    }
}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Code::Running.with(error)
    }
}
