//! An invented sysfs for tests.

use std::fs;

use tempfile::TempDir;

/// A temporary directory with these files.
pub(crate) fn tree(files: &[(&str, &str)]) -> TempDir {
    let dir = TempDir::new().expect("a temporary directory");
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a file's directory")).expect("a new directory");
        fs::write(path, format!("{text}\n")).expect("a new file");
    }
    dir
}
