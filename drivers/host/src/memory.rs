//! Memory of the process.

/// Returns freed memory to the system. glibc keeps free pages that lie below used ones; other allocators are left
/// alone.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers; it takes the allocator's locks like any other call of it.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Number of resident pages of 4 KiB.
    fn resident() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("procfs");
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages")
    }

    #[test]
    fn free_pages_below_used_ones_go_back() {
        // 25 to a page; the one in a thousand that stays keeps all of them from going by themselves.
        let mut boxes: Vec<_> = (0..500_000_u64).map(|n| Some(Box::new([n; 20]))).collect();
        for (n, one) in boxes.iter_mut().enumerate() {
            *one = one.take().filter(|_| n % 1000 == 999);
        }
        let before = resident();
        release_free_memory();
        let after = resident();
        assert!(before - after > 15_000, "{before} pages, then {after}");
        assert!(boxes.iter().flatten().map(|one| one[19]).eq((999..500_000).step_by(1000)));
    }
}
