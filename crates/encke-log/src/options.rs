//! The options of a log.

use crate::retention::LogRetention;
use std::time::Duration;

/// The smallest size of a segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;

/// The largest size of a segment, in bytes: positions inside one are 32-bit numbers.
pub const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// The options of a log. Each may change from one open to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of each new segment in bytes, between [`SEGMENT_BYTES_MIN`] and [`SEGMENT_BYTES_MAX`]. A frame must fit
    /// into one segment. Default 64 MiB.
    pub segment_bytes: u64,
    /// Whether sealed segments are sorted and ingested into history, where a stream's records are contiguous and need
    /// no memory. Without history each record takes an entry in the index, and a start replays the whole log. A log
    /// that has a history keeps it in any case. Default true.
    pub history: bool,
    /// How many sealed segments may wait for ingestion before [`Log::write`](crate::Log::write) waits. Default 3.
    pub waiting_segments_max: usize,
    /// How many jobs of the background, sealed segments and checkpoints, may wait in total, the current one included.
    /// At this number [`Log::checkpoint`](crate::Log::checkpoint), [`Log::publish`](crate::Log::publish) and opening
    /// wait, even while history fails. A caller that respects `waiting_segments_max` and
    /// [`Log::checkpoints_waiting`](crate::Log::checkpoints_waiting) never reaches it. At least 1; default 65,536.
    pub background_jobs_max: usize,
    /// How many bytes of segments that are in history are kept for reads of the global order. Default 1 GiB.
    pub done_bytes_max: u64,
    /// How long segments that are in history are kept for reads of the global order; `None`: as long as
    /// `done_bytes_max` allows. Default `None`.
    pub done_age_max: Option<Duration>,
    /// How long records are kept. Needs history. Default: forever.
    pub retention: LogRetention,
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
            retention: LogRetention::default(),
            history_cache_bytes: 16 << 20,
        }
    }
}
