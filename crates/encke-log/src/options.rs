//! What can be chosen when a log is opened.

use crate::retention::ClassRetention;
use std::time::Duration;

/// The smallest size of a segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;

/// The largest size of a segment, in bytes: positions inside one are 32-bit numbers.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// What can be chosen when a log is opened. Every value may change between one open and the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of each new segment in bytes, between [`SEGMENT_BYTES_MIN`] and [`SEGMENT_BYTES_MAX`]. A frame must fit
    /// into one segment. Default 64 MiB.
    pub segment_bytes: u64,
    /// Whether sealed segments are sorted and ingested into history, where a stream's records are contiguous and cost
    /// no memory. Without it every record costs an entry in the index, and opening replays the whole log. A log that
    /// has a history keeps it, whatever is said here. Default true.
    pub history: bool,
    /// How many sealed segments may wait for ingestion before [`Log::write`](crate::Log::write) waits too. Default 3.
    pub waiting_segments_max: usize,
    /// How many sealed segments and checkpoints may wait for the background in all, the one in work included. When as many
    /// do, [`Log::checkpoint`](crate::Log::checkpoint), [`Log::publish`](crate::Log::publish) and opening wait, also while history
    /// fails; who keeps to `waiting_segments_max` and looks at
    /// [`Log::checkpoints_waiting`](crate::Log::checkpoints_waiting) never gets there. At least 1; default 65,536.
    pub background_jobs_max: usize,
    /// How many bytes of segments that are already in history are kept for reading the global order. Default 1 GiB.
    pub done_bytes_max: u64,
    /// For how long segments that are already in history are kept for reading the global order; `None` for as long as
    /// `done_bytes_max` allows. Default `None`.
    pub done_age_max: Option<Duration>,
    /// How long the records of each retention class are kept; those of classes that are not named here for ever. The last
    /// one of a class counts. Needs history. Default none.
    pub retention: Vec<ClassRetention>,
    /// Size of the cache of history's blocks in bytes. Default 16 MiB.
    pub history_cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: 64 << 20,
            history: true,
            waiting_segments_max: 3,
            background_jobs_max: 65_536,
            done_bytes_max: 1 << 30,
            done_age_max: None,
            retention: Vec::new(),
            history_cache_bytes: 16 << 20,
        }
    }
}
