//! How far an import is, for whoever shows it while it runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts that grow while an import runs.
#[derive(Debug, Default)]
pub struct ImportProgress {
    streams: AtomicU64,
    current: AtomicU64,
    failed: AtomicU64,
    following: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    checked_bytes: AtomicU64,
    retries: AtomicU64,
}

impl ImportProgress {
    pub(crate) fn new(streams: usize) -> Self {
        ImportProgress {
            streams: AtomicU64::new(streams as u64),
            ..ImportProgress::default()
        }
    }

    /// Streams that the import has to copy.
    pub fn streams(&self) -> u64 {
        self.streams.load(Ordering::Relaxed)
    }

    /// Streams that have been copied up to the end that they had.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    /// Streams that could not be copied.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Streams that are followed.
    pub fn following(&self) -> u64 {
        self.following.load(Ordering::Relaxed)
    }

    /// Messages of JSON streams, and pieces of others, that this run has appended.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes of data that this run has appended.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were read on both sides for a comparison of contents.
    pub fn checked_bytes(&self) -> u64 {
        self.checked_bytes.load(Ordering::Relaxed)
    }

    /// Requests that were made again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    pub(crate) fn copied(&self, records: u64, bytes: u64) {
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn checked(&self, bytes: u64) {
        self.checked_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn became_current(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn became_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn follow(&self, streams: usize) {
        self.following.store(streams as u64, Ordering::Relaxed);
    }

    pub(crate) fn follow_ended(&self) {
        self.following.fetch_sub(1, Ordering::Relaxed);
    }
}
