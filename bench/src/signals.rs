//! Ctrl-C ends a run with its report; a second one ends the program.

use crate::BenchError;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The exit code after a second signal: 128 + SIGINT, as shells have it.
const INTERRUPTED: i32 = 130;

/// A flag that SIGINT and SIGTERM set.
///
/// The handlers stay for the rest of the process; each run adds its own.
pub fn stop_flag() -> Result<Arc<AtomicBool>, BenchError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and sets it.
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(BenchError::system("listen for signals"))?;
    }
    Ok(stop)
}
