//! What somebody tries who has taken over a process that is shut in: for the tests of those processes.

use std::{ffi::CString, io::Error, path::Path};

/// A name, the number of a system call, and its arguments.
pub(crate) type Attempt = (&'static str, libc::c_long, [i64; 6]);

/// A page that may be written.
static PAGE: [u8; 4096] = [0; 4096];

/// A path that stays for as long as the process.
fn lasting(path: &Path) -> i64 {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap().into_raw() as i64
}

/// Attempts on a file, on this process's parent, on other hosts and on the kernel.
pub(crate) fn attempts(secret: &Path, parent: u64) -> Vec<Attempt> {
    let path = lasting(secret);
    let created = lasting(&secret.with_extension("created"));
    let [environment, memory] = ["environ", "mem"].map(|file| lasting(Path::new(&format!("/proc/{parent}/{file}"))));
    let pid = parent as i64;
    let (none, byte) = (0, PAGE.as_ptr() as i64);
    let vector: &'static [i64; 2] = Box::leak(Box::new([byte, 8]));
    let vector = vector.as_ptr() as i64;
    let address: &'static [u8; 16] = Box::leak(Box::new([2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
    let at = i64::from(libc::AT_FDCWD);
    let (dgram, stream) = (i64::from(libc::SOCK_DGRAM), i64::from(libc::SOCK_STREAM));
    let (inet, unix, netlink) = (libc::AF_INET.into(), libc::AF_UNIX.into(), libc::AF_NETLINK.into());
    let anonymous = i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let shared = i64::from(libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    let (rw, rx) = (i64::from(libc::PROT_READ | libc::PROT_WRITE), i64::from(libc::PROT_READ | libc::PROT_EXEC));
    vec![
        ("open", libc::SYS_openat, [at, path, 0, 0, 0, 0]),
        ("open to write", libc::SYS_openat, [at, path, libc::O_WRONLY.into(), 0, 0, 0]),
        ("create", libc::SYS_openat, [at, created, i64::from(libc::O_CREAT | libc::O_WRONLY), 0o600, 0, 0]),
        ("environment", libc::SYS_openat, [at, environment, 0, 0, 0, 0]),
        ("memory", libc::SYS_openat, [at, memory, libc::O_RDWR.into(), 0, 0, 0]),
        ("unlink", libc::SYS_unlinkat, [at, path, 0, 0, 0, 0]),
        ("stat", libc::SYS_newfstatat, [at, path, byte, 0, 0, 0]),
        ("statx", libc::SYS_statx, [at, path, 0, 0xFFF, byte, 0]),
        ("chmod", libc::SYS_fchmodat, [at, path, 0o777, 0, 0, 0]),
        ("name_to_handle", libc::SYS_name_to_handle_at, [at, path, byte, byte, 0, 0]),
        ("chdir", libc::SYS_chdir, [path, 0, 0, 0, 0, 0]),
        ("execve", libc::SYS_execve, [path, none, none, 0, 0, 0]),
        ("inet", libc::SYS_socket, [inet, dgram, 0, 0, 0, 0]),
        ("unix", libc::SYS_socket, [unix, stream, 0, 0, 0, 0]),
        ("unix datagrams", libc::SYS_socket, [unix, dgram, 0, 0, 0, 0]),
        ("netlink", libc::SYS_socket, [netlink, libc::SOCK_RAW.into(), 0, 0, 0, 0]),
        ("socketpair", libc::SYS_socketpair, [unix, stream, 0, byte, 0, 0]),
        ("connect", libc::SYS_connect, [0, address.as_ptr() as i64, 16, 0, 0, 0]),
        ("clone", libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0, 0]),
        ("clone3", libc::SYS_clone3, [byte, 64, 0, 0, 0, 0]),
        ("kill", libc::SYS_kill, [pid, 0, 0, 0, 0, 0]),
        ("tgkill", libc::SYS_tgkill, [pid, pid, 0, 0, 0, 0]),
        ("pidfd", libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), pid, 0, 0, 0, 0]),
        ("vm_read", libc::SYS_process_vm_readv, [pid, vector, 1, vector, 1, 0]),
        ("vm_write", libc::SYS_process_vm_writev, [pid, vector, 1, vector, 1, 0]),
        ("prlimit", libc::SYS_prlimit64, [pid, libc::RLIMIT_NOFILE.into(), 0, 0, 0, 0]),
        ("sched", libc::SYS_sched_setaffinity, [pid, 8, byte, 0, 0, 0]),
        ("unshare", libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0, 0]),
        ("setns", libc::SYS_setns, [0, 0, 0, 0, 0, 0]),
        ("mount", libc::SYS_mount, [path, path, 0, 0, 0, 0]),
        ("chroot", libc::SYS_chroot, [path, 0, 0, 0, 0, 0]),
        ("setuid", libc::SYS_setuid, [0, 0, 0, 0, 0, 0]),
        ("prctl", libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0, 0, 0, 0]),
        ("seccomp", libc::SYS_seccomp, [1, 0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, [0, 0, 0, 0, 0, 0]),
        ("perf", libc::SYS_perf_event_open, [byte, 0, -1, -1, 0, 0]),
        ("io_uring", libc::SYS_io_uring_setup, [1, byte, 0, 0, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, [0, 0, 0, 0, 0, 0]),
        ("shmget", libc::SYS_shmget, [0, 4096, 0o1600, 0, 0, 0]),
        ("mq_open", libc::SYS_mq_open, [path, 0o102, 0o600, 0, 0, 0]),
        ("keyctl", libc::SYS_keyctl, [0, -3, 0, 0, 0, 0]),
        ("ioctl", libc::SYS_ioctl, [0, libc::TIOCSTI as i64, byte, 0, 0, 0]),
        ("memfd", libc::SYS_memfd_create, [path, 0, 0, 0, 0, 0]),
        ("anonymous code", libc::SYS_mmap, [0, 4096, rx, anonymous, -1, 0]),
        ("shared memory", libc::SYS_mmap, [0, 4096, rw, shared, -1, 0]),
        ("written code", libc::SYS_mmap, [0, 4096, rw | rx, libc::MAP_PRIVATE.into(), 0, 0]),
        ("mprotect", libc::SYS_mprotect, [byte & !4095, 4096, rx, 0, 0, 0]),
        ("write", libc::SYS_write, [2, byte, 1, 0, 0, 0]),
        ("sendmsg", libc::SYS_sendmsg, [0, byte, 0, 0, 0, 0]),
    ]
}

/// The error of an attempt, by its number; 0 if it did what it was to do.
pub(crate) fn made((_, number, [a, b, c, d, e, f]): &Attempt) -> i32 {
    // SAFETY: what it is about to do is what must be refused before it is done.
    let got = unsafe { libc::syscall(*number, *a, *b, *c, *d, *e, *f) };
    if got == -1 { Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
}

/// Descriptors that are open, beside standard input, output and error.
pub(crate) fn descriptors() -> Vec<i32> {
    let open = |fd: &i32| {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: room for the answer.
        unsafe { libc::syscall(libc::SYS_fstat, *fd, stat.as_mut_ptr()) == 0 }
    };
    (3..64).filter(open).collect()
}
