//! The guest's first root: busybox, the modules that reach the host's root, and `lab/init`.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::sysroot::Sysroot;
use crate::sh::cmd;

/// What the kernel has no built-in code for on the way to the host's root. Their dependencies come along.
const MODULES: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];
const APPLETS: &[&str] = &["sh", "cat", "mount", "mkdir", "insmod", "chroot", "reboot"];
const INIT: &str = "lab/init";

/// Makes the image where it is not there yet, or older than what it is made of.
pub(super) fn make(sysroot: &Sysroot, folder: &Path) -> Result<PathBuf> {
    let image = folder.join("initramfs.cpio");
    let made = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    if made(&image).is_some_and(|at| made(Path::new(INIT)) < Some(at) && made(&sysroot.stamp()) < Some(at)) {
        return Ok(image);
    }
    let mut archive = Archive::default();
    for name in ["bin", "modules", "proc", "sys", "dev", "lower", "upper", "new"] {
        archive.add(name, 0o040_755, &[]);
    }
    archive.add("init", 0o100_755, &read(Path::new(INIT))?);
    archive.add("bin/busybox", 0o100_755, &read(&sysroot.path("usr/bin/busybox"))?);
    for applet in APPLETS {
        archive.add(&format!("bin/{applet}"), 0o120_777, b"busybox");
    }
    let mut order = String::new();
    for path in closure(&sysroot.modules())? {
        let file = path.file_name().context("a module is a file")?.to_string_lossy().into_owned();
        let bytes = match file.strip_suffix(".xz") {
            Some(_) => decompress(&path)?,
            None => read(&path)?,
        };
        let name = file.trim_end_matches(".xz");
        archive.add(&format!("modules/{name}"), 0o100_644, &bytes);
        order.push_str(name);
        order.push('\n');
    }
    archive.add("modules/order", 0o100_644, order.as_bytes());
    fs::write(&image, archive.finish()).with_context(|| format!("cannot write {}", image.display()))?;
    Ok(image)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn decompress(path: &Path) -> Result<Vec<u8>> {
    let out = cmd("xz", ["-dc".as_ref(), path.as_os_str()]).output().context("cannot start xz")?;
    ensure!(out.status.success(), "xz could not read {}", path.display());
    Ok(out.stdout)
}

/// The files of [`MODULES`] and all that they depend on, in the order in which they load. One that `modules.dep` does
/// not know is built into the kernel.
fn closure(folder: &Path) -> Result<Vec<PathBuf>> {
    let text = String::from_utf8(read(&folder.join("modules.dep"))?)?;
    let lines: HashMap<&str, (&str, &str)> =
        text.lines().filter_map(|line| line.split_once(':')).map(|(file, needs)| (stem(file), (file, needs))).collect();
    let mut files = Vec::new();
    for module in MODULES {
        let Some((file, needs)) = lines.get(module) else { continue };
        // What is listed last has to be loaded first.
        for file in needs.split_whitespace().rev().chain([*file]) {
            let path = folder.join(file);
            if !files.contains(&path) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// `kernel/fs/9p/9p.ko.xz` is `9p`.
fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name)
}

/// A cpio archive in the format that the kernel unpacks ("newc").
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let fields = [self.entries, mode, 0, 0, 1, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
