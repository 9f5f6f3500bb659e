//! Computes the expected memory for a number of connections.

use serde::Serialize;

use crate::config::{BASE_BYTES, Config};

/// User memory of a subscriber with a stream of its own: a slot and an entry in a list (about 100 bytes), and the stream's
/// name and state (about 310), rounded up for the allocator.
pub(super) const USER_BYTES: u64 = 512;

/// Kernel memory of an idle connection: the socket, its file, its inode and its entry in epoll. Measured with 2,000 and
/// 10,000 connections on Linux 6: 4.4 KB for each end.
pub(super) const KERNEL_BYTES: u64 = 4_608;

/// Expected memory by purpose, in bytes.
#[derive(Debug, Serialize)]
pub(super) struct MemoryEstimate {
    /// The server without connections.
    pub(super) base_bytes: u64,
    /// Subscribers with a stream each.
    pub(super) user_bytes: u64,
    /// Their sockets.
    pub(super) kernel_bytes: u64,
    /// Recent records (`--ring`), which shards with the same streams share.
    pub(super) ring_bytes: u64,
    /// The same if each shard has other streams.
    pub(super) rings_bytes: u64,
    /// History's caches of all logs.
    pub(super) history_bytes: u64,
    /// The bound on waiting commands of all logs (`tuning.mailbox-size`).
    pub(super) mailbox_bytes: u64,
    /// The bound on partly received requests and unsent output (`--buffers-max`).
    pub(super) buffers_bytes: u64,
    /// The kernel's send buffers (`tuning.send-buffer`) if one client in a hundred stops reading.
    pub(super) unread_bytes: u64,
}

impl MemoryEstimate {
    pub(super) fn new(connections: u64, config: &Config, logs: usize) -> Self {
        let settings = &config.net;
        let history_bytes = config.log_options.history_cache_bytes;
        let logs = logs as u64;
        MemoryEstimate {
            base_bytes: BASE_BYTES,
            user_bytes: connections.saturating_mul(USER_BYTES),
            kernel_bytes: connections.saturating_mul(KERNEL_BYTES),
            ring_bytes: settings.ring_bytes as u64,
            rings_bytes: (settings.ring_bytes as u64).saturating_mul(settings.shards.max(1) as u64),
            history_bytes: history_bytes.saturating_mul(logs),
            mailbox_bytes: (config.server.mailbox_bytes_max as u64).saturating_mul(logs),
            buffers_bytes: settings.buffers_bytes_max as u64,
            unread_bytes: (connections / 100).saturating_mul(settings.send_buffer_bytes as u64),
        }
    }

    /// The memory needed while clients read their output.
    pub(super) fn total_bytes(&self) -> u64 {
        [
            self.base_bytes,
            self.user_bytes,
            self.kernel_bytes,
            self.ring_bytes,
            self.history_bytes,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// What recent records take beyond one ring, if no shards share them.
    pub(super) fn further_rings_bytes(&self) -> u64 {
        self.rings_bytes.saturating_sub(self.ring_bytes)
    }

    /// The memory needed when every bound is reached.
    pub(super) fn worst_bytes(&self) -> u64 {
        [
            self.further_rings_bytes(),
            self.mailbox_bytes,
            self.buffers_bytes,
            self.unread_bytes,
        ]
        .into_iter()
        .fold(self.total_bytes(), u64::saturating_add)
    }
}
