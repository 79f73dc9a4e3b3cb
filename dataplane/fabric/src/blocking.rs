//! Work that may block, for the host to do without holding the node.

use std::fmt::{self, Debug};

/// What a binding or a resource has to do that takes time: opening a device, resetting a function.
pub struct BlockingWork(Box<dyn FnOnce() + Send>);

impl BlockingWork {
    /// What is to be done.
    pub fn new(work: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(work))
    }

    /// Does it; may take seconds.
    pub fn run(self) {
        (self.0)();
    }
}

impl Debug for BlockingWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockingWork")
    }
}
