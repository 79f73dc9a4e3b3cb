//! DPDK's environment abstraction layer (EAL), initialised once.

use std::{
    cell::Cell,
    ffi::CString,
    sync::atomic::{AtomicBool, Ordering},
};

use berth_dpdk_sys as sys;

use crate::{
    error::{Errno, Error},
    unmap,
};

/// Source of packet memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Huge pages, taken as needed and returned when the process ends. hugetlbfs need not be mounted.
    HugePages,
    /// Ordinary pages. They are slower, and only for software devices, because their physical addresses are not known.
    OrdinaryPages {
        /// Amount in MiB; all of it is taken at once.
        mib: u32,
    },
}

/// Settings of EAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EalConfig {
    /// CPUs on which DPDK's own threads (interrupts, memif's control channel) may run, preferably none of the poll
    /// cores. If empty, those of the calling thread.
    pub cpus: Vec<usize>,
    /// Source of packet memory.
    pub memory: Memory,
}

/// Proof that EAL is initialised.
#[derive(Debug, Clone, Copy)]
pub struct Eal(());

static INITIALISED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Initialises EAL, once in the life of the process.
    ///
    /// It takes no device yet, not even PCI devices bound to a user-space driver: ports open the ones that they need.
    pub fn init(config: &EalConfig) -> Result<Self, Error> {
        if config.memory == Memory::HugePages && free_huge_pages() == 0 {
            return Err(Error::NoHugePages);
        }
        if INITIALISED.swap(true, Ordering::SeqCst) {
            return Err(Error::AlreadyInitialised);
        }
        unmap::prepare().map_err(Error::Eal)?;
        let prefix = format!("berth-{}", std::process::id());
        let arguments = arguments(config, &prefix);
        let cpus = config.cpus.clone();
        // EAL pins the thread that initialises it to its own lcore, so that thread is one nobody needs afterwards.
        std::thread::spawn(move || init_here(arguments, &cpus)).join().expect("EAL initialisation does not panic")?;
        // EAL makes a runtime directory for the files of multi-process use. There are none: nothing is shared.
        let parent = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !is_root()).unwrap_or_else(|| "/var/run".into());
        let _ = std::fs::remove_dir(std::path::Path::new(&parent).join("dpdk").join(prefix));
        Ok(Self(()))
    }
}

fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

fn arguments(config: &EalConfig, prefix: &str) -> Vec<String> {
    let cpus = match &config.cpus[..] {
        [] => (0..libc::CPU_SETSIZE as usize).filter(|&cpu| affinity_contains(cpu)).collect(),
        cpus => cpus.to_vec(),
    };
    let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
    let mut arguments: Vec<String> = ["berth", "--no-telemetry", "--log-level", "error", "--file-prefix", prefix]
        .into_iter()
        .map(Into::into)
        .collect();
    // One lcore, floating over the cores that are EAL's; poll threads register themselves.
    arguments.extend(["--lcores".into(), format!("0@({})", cpus.join(","))]);
    // An allow list with an address no driver can take: devices are probed when a port opens them.
    arguments.extend(["-a".into(), "0000:00:00.0".into()]);
    match config.memory {
        // vhost shares at most eight files of memory with its peer, so a page is not a file of its own.
        Memory::HugePages => arguments.extend(["--in-memory".into(), "--single-file-segments".into()]),
        // DPDK refuses --in-memory with --no-huge; without shared configuration the effect is the same.
        Memory::OrdinaryPages { mib } => {
            arguments.extend(["--no-huge".into(), "--no-shconf".into(), "-m".into(), mib.to_string()]);
        }
    }
    arguments
}

/// Initialises EAL on this thread, which is confined to `cpus` meanwhile.
fn init_here(arguments: Vec<String>, cpus: &[usize]) -> Result<(), Error> {
    if !cpus.is_empty() {
        // SAFETY: a cpu_set_t is a bit set, for which all zeros is a value.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            // SAFETY: the core number was just checked against the set's size.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        // A core that does not exist is EAL's to report, below.
        // SAFETY: `set` is valid for reads of its size.
        unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
    }
    let arguments: Result<Vec<CString>, _> =
        arguments.into_iter().map(|a| CString::new(a.clone()).map_err(|_| Error::Nul(a))).collect();
    // EAL keeps pointers into its arguments for the life of the process.
    let arguments = Box::leak(arguments?.into_boxed_slice());
    let mut argv: Vec<_> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
    let argc = argv.len() as i32;
    argv.push(std::ptr::null_mut());
    // SAFETY: argv holds argc strings that live for ever, then a null; both arrays may be permuted. The swap of
    // INITIALISED lets one caller through.
    Errno::check(unsafe { sys::rte_eal_init(argc, Box::leak(argv.into_boxed_slice()).as_mut_ptr()) })
        .map_err(Error::Eal)?;
    Ok(())
}

fn affinity_contains(cpu: usize) -> bool {
    // SAFETY: a cpu_set_t is a bit set, for which all zeros is a value; the call fills it within its size, and
    // the caller keeps `cpu` below CPU_SETSIZE.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0 && libc::CPU_ISSET(cpu, &set)
    }
}

/// Number of free huge pages of all sizes, on all NUMA nodes together.
fn free_huge_pages() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    sizes
        .flatten()
        .filter_map(|size| std::fs::read_to_string(size.path().join("free_hugepages")).ok())
        .filter_map(|free| free.trim().parse::<u64>().ok())
        .sum()
}

thread_local! {
    static REGISTRATION: Registration = const { Registration(Cell::new(false)) };
}

/// A thread's registration with EAL, which gives it an lcore id and with that its own caches of packet buffers.
struct Registration(Cell<bool>);

impl Drop for Registration {
    fn drop(&mut self) {
        if self.0.get() {
            // SAFETY: this thread registered itself, and ends.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}

/// Registers the calling thread, if it is not yet. If DPDK has no lcore id left (it has 128), the thread works without
/// caches.
pub(crate) fn register_thread() {
    REGISTRATION.with(|registration| {
        // SAFETY: EAL is initialised, as whoever holds a port shows; registering twice is excluded by the flag.
        if !registration.0.get() && unsafe { sys::rte_thread_register() } == 0 {
            registration.0.set(true);
        }
    });
}
