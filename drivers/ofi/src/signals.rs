//! Signal handlers of libraries that come with libfabric.

/// Undoes what libraries have made of signals when they were loaded; to be called first in `main`. The PSM libraries,
/// which libfabric's package brings, end the process with status 1 there: handlers of SIGTERM and SIGINT that are
/// installed later would call those that were there before, and a crash would leave neither its signal nor a core.
pub fn reset_signals() {
    let crashes = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    for signal in [libc::SIGTERM, libc::SIGINT].into_iter().chain(crashes) {
        // SAFETY: the default action needs no memory of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
