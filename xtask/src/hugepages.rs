//! Huge pages for as long as a measurement runs.

use std::fs;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// A reservation of 2 MiB pages; what was reserved before is restored when it is dropped.
pub(crate) struct Hugepages {
    before: Option<String>,
}

impl Hugepages {
    /// Reserves at least `pages`, or says why both contestants will run without.
    pub(crate) fn reserve(pages: usize) -> Self {
        let before = fs::read_to_string(POOL).unwrap_or_default().trim().to_owned();
        if before.parse().is_ok_and(|reserved: usize| reserved >= pages) {
            return Self { before: None };
        }
        match fs::write(POOL, pages.to_string()) {
            Ok(()) => Self { before: Some(before) },
            Err(error) => {
                eprintln!("no huge pages, measuring without: {POOL}: {error}");
                Self { before: None }
            }
        }
    }

    /// Whether so many pages of 2 MiB are free.
    pub(crate) fn free(pages: usize) -> bool {
        let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        free.is_ok_and(|free| free.trim().parse().is_ok_and(|free: usize| free >= pages))
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = fs::write(POOL, before);
        }
    }
}
