//! Reading a gauge from outside.

use std::fmt;

use crate::gauge::Gauge;
use crate::shared::SharedMailbox;
use crate::sync::Arc;

/// Reads a mailbox's gauge without keeping either end open.
pub struct GaugeReader<T> {
    shared: Arc<SharedMailbox<T>>,
}

impl<T> GaugeReader<T> {
    pub(crate) fn new(shared: Arc<SharedMailbox<T>>) -> Self {
        Self { shared }
    }

    /// The current state of the mailbox. Costs the senders nothing.
    pub fn gauge(&self) -> Gauge {
        self.shared.gauge()
    }
}

impl<T> Clone for GaugeReader<T> {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone())
    }
}

impl<T> fmt::Debug for GaugeReader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GaugeReader")
            .field("gauge", &self.gauge())
            .finish()
    }
}
