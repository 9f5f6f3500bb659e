//! Numbers that name streams and records.

/// Number of a stream: given by the caller, never 0, never reused.
pub type StreamNo = u64;

/// Position of a record in the global order of one log. The first record has sequence 1, and there are no gaps.
pub type Sequence = u64;
