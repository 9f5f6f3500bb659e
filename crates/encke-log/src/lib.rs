//! Encke's write-ahead log: segments, frames, group commit, recovery, history.
