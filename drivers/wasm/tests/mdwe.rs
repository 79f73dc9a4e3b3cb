//! Tasklets and ring kernels where no page may become executable, as under systemd's `MemoryDenyWriteExecute`.

#[path = "wasm/common.rs"]
#[expect(dead_code, reason = "the other test program uses the rest")]
mod common;

use berth_tasklet::run::Status;
const ISOLATED: bool = false;

use common::{PLENTY, Record, module, tasklet};

/// Since Linux 6.3 (`include/uapi/linux/prctl.h`).
const PR_SET_MDWE: libc::c_int = 65;
const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;

/// The only test of its program: what is refused stays so.
#[test]
fn code_runs_where_mprotect_may_not_make_any() {
    // SAFETY: it changes what this process may ask for, and nothing that it has.
    let set = unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0_u64, 0_u64, 0_u64) };
    assert_eq!(set, 0, "this kernel has no PR_SET_MDWE: {}", std::io::Error::last_os_error());
    // SAFETY: a fresh page, which nothing refers to.
    let refused = unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC)
    };
    assert_eq!(refused, -1, "mprotect makes code");
    for round in 0..20 {
        let module = module(&tasklet(&format!("(i32.store (i32.const 0) (i32.const {round})) (i64.const 4)")));
        let outcome = module.run(&[], &PLENTY, &mut Record::default());
        assert_eq!((outcome.status, outcome.output), (Status::Ok, vec![round, 0, 0, 0]));
    }
    let trap = module(&tasklet("(unreachable)")).run(&[], &PLENTY, &mut Record::default());
    assert_eq!(trap.status, Status::ExecFailed);
}
