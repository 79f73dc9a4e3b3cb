//! System calls that fail at will, or end the test, by a seccomp filter on one thread.

use std::thread;

/// Runs `body` on a thread where system call `number` fails with `errno` if its third argument is below `below`.
pub fn with_failing<T: Send>(number: i64, below: u32, errno: i32, body: impl FnOnce() -> T + Send) -> T {
    // Offsets into `struct seccomp_data`: the call's number, and the low half of its third argument.
    const NUMBER: u32 = 0;
    const ARGUMENT: u32 = if cfg!(target_endian = "little") { 32 } else { 36 };
    let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let ret = |value| instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    let mut program = [
        load(NUMBER),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 0, 3),
        load(ARGUMENT),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, below, 1, 0),
        ret(libc::SECCOMP_RET_ERRNO | errno as u32),
        ret(libc::SECCOMP_RET_ALLOW),
    ];
    thread::scope(|scope| {
        let filtered = scope.spawn(move || {
            install(&mut program);
            body()
        });
        filtered.join().expect("the filtered thread's own checks hold")
    })
}

/// From now on, any system call of this thread but these, and those that allocate memory, ends the process (SIGSYS).
pub(crate) fn allow_only(numbers: &[i64]) {
    // What the allocator, the end of a thread and a failing test need.
    let needed = [
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_futex,
        libc::SYS_write,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigprocmask,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let ret = |value| instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0);
    let mut program = vec![instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for number in numbers.iter().chain(&needed) {
        program.push(instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *number as u32, 0, 1));
        program.push(ret(libc::SECCOMP_RET_ALLOW));
    }
    program.push(ret(libc::SECCOMP_RET_KILL_PROCESS));
    install(&mut program);
}

fn install(program: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is as long as said, and the kernel copies it. Both calls concern this thread alone.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(rc, 0, "no seccomp");
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
