//! Limit on the open files and sockets of the process.

use std::io;

/// Raises the limit on open descriptors as far as the system allows, and returns it.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`, which is there.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads one `rlimit`.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_hard_one() {
        let limit = raise_file_limit().expect("no privilege is needed");
        assert_eq!(raise_file_limit().expect("again"), limit);
        let status = std::fs::read_to_string("/proc/self/limits").expect("procfs");
        let line = status.lines().find(|line| line.starts_with("Max open files")).expect("a line");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!((words[3], words[4]), (limit.to_string().as_str(), limit.to_string().as_str()));
    }
}
