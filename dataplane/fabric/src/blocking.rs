//! Work that may block, which the host does without holding the node.

use std::fmt::{self, Debug};

/// A task of a binding or resource that takes time, such as opening a device or resetting a function.
pub struct BlockingWork(Box<dyn FnOnce() + Send>);

impl BlockingWork {
    /// Wraps the task; it does not run yet.
    pub fn new(work: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(work))
    }

    /// Runs the task; may take seconds.
    pub fn run(self) {
        (self.0)();
    }
}

impl Debug for BlockingWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockingWork")
    }
}
