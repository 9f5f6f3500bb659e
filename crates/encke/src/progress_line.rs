//! The progress of long work on standard error: on one line of a terminal, otherwise as a line from time to time.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::failure::say;

/// Shows how far work is.
pub(crate) struct ProgressLine {
    quiet: bool,
    terminal: bool,
    /// The time of the next line. Short work shows nothing.
    due: Instant,
    shown: bool,
}

impl ProgressLine {
    pub(crate) fn new(quiet: bool) -> ProgressLine {
        ProgressLine {
            quiet,
            terminal: std::io::stderr().is_terminal(),
            due: Instant::now() + Duration::from_secs(1),
            shown: false,
        }
    }

    /// Shows a text, if it is time.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        if self.quiet || now < self.due {
            return;
        }
        let text = text();
        if self.terminal {
            say(format_args!("\r\x1b[K{text}"));
            self.due = now + Duration::from_millis(200);
        } else {
            say(format_args!("{text}\n"));
            self.due = now + Duration::from_secs(10);
        }
        self.shown = true;
    }

    pub(crate) fn end(&self) {
        if self.shown && self.terminal {
            say(format_args!("\r\x1b[K"));
        }
    }
}
