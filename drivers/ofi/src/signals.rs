//! Signal handlers of libraries that come with libfabric.

/// Undoes what libraries have made of SIGTERM and SIGINT when they were loaded; to be called first in `main`. The PSM
/// libraries, which libfabric's package brings, end the process there, and handlers that are installed later call those
/// that were there before.
pub fn reset_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the default action needs no memory of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
