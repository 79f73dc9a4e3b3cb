//! Undoes signal handlers of libraries that come with libfabric.

/// Undoes changes that libraries made to signals when they were loaded. Call this first in `main`. The PSM libraries,
/// which come with libfabric's package, install handlers that end the process with status 1. Handlers of SIGTERM and
/// SIGINT that are installed later would call those, and a crash would leave neither its signal nor a core file.
pub fn reset_signals() {
    let crashes = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    for signal in [libc::SIGTERM, libc::SIGINT].into_iter().chain(crashes) {
        // SAFETY: the default action needs no memory of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
