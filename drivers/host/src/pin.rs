//! Threads pinned to a CPU, and the check that they are.

use std::{fs, io, mem::zeroed};

use core_affinity::CoreId;

/// Why a thread could not be pinned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// The machine has no such CPU, or it is offline.
    #[error("cpu {cpu} does not exist: online are {online}")]
    NoSuchCpu {
        /// Number of the CPU.
        cpu: usize,
        /// CPUs that are online, as ranges.
        online: String,
    },
    /// The CPU exists, but the kernel does not let this thread run there.
    #[error("cpu {cpu} is barred to this process: add it to its cpuset (cgroup `cpuset.cpus`, systemd `AllowedCPUs=`)")]
    Barred {
        /// Number of the CPU.
        cpu: usize,
    },
}

/// Pins the calling thread to a CPU, and checks that it runs there and may run nowhere else.
pub fn pin_current_thread(cpu: usize) -> Result<(), PinError> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let online = online.trim();
    // Without sysfs the kernel's own refusal has to do.
    if cpu >= libc::CPU_SETSIZE as usize || !(online.is_empty() || in_ranges(online, cpu)) {
        return Err(PinError::NoSuchCpu { cpu, online: online.into() });
    }
    if core_affinity::set_for_current(CoreId { id: cpu }) && is_pinned(cpu) {
        Ok(())
    } else {
        Err(PinError::Barred { cpu })
    }
}

/// Keeps the calling thread on these CPUs.
///
/// # Errors
/// The kernel's: none of them is online, or this process may not use them.
pub fn keep_current_thread(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero set is a valid, empty one; CPUs outside of it are left out; the kernel reads the size given.
    let done = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether `cpu` is in a list such as `0-3,8`.
fn in_ranges(list: &str, cpu: usize) -> bool {
    list.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&cpu))
    })
}

fn is_pinned(cpu: usize) -> bool {
    // SAFETY: an all-zero set is a valid, empty one; the kernel writes at most the size given; `cpu` was checked
    // against the size of the set.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0
            && libc::CPU_ISSET(cpu, &set)
            && libc::CPU_COUNT(&set) == 1
            && usize::try_from(libc::sched_getcpu()) == Ok(cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_where_it_is() {
        std::thread::spawn(|| {
            for cpu in [0, 1, 0] {
                if let Err(PinError::NoSuchCpu { .. } | PinError::Barred { .. }) = pin_current_thread(cpu) {
                    // A machine with a single processor, or a cpuset without this one.
                    assert!(!is_pinned(cpu));
                    continue;
                }
                assert!(is_pinned(cpu) && !is_pinned(cpu ^ 1));
                assert_eq!(core_affinity::get_core_ids(), Some(vec![CoreId { id: cpu }]));
            }
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_thread_is_kept_on_what_it_is_told() {
        std::thread::spawn(|| {
            let all = core_affinity::get_core_ids().expect("some");
            keep_current_thread(&[all[0].id, 100_000]).expect("it may be there");
            assert_eq!(core_affinity::get_core_ids(), Some(vec![all[0]]));
            assert!(keep_current_thread(&[]).is_err(), "nowhere");
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_missing_processor_is_named_with_those_that_exist() {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").expect("sysfs");
        for cpu in [1023, 1024, usize::MAX] {
            let error = pin_current_thread(cpu).expect_err("no machine has so many");
            assert_eq!(error.to_string(), format!("cpu {cpu} does not exist: online are {}", online.trim()));
        }
    }

    #[test]
    fn ranges() {
        for (list, inside, outside) in [("0", 0, 1), ("0-3", 3, 4), ("0-1,8,10-11", 8, 9), ("0-1,8,10-11", 10, 2)] {
            assert!(in_ranges(list, inside) && !in_ranges(list, outside), "{list}");
        }
    }
}
