//! The time of day.

use std::time::SystemTime;

use encke_clock::WallTime;

/// The time of day. It may step.
pub fn wall_time() -> WallTime {
    SystemTime::now().into()
}
