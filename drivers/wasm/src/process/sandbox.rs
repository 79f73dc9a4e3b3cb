//! How an executor shuts itself in, before it is told of any module.
//!
//! No file, socket, process or signal can be named through what its filter of system calls lets by, and no page become
//! executable but those of the sealed files that the node sends.

use std::io;

use berth_process::sandbox::{self, Filter, Resource, Verdict, lacks};
use berth_tasklet::channel::Walls;
use libc::c_long;

/// Beside its modules' memory, what an executor may have of private memory: its heap, tables and stacks.
pub(super) const OVERHEAD: u64 = 128 << 20;

/// Addresses. One linear memory reserves 4 GiB, and code up to a quarter for each place.
const ADDRESSES: u64 = 16 << 30;

/// What running guest code, loading a module and waiting need.
const ALLOWED: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_recvmsg,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Gives up whatever is not needed, for ever. The process has one thread, and no descriptors but those that it needs.
/// `memory` is what a run may have.
pub(super) fn enter(memory: u64) -> io::Result<Walls> {
    let walls = Walls { namespaces: sandbox::nowhere().is_ok(), landlock: sandbox::landlock(&[]).is_ok() };
    // The last bound is on descriptors: the socket, and a module's while it is loaded.
    sandbox::limit(&[
        (Resource::Data, memory + OVERHEAD),
        (Resource::As, ADDRESSES),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
        (Resource::Memlock, 0),
        (Resource::Nofile, 8),
    ])?;
    sandbox::no_new_privileges()?;
    sandbox::undumpable();
    sandbox::no_capabilities()?;
    filter().install(Verdict::Refuse)?;
    Ok(walls)
}

/// Which system calls are left, and with which arguments.
fn filter() -> Filter {
    let (shared, anonymous) = (lacks(3, libc::MAP_SHARED), lacks(3, libc::MAP_ANONYMOUS));
    let (code, written) = (lacks(2, libc::PROT_EXEC), lacks(2, libc::PROT_WRITE));
    Filter::default()
        .all(ALLOWED, Verdict::Allow)
        // wasmtime can do without.
        .all(&[libc::SYS_memfd_create], Verdict::Absent)
        // Nothing becomes executable.
        .when(libc::SYS_mprotect, &[code], Verdict::Allow)
        // Nothing is shared, and code is a file's and never written.
        .when(libc::SYS_mmap, &[shared, code], Verdict::Allow)
        .when(libc::SYS_mmap, &[shared, anonymous, written], Verdict::Allow)
}
