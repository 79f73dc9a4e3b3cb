//! What is written to a connection in one call.

/// The output that was lent, and how much of it is written.
pub(crate) struct Output<'o> {
    bytes: &'o mut [u8],
    at: usize,
}

impl<'o> Output<'o> {
    pub(crate) fn new(bytes: &'o mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes that are free.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn written(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..]
    }

    /// Appends what `write` writes to the front of what is free, and says how long that is. The caller has seen that there
    /// is room.
    #[inline]
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) {
        let written = write(self.rest());
        debug_assert!(written.is_some(), "no room for what there should be room for");
        self.at += written.unwrap_or(0);
    }
}
