//! Times in fields and bodies.

use encke_clock::WallTime;

/// A time in the format of RFC 3339.
pub(crate) fn timestamp(at: WallTime) -> String {
    i64::try_from(at.as_ms())
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map(|at| at.to_string())
        .unwrap_or_default()
}
