//! How a child shuts itself in, before it meets what strangers have made.
//!
//! The [`Filter`] of system calls is the wall that is always there. The rest stands behind it where the kernel, and the unit
//! that the parent runs in, allow it. All is for a process of one thread: threads that it starts later are behind the same walls.

mod filter;
mod landlock;

use std::{
    ffi::{c_int, c_long, c_uint},
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use rustix::process::{Rlimit, setrlimit};

pub use self::{
    filter::{Filter, Test, Verdict, has, is, lacks, masked},
    landlock::{May, landlock},
};
pub use rustix::process::Resource;

/// Which walls stand beside the filter of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walls {
    /// Namespaces of its own, as [`offline`] and [`nowhere`] make them.
    pub namespaces: bool,
    /// Landlock restricts the files that it may open.
    pub landlock: bool,
}

fn done(returned: c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends with the thread that started it. Who ends a service signals all of its processes: what this one does is its parent's to end.
pub fn end_with_parent() {
    // SAFETY: numbers are passed.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Closes all descriptors but standard input, output, error, and these.
///
/// # Safety
/// Nothing of this process uses another descriptor afterwards.
pub unsafe fn close_others(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut keep: Vec<_> = keep.iter().map(|fd| fd.as_raw_fd() as c_uint).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep.into_iter().map(Some).chain([None]) {
        let last = fd.map_or(c_uint::MAX, |fd| fd.saturating_sub(1));
        if from <= last {
            // SAFETY: numbers are passed; the caller answers for who had these.
            done(unsafe { libc::close_range(from, last, 0) }.into())?;
        }
        from = from.max(fd.map_or(from, |fd| fd + 1));
    }
    Ok(())
}

/// Sets soft and hard limits of this process to these values; only a privileged process could raise them again.
pub fn limit(limits: &[(Resource, u64)]) -> io::Result<()> {
    for (resource, most) in limits {
        setrlimit(*resource, Rlimit { current: Some(*most), maximum: Some(*most) })?;
    }
    Ok(())
}

/// Namespaces of its own, with or without an owner's rights.
fn unshare(own: c_int) -> io::Result<()> {
    // SAFETY: numbers are passed.
    unsafe { if libc::unshare(own) == 0 { Ok(()) } else { done(libc::unshare(own | libc::CLONE_NEWUSER).into()) } }
}

const OFFLINE: c_int = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// New network, IPC and UTS namespaces: a network without interfaces, and nobody's semaphores.
pub fn offline() -> io::Result<()> {
    unshare(OFFLINE)
}

/// A network without interfaces, nobody's semaphores, and a root without a file.
pub fn nowhere() -> io::Result<()> {
    unshare(OFFLINE | libc::CLONE_NEWNS)?;
    let nothing = ptr::null();
    // SAFETY: numbers and constant strings are passed, and null where nothing is said.
    unsafe {
        let mount = |from, to, kind, flags| done(libc::mount(from, to, kind, flags, ptr::null()).into());
        mount(nothing, c"/".as_ptr(), nothing, libc::MS_REC | libc::MS_PRIVATE)?;
        // Any folder will do that is there everywhere.
        let empty = c"/proc".as_ptr();
        let none = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        mount(c"none".as_ptr(), empty, c"tmpfs".as_ptr(), none)?;
        done(libc::chdir(empty).into())?;
        done(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        done(libc::umount2(c".".as_ptr(), libc::MNT_DETACH).into())?;
        done(libc::chdir(c"/".as_ptr()).into())
    }
}

/// No program that it starts has more rights than it has: what Landlock and filters of system calls ask for.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: numbers are passed.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// No core, no debugger of the same user, and its own files in `/proc` are root's.
pub fn undumpable() {
    // SAFETY: numbers are passed.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Drops every capability from every set.
pub fn no_capabilities() -> io::Result<()> {
    /// `_LINUX_CAPABILITY_VERSION_3`; of this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const NONE: [u32; 6] = [0; 6];
    // SAFETY: numbers are passed, and constants of the lengths that this version has.
    unsafe {
        // Fails where the kernel knows no more of them, and for who may not: it has none to bound then.
        let mut next = 0..64;
        while next.next().is_some_and(|capability| libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) {}
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        done(libc::syscall(libc::SYS_capset, HEADER.as_ptr(), NONE.as_ptr()))
    }
}
