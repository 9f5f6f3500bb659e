//! Where the records begin that a log keeps.

use encke_log::{Disk, Reader, Sequence};

/// Where the records begin that a log keeps, whatever disk it is on.
pub(super) struct LogBounds {
    retention_floor: Box<dyn Fn() -> Sequence + Send + Sync>,
    order_begin: Box<dyn Fn() -> Sequence + Send + Sync>,
}

impl LogBounds {
    pub(super) fn of<D: Disk>(log: Reader<D>) -> LogBounds {
        let other = log.clone();
        LogBounds {
            retention_floor: Box::new(move || log.retention_floor()),
            order_begin: Box::new(move || other.order_begins_at()),
        }
    }

    /// The retention floor of the log.
    pub(super) fn retention_floor(&self) -> Sequence {
        (self.retention_floor)()
    }

    /// The first record of the global order.
    pub(super) fn order_begin(&self) -> Sequence {
        (self.order_begin)()
    }
}

impl std::fmt::Debug for LogBounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LogBounds")
    }
}
