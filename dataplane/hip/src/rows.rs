//! Rows of a copy, between a message and device memory.

/// Rows between a message and device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) device: u64,
    pub(crate) device_pitch: u64,
    /// From one row in the message to the next.
    pub(crate) host_pitch: u64,
    pub(crate) width: u64,
    /// Bytes in the message that were passed.
    pub(crate) at: u64,
    /// Bytes in the message.
    pub(crate) len: u64,
}

impl Rows {
    /// Bytes of device memory that follow without a gap from the first one on.
    pub(crate) fn contiguous(&self) -> u64 {
        let left = self.len - self.at;
        if self.host_pitch == self.width && self.device_pitch == self.width {
            left
        } else {
            left.min(self.width.saturating_sub(self.at % self.host_pitch))
        }
    }

    /// Whether the next bytes are data, where they lie in device memory, and how many of at most `most` they are.
    pub(crate) fn next(&self, most: usize) -> (Option<u64>, usize) {
        let (row, column) = (self.at / self.host_pitch, self.at % self.host_pitch);
        let most = (self.len - self.at).min(most as u64);
        if column < self.width {
            (Some(self.device + row * self.device_pitch + column), most.min(self.width - column) as usize)
        } else {
            (None, most.min(self.host_pitch - column) as usize)
        }
    }
}
