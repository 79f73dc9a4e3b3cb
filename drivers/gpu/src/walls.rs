//! How a worker shuts itself in, before it meets a kernel.
//!
//! With the GPU in software it needs its memory, its threads and the socket to `berth`, and nothing else is left. A driver of
//! NVIDIA's or AMD's is a library that opens devices, files and sockets by itself: it is left those, and what reaches other
//! processes, other files and other hosts is taken away (docs/gpu.md says what stays open).

use std::{
    env,
    ffi::c_long,
    fs, io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use berth_process::sandbox::{
    self, Filter, May, Resource,
    Verdict::{Absent, Allow, Refuse},
    Walls, has, is, lacks, masked,
};

use crate::choice::Choice;

/// Address space beside what is mapped: texts and kernels take far less.
const OTHER_MEMORY: u64 = 4 << 30;

/// The variable that names the folder for what the driver's JIT has made.
pub(crate) const CACHE: &str = "CUDA_CACHE_PATH";

/// What interpreting kernels on threads, and talking to `berth`, need.
const SOFT: &[c_long] = &[
    libc::SYS_futex,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// What reaches other processes, other hosts, and files past Landlock, or changes what the whole host has.
const DRIVER_REFUSED: &[c_long] = &[
    // Programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_clone,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_prlimit64,
    libc::SYS_setpriority,
    libc::SYS_ioprio_set,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setattr,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semctl,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // Other hosts, and sockets of others.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    // What Landlock does not look at.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_inotify_add_watch,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // Namespaces, mounts, and who it is.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_capset,
    libc::SYS_setuid,
    libc::SYS_setreuid,
    libc::SYS_setresuid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    // Wide doors to the kernel, and what is the host's.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// Of the same kind, calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const DRIVER_REFUSED_HERE: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const DRIVER_REFUSED_HERE: &[c_long] = &[];

/// What drivers read: libraries, the kernel's and its modules' word on devices, themselves.
const READS: &[&str] = &[
    "/usr",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/sys",
    "/proc/self",
    "/proc/sys",
    "/proc/driver",
    "/proc/devices",
    "/proc/modules",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/filesystems",
];

/// Gives up what a worker of this device does not need, for ever. The process has one thread, and no descriptor is used any
/// more but standard input, output, error and those of `keep`. `mapped`: bytes of memory that it has mapped by now.
///
/// # Errors
/// What the kernel refused.
pub fn shut_in(device: &Choice, mapped: u64, keep: &[BorrowedFd<'_>]) -> io::Result<Walls> {
    // SAFETY: as the callers see to.
    unsafe { sandbox::close_others(keep) }?;
    match device {
        Choice::Soft => soft(mapped.saturating_add(OTHER_MEMORY)),
        Choice::Hip(_) => driver("libamdhip64.so", amds()),
        _ => driver("libcuda.so.1", nvidias()),
    }
}

fn soft(addresses: u64) -> io::Result<Walls> {
    let walls = Walls { namespaces: sandbox::nowhere().is_ok(), landlock: sandbox::landlock(&[]).is_ok() };
    sandbox::limit(&[
        (Resource::As, addresses),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Memlock, 0),
        (Resource::Nofile, 3),
    ])?;
    sandbox::no_new_privileges()?;
    sandbox::undumpable();
    sandbox::no_capabilities()?;
    let (shared, code, told) = (lacks(3, libc::MAP_SHARED), lacks(2, libc::PROT_EXEC), is(0, 0));
    Filter::default()
        .all(SOFT, Allow)
        // To `berth`, and to nobody's log.
        .when(libc::SYS_write, &[told], Allow)
        .when(libc::SYS_sendto, &[told], Allow)
        // Threads, and no processes; the C library asks for clone where there is no clone3, whose flags no filter sees.
        .when(libc::SYS_clone, &[has(0, libc::CLONE_THREAD)], Allow)
        .all(&[libc::SYS_clone3], Absent)
        // Nothing is shared, and nothing becomes executable.
        .when(libc::SYS_mmap, &[shared, code], Allow)
        .when(libc::SYS_mprotect, &[code], Allow)
        .install(Refuse)?;
    Ok(walls)
}

/// What is in a folder under a name that begins so.
fn named(folder: impl AsRef<Path>, prefix: &str, may: May) -> Vec<(PathBuf, May)> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = all.filter(|one| one.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()));
    named.map(|one| (one.path(), may)).collect()
}

/// What NVIDIA's driver is left beside [`READS`].
fn nvidias() -> Vec<(PathBuf, May)> {
    let mut reach = named("/dev", "nvidia", May::Use);
    reach.push(("/etc/nvidia".into(), May::Read));
    reach.extend(env::var_os(CACHE).map(|cache| (cache.into(), May::Change)));
    reach
}

/// What AMD's is left: it lies in /opt by itself.
fn amds() -> Vec<(PathBuf, May)> {
    let own = ["rocm", "amdgpu"].map(|name| named("/opt", name, May::Read));
    [named("/dev", "kfd", May::Use), named("/dev/dri", "renderD", May::Use)].into_iter().chain(own).flatten().collect()
}

/// `library`: what the driver's name begins with, which may be a link to elsewhere. `reach`: what it is left beside [`READS`].
fn driver(library: &str, mut reach: Vec<(PathBuf, May)>) -> io::Result<Walls> {
    let namespaces = sandbox::offline().is_ok();
    reach.extend(["/dev/null", "/dev/zero", "/dev/urandom"].map(|node| (node.into(), May::Use)));
    reach.extend(READS.iter().map(|path| (path.into(), May::Read)));
    for folder in env::var_os("LD_LIBRARY_PATH").iter().flat_map(env::split_paths) {
        reach.extend(named(&folder, library, May::Read));
        reach.push((folder, May::Read));
    }
    let reach: Vec<(&Path, May)> = reach.iter().map(|(path, may)| (path.as_path(), *may)).collect();
    let landlock = sandbox::landlock(&reach).is_ok();
    sandbox::limit(&[(Resource::Core, 0)])?;
    sandbox::no_new_privileges()?;
    sandbox::no_capabilities()?;
    let own = std::process::id().cast_signed();
    // A stream or packets in order, of this host, which it may wait at and not connect.
    let (unix, kind) = (is(0, libc::AF_UNIX), |kind| masked(1, 0xF, kind));
    let mut filter = Filter::default()
        .when(libc::SYS_clone, &[has(0, libc::CLONE_THREAD)], Allow)
        .all(&[libc::SYS_clone3], Absent)
        .when(libc::SYS_kill, &[is(0, own)], Allow)
        .when(libc::SYS_tgkill, &[is(0, own)], Allow)
        .when(libc::SYS_ioctl, &[is(1, libc::TIOCSTI as i32)], Refuse)
        .when(libc::SYS_ioctl, &[is(1, libc::TIOCLINUX as i32)], Refuse);
    for call in [libc::SYS_prlimit64, libc::SYS_sched_setaffinity, libc::SYS_sched_setscheduler] {
        filter = filter.when(call, &[is(0, 0)], Allow);
    }
    for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(kind) {
        filter = filter.when(libc::SYS_socket, &[unix, kind], Allow).when(libc::SYS_socketpair, &[unix, kind], Allow);
    }
    filter.all(DRIVER_REFUSED, Refuse).all(DRIVER_REFUSED_HERE, Refuse).install(Allow)?;
    Ok(Walls { namespaces, landlock })
}
