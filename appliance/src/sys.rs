//! Reads of `/proc` and `/sys`, below a root that tests replace.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The file system as this process sees it, or a copy in a test's folder.
#[derive(Debug, Clone)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_path_buf())
    }

    /// The place of an absolute path below this root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The contents of a file without white space around them, or `None` where it cannot be read.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_string())
    }

    /// The first `most` bytes of a file, or as many as may be read; `None` where none may.
    pub(crate) fn bytes(&self, path: &str, most: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        fs::File::open(self.path(path)).ok()?.take(most).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The decimal number in a file; `None` where there is none.
    pub(crate) fn number(&self, path: &str) -> Option<i64> {
        self.read(path)?.parse().ok()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder, sorted; empty where it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// The last component that a symbolic link points to; `None` where there is no link.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The value behind the first `key:` in a file of such lines; `None` where there is none.
    pub(crate) fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.read(path)?;
        let mut values = text.lines().filter_map(|line| line.split_once(':').filter(|(name, _)| name.trim() == key));
        values.next().map(|(_, value)| value.trim().to_string())
    }

    /// The CPUs that this process may run on; empty where `/proc/self/status` does not tell.
    pub(crate) fn allowed_cpus(&self) -> Vec<usize> {
        cpu_list(&self.field("/proc/self/status", "Cpus_allowed_list").unwrap_or_default())
    }
}

/// Expands a kernel list such as `0-3,8`; parts that are no numbers are left out.
pub(crate) fn cpu_list(list: &str) -> Vec<usize> {
    let ranges = list.split(',').filter_map(|part| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        Some(low.trim().parse::<usize>().ok()?..=high.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}
