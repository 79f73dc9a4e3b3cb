//! Delays the unmapping of a memif peer's memory until no burst uses it.
//!
//! When a peer closes the control channel or dies, DPDK's memif driver marks the device as not connected, which bursts
//! check at their start. It then unmaps the peer's memory on DPDK's interrupt thread, without waiting for a burst that
//! has begun (DPDK 22.11; a poll thread that is preempted inside one then reads unmapped memory). The waiting is
//! therefore done here. This module defines `munmap`, which replaces the C library's in this process, for the driver
//! too, and lets every memif burst end before the kernel unmaps anything. While a memif is open, each `munmap` of the
//! process interrupts every CPU that runs one of its threads, for about a microsecond; otherwise it costs a fence.

use std::{
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, compiler_fence, fence},
};

use crate::error::Errno;

/// Counter that is odd while a queue's thread is inside the memif driver.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Bursts {
    count: AtomicU64,
    taken: AtomicBool,
    next: AtomicPtr<Bursts>,
}

/// All that were ever made, which are few: one is reused when its queue is gone.
static ALL: AtomicPtr<Bursts> = AtomicPtr::new(ptr::null_mut());

/// Registers the process for the kernel's barriers.
pub(crate) fn prepare() -> Result<(), Errno> {
    // SAFETY: the call takes three numbers.
    match unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) } {
        0 => Ok(()),
        _ => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))),
    }
}

impl Bursts {
    /// Takes one for a queue; it is returned on drop.
    pub(crate) fn register() -> Registered {
        let free = |bursts: &&Self| !bursts.taken.swap(true, Ordering::Relaxed);
        let taken = all().find(free).unwrap_or_else(|| {
            let new = Box::leak(Box::<Self>::default());
            new.taken.store(true, Ordering::Relaxed);
            let mut head = ALL.load(Ordering::Relaxed);
            loop {
                new.next.store(head, Ordering::Relaxed);
                match ALL.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => return new,
                    Err(other) => head = other,
                }
            }
        });
        // Whoever unmaps after a burst of this queue saw its device connected sees that it is taken.
        fence(Ordering::SeqCst);
        Registered(taken)
    }
}

fn all() -> impl Iterator<Item = &'static Bursts> {
    // SAFETY: every pointer in the list came from Box::leak, and Release and Acquire order its contents before it.
    let follow = |at: &AtomicPtr<Bursts>| unsafe { at.load(Ordering::Acquire).as_ref() };
    std::iter::successors(follow(&ALL), move |bursts| follow(&bursts.next))
}

/// A queue's [`Bursts`].
#[derive(Debug)]
pub(crate) struct Registered(&'static Bursts);

impl Registered {
    /// Runs `burst`, whose memory stays mapped meanwhile. It costs two plain stores: the barrier that `munmap` makes
    /// every thread execute orders them.
    #[inline]
    pub(crate) fn during<R>(&self, burst: impl FnOnce() -> R) -> R {
        let count = &self.0.count;
        // Only this queue's thread writes it.
        let before = count.load(Ordering::Relaxed);
        count.store(before.wrapping_add(1), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let result = burst();
        count.store(before.wrapping_add(2), Ordering::Release);
        result
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Waits for the end of every burst that began before. False if no memif is open, so that no CPU was interrupted.
fn wait_for_bursts() -> bool {
    // The driver marked its device as not connected before it came here.
    fence(Ordering::SeqCst);
    if !all().any(|bursts| bursts.taken.load(Ordering::Relaxed)) {
        return false;
    }
    // After it, a burst either is seen as begun below, or sees that its device is not connected.
    // SAFETY: the call takes three numbers; `prepare` announced it, so it cannot fail.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) };
    for bursts in all() {
        let begun = bursts.count.load(Ordering::Acquire);
        while begun & 1 == 1 && bursts.count.load(Ordering::Acquire) == begun {
            std::thread::yield_now();
        }
    }
    true
}

/// The C library's `munmap`, once no memif burst is under way. Takes no lock and allocates nothing, because allocators
/// call it.
///
/// # Safety
/// As for munmap(2): nothing may refer to the `len` bytes at `addr`.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut libc::c_void, len: libc::size_t) -> libc::c_int {
    wait_for_bursts();
    // SAFETY: handed on to the caller of this function.
    unsafe { libc::syscall(libc::SYS_munmap, addr, len) as libc::c_int }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Mutex, PoisonError, mpsc},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    /// Serialises the tests, because all share the process's list of queues.
    static TURN: Mutex<()> = Mutex::new(());

    /// The microsecond that every other `munmap` costs is gone with the last memif.
    #[test]
    fn no_cpu_is_interrupted_while_no_memif_is_open() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        prepare().unwrap();
        assert!(!wait_for_bursts());
        let queues = [(); 2].map(|()| Bursts::register());
        assert!(wait_for_bursts());
        let [first, last] = queues;
        drop(first);
        assert!(wait_for_bursts());
        drop(last);
        assert!(!wait_for_bursts());
        assert!(Bursts::register().during(|| true), "its place is taken again");
        assert!(!wait_for_bursts());
    }

    #[test]
    fn memory_stays_mapped_until_a_burst_ends() {
        const BURST: Duration = Duration::from_millis(100);
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        prepare().unwrap();
        let (begun, wait) = mpsc::channel();
        // The last one registered, so that the whole list is walked.
        let _idle = Bursts::register();
        let burst = thread::spawn(move || {
            Bursts::register().during(|| {
                begun.send(()).unwrap();
                thread::sleep(BURST);
                Instant::now()
            })
        });
        wait.recv().unwrap();
        // SAFETY: a new anonymous mapping, to which nothing refers, is made and unmapped.
        unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(ptr::null_mut(), 4096, protection, flags, -1, 0);
            assert_eq!(libc::munmap(page, 4096), 0);
        }
        let unmapped = Instant::now();
        assert!(burst.join().unwrap() <= unmapped);
        assert!(!all().any(|bursts| bursts.count.load(Ordering::Relaxed) & 1 == 1));
    }
}
