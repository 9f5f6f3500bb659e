//! A look at a mailbox from outside.

use std::fmt;

use crate::gauge::Gauge;
use crate::shared::Shared;
use crate::sync::Arc;

/// Reads a mailbox's figures, and keeps neither end of it open: for whoever shows them.
pub struct Watch<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Watch<T> {
    pub(crate) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared }
    }

    /// What is in the mailbox right now. Costs the senders nothing.
    pub fn gauge(&self) -> Gauge {
        self.shared.gauge()
    }
}

impl<T> Clone for Watch<T> {
    fn clone(&self) -> Self {
        Self::new(self.shared.clone())
    }
}

impl<T> fmt::Debug for Watch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("gauge", &self.gauge())
            .finish()
    }
}
