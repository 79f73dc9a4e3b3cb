//! Filters of system calls, as programs of classic BPF.

use std::{ffi::c_long, io};

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

use super::{done, no_new_privileges};

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// Numbers from here on are of another ABI (x32) of the same architecture.
const OTHER_ABI: u32 = 0x4000_0000;

/// What becomes of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Allow,
    /// It fails with EPERM.
    Refuse,
    /// It fails with ENOSYS, as if the kernel had none.
    Absent,
}

/// A test of the low 32 bits of an argument; arguments are counted from 0.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    nth: u32,
    mask: u32,
    value: u32,
    equal: bool,
}

/// The `nth` argument has any of these bits.
pub const fn has(nth: u32, bits: i32) -> Test {
    Test { equal: false, ..masked(nth, bits, 0) }
}

/// The `nth` argument has none of these bits.
pub const fn lacks(nth: u32, bits: i32) -> Test {
    masked(nth, bits, 0)
}

/// The `nth` argument is this.
pub const fn is(nth: u32, value: i32) -> Test {
    masked(nth, -1, value)
}

/// Of the `nth` argument, these bits are those of `value`.
pub const fn masked(nth: u32, mask: i32, value: i32) -> Test {
    Test { nth, mask: mask.cast_unsigned(), value: value.cast_unsigned(), equal: true }
}

/// A filter that is put together from rules; the first one that fits a system call decides. Calls of another ABI end the process.
#[derive(Debug)]
pub struct Filter(Vec<sock_filter>);

const fn code(code: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: no, k: value }
}

const fn load(at: u32) -> sock_filter {
    code(BPF_LD | BPF_W | BPF_ABS, at, 0, 0)
}

/// Loads the number of the system call.
const NUMBER: sock_filter = load(0);

const fn equals(value: u32, yes: u8, no: u8) -> sock_filter {
    code(BPF_JMP | BPF_JEQ | BPF_K, value, yes, no)
}

const KILL: sock_filter = code(BPF_RET | BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0);

const fn end(with: Verdict) -> sock_filter {
    let with = match with {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Refuse => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        Verdict::Absent => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
    };
    code(BPF_RET | BPF_K, with, 0, 0)
}

impl Default for Filter {
    fn default() -> Self {
        let other = code(BPF_JMP | BPF_JGE | BPF_K, OTHER_ABI, 0, 1);
        Self(vec![load(4), equals(ARCH, 1, 0), KILL, NUMBER, other, KILL])
    }
}

impl Filter {
    /// Decides on these calls, whatever their arguments are.
    #[must_use]
    pub fn all(mut self, calls: &[c_long], verdict: Verdict) -> Self {
        self.0.push(NUMBER);
        for call in calls {
            self.0.extend([equals(*call as u32, 0, 1), end(verdict)]);
        }
        self
    }

    /// Decides on a call for which all of these are true.
    #[must_use]
    pub fn when(mut self, call: c_long, tests: &[Test], verdict: Verdict) -> Self {
        // Of each test three instructions, and the verdict.
        let after = |tests: usize| (3 * tests + 1) as u8;
        self.0.extend([NUMBER, equals(call as u32, 0, after(tests.len()))]);
        for (done, Test { nth, mask, value, equal }) in tests.iter().enumerate() {
            let past = after(tests.len() - 1 - done);
            let (yes, no) = if *equal { (0, past) } else { (past, 0) };
            // An argument's low half in `struct seccomp_data`.
            self.0.extend([load(16 + 8 * nth), code(BPF_ALU | BPF_AND | BPF_K, *mask, 0, 0), equals(*value, yes, no)]);
        }
        self.0.push(end(verdict));
        self
    }

    /// Puts it on this thread, for ever, and on those that it starts. `otherwise` becomes of what no rule fits.
    pub fn install(mut self, otherwise: Verdict) -> io::Result<()> {
        no_new_privileges()?;
        self.0.push(end(otherwise));
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_mut_ptr() };
        // Not seccomp(2), which a unit's own filter may leave out.
        // SAFETY: the program outlives the call.
        done(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }.into())
    }
}
