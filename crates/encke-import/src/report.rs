//! What an import has done.

use serde::Serialize;

/// What an import has done.
#[derive(Debug, Serialize)]
pub struct ImportReport {
    /// Whether every stream has all that its source had, and is the same if that was compared.
    pub complete: bool,
    /// How many streams there are.
    pub streams: u64,
    /// Those that could not be copied to their end, or whose contents differ.
    pub failed: u64,
    /// Messages of JSON streams, and pieces of others, at the destination.
    pub records: u64,
    /// Bytes of data at the destination.
    pub bytes: u64,
    /// Messages and pieces that this run has appended.
    pub records_copied: u64,
    /// Bytes of data that this run has appended.
    pub bytes_copied: u64,
    /// Requests that were made again.
    pub retries: u64,
    /// How long it took.
    pub seconds: f64,
    /// Each stream, in the order in which they were named.
    pub of_streams: Vec<StreamReport>,
}

/// What was done for one stream.
#[derive(Debug, Serialize)]
pub struct StreamReport {
    /// Its name at the destination.
    pub stream: String,
    /// Its address at the source.
    pub source: String,
    /// How the copy ended.
    #[serde(flatten)]
    pub outcome: CopyOutcome,
    /// Messages, or pieces of a stream that is no JSON, at the destination.
    pub records: u64,
    /// Bytes of data at the destination.
    pub bytes: u64,
    /// What this run has appended of that.
    pub records_copied: u64,
    /// What this run has appended of that, in bytes.
    pub bytes_copied: u64,
    /// The offset of the source up to which it is copied.
    pub source_offset: String,
    /// The offset of the destination that means the same.
    pub offset: String,
    /// The comparison of the contents, if it was asked for and could be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
}

/// How the copy of a stream ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CopyOutcome {
    /// The destination has everything that the source had, and both are open.
    Current,
    /// The destination has everything, and both are closed.
    Closed,
    /// It could not be copied to its end.
    Failed {
        /// Why.
        error: String,
    },
}

/// A comparison of the contents at both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// The SHA-256 of the destination's: of its bytes, or of its messages, each with its length before it in 8 bytes, the lowest first.
    pub sha256: String,
    /// Bytes of data that were compared.
    pub bytes: u64,
    /// In what the two differ, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

impl StreamReport {
    /// Why the stream counts as failed, if it does.
    pub fn failure(&self) -> Option<String> {
        if let CopyOutcome::Failed { error } = &self.outcome {
            return Some(error.clone());
        }
        let differs = self.compared.as_ref()?.differs.as_ref()?;
        Some(format!(
            "source and destination are not the same: {differs}"
        ))
    }
}

impl ImportReport {
    pub(crate) fn new(of_streams: Vec<StreamReport>, retries: u64, seconds: f64) -> Self {
        let failed = of_streams
            .iter()
            .filter(|stream| stream.failure().is_some())
            .count() as u64;
        let sum = |of: fn(&StreamReport) -> u64| of_streams.iter().map(of).sum();
        ImportReport {
            complete: failed == 0,
            streams: of_streams.len() as u64,
            failed,
            records: sum(|stream| stream.records),
            bytes: sum(|stream| stream.bytes),
            records_copied: sum(|stream| stream.records_copied),
            bytes_copied: sum(|stream| stream.bytes_copied),
            retries,
            seconds,
            of_streams,
        }
    }
}
