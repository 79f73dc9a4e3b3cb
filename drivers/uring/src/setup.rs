//! Setting a ring up, and telling why it cannot be.

use std::{fs, io, mem};

use io_uring::IoUring;

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// `DEFER_TASKRUN` came with Linux 6.1.
    #[error(
        "this kernel ({release}) lacks io_uring features of Linux 6.1: upgrade it; ports may use the udp driver instead"
    )]
    TooOld {
        /// The kernel's release, as `/proc/sys/kernel/osrelease` has it.
        release: String,
    },
    /// The kernel was built without `io_uring`.
    #[error("this kernel has no io_uring (CONFIG_IO_URING): use another kernel; ports may use the udp driver instead")]
    Missing,
    /// The administrator has switched `io_uring` off.
    #[error(
        "io_uring is switched off for this process (kernel.io_uring_disabled = {value}): \
         `sysctl -w kernel.io_uring_disabled=0`, or where it is 1 join the group kernel.io_uring_group"
    )]
    Disabled {
        /// 1: for all but privileged processes and one group; 2: for all.
        value: u8,
    },
    /// A system call filter refuses `io_uring`, as most container runtimes do.
    #[error(
        "a seccomp filter refuses io_uring: allow io_uring_setup, io_uring_enter and io_uring_register in the \
         container's or unit's profile; ports may use the udp driver instead"
    )]
    Filtered,
    /// The process may lock no more memory.
    #[error("creating a ring: no memory is left that may be locked: raise RLIMIT_MEMLOCK (systemd: LimitMEMLOCK=)")]
    Memlock,
    /// Any other failure.
    #[error("{what}: {source}")]
    Io {
        /// The call that failed, for people.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// Creates a ring as [`UringPort`](crate::UringPort) needs it and drops it; the error says what stands in the way.
pub fn probe() -> Result<(), UringError> {
    ring(8).map(drop)
}

/// Creates a ring for the calling thread, with room for `entries` requests that wait to be submitted.
pub fn ring(entries: u32) -> Result<IoUring, UringError> {
    let mut builder = IoUring::builder();
    builder.setup_submit_all().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    // The submission queue needs no index array since Linux 6.6.
    let ring = builder.clone().setup_no_sqarray().build(entries).or_else(|_| builder.build(entries));
    ring.map_err(|source| {
        let release = || read_trimmed("/proc/sys/kernel/osrelease");
        let disabled = || read_trimmed("/proc/sys/kernel/io_uring_disabled").parse().unwrap_or(0);
        explain(source, release, disabled)
    })
}

/// Keeps the threads to which the kernel leaves what would block, such as writing a file's pages, away from the CPU of the
/// calling thread, which has it alone: they run where the process's first thread may.
pub(crate) fn keep_workers_away(ring: &IoUring) {
    let allowed = |thread| {
        // SAFETY: zeros are a set of no CPUs.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the kernel writes a set.
        let known = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), &raw mut set) } == 0;
        (set, known)
    };
    let ((own, _), (mut others, known)) = (allowed(0), allowed(std::process::id() as libc::pid_t));
    for cpu in 0..libc::CPU_SETSIZE as usize {
        // SAFETY: the number is less than the sets have bits.
        unsafe {
            if libc::CPU_ISSET(cpu, &own) {
                libc::CPU_CLR(cpu, &mut others);
            }
        }
    }
    // SAFETY: it is a set.
    if known && unsafe { libc::CPU_COUNT(&others) } > 0 {
        // It is slower without.
        let _ = ring.submitter().register_iowq_aff(&others);
    }
}

fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn explain(source: io::Error, release: impl Fn() -> String, disabled: impl Fn() -> u8) -> UringError {
    match source.raw_os_error() {
        Some(libc::EINVAL) => UringError::TooOld { release: release() },
        Some(libc::ENOSYS) => UringError::Missing,
        Some(libc::EPERM) => match disabled() {
            0 => UringError::Filtered,
            value => UringError::Disabled { value },
        },
        Some(libc::ENOMEM) => UringError::Memlock,
        _ => UringError::Io { what: "creating a ring", source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_cause() {
        let explain =
            |errno, disabled| explain(io::Error::from_raw_os_error(errno), || "5.15.0".into(), || disabled).to_string();
        assert!(explain(libc::EINVAL, 0).contains("5.15.0"));
        assert!(explain(libc::ENOSYS, 0).contains("CONFIG_IO_URING"));
        assert!(explain(libc::EPERM, 0).contains("seccomp"));
        assert!(explain(libc::EPERM, 2).contains("io_uring_disabled = 2"));
        assert!(explain(libc::ENOMEM, 0).contains("LimitMEMLOCK"));
        assert!(explain(libc::EMFILE, 0).starts_with("creating a ring: "));
    }
}
