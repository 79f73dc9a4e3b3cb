//! Memory of one NUMA node.

use std::{io, ptr};

const MPOL_DEFAULT: libc::c_int = 0;
const MPOL_BIND: libc::c_int = 2;

/// Runs `allocate`. Pages that this thread faults in meanwhile come from NUMA node `node` and from no other.
pub(crate) fn on_node<T>(node: u32, allocate: impl FnOnce() -> T) -> io::Result<T> {
    /// Restores the thread's policy, even if `allocate` panics.
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: without a mask nothing is read.
            unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_DEFAULT, ptr::null::<u64>(), 0) };
        }
    }
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else { return Err(io::ErrorKind::InvalidInput.into()) };
    *word |= 1 << (node % 64);
    // The kernel counts one bit less than it is told.
    let bits = size_of_val(&mask) * 8 + 1;
    // SAFETY: the mask is as long as said.
    if unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_BIND, mask.as_ptr(), bits) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let _restore = Restore;
    Ok(allocate())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory policy of the calling thread, and whether its mask contains node 0.
    fn policy() -> (libc::c_int, bool) {
        let (mut mode, mut mask) = (-1, [0u64; 16]);
        let bits = size_of_val(&mask) * 8;
        // SAFETY: the kernel writes the mode and at most as many bits as said.
        let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), bits, 0, 0) };
        assert_eq!(got, 0);
        (mode, mask[0] & 1 == 1)
    }

    #[test]
    fn the_policy_lasts_as_long_as_the_allocation() {
        assert_eq!(policy(), (MPOL_DEFAULT, false));
        assert_eq!(on_node(0, policy).unwrap(), (MPOL_BIND, true));
        assert_eq!(policy(), (MPOL_DEFAULT, false));
        assert!(std::panic::catch_unwind(|| on_node(0, || panic!("out of pages"))).is_err());
        assert_eq!(policy(), (MPOL_DEFAULT, false));
        // Nodes that the machine lacks, and that no machine has.
        assert_eq!(on_node(1000, policy).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(on_node(1024, policy).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
