//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time of day, in milliseconds since 1970. It may step.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
