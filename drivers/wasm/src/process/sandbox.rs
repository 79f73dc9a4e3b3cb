//! How an executor shuts itself in, before it is told of any module.
//!
//! The filter of system calls is the wall that is always there: no file, socket, process or signal can be named through what it
//! lets by, and no page become executable but those of the sealed files that the node sends. The rest stands behind it where the
//! kernel, and the unit that the node runs in, allow it.

use std::{io, ptr};

use berth_tasklet::channel::Walls;
use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Beside its modules' memory, what an executor may have of private memory: its heap, tables and stacks.
const OVERHEAD: u64 = 128 << 20;

/// Addresses. One linear memory reserves 4 GiB, and code up to a quarter for each place.
const ADDRESSES: u64 = 16 << 30;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

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
    let walls = Walls { namespaces: namespaces().is_ok(), landlock: landlock().is_ok() };
    // The last bound is on descriptors: the socket, and a module's while it is loaded.
    for (resource, most) in [
        (Resource::Data, memory + OVERHEAD),
        (Resource::As, ADDRESSES),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
        (Resource::Memlock, 0),
        (Resource::Nofile, 8),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    capabilities()?;
    filter()?;
    Ok(walls)
}

fn done(returned: c_long) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A network without interfaces, nobody's semaphores, and a root without a file.
fn namespaces() -> io::Result<()> {
    let own = libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWNS;
    // SAFETY: numbers and constant strings are passed, and null where nothing is said.
    unsafe {
        if libc::unshare(own) != 0 {
            done(libc::unshare(own | libc::CLONE_NEWUSER).into())?;
        }
        let nothing = ptr::null();
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

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

/// A set of rules that handles all that this kernel's Landlock knows, and allows nothing.
fn landlock() -> io::Result<()> {
    const VERSION: c_long = 1;
    let nothing = ptr::null::<Ruleset>();
    // SAFETY: it asks for a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, VERSION) };
    // Rights of files, and bytes of the attributes, by version.
    let (files, len) = match version {
        ..1 => return Err(io::Error::last_os_error()),
        1 => (13, 8),
        2 => (14, 8),
        3 => (15, 8),
        4 => (15, 16),
        5 => (16, 16),
        _ => (16, 24),
    };
    let rules = Ruleset { files: (1 << files) - 1, network: 0b11, scopes: 0b11 };
    // SAFETY: the attributes are as long as this version's, and outlive the call; numbers are passed to the others.
    unsafe {
        let rules = libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, len as usize, 0);
        if rules < 0 {
            return Err(io::Error::last_os_error());
        }
        no_new_privileges()?;
        let shut = done(libc::syscall(libc::SYS_landlock_restrict_self, rules, 0));
        libc::close(rules as i32);
        shut
    }
}

fn no_new_privileges() -> io::Result<()> {
    // SAFETY: numbers are passed.
    done(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())
}

/// Drops every capability from every set.
fn capabilities() -> io::Result<()> {
    /// `_LINUX_CAPABILITY_VERSION_3`; of this process.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    const NONE: [u32; 6] = [0; 6];
    no_new_privileges()?;
    // SAFETY: numbers are passed, and constants of the lengths that this version has.
    unsafe {
        // Fails where the kernel knows no more of them, and for who may not: it has none to bound then.
        let mut next = 0..64;
        while next.next().is_some_and(|capability| libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0) {}
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        // No core, and no debugger of the same user.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        done(libc::syscall(libc::SYS_capset, HEADER.as_ptr(), NONE.as_ptr()))
    }
}

/// Offset of an argument's low half in `struct seccomp_data`.
const fn argument(nth: u32) -> u32 {
    16 + 8 * nth
}

const fn code(code: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: no, k: value }
}

const fn load(at: u32) -> sock_filter {
    code(BPF_LD | BPF_W | BPF_ABS, at, 0, 0)
}

const fn equals(value: u32, yes: u8, no: u8) -> sock_filter {
    code(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
}

const fn has(bits: i32, yes: u8, no: u8) -> sock_filter {
    code(BPF_JMP | BPF_JSET | BPF_K, bits.cast_unsigned(), yes, no)
}

const fn end(with: u32) -> sock_filter {
    code(BPF_RET | BPF_K, with, 0, 0)
}

/// Which system calls are left, and with which arguments. Others fail with EPERM; two that wasmtime can do without say that there
/// are none.
fn program() -> Vec<sock_filter> {
    const ALLOW: sock_filter = end(libc::SECCOMP_RET_ALLOW);
    const DENY: sock_filter = end(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    const ABSENT: sock_filter = end(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    let number = |call: c_long| call as u32;
    let mut program = vec![load(4), equals(ARCH, 1, 0), end(libc::SECCOMP_RET_KILL_PROCESS), load(0)];
    for call in ALLOWED {
        program.extend([equals(number(*call), 0, 1), ALLOW]);
    }
    program.extend([equals(number(libc::SYS_memfd_create), 0, 1), ABSENT]);
    // Nothing becomes executable.
    program.extend([
        equals(number(libc::SYS_mprotect), 0, 4),
        load(argument(2)),
        has(libc::PROT_EXEC, 0, 1),
        DENY,
        ALLOW,
    ]);
    // Nothing is shared, and code is a file's and never written.
    program.extend([
        equals(number(libc::SYS_mmap), 0, 10),
        load(argument(3)),
        has(libc::MAP_SHARED, 6, 0),
        load(argument(2)),
        has(libc::PROT_EXEC, 0, 5),
        has(libc::PROT_WRITE, 3, 0),
        load(argument(3)),
        has(libc::MAP_ANONYMOUS, 1, 0),
        ALLOW,
        DENY,
        ALLOW,
    ]);
    program.push(DENY);
    program
}

fn filter() -> io::Result<()> {
    let mut program = program();
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // Not seccomp(2), which a unit's own filter may leave out.
    // SAFETY: the program outlives the call.
    done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }.into())
}
