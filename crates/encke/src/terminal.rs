//! The terminal from which the server was started.

use signal_hook::consts::SIGHUP;

/// What the controlling terminal means to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// There is none.
    Missing,
    /// The process ends when it closes.
    EndsProcess,
    /// The process goes on when it closes. A successor must be told: it can't see that the first server was started with SIGHUP ignored.
    Outlived,
}

impl Terminal {
    /// Looks before SIGHUP is handled. A process that was started with SIGHUP ignored, as by `nohup`, outlives its terminal.
    pub(crate) fn of_this_process() -> Terminal {
        match (can_be_opened(), ignores_hang_up()) {
            (false, _) => Terminal::Missing,
            (true, false) => Terminal::EndsProcess,
            (true, true) => Terminal::Outlived,
        }
    }

    /// Whether the terminal with which the process ends is closed. Then SIGHUP means the end of the session, otherwise a reload.
    pub(crate) fn is_closed(self) -> bool {
        self == Terminal::EndsProcess && !can_be_opened()
    }
}

/// Opening fails without a controlling terminal, and once it has hung up.
fn can_be_opened() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// Whether this process ignores SIGHUP.
fn ignores_hang_up() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, SIGHUP))
}

/// Whether the mask `SigIgn` of a process has this signal; its lowest bit is signal 1.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_says_what_is_ignored() {
        for (mask, expected) in [
            ("0000000000000001", true),
            ("0000000000001001", true),
            ("0000000000001002", false),
            ("nonsense", false),
        ] {
            let status = format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
            assert_eq!(ignores(&status, SIGHUP), expected, "{mask}");
        }
    }
}
