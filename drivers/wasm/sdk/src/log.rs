//! Log records.

/// How grave a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// Something failed.
    Error = 0,
    /// Something is not as it should be.
    Warn = 1,
    /// What a person wants to know.
    Info = 2,
    /// What helps to find a fault.
    Debug = 3,
    /// Every step.
    Trace = 4,
}

#[link(wasm_import_module = "fabricbios_log_v0")]
unsafe extern "C" {
    fn fb_log(level: i32, at: *const u8, len: usize);
}

/// Appends a record. The node cuts messages to 1024 bytes, and keeps the first 256 of a run.
pub fn log(level: Level, message: &str) {
    // SAFETY: the bytes are the message's.
    unsafe { fb_log(i32::from(level as u8), message.as_ptr(), message.len()) }
}
