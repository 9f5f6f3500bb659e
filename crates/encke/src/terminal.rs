//! The terminal from which the server was started.

/// The controlling terminal of this process, if it has one.
pub(crate) struct Terminal {
    is_there: bool,
}

impl Terminal {
    pub(crate) fn of_this_process() -> Terminal {
        Terminal {
            is_there: can_be_opened(),
        }
    }

    /// Whether there was a terminal and it is closed. Then SIGHUP means the end of the session, otherwise a reload.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_there && !can_be_opened()
    }
}

/// Opening fails without a controlling terminal, and once it has hung up.
fn can_be_opened() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}
