//! The work that a look-up may do.

use std::ops::ControlFlow;

/// The steps that a look-up has left: the nodes that it visits, and the parts and segments that it compares.
#[derive(Debug)]
pub(super) struct Steps {
    left: usize,
}

impl Steps {
    /// A look-up that gives up beyond so many.
    pub(super) fn at_most(steps_max: usize) -> Steps {
        Steps { left: steps_max }
    }

    /// A look-up that does not give up.
    pub(super) fn unlimited() -> Steps {
        Steps::at_most(usize::MAX)
    }

    /// Counts steps. It breaks the look-up when there are not so many left.
    pub(super) fn count(&mut self, steps: usize) -> ControlFlow<()> {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.left
    }
}
